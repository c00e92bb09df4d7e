"""Queues as people see them: what is declared beside what the cluster shows of it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.ids import ClusterId
from gpuplane.core.quota.flavors import ANY_FLAVOR
from gpuplane.core.quota.quantities import quantity_text
from gpuplane.core.quota.specs import GPU, ClusterQueueSpec, CohortSpec, FlavorResource
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.repository import Declared, Door
from gpuplane.domains.queues.rules import QueueSpecs, cluster_queue_of, cohort_of, door_names
from gpuplane.domains.queues.rules.seen import Seen, SeenKind, Standing, find_standing
from gpuplane.domains.queues.service.declared import (
    DeclaredQueues,
    lead_as_seen,
    load_declared,
    load_specs,
)
from gpuplane.domains.queues.service.seeing import admits_itself
from gpuplane.kube.kueue.flavors import resource_of
from gpuplane.kube.tenancy import namespace_of

T = TypeVar("T")
FLAVOR_NOT_FOUND = "FlavorNotFound"
"""Kueue's word for a ClusterQueue that names a ResourceFlavor which is not there."""


@dataclass(frozen=True, slots=True)
class Shown(Generic[T]):
    """One queue or cohort.

    Args:
        declared: What is declared, or what the cluster has where nobody declared it here.
        is_declared: Whether it is declared here; others' are read-only until they are adopted.
        seen: The object on the cluster, None where it has none.
        on_cluster: What the cluster has where that is something else than is declared.
        standing: Where the two stand to each other.
        warnings: What of it holds nothing yet, or is owned and not there, in sentences.
    """

    declared: Declared[T]
    is_declared: bool
    seen: Seen | None = None
    on_cluster: T | None = None
    standing: Standing = Standing.DECLARED
    warnings: tuple[str, ...] = ()


def show_cluster_queues(found: DeclaredQueues) -> list[Shown[ClusterQueueSpec]]:
    """Return every ClusterQueue that is declared or that the cluster shows, by name."""
    missing = missing_flavors(found)
    return [
        replace(each, warnings=_warnings(found, each, missing))
        for each in _show(found, found.cluster_queues, SeenKind.CLUSTER_QUEUE, cluster_queue_of)
    ]


def show_cohorts(found: DeclaredQueues) -> list[Shown[CohortSpec]]:
    """Return every Cohort that is declared or that the cluster shows, by name."""
    return _show(found, found.cohorts, SeenKind.COHORT, cohort_of)


def show_door(found: DeclaredQueues, declared: Declared[Door]) -> tuple[Seen | None, Standing]:
    """Return a declared LocalQueue as the cluster shows it, and where the two stand."""
    door = declared.spec
    tenant = found.tenants.get(door.tenant_id, "")
    seen = find_seen_door(found, tenant, declared.name)
    wanted = {
        "tenant": tenant,
        "clusterQueue": door.cluster_queue,
        "jobTypes": sorted(door.job_types),
        "highestPriority": door.highest_priority,
    }
    is_same = seen is not None and all(
        seen.spec.get(name) == value for name, value in wanted.items()
    )
    standing = find_standing(
        seen, is_declared=True, is_same=is_same, admits_itself=admits_itself(found.cluster)
    )
    return seen, standing


def find_seen_door(found: DeclaredQueues, tenant: str, name: str) -> Seen | None:
    """Return the LocalQueue of a name in a tenant's namespace as the cluster shows it, or None."""
    space = namespace_of(tenant)
    for each in list_seen_doors(found):
        if (each.name, each.namespace) == (name, space) and tenant:
            return each
    return None


def _show(
    found: DeclaredQueues,
    declared: Sequence[Declared[T]],
    kind: SeenKind,
    read: Callable[[str, Mapping[str, Any]], T],
) -> list[Shown[T]]:
    seen = {each.name: each for each in found.seen if each.kind is kind}
    admits = admits_itself(found.cluster)
    shown = []
    for each in declared:
        one = seen.pop(each.name, None)
        other = _other(one, each.spec, read)
        standing = find_standing(one, is_declared=True, is_same=other is None, admits_itself=admits)
        shown.append(Shown(each, True, one, other, standing))
    for name, one in seen.items():
        if "raw" in one.spec:
            continue
        standing = find_standing(one, is_declared=False, is_same=False, admits_itself=admits)
        row = Declared(name, read(name, one.spec), 0, 0, one.seen_at)
        shown.append(Shown(row, False, one, None, standing))
    return sorted(shown, key=lambda each: each.declared.name)


def load_shown_specs(session: ReadSession, cluster: Cluster) -> QueueSpecs:
    """Return the queues of a cluster that admits by itself as it has them, others' among them."""
    found = load_declared(session, cluster.id)
    queues = tuple(each.on_cluster or each.declared.spec for each in show_cluster_queues(found))
    return QueueSpecs(
        queues,
        tuple(each.on_cluster or each.declared.spec for each in show_cohorts(found)),
        lead_as_seen(found.specs().local_queues, found.seen, {each.name for each in queues}),
    )


@dataclass(frozen=True, slots=True)
class InactiveQueue:
    """A queue on a cluster that admits nothing.

    Args:
        kind: Its kind in Kueue.
        name: Its name.
        message: Why, in Kueue's words.
        flavors: Those for want of which it does not; empty where that is not the reason.
    """

    kind: str
    name: str
    message: str
    flavors: tuple[str, ...] = ()


def load_seen_usage(session: ReadSession, cluster: Cluster) -> dict[str, dict[FlavorResource, int]]:
    """Return what Kueue counts as used in each of its ClusterQueues."""
    return {
        each.name: {
            FlavorResource(used["flavor"], used["resource"]): used["total"]
            for used in each.state.get("used", ())
        }
        for each in load_declared(session, cluster.id).seen
        if each.kind is SeenKind.CLUSTER_QUEUE
    }


def list_seen_doors(found: DeclaredQueues) -> list[Seen]:
    """Return every LocalQueue that the cluster shows, by namespace and name."""
    return [each for each in found.seen if each.kind is SeenKind.LOCAL_QUEUE]


def _other(seen: Seen | None, spec: T, read: Callable[[str, Mapping[str, Any]], T]) -> T | None:
    """Return what the cluster has, if that is something else."""
    if seen is None or not seen.spec or "raw" in seen.spec:
        return None
    found = read(seen.name, seen.spec)
    return None if found == spec else found


def missing_flavors(found: DeclaredQueues) -> frozenset[str]:
    """Return the flavors that ClusterQueues name and the cluster has nothing of, `any` never."""
    named = {
        flavor
        for queue in found.cluster_queues
        for group in queue.spec.resource_groups
        for flavor in group.flavors
    }
    here = {*found.cluster.gpu_shapes, ANY_FLAVOR}
    here |= {each.name for each in found.seen if each.kind is SeenKind.FLAVOR}
    return frozenset(named - here)


def find_dead_flavors(session: ReadSession, cluster_id: ClusterId, name: str) -> tuple[str, ...]:
    """Return the flavors for want of which Kueue admits nothing at all through a ClusterQueue.

    Empty where Kueue gives no such reason, or has been given what it wanted since.
    """
    seen = repository.list_seen(session, cluster_id)
    here = {each.name for each in seen if each.kind is SeenKind.FLAVOR}
    for each in seen:
        if (each.kind, each.name) != (SeenKind.CLUSTER_QUEUE, name):
            continue
        if each.state.get("active", True) or each.state.get("reason") != FLAVOR_NOT_FOUND:
            return ()
        groups = each.spec.get("resourceGroups") or ()
        return tuple(sorted({one["name"] for group in groups for one in group["flavors"]} - here))
    return ()


def find_unwritten(
    session: ReadSession, cluster_id: ClusterId, door: tuple[str, str], queue: str
) -> str:
    """Return why a queue that work waits for could not be written to its cluster, else nothing.

    Of one that is there and only differs nothing is said: work is admitted through it.

    Args:
        session: The session.
        cluster_id: The cluster.
        door: (tenant, LocalQueue).
        queue: The ClusterQueue.
    """
    tenant, name = door
    ways = {
        (str(SeenKind.LOCAL_QUEUE), namespace_of(tenant), name): f"LocalQueue {name} of {tenant}",
        (str(SeenKind.CLUSTER_QUEUE), "", queue): f"ClusterQueue {queue}",
    }
    for each in repository.list_seen(session, cluster_id):
        what = ways.get(each.key)
        if what and each.conflict is not None and not each.spec:
            return f"{what} is not on the cluster: {each.conflict.message}"
    return ""


def has_door(session: ReadSession, cluster_id: ClusterId, tenant: str, name: str) -> bool:
    """Return whether a tenant's LocalQueue is declared, or is on the cluster by others."""
    if name in door_names(load_specs(session, cluster_id), tenant):
        return True
    key = (str(SeenKind.LOCAL_QUEUE), namespace_of(tenant), name)
    return any(each.key == key and each.spec for each in repository.list_seen(session, cluster_id))


def find_inactive(
    session: ReadSession, cluster_id: ClusterId, tenant: str, door: str
) -> InactiveQueue | None:
    """Return what on a cluster's way from a tenant's LocalQueue on admits nothing, or None.

    What its Kueue has not spoken of yet is not said to be inactive.
    """
    specs = load_specs(session, cluster_id).local_queues
    leads_to = {one.cluster_queue for one in specs if (one.tenant, one.name) == (tenant, door)}
    for each in repository.list_seen(session, cluster_id):
        is_queue = each.kind is SeenKind.CLUSTER_QUEUE and each.name in leads_to
        is_door = (
            each.kind is SeenKind.LOCAL_QUEUE
            and each.name == door
            and each.spec.get("tenant") == tenant
        )
        if (is_queue or is_door) and not each.state.get("active", True):
            flavors = find_dead_flavors(session, cluster_id, each.name) if is_queue else ()
            return InactiveQueue(str(each.kind), each.name, each.state.get("message", ""), flavors)
    return None


def _warnings(
    found: DeclaredQueues, shown: Shown[ClusterQueueSpec], missing: frozenset[str]
) -> tuple[str, ...]:
    """Return what of a declared queue holds nothing yet: to declare it ahead of nodes is right."""
    if not shown.is_declared:
        return ()
    named = {flavor for group in shown.declared.spec.resource_groups for flavor in group.flavors}
    effect = (
        "until then Kueue admits nothing at all through the queue"
        if admits_itself(found.cluster)
        else "until then nothing can be placed on it"
    )
    told = [
        f"{found.cluster.name} has no node of {flavor}: the quota of it holds from when one is "
        f"there, and {effect}."
        for flavor in sorted(named & missing)
    ]
    told += _overowned(found, named)
    laid_out = sorted(
        each.name
        for each in found.seen
        if each.kind is SeenKind.FLAVOR and each.name in named and each.spec.get("topologyName")
    )
    if laid_out and len(shown.declared.spec.resource_groups) > 1:
        told.append(
            f"{', '.join(laid_out)} has a Topology, and Kueue lays out only what comes from one "
            "flavor as a whole: put all resources of the queue into one group."
        )
    return tuple(told)


def _overowned(found: DeclaredQueues, flavors: Collection[str]) -> list[str]:
    """Return of which GPU models of the cluster its queues own more than there is of them.

    Nothing is wrong with it, as long as it is meant: what each owns cannot all run at once.
    """
    quotas = [each.spec.quotas for each in found.cluster_queues]
    quotas += [each.spec.quotas for each in found.cohorts]
    told = []
    for model, (_, here) in sorted(found.cluster.gpu_shapes.items()):
        pair = FlavorResource(model, resource_of(model))
        owned = sum(each[pair].nominal for each in quotas if pair in each)
        each_has = WHOLE_GPU_MILLI if pair.resource == GPU else 1
        if model in flavors and owned > here * each_has:
            text = quantity_text(pair.resource, owned)
            told.append(
                f"the queues of {found.cluster.name} own {text} {model} now, and it has {here}: "
                "not all of what is owned can run at once."
            )
    return told
