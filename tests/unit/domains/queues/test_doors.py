"""Which door a job goes through, and the queue of a cluster on which nobody declared one."""

from __future__ import annotations

import pytest

from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    LocalQueueSpec,
    WithinClusterQueue,
    unlimited_cluster_queue,
)
from gpuplane.core.workloads import PRIORITY_VALUES, Priority
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.rules.doors import (
    QueueSpecs,
    choose_common_queue,
    default_door,
    default_specs,
    find_door,
    grants,
    known_doors,
)


def test_no_tenant_evicts_another_on_a_cluster_without_declared_queues() -> None:
    (queue,) = default_specs().cluster_queues
    assert queue.preemption.within_cluster_queue is WithinClusterQueue.NEVER
    assert queue.covers_everything


def test_a_tenant_without_a_door_goes_through_the_default_one() -> None:
    specs = default_specs()
    assert find_door(specs, "acme", "batch", None) is None
    door = default_door(specs, "acme")
    assert door is not None
    assert (door.tenant, door.cluster_queue) == ("acme", specs.cluster_queues[0].name)


def value(priority: Priority | None) -> int | None:
    return None if priority is None else PRIORITY_VALUES[priority]


@pytest.mark.parametrize(
    ("of_queue", "of_door", "highest"),
    [
        (None, None, Priority.CRITICAL),
        (Priority.NORMAL, None, Priority.NORMAL),
        (None, Priority.LOW, Priority.LOW),
        (Priority.LOW, Priority.HIGH, Priority.LOW),
        (Priority.HIGH, Priority.SPOT, Priority.SPOT),
    ],
)
def test_a_door_grants_what_it_and_its_queue_grant(
    of_queue: Priority | None, of_door: Priority | None, highest: Priority
) -> None:
    queue = ClusterQueueSpec("q", covers_everything=True, highest_priority=value(of_queue))
    door = LocalQueueSpec("main", "acme", "q", highest_priority=value(of_door))
    specs = QueueSpecs((queue,), (), (door,))
    assert specs.highest_class(door) is highest
    assert specs.limits_classes is (of_queue is not None or of_door is not None)
    for priority in Priority:
        assert grants(specs, door, priority) is (
            PRIORITY_VALUES[priority] <= PRIORITY_VALUES[highest]
        )


def test_a_job_passes_by_doors_that_do_not_grant_its_class() -> None:
    low = LocalQueueSpec("a", "acme", "q", highest_priority=value(Priority.LOW))
    high = LocalQueueSpec("b", "acme", "q")
    specs = QueueSpecs((unlimited_cluster_queue("q"),), (), (low, high))
    assert find_door(specs, "acme", "batch", None, Priority.LOW) is low
    assert find_door(specs, "acme", "batch", None, Priority.HIGH) is high
    assert find_door(specs, "acme", "batch", "a", Priority.HIGH) is None


@pytest.mark.parametrize("name", [None, "default"])
def test_a_tenant_with_a_door_of_its_own_never_goes_through_the_default_one(
    name: str | None,
) -> None:
    mine = LocalQueueSpec(
        "main", "acme", "q", frozenset({"batch"}), highest_priority=value(Priority.NORMAL)
    )
    specs = QueueSpecs((*default_specs().cluster_queues, unlimited_cluster_queue("q")), (), (mine,))
    tenants = ["acme", "other"]
    for tenant in tenants:
        for job_type in ("batch", "service"):
            for priority in Priority:
                door = queues.choose_door(specs, tenant, job_type, name, priority)
                assert door is None or door in known_doors(specs, tenants)
                granted = PRIORITY_VALUES[priority] <= PRIORITY_VALUES[Priority.NORMAL]
                takes = name is None and job_type == "batch" and granted
                if tenant == "acme":
                    assert door == (mine if takes else None)
                else:
                    assert door is not None
                    assert door.name == "default"


def test_a_tenant_for_which_no_queue_is_named_gets_the_default_one_or_the_only_one() -> None:
    assert choose_common_queue({"team", "default"}) == "default"
    assert choose_common_queue({"team"}) == "team"
    assert choose_common_queue({"team", "other"}) is None
    assert choose_common_queue(()) is None
