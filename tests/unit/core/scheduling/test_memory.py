"""What a memory keeps between cycles, and what makes it let go."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from gpuplane.core.fleet.facts import Allocation
from gpuplane.core.quota.specs import GPU, FlavorResource, ResourceQuota
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.bench import open_bench
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.filters import count_refused
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.ordering import compute_entry, describe_boosts
from gpuplane.core.scheduling.policy import Boosts, Policy
from gpuplane.core.scheduling.pools import PendingPool
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import Priority
from gpuplane.loops.deciding.questions import WhatToStart
from tests.builders import H100, NOW, World, a_fleet, a_node, a_workload
from tests.unit.core.scheduling.test_ordering import a_queue

BOOSTS = Boosts(wait_target_s={Priority.NORMAL: 1_800, Priority.LOW: 7_200}, starved_ratio=4.0)


def some(count: int, priority: Priority = Priority.NORMAL) -> tuple[Workload, ...]:
    return tuple(
        a_workload(f"job-{i}").priority(priority).age(count - i).build() for i in range(count)
    )


def order_of(pool: PendingPool) -> list[Workload]:
    return [entry.workload for entries in pool.list_queues().values() for entry in entries]


def blocked_world() -> World:
    """Return one full node and three jobs that wait for it."""
    world = World([a_node("a", 1)], pending=[a_workload("busy").build()])
    world.apply(decide(world.snapshot(), Policy(), NOW, 1))
    world.pending = list(some(3))
    return world


def test_entries_of_work_that_still_waits_are_the_same_values() -> None:
    pool, pending = PendingPool(), some(4)
    pool.advance(pending, BOOSTS, NOW)
    before = list(pool.list_queues()["default"])
    pool.advance(pending[1:], BOOSTS, NOW + 1)
    after = pool.list_queues()["default"]
    assert [id(entry) for entry in after] == [id(entry) for entry in before[1:]]
    assert pool.count_known(pending) == 3


def test_a_workload_given_twice_is_refused_however_it_is_given() -> None:
    first = some(1)[0]
    for twice in ((first, first), (first, replace(first))):
        with pytest.raises(ValueError, match="given twice"):
            PendingPool().advance(twice, BOOSTS, NOW)


def test_who_waited_long_enough_moves_up_although_nothing_came_or_went() -> None:
    old = a_workload("old").priority(Priority.LOW).age(3_590).build()
    young = a_workload("young").priority(Priority.LOW).age(10).having(queued_at=NOW - 3_600_001)
    pool, pending = PendingPool(), (old, young.build())
    pool.advance(pending, BOOSTS, NOW)
    effective = {e.workload.job_id: e.effective for e in pool.list_queues()["default"]}
    pool.advance(pending, BOOSTS, NOW + 400_000)
    later = {e.workload.job_id: e.effective for e in pool.list_queues()["default"]}
    assert all(later[job_id] > effective[job_id] for job_id in effective)
    assert later == {
        each.job_id: compute_entry(each, BOOSTS, NOW + 400_000).effective for each in pending
    }


@pytest.mark.parametrize("after_s", [0, 899, 963, 5_000, 7_200, 100_000])
def test_an_entry_is_due_exactly_when_its_priority_changes(after_s: int) -> None:
    workload = a_workload().having(deadline=NOW + 10_000_000).build()
    entry = compute_entry(workload, BOOSTS, NOW + after_s * 1000)
    just_before = min(entry.due - 1, NOW + 10**9)
    assert compute_entry(workload, BOOSTS, just_before).effective == entry.effective
    if entry.due < NOW + 10**12:
        assert compute_entry(workload, BOOSTS, entry.due).due > entry.due


def test_a_boost_grows_in_whole_percents_and_says_so() -> None:
    workload = a_workload().age(963).build()
    notes = describe_boosts(workload, BOOSTS, NOW)
    assert notes == ["Waits 963 s, its class's target is 1800 s: 1 % of the way to the next class."]


def test_a_clock_that_was_set_back_begins_the_order_anew() -> None:
    pool, pending = PendingPool(), some(2, Priority.LOW)
    pool.advance(pending, BOOSTS, NOW + 10**8)
    lifted = pool.list_queues()["default"][0].effective
    pool.advance(pending, BOOSTS, NOW)
    assert pool.list_queues()["default"][0].effective < lifted
    assert order_of(pool) == list(pending)


def test_a_quota_that_was_changed_is_asked_again() -> None:
    def reasons(decision: Decision) -> list[Word]:
        return [verdict.reason.word for verdict in decision.waiting]

    queue = a_queue("q", 1, cohort=None)
    world = World([a_node("a")], [queue], [a_workload("w", "q").gpus(2).build()])
    memory = Memory()
    assert reasons(decide(world.snapshot(), Policy(), NOW, 1, memory)) == [
        Word.REQUEST_EXCEEDS_QUOTA
    ]
    world.queues = [replace(queue, quotas={FlavorResource(H100, GPU): ResourceQuota(2000)})]
    assert len(decide(world.snapshot(), Policy(), NOW, 1, memory).placed) == 1


def test_refusals_counted_by_changed_nodes_are_those_counted_anew() -> None:
    fleet = a_fleet(count=6)
    workload = a_workload().gpus(4).build()
    job_id = workload.job_id
    mix = compute_typical_mix([workload], share=1.0, max_classes=4)
    bench = open_bench(fleet, Policy(), mix, NOW, 1)
    takes = [
        fleet.take_of(
            Allocation(job_id, node.node_id, gpu_ids=tuple(gpu.gpu_id for gpu in node.gpus[:6]))
        )
        for node in fleet.nodes[:5]
    ]
    for take in takes:
        fleet.allocate(take)
        row = bench.row(workload)
        assert row.count_refused() == count_refused(row.need, fleet)[0]
    for take in takes[:2]:
        fleet.release(take)
    row = bench.row(workload)
    assert row.count_refused() == count_refused(row.need, fleet)[0] == [(Word.GPU_COUNT, 3)]


def test_a_question_that_travels_leaves_its_memory_behind() -> None:
    world, memory = blocked_world(), Memory()
    question = WhatToStart(world.snapshot(), Policy(), NOW, 1, memory)
    cold_ms = question.cost_ms
    here = question.answer()
    assert question.cost_ms < cold_ms
    there = pickle.loads(pickle.dumps(question))
    assert there.memory is None
    assert there.answer().to_json() == here.to_json()
