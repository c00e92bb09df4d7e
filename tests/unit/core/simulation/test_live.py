"""An installation on virtual time, and Kueue's scale test on a small one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    PreemptionPolicy,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.policy import Policy, PreemptionLimits, Snapshot
from gpuplane.core.simulation import kueue_scale
from gpuplane.core.simulation.live import Arrival, LiveCluster
from gpuplane.core.workloads import Priority
from tests.builders import H100, NOW, WorkloadBuilder, a_fleet, a_node, a_tree, a_workload

ALL_MAY_STOP = Policy(preemption=PreemptionLimits(min_run_s=0, grace_s=0))


def arrives(builder: WorkloadBuilder, after_ms: int, runs_ms: int) -> Arrival:
    workload = builder.having(queued_at=NOW + after_ms, submitted_at=NOW + after_ms).build()
    return Arrival(NOW + after_ms, workload, runs_ms)


def test_work_waits_for_what_runs_and_starts_the_instant_that_ends() -> None:
    first, second = a_workload("first").gpus(8), a_workload("second").gpus(8)
    cluster = LiveCluster(a_fleet(a_node("a")), a_tree(), Policy(), 1)
    played = cluster.play([arrives(first, 0, 700), arrives(second, 100, 300)], NOW)
    job_id = second.build().job_id
    assert played.first_started[job_id] == NOW + 700
    assert played.ended[job_id] == NOW + 1000
    assert played.makespan_ms == 1000


def test_a_victim_loses_what_it_did_and_runs_again_in_full() -> None:
    low = a_workload("low").gpus(8).priority(Priority.LOW)
    high = a_workload("high").gpus(8).priority(Priority.HIGH)
    cluster = LiveCluster(a_fleet(a_node("a")), a_tree(), ALL_MAY_STOP, 1)
    played = cluster.play([arrives(low, 0, 1000), arrives(high, 400, 500)], NOW)
    assert played.stopped == 1
    assert played.first_started[high.build().job_id] == NOW + 400
    assert played.ended[high.build().job_id] == NOW + 900
    assert played.ended[low.build().job_id] == NOW + 1900


def test_what_can_never_start_is_left_waiting_and_ends_nothing() -> None:
    large = a_workload("large").gpus(9)
    cluster = LiveCluster(a_fleet(a_node("a")), a_tree(), Policy(), 1)
    played = cluster.play([arrives(large, 0, 100)], NOW)
    assert not played.ended
    assert [each.job_id for each in cluster.pending] == [large.build().job_id]
    assert played.makespan_ms == 0


def test_quota_that_was_freed_by_stopping_goes_to_the_one_it_was_freed_for() -> None:
    pair = FlavorResource(H100, GPU)
    queue = ClusterQueueSpec(
        name="q",
        resource_groups=(ResourceGroup((GPU,), (H100,)),),
        quotas={pair: ResourceQuota(4000)},
        preemption=PreemptionPolicy(within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY),
    )
    low = [a_workload(f"low-{i}", "q").gpus(1).priority(Priority.LOW) for i in range(9)]
    high = a_workload("high", "q").gpus(4).priority(Priority.HIGH)
    cluster = LiveCluster(a_fleet(a_node("a")), a_tree(queue), ALL_MAY_STOP, 1)
    arrivals = [arrives(each, 0, 1000) for each in low] + [arrives(high, 500, 100)]
    played = cluster.play(arrivals, NOW)
    assert played.first_started[high.build().job_id] == NOW + 500
    assert played.stopped == 4
    assert len(played.ended) == 10


def test_stopping_that_never_makes_room_is_a_defect_and_is_told() -> None:
    def sparing(
        snapshot: Snapshot, policy: Policy, now: int, seed: int, memory: Memory
    ) -> Decision:
        decision = decide(snapshot, policy, now, seed, memory)
        verdicts = tuple(replace(each, receipts=()) for each in decision.preempting)
        return replace(decision, verdicts=verdicts) if verdicts else decision

    low = a_workload("low").gpus(8).priority(Priority.LOW)
    high = a_workload("high").gpus(8).priority(Priority.HIGH)
    cluster = LiveCluster(a_fleet(a_node("a")), a_tree(), ALL_MAY_STOP, 1, deciding=sparing)
    with pytest.raises(RuntimeError, match="still being stopped after 16 cycles"):
        cluster.play([arrives(low, 0, 1000), arrives(high, 400, 500)], NOW)


@pytest.mark.parametrize("min_run_s", [0, 300])
def test_kueues_scale_test_ends_whole_on_a_small_instance(min_run_s: int) -> None:
    cluster = LiveCluster(
        kueue_scale.make_one_large_node(40),
        kueue_scale.make_quotas(1, 2),
        kueue_scale.make_policy(min_run_s),
        1,
    )
    arrivals = list(kueue_scale.list_arrivals(NOW, 1, 2, share=0.04))
    assert len(arrivals) == 2 * (14 + 4 + 2)
    played = cluster.play(arrivals, NOW)
    assert len(played.ended) == len(arrivals)
    assert not cluster.pending
    assert (played.stopped > 0) == (min_run_s == 0)
    least_ms = sum(a.runs_ms * a.workload.resources.cpu_milli for a in arrivals) / 40_000
    assert least_ms <= played.makespan_ms <= 4_000


def test_the_scale_test_has_kueues_numbers() -> None:
    arrivals = list(kueue_scale.list_arrivals(NOW))
    assert len(arrivals) == 15_000
    queues = {each.workload.queue for each in arrivals}
    assert len(queues) == 30
    of_one = [each for each in arrivals if each.workload.queue == min(queues)]
    large = [each for each in of_one if each.runs_ms == 1_000]
    assert [len(of_one), len(large)] == [500, 50]
    assert [each.at - NOW for each in large[:2]] == [1_200, 2_400]
    assert {each.workload.resources.cpu_milli for each in large} == {20_000}
    assert len(kueue_scale.make_racks()) == 640


def test_on_racks_the_small_instance_ends_as_on_one_large_node() -> None:
    def ended(fleet_of_racks: bool) -> int:
        fleet = (
            kueue_scale.make_racks(1, 2) if fleet_of_racks else kueue_scale.make_one_large_node(192)
        )
        cluster = LiveCluster(fleet, kueue_scale.make_quotas(1, 2), kueue_scale.make_policy(), 1)
        return cluster.play(kueue_scale.list_arrivals(NOW, 1, 2, share=0.04), NOW).makespan_ms

    assert ended(fleet_of_racks=True) == ended(fleet_of_racks=False)
