"""Queues as values, and the pure choice of the door a workload goes through."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    CohortSpec,
    LocalQueueSpec,
    PreemptionPolicy,
    WithinClusterQueue,
)

DEFAULT_QUEUE = "default"
"""The queue of a cluster on which nobody declared one: it covers everything."""


@dataclass(frozen=True, slots=True)
class QueueSpecs:
    """Everything declared about the queues of one cluster."""

    cluster_queues: tuple[ClusterQueueSpec, ...]
    cohorts: tuple[CohortSpec, ...]
    local_queues: tuple[LocalQueueSpec, ...]

    @property
    def is_default(self) -> bool:
        """Return whether nobody declared a queue here."""
        return all(queue.covers_everything for queue in self.cluster_queues)


def default_specs() -> QueueSpecs:
    """Return the queues of a cluster on which nobody declared any.

    Higher priorities evict lower ones there: without it the classes would only be an order, and
    whoever wants that declares a queue.
    """
    preemption = PreemptionPolicy(within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY)
    queue = ClusterQueueSpec(DEFAULT_QUEUE, preemption=preemption, covers_everything=True)
    return QueueSpecs((queue,), (), ())


def find_door(
    specs: QueueSpecs, tenant: str, job_type: str, name: str | None
) -> LocalQueueSpec | None:
    """Return the LocalQueue a tenant's job of a type goes through, or None.

    Args:
        specs: The queues of the cluster.
        tenant: The tenant's name.
        job_type: `service`, `batch` or `training`.
        name: The LocalQueue asked for, or None for the one that takes the type: a queue that
            names the type comes before one that takes all.
    """
    doors = [door for door in specs.local_queues if door.tenant == tenant]
    if name is not None:
        doors = [door for door in doors if door.name == name]
    fitting = [door for door in doors if not door.job_types or job_type in door.job_types]
    fitting.sort(key=lambda door: (not door.job_types, door.name))
    return fitting[0] if fitting else None


def default_door(specs: QueueSpecs, tenant: str) -> LocalQueueSpec | None:
    """Return the door of a tenant without one: to the default queue, if it covers everything."""
    queue = next((each for each in specs.cluster_queues if each.covers_everything), None)
    return None if queue is None else LocalQueueSpec(DEFAULT_QUEUE, tenant, queue.name)


def known_doors(specs: QueueSpecs, tenants: Sequence[str]) -> tuple[LocalQueueSpec, ...]:
    """Return every declared door and the default ones of tenants that have none."""
    declared = {door.tenant for door in specs.local_queues}
    extra = [
        door
        for tenant in tenants
        if tenant not in declared and (door := default_door(specs, tenant)) is not None
    ]
    return (*specs.local_queues, *extra)
