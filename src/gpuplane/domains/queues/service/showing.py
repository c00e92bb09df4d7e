"""Queues as people see them: what is declared beside what the cluster shows of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpuplane.core.quota.specs import ClusterQueueSpec, CohortSpec, FlavorResource
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.queues.repository import Declared
from gpuplane.domains.queues.rules import QueueSpecs, cluster_queue_of, cohort_of
from gpuplane.domains.queues.rules.seen import Seen, SeenKind
from gpuplane.domains.queues.service.declaring import DeclaredQueues, load_declared

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shown(Generic[T]):
    """One queue or cohort.

    Args:
        declared: What is declared, or what the cluster has where nobody declared it here.
        is_declared: Whether it is declared here; others' are read-only until they are adopted.
        seen: The object on the cluster, None where it has none.
        on_cluster: What the cluster has where that is something else than is declared.
    """

    declared: Declared[T]
    is_declared: bool
    seen: Seen | None = None
    on_cluster: T | None = None


def show_cluster_queues(found: DeclaredQueues) -> list[Shown[ClusterQueueSpec]]:
    """Return every ClusterQueue that is declared or that the cluster shows, by name."""
    seen = _by_name(found, SeenKind.CLUSTER_QUEUE)
    shown = [
        Shown(each, True, one, _other(one, each.spec, cluster_queue_of))
        for each in found.cluster_queues
        for one in [seen.pop(each.name, None)]
    ]
    shown += [
        Shown(Declared(name, cluster_queue_of(name, one.spec), 0, 0, one.seen_at), False, one)
        for name, one in seen.items()
        if "raw" not in one.spec
    ]
    return sorted(shown, key=lambda each: each.declared.name)


def show_cohorts(found: DeclaredQueues) -> list[Shown[CohortSpec]]:
    """Return every Cohort that is declared or that the cluster shows, by name."""
    seen = _by_name(found, SeenKind.COHORT)
    shown = [
        Shown(each, True, one, _other(one, each.spec, cohort_of))
        for each in found.cohorts
        for one in [seen.pop(each.name, None)]
    ]
    shown += [
        Shown(Declared(name, cohort_of(name, one.spec), 0, 0, one.seen_at), False, one)
        for name, one in seen.items()
        if "raw" not in one.spec
    ]
    return sorted(shown, key=lambda each: each.declared.name)


def load_shown_specs(session: ReadSession, cluster: Cluster) -> QueueSpecs:
    """Return the queues of a cluster that admits by itself as it has them, others' among them."""
    found = load_declared(session, cluster.id)
    return QueueSpecs(
        tuple(each.on_cluster or each.declared.spec for each in show_cluster_queues(found)),
        tuple(each.on_cluster or each.declared.spec for each in show_cohorts(found)),
        found.specs().local_queues,
    )


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


def _by_name(found: DeclaredQueues, kind: SeenKind) -> dict[str, Seen]:
    return {each.name: each for each in found.seen if each.kind is kind}


def _other(seen: Seen | None, spec: T, read: Callable[[str, Mapping[str, Any]], T]) -> T | None:
    """Return what the cluster has, if that is something else."""
    if seen is None or not seen.spec or "raw" in seen.spec:
        return None
    found = read(seen.name, seen.spec)
    return None if found == spec else found
