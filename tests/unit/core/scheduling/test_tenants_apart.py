"""In queues without quotas a tenant stops its own work, and another's only where that was said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import (
    ClusterQueueSpec,
    PreemptionPolicy,
    WithinClusterQueue,
    unlimited_cluster_queue,
)
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Backfill, Policy
from gpuplane.core.workloads import Priority
from tests.builders import NOW, World, a_node, a_workload

HOUR_MS = 3_600_000
OPEN = unlimited_cluster_queue("default")
SAYS_SO = replace(OPEN, preemption=PreemptionPolicy(WithinClusterQueue.LOWER_PRIORITY))


def victims(queues: list[ClusterQueueSpec], theirs: str, tenant: str) -> tuple[JobId, ...]:
    """Return whom a critical job of tenant `a` stops; a low one of `tenant` holds everything."""
    world = World([a_node(gpu_count=8)], queues)
    low = a_workload("low", theirs).gpus(8).priority(Priority.LOW).having(tenant=tenant).build()
    world.pending = [low]
    world.apply(decide(world.snapshot(), Policy(), NOW - HOUR_MS, 1), NOW - HOUR_MS)
    critical = a_workload("critical").gpus(8).priority(Priority.CRITICAL).having(tenant="a")
    world.pending = [critical.build()]
    decision = decide(world.snapshot(), Policy(), NOW, 1)
    return tuple(victim for each in decision.preempting for victim in each.victims)


def test_a_tenant_stops_its_own_lower_work() -> None:
    assert len(victims([OPEN], "default", "a")) == 1


def test_no_tenant_stops_anothers_work_in_the_shared_queue() -> None:
    assert victims([OPEN], "default", "b") == ()


def test_an_operator_lets_classes_decide_across_tenants() -> None:
    assert len(victims([SAYS_SO], "default", "b")) == 1


@pytest.mark.parametrize(("tenant", "count"), [("a", 1), ("b", 0)])
def test_queues_without_quotas_have_nothing_to_reclaim_from_one_another(
    tenant: str, count: int
) -> None:
    assert len(victims([SAYS_SO, replace(SAYS_SO, name="other")], "other", tenant)) == count


def test_a_search_that_failed_for_one_tenant_is_made_again_for_another() -> None:
    world = World([a_node(gpu_count=8)], [OPEN])
    low = a_workload("low").gpus(8).priority(Priority.SPOT).having(tenant="b").build()
    world.pending = [low]
    world.apply(decide(world.snapshot(), Policy(), NOW - HOUR_MS, 1), NOW - HOUR_MS)
    first = a_workload("first").gpus(8).priority(Priority.HIGH).age(50).having(tenant="a")
    second = a_workload("second").gpus(8).priority(Priority.HIGH).having(tenant="b")
    world.pending = [first.build(), second.build()]
    policy = Policy(backfill=Backfill.GREEDY)
    (preempting,) = decide(world.snapshot(), policy, NOW, 1).preempting
    assert (preempting.job_id, preempting.victims) == (second.build().job_id, (low.job_id,))
