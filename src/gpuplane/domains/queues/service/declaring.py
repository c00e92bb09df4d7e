"""Declaring queues: make, change and withdraw them, and tell of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    CohortSpec,
)
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.identity import service as identity
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.errors import (
    QueueInUse,
)
from gpuplane.domains.queues.repository import Door
from gpuplane.domains.queues.rules import cluster_queue_of, cohort_of
from gpuplane.domains.queues.rules.seen import SeenKind
from gpuplane.domains.queues.service.declared import (
    DeclaredQueues,
    get_declared,
    get_door,
    load_declared,
)
from gpuplane.domains.queues.service.refusing import (
    check_door,
    check_specs,
    refuse_conflict,
    refuse_double,
    refuse_other_way,
    refuse_others,
    refuse_users,
    require_done,
    require_models,
    require_own,
)
from gpuplane.kube.tenancy import namespace_of

CountUsers = Callable[[ReadSession, ClusterId, str], int]
"""Counts the jobs that hold devices through a ClusterQueue; offered by a domain above."""
ListTenantJobs = Callable[[ReadSession, ClusterId, TenantId, str | None], list[str]]
"""Names the jobs of a tenant that hold devices or are offered, through one LocalQueue or any."""


def create_cluster_queue(
    session: WriteSession, key: UUID | str, spec: ClusterQueueSpec, actor: str, now: int
) -> DeclaredQueues:
    """Declare a ClusterQueue.

    Raises:
        BadQueue: If Kueue's rules refuse it.
        QueueExists: If the cluster has one of that name.
    """
    known = load_declared(session, key)
    refuse_double(spec.name, [each.name for each in known.cluster_queues], "ClusterQueue")
    refuse_others(session, known, SeenKind.CLUSTER_QUEUE, spec.name)
    check_specs(known, cluster_queues=(*known.specs().cluster_queues, spec))
    require_models(session, known.cluster, spec.quotas)
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
        QueueInConflict: If the cluster has something else by others, and keeps it.
    """
    known = load_declared(session, key)
    require_own(session, known, known.cluster_queues, SeenKind.CLUSTER_QUEUE, spec.name)
    current = get_declared(known.cluster_queues, spec.name, "ClusterQueue")
    refuse_conflict(known, SeenKind.CLUSTER_QUEUE, spec.name, spec, cluster_queue_of)
    others = tuple(each for each in known.specs().cluster_queues if each.name != spec.name)
    check_specs(known, cluster_queues=(*others, spec))
    require_models(session, known.cluster, spec.quotas.keys() - current.spec.quotas.keys())
    done = repository.update_cluster_queue(
        session, known.cluster.id, spec, version or current.version, now
    )
    require_done(spec.name, done=done)
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
    require_own(session, known, known.cluster_queues, SeenKind.CLUSTER_QUEUE, name)
    get_declared(known.cluster_queues, name, "ClusterQueue")
    doors = [each.name for each in known.local_queues if each.spec.cluster_queue == name]
    if doors:
        raise QueueInUse(
            f"LocalQueue {doors[0]} leads to {name}.",
            fix="Delete it first.",
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
    refuse_double(spec.name, [each.name for each in known.cohorts], "Cohort")
    refuse_others(session, known, SeenKind.COHORT, spec.name)
    check_specs(known, cohorts=(*known.specs().cohorts, spec))
    require_models(session, known.cluster, spec.quotas)
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
        QueueInConflict: If the cluster has something else by others, and keeps it.
    """
    known = load_declared(session, key)
    require_own(session, known, known.cohorts, SeenKind.COHORT, spec.name)
    current = get_declared(known.cohorts, spec.name, "Cohort")
    if spec != current.spec:  # its members alone may be changed
        refuse_conflict(known, SeenKind.COHORT, spec.name, spec, cohort_of)
    others = tuple(each for each in known.specs().cohorts if each.name != spec.name)
    check_specs(known, cohorts=(*others, spec))
    require_models(session, known.cluster, spec.quotas.keys() - current.spec.quotas.keys())
    done = repository.update_cohort(
        session, known.cluster.id, spec, version or current.version, now
    )
    require_done(spec.name, done=done)
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
    require_own(session, known, known.cohorts, SeenKind.COHORT, name)
    inside = [each.name for each in known.cluster_queues if each.spec.cohort == name]
    inside += [each.name for each in known.cohorts if each.spec.parent == name]
    if inside:
        raise QueueInUse(f"{inside[0]} is in {name}.", fix="Take its members out first.")
    get_declared(known.cohorts, name, "Cohort")
    repository.delete_cohort(session, known.cluster.id, name)
    announce(session, known.cluster, "queue.deleted", "cohort", name, actor, now)


def create_local_queue(
    session: WriteSession, key: UUID | str, name: str, door: Door, actor: str, now: int
) -> DeclaredQueues:
    """Open a tenant's door to a ClusterQueue.

    Raises:
        BadQueue: If Kueue's rules refuse it.
        QueueExists: If the tenant has one of that name on the cluster.
        QueueLeadsElsewhere: If the cluster has one of that name that leads elsewhere.
    """
    known = load_declared(session, key)
    doubles = [each.name for each in known.local_queues if each.spec.tenant_id == door.tenant_id]
    refuse_double(name, doubles, "LocalQueue")
    tenant = identity.tenants_by_ids(session, {door.tenant_id}).get(door.tenant_id)
    space = "" if tenant is None else namespace_of(tenant.name)
    refuse_others(session, known, SeenKind.LOCAL_QUEUE, name, space)
    refuse_other_way(session, known, name, door.tenant_id, door.cluster_queue)
    check_door(session, known, name, door)
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
        QueueLeadsElsewhere: If the cluster has it, leading elsewhere.
    """
    known = load_declared(session, key)
    current = get_door(known, name, door.tenant_id)
    refuse_other_way(session, known, name, door.tenant_id, door.cluster_queue)
    check_door(session, known, name, door)
    done = repository.update_local_queue(
        session, known.cluster.id, name, door, version or current.version, now
    )
    require_done(name, done=done)
    announce(
        session, known.cluster, "queue.changed", "local_queue", name, actor, now, door.tenant_id
    )
    return load_declared(session, key)


def delete_local_queue(
    session: WriteSession,
    key: UUID | str,
    name: str,
    tenant_id: TenantId,
    list_jobs: ListTenantJobs,
    actor: str,
    now: int,
) -> None:
    """Close a tenant's door that nothing runs or waits through: Kueue would admit none of it.

    Raises:
        QueueNotFound: If the tenant has none of that name.
        QueueInUse: If jobs hold devices or wait through it.
    """
    known = load_declared(session, key)
    get_door(known, name, tenant_id)
    tenant = known.tenants.get(tenant_id, "")
    refuse_users(
        list_jobs(session, known.cluster.id, tenant_id, name),
        f"through LocalQueue {name} of {tenant} on {known.cluster.name}",
    )
    close_door(session, known.cluster, name, tenant_id, actor, now)


def close_door(
    session: WriteSession, cluster: Cluster, name: str, tenant_id: TenantId, actor: str, now: int
) -> None:
    """Withdraw a LocalQueue that is declared, whatever goes through it."""
    repository.delete_local_queue(session, cluster.id, name, tenant_id)
    announce(session, cluster, "queue.deleted", "local_queue", name, actor, now, tenant_id)


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
        get_declared(known.cluster_queues, name, "ClusterQueue")
    for each in known.cluster_queues:
        wanted = cohort if each.name in members else None
        is_member = each.spec.cohort == cohort
        if is_member == (wanted is not None):
            continue
        change_cluster_queue(
            session, key, replace(each.spec, cohort=wanted), each.version, actor, now
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
    owners = () if tenant_id is None else identity.tenants_by_ids(session, {tenant_id}).values()
    whose = "".join(f" of {each.name}" for each in owners)
    noun = kind.replace("_", " ")
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
            message=f"{actor} {verb} the {noun} {name}{whose} on {cluster.name}.",
            audit=True,
        ),
    )
    session.wake("scheduler", "kueue")
