"""Queues as values, and the pure choice of the door a workload goes through."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuplane.core.quota.specs import ClusterQueueSpec, CohortSpec, LocalQueueSpec
from gpuplane.core.workloads import PRIORITY_VALUES, Priority

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

    @property
    def limits_classes(self) -> bool:
        """Return whether a class may be refused anywhere here."""
        limits = [queue.highest_priority for queue in self.cluster_queues]
        limits += [door.highest_priority for door in self.local_queues]
        return any(limit is not None for limit in limits)

    def highest_class(self, door: LocalQueueSpec) -> Priority:
        """Return the highest class that goes through a door, by its own word and its queue's."""
        queue = next((q for q in self.cluster_queues if q.name == door.cluster_queue), None)
        limits = (door.highest_priority, None if queue is None else queue.highest_priority)
        least = min((each for each in limits if each is not None), default=None)
        granted = [
            each for each, value in PRIORITY_VALUES.items() if least is None or value <= least
        ]
        return max(granted, key=PRIORITY_VALUES.__getitem__, default=Priority.SPOT)


def default_specs() -> QueueSpecs:
    """Return the queues of a cluster on which nobody declared any.

    Higher classes of a tenant evict its own lower ones there, or the classes would only be an
    order. No tenant evicts another's work: whoever wants that declares a queue and says so.
    """
    return QueueSpecs((ClusterQueueSpec(DEFAULT_QUEUE, covers_everything=True),), (), ())


def choose_common_queue(known: Collection[str]) -> str | None:
    """Return the ClusterQueue of tenants for which none is named, None where several may be meant.

    It is the one called `default`, or the only one.
    """
    if DEFAULT_QUEUE in known:
        return DEFAULT_QUEUE
    return next(iter(known)) if len(known) == 1 else None


def find_door(
    specs: QueueSpecs,
    tenant: str,
    job_type: str,
    name: str | None,
    priority: Priority = Priority.SPOT,
) -> LocalQueueSpec | None:
    """Return the LocalQueue a tenant's job of a type and class goes through, or None.

    Args:
        specs: The queues of the cluster.
        tenant: The tenant's name.
        job_type: `service`, `batch` or `training`.
        name: The LocalQueue asked for, or None for the one that takes the type: a queue that
            names the type comes before one that takes all.
        priority: Its class; doors that do not grant it are passed by.
    """
    doors = [door for door in specs.local_queues if door.tenant == tenant]
    if name is not None:
        doors = [door for door in doors if door.name == name]
    fitting = [
        door
        for door in doors
        if (not door.job_types or job_type in door.job_types) and grants(specs, door, priority)
    ]
    fitting.sort(key=lambda door: (not door.job_types, door.name))
    return fitting[0] if fitting else None


def grants(specs: QueueSpecs, door: LocalQueueSpec, priority: Priority) -> bool:
    """Return whether a class may go through a door."""
    return PRIORITY_VALUES[priority] <= PRIORITY_VALUES[specs.highest_class(door)]


def default_door(specs: QueueSpecs, tenant: str) -> LocalQueueSpec | None:
    """Return the door of a tenant without one: to the default queue, if it covers everything.

    A tenant with a LocalQueue of its own has no other door: what those refuse is refused.
    """
    if any(door.tenant == tenant for door in specs.local_queues):
        return None
    queue = next((each for each in specs.cluster_queues if each.covers_everything), None)
    return None if queue is None else LocalQueueSpec(DEFAULT_QUEUE, tenant, queue.name)


def door_names(specs: QueueSpecs, tenant: str) -> tuple[str, ...]:
    """Return the names under which a tenant's jobs may ask for a queue, sorted."""
    declared = {door.name for door in specs.local_queues if door.tenant == tenant}
    spare = default_door(specs, tenant)
    return tuple(sorted(declared if spare is None else {*declared, spare.name}))


def known_doors(specs: QueueSpecs, tenants: Sequence[str]) -> tuple[LocalQueueSpec, ...]:
    """Return every declared door and the default ones of tenants that have none."""
    declared = {door.tenant for door in specs.local_queues}
    extra = [
        door
        for tenant in tenants
        if tenant not in declared and (door := default_door(specs, tenant)) is not None
    ]
    return (*specs.local_queues, *extra)
