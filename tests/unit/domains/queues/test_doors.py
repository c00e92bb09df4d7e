"""The queue of a cluster on which nobody declared one."""

from gpuplane.core.quota.specs import WithinClusterQueue
from gpuplane.domains.queues.rules.doors import default_door, default_specs, find_door


def test_priorities_evict_on_a_cluster_without_declared_queues() -> None:
    (queue,) = default_specs().cluster_queues
    assert queue.preemption.within_cluster_queue is WithinClusterQueue.LOWER_PRIORITY
    assert queue.covers_everything


def test_a_tenant_without_a_door_goes_through_the_default_one() -> None:
    specs = default_specs()
    assert find_door(specs, "acme", "batch", None) is None
    door = default_door(specs, "acme")
    assert door is not None
    assert (door.tenant, door.cluster_queue) == ("acme", specs.cluster_queues[0].name)
