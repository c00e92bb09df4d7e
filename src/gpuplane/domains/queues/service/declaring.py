"""Declaring queues: make, change and withdraw them, and find the door of a job."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from gpuplane.core.hardware import nearest_models
from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    CohortSpec,
    FlavorResource,
    LocalQueueSpec,
    SpecProblem,
    list_spec_problems,
)
from gpuplane.core.workloads import PRIORITY_VALUES, Priority
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterState
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.identity import service as identity
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.errors import (
    BadQueue,
    ClusterLeaves,
    QueueChanged,
    QueueExists,
    QueueInUse,
    QueueNotFound,
)
from gpuplane.domains.queues.repository import Declared, Door
from gpuplane.domains.queues.rules import (
    QueueSpecs,
    default_door,
    default_specs,
    find_door,
    find_misspelt_flavor,
    find_unknown_model,
    grants,
)
from gpuplane.domains.queues.rules.seen import Seen, SeenKind
from gpuplane.kit.errors import FieldError
from gpuplane.kube.kueue.queues import find_untold, find_untold_door
from gpuplane.kube.tenancy import namespace_of

T = TypeVar("T")

CountUsers = Callable[[ReadSession, ClusterId, str], int]
"""Counts the jobs that hold devices through a ClusterQueue; offered by a domain above."""

ADOPTERS = {
    SeenKind.CLUSTER_QUEUE: "quotas",
    SeenKind.LOCAL_QUEUE: "queues",
    SeenKind.COHORT: "cohorts",
}
"""The command under which each kind is adopted."""
KUEUE_FIELDS = {
    "resource_groups": "resourceGroups",
    "quotas": "resourceGroups",
    "preemption": "preemption",
    "flavor_fungibility": "flavorFungibility",
    "fair_weight_milli": "fairSharing.weight",
    "parent": "parent",
    "cluster_queue": "clusterQueue",
    "limits": "limits",
    "covers_everything": "coversEverything",
    "name": "name",
}
"""The names people write for the fields that the core names."""


@dataclass(frozen=True, slots=True)
class DeclaredQueues:
    """Everything declared on a cluster, with the names of the tenants of its doors."""

    cluster: Cluster
    cluster_queues: tuple[Declared[ClusterQueueSpec], ...]
    cohorts: tuple[Declared[CohortSpec], ...]
    local_queues: tuple[Declared[Door], ...]
    tenants: dict[TenantId, str]
    seen: tuple[Seen, ...] = ()
    """What the cluster shows, where it admits by itself."""

    def specs(self) -> QueueSpecs:
        """Return the declarations as the decision core reads them."""
        return QueueSpecs(
            tuple(each.spec for each in self.cluster_queues),
            tuple(each.spec for each in self.cohorts),
            tuple(_local_spec(each, self.tenants) for each in self.local_queues),
        )


def load_specs(session: ReadSession, cluster_id: ClusterId) -> QueueSpecs:
    """Return everything declared about the queues of a cluster, or the default of none."""
    queues = repository.list_cluster_queues(session, cluster_id)
    if not queues:
        return default_specs()
    doors = repository.list_local_queues(session, cluster_id)
    tenants = identity.tenants_by_ids(session, {each.spec.tenant_id for each in doors})
    names = {key: each.name for key, each in tenants.items()}
    return QueueSpecs(
        tuple(each.spec for each in queues),
        tuple(each.spec for each in repository.list_cohorts(session, cluster_id)),
        tuple(_local_spec(each, names) for each in doors),
    )


def choose_door(
    specs: QueueSpecs, tenant: str, job_type: str, name: str | None, priority: Priority
) -> LocalQueueSpec | None:
    """Return the door a job goes through; tenants without any use a queue that covers all."""
    door = find_door(specs, tenant, job_type, name, priority)
    if door is not None or name not in (None, "default"):
        return door
    door = default_door(specs, tenant)
    return door if door is not None and grants(specs, door, priority) else None


def find_highest_class(
    specs: QueueSpecs, tenant: str, job_type: str, name: str | None
) -> tuple[str, Priority] | None:
    """Return the door of a job that grants the highest class and that class, None without one."""
    for priority in sorted(Priority, key=PRIORITY_VALUES.__getitem__, reverse=True):
        door = choose_door(specs, tenant, job_type, name, priority)
        if door is not None:
            return door.name, priority
    return None


def load_declared(session: ReadSession, key: UUID | str) -> DeclaredQueues:
    """Return everything declared on a cluster."""
    cluster = clusters.get_cluster(session, key)
    doors = repository.list_local_queues(session, cluster.id)
    tenants = identity.tenants_by_ids(session, {each.spec.tenant_id for each in doors})
    return DeclaredQueues(
        cluster,
        repository.list_cluster_queues(session, cluster.id),
        repository.list_cohorts(session, cluster.id),
        doors,
        {key: each.name for key, each in tenants.items()},
        tuple(repository.list_seen(session, cluster.id)),
    )


def find_tenant_id(session: ReadSession, name: str) -> TenantId:
    """Return the id of a tenant by its name or id.

    Raises:
        BadQueue: If there is none.
    """
    try:
        found = identity.tenants_by_ids(session, {TenantId(UUID(name))}).get(TenantId(UUID(name)))
    except ValueError:
        found = identity.find_tenant_by_name(session, name)
    if found is None:
        raise BadQueue(
            f"There is no tenant {name!r}.", field="tenant", fix="List the tenants for their names."
        )
    return found.id


def create_cluster_queue(
    session: WriteSession, key: UUID | str, spec: ClusterQueueSpec, actor: str, now: int
) -> DeclaredQueues:
    """Declare a ClusterQueue.

    Raises:
        BadQueue: If Kueue's rules refuse it.
        QueueExists: If the cluster has one of that name.
    """
    known = load_declared(session, key)
    _refuse_double(spec.name, [each.name for each in known.cluster_queues], "ClusterQueue")
    refuse_others(session, known, SeenKind.CLUSTER_QUEUE, spec.name)
    check_specs(known, cluster_queues=(*known.specs().cluster_queues, spec))
    _require_models(session, known.cluster, spec.quotas)
    repository.insert_cluster_queue(session, known.cluster.id, spec, now)
    announce(session, known.cluster, "queue.created", "cluster_queue", spec.name, actor, now)
    return load_declared(session, key)


def change_cluster_queue(
    session: WriteSession,
    key: UUID | str,
    spec: ClusterQueueSpec,
    version: int | None,
    actor: str,
    now: int,
) -> DeclaredQueues:
    """Replace a ClusterQueue; what runs goes on and counts against the new quotas.

    Raises:
        QueueNotFound: If there is none of that name.
        BadQueue: If Kueue's rules refuse it.
        QueueChanged: If it is not the version that was read.
    """
    known = load_declared(session, key)
    _require_own(session, known, known.cluster_queues, SeenKind.CLUSTER_QUEUE, spec.name)
    current = _get(known.cluster_queues, spec.name, "ClusterQueue")
    others = tuple(each for each in known.specs().cluster_queues if each.name != spec.name)
    check_specs(known, cluster_queues=(*others, spec))
    _require_models(session, known.cluster, spec.quotas.keys() - current.spec.quotas.keys())
    done = repository.update_cluster_queue(
        session, known.cluster.id, spec, version or current.version, now
    )
    _must(spec.name, done=done)
    announce(session, known.cluster, "queue.changed", "cluster_queue", spec.name, actor, now)
    return load_declared(session, key)


def delete_cluster_queue(
    session: WriteSession,
    key: UUID | str,
    name: str,
    count_users: CountUsers,
    actor: str,
    now: int,
) -> None:
    """Withdraw a ClusterQueue that no LocalQueue leads to and nothing runs through.

    Raises:
        QueueNotFound: If there is none of that name.
        QueueInUse: If it is used.
    """
    known = load_declared(session, key)
    _require_own(session, known, known.cluster_queues, SeenKind.CLUSTER_QUEUE, name)
    _get(known.cluster_queues, name, "ClusterQueue")
    doors = [each.name for each in known.local_queues if each.spec.cluster_queue == name]
    if doors:
        raise QueueInUse(
            f"LocalQueue {doors[0]} leads to {name}.",
            fix="Let it lead to another ClusterQueue, or delete it first.",
        )
    users = count_users(session, known.cluster.id, name)
    if users:
        noun = "job holds" if users == 1 else "jobs hold"
        raise QueueInUse(
            f"{users} {noun} devices through {name}.", fix="Wait for their end, or cancel them."
        )
    repository.delete_cluster_queue(session, known.cluster.id, name)
    announce(session, known.cluster, "queue.deleted", "cluster_queue", name, actor, now)


def create_cohort(
    session: WriteSession,
    key: UUID | str,
    spec: CohortSpec,
    members: Sequence[str] | None,
    actor: str,
    now: int,
) -> DeclaredQueues:
    """Declare a Cohort; when members are named, exactly these ClusterQueues are in it.

    Raises:
        BadQueue: If Kueue's rules refuse it.
        QueueExists: If the cluster has one of that name.
    """
    known = load_declared(session, key)
    _refuse_double(spec.name, [each.name for each in known.cohorts], "Cohort")
    refuse_others(session, known, SeenKind.COHORT, spec.name)
    check_specs(known, cohorts=(*known.specs().cohorts, spec))
    _require_models(session, known.cluster, spec.quotas)
    repository.insert_cohort(session, known.cluster.id, spec, now)
    announce(session, known.cluster, "queue.created", "cohort", spec.name, actor, now)
    if members is not None:
        _join(session, key, spec.name, members, actor, now)
    return load_declared(session, key)


def change_cohort(
    session: WriteSession,
    key: UUID | str,
    spec: CohortSpec,
    members: Sequence[str] | None,
    version: int | None,
    actor: str,
    now: int,
) -> DeclaredQueues:
    """Replace a Cohort; when members are named, exactly these ClusterQueues are in it.

    Raises:
        QueueNotFound: If there is none of that name.
        BadQueue: If Kueue's rules refuse it.
        QueueChanged: If it is not the version that was read.
    """
    known = load_declared(session, key)
    _require_own(session, known, known.cohorts, SeenKind.COHORT, spec.name)
    current = _get(known.cohorts, spec.name, "Cohort")
    others = tuple(each for each in known.specs().cohorts if each.name != spec.name)
    check_specs(known, cohorts=(*others, spec))
    _require_models(session, known.cluster, spec.quotas.keys() - current.spec.quotas.keys())
    done = repository.update_cohort(
        session, known.cluster.id, spec, version or current.version, now
    )
    _must(spec.name, done=done)
    announce(session, known.cluster, "queue.changed", "cohort", spec.name, actor, now)
    if members is not None:
        _join(session, key, spec.name, members, actor, now)
    return load_declared(session, key)


def delete_cohort(session: WriteSession, key: UUID | str, name: str, actor: str, now: int) -> None:
    """Withdraw a Cohort without members.

    Raises:
        QueueNotFound: If there is none of that name.
        QueueInUse: If a ClusterQueue or a Cohort is in it.
    """
    known = load_declared(session, key)
    _require_own(session, known, known.cohorts, SeenKind.COHORT, name)
    inside = [each.name for each in known.cluster_queues if each.spec.cohort == name]
    inside += [each.name for each in known.cohorts if each.spec.parent == name]
    if inside:
        raise QueueInUse(f"{inside[0]} is in {name}.", fix="Take its members out first.")
    _get(known.cohorts, name, "Cohort")
    repository.delete_cohort(session, known.cluster.id, name)
    announce(session, known.cluster, "queue.deleted", "cohort", name, actor, now)


def create_local_queue(
    session: WriteSession, key: UUID | str, name: str, door: Door, actor: str, now: int
) -> DeclaredQueues:
    """Open a tenant's door to a ClusterQueue.

    Raises:
        BadQueue: If Kueue's rules refuse it.
        QueueExists: If the tenant has one of that name on the cluster.
    """
    known = load_declared(session, key)
    doubles = [each.name for each in known.local_queues if each.spec.tenant_id == door.tenant_id]
    _refuse_double(name, doubles, "LocalQueue")
    tenant = identity.tenants_by_ids(session, {door.tenant_id}).get(door.tenant_id)
    space = "" if tenant is None else namespace_of(tenant.name)
    refuse_others(session, known, SeenKind.LOCAL_QUEUE, name, space)
    _check_door(session, known, name, door)
    repository.insert_local_queue(session, known.cluster.id, name, door, now)
    announce(
        session, known.cluster, "queue.created", "local_queue", name, actor, now, door.tenant_id
    )
    return load_declared(session, key)


def change_local_queue(
    session: WriteSession,
    key: UUID | str,
    name: str,
    door: Door,
    version: int | None,
    actor: str,
    now: int,
) -> DeclaredQueues:
    """Replace a tenant's LocalQueue; what runs goes on.

    Raises:
        QueueNotFound: If the tenant has none of that name.
        BadQueue: If Kueue's rules refuse it.
        QueueChanged: If it is not the version that was read.
    """
    known = load_declared(session, key)
    current = _get_door(known, name, door.tenant_id)
    _check_door(session, known, name, door)
    done = repository.update_local_queue(
        session, known.cluster.id, name, door, version or current.version, now
    )
    _must(name, done=done)
    announce(
        session, known.cluster, "queue.changed", "local_queue", name, actor, now, door.tenant_id
    )
    return load_declared(session, key)


def delete_local_queue(
    session: WriteSession,
    key: UUID | str,
    name: str,
    tenant_id: TenantId,
    actor: str,
    now: int,
) -> None:
    """Close a tenant's door; what runs goes on, what waits looks for another.

    Raises:
        QueueNotFound: If the tenant has none of that name.
    """
    known = load_declared(session, key)
    _get_door(known, name, tenant_id)
    repository.delete_local_queue(session, known.cluster.id, name, tenant_id)
    announce(session, known.cluster, "queue.deleted", "local_queue", name, actor, now, tenant_id)


def _join(
    session: WriteSession,
    key: UUID | str,
    cohort: str,
    members: Sequence[str],
    actor: str,
    now: int,
) -> None:
    """Make exactly these ClusterQueues members of a cohort."""
    known = load_declared(session, key)
    for name in members:
        _get(known.cluster_queues, name, "ClusterQueue")
    for each in known.cluster_queues:
        wanted = cohort if each.name in members else None
        is_member = each.spec.cohort == cohort
        if is_member == (wanted is not None):
            continue
        change_cluster_queue(
            session, key, replace(each.spec, cohort=wanted), each.version, actor, now
        )


def check_specs(known: DeclaredQueues, **changes: Any) -> None:
    """Refuse declarations that would not hold together, or that the cluster cannot keep.

    Raises:
        BadQueue: Naming the field.
        ClusterLeaves: If the cluster is being deleted.
    """
    if known.cluster.state in (ClusterState.DRAINING, ClusterState.DELETING):
        raise ClusterLeaves(
            f"{known.cluster.name} is {known.cluster.state}: nothing is declared on it any more.",
            field="cluster",
            fix="Name another cluster, or register it again once it is gone.",
        )
    specs = replace(known.specs(), **changes)
    _check(specs)
    if known.cluster.config.get("admission") != "kueue":
        return
    for queue in specs.cluster_queues:
        untold = find_untold(queue)
        if untold is not None:
            raise BadQueue(untold, field="coversEverything", fix="Declare resourceGroups.")
    for door in specs.local_queues:
        untold = find_untold_door(door)
        if untold is not None:
            raise BadQueue(untold, field="limits", fix="Leave the limits out.")


def _check(specs: QueueSpecs) -> None:
    flavors = [
        flavor
        for queue in specs.cluster_queues
        for group in queue.resource_groups
        for flavor in group.flavors
    ]
    misspelt = find_misspelt_flavor(flavors)
    if misspelt is not None:
        raise BadQueue(
            f"The flavor {misspelt[0]!r} means a GPU model in another spelling than its own.",
            field="resourceGroups",
            fix=f"Write {misspelt[1]}.",
        )
    problems = list_spec_problems(specs.cluster_queues, specs.cohorts, specs.local_queues)
    if problems:
        raise _refused(problems)


def _require_models(
    session: ReadSession, cluster: Cluster, quotas: Iterable[FlavorResource]
) -> None:
    if cluster.config.get("admission") == "kueue":
        return  # a flavor is any ResourceFlavor there; one that is missing shows on the queue
    unknown = find_unknown_model(quotas, nodes.count_models(session, [cluster.id]))
    if unknown is not None:
        raise BadQueue(
            f"There is no GPU model {unknown!r}.",
            field="resourceGroups",
            fix=f"Nearest models: {', '.join(nearest_models(unknown))}; `any` is every model.",
        )


def _check_door(session: ReadSession, known: DeclaredQueues, name: str, door: Door) -> None:
    tenants = identity.tenants_by_ids(session, {door.tenant_id})
    names = {**known.tenants, **{key: each.name for key, each in tenants.items()}}
    others = tuple(
        _local_spec(each, names)
        for each in known.local_queues
        if (each.name, each.spec.tenant_id) != (name, door.tenant_id)
    )
    mine = _local_spec(Declared(name, door, 1, 0, 0), names)
    check_specs(known, local_queues=(*others, mine))


def _refused(problems: Sequence[SpecProblem]) -> BadQueue:
    found = tuple(
        FieldError(KUEUE_FIELDS.get(each.field, each.field), f"{each.subject}: {each.sentence}.")
        for each in problems
    )
    first = found[0]
    return BadQueue(first.reason, field=first.field, fix="Change the field named.", errors=found)


def _local_spec(declared: Declared[Door], tenants: dict[TenantId, str]) -> LocalQueueSpec:
    door = declared.spec
    return LocalQueueSpec(
        declared.name,
        tenants.get(door.tenant_id, str(door.tenant_id)),
        door.cluster_queue,
        frozenset(door.job_types),
        door.limits,
        door.highest_priority,
    )


def _get(declared: Sequence[Declared[T]], name: str, kind: str) -> Declared[T]:
    for each in declared:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in declared) or "none"
    raise QueueNotFound(f"There is no {kind} {name!r} on this cluster.", fix=f"There are: {names}.")


def _get_door(known: DeclaredQueues, name: str, tenant_id: TenantId) -> Declared[Door]:
    return _get(
        [each for each in known.local_queues if each.spec.tenant_id == tenant_id],
        name,
        "LocalQueue",
    )


def _refuse_double(name: str, known: Sequence[str], kind: str) -> None:
    if name in known:
        raise QueueExists(
            f"There is a {kind} {name!r} on this cluster already.",
            field="name",
            fix="Change it, or use another name.",
        )  # fmt: skip - the refusal reads as one line


def refuse_others(
    session: ReadSession, known: DeclaredQueues, kind: SeenKind, name: str, namespace: str = ""
) -> None:
    """Refuse a name under which somebody else has an object on the cluster.

    Raises:
        QueueExists: Naming what adopts it.
    """
    for each in repository.list_seen(session, known.cluster.id, kind):
        if (each.name, each.namespace) == (name, namespace) and not each.ours:
            raise QueueExists(
                f"Somebody else made a {kind} {name!r} on this cluster.",
                field="name",
                fix=f"Adopt it: gpuplane {ADOPTERS[kind]} adopt {name}. Or use another name.",
            )


def _require_own(
    session: ReadSession,
    known: DeclaredQueues,
    declared: Sequence[Declared[T]],
    kind: SeenKind,
    name: str,
) -> None:
    """Refuse to change what others made on the cluster."""
    if all(each.name != name for each in declared):
        refuse_others(session, known, kind, name)


def _must(name: str, *, done: bool) -> None:
    if not done:
        raise QueueChanged(
            f"{name} was changed by somebody else meanwhile.",
            fix="Read it again and repeat the change.",
        )


def announce(
    session: WriteSession,
    cluster: Cluster,
    event: str,
    kind: str,
    name: str,
    actor: str,
    now: int,
    tenant_id: TenantId | None = None,
) -> None:
    """Tell of a change of what is declared, and wake who acts on it."""
    verb = event.partition(".")[2]
    events.record(
        session,
        NewEvent(
            kind=event,
            at=now,
            tenant_id=tenant_id,
            cluster_id=cluster.id,
            subject_kind=kind,
            subject_id=name,
            actor=actor,
            message=f"{actor} {verb} the {kind.replace('_', ' ')} {name} on {cluster.name}.",
            audit=True,
        ),
    )
    session.wake("scheduler", "kueue")
