"""The order that serves the shortest first and plans ahead for whoever would wait too long."""

from __future__ import annotations

import pytest

from gpuplane.core.simulation.queueing.bounded import MOST_NODES, MOST_PLANNED, WaitTarget
from gpuplane.core.simulation.queueing.calendars import Calendar, NodeCalendar, Slot
from gpuplane.core.simulation.queueing.orders import Durations, Order, Skip
from gpuplane.core.simulation.queueing.outcomes import Outcome
from gpuplane.core.simulation.queueing.pools import PoolShape
from gpuplane.core.simulation.queueing.simulator import QueuePolicy, simulate_queueing
from tests.unit.core.simulation.queueing.builders import Job, a_trace, in_seconds

MINUTE = 60
HOUR = 60 * MINUTE


def bounded(target_s: int, *jobs: Job, nodes: int = 1) -> Outcome:
    policy = QueuePolicy(Order.BOUNDED, Skip.BACKFILL, target=WaitTarget(target_s * 1000))
    return simulate_queueing(a_trace(*jobs), PoolShape(nodes), policy)


def a_stream_of_short_jobs(count: int) -> list[Job]:
    """Return jobs that hold half a node for half an hour each, one a quarter of an hour."""
    return [(number * 15 * MINUTE, 30 * MINUTE, 4) for number in range(count)]


def test_short_ones_come_first_while_nobody_has_waited_long() -> None:
    jobs = ((0, HOUR, 8), (1, 5 * HOUR, 8), (2, 2 * HOUR, 8), (3, HOUR, 8))
    outcome = bounded(24 * HOUR, *jobs)
    assert in_seconds(outcome.start_ms) == [0, 4 * HOUR, 2 * HOUR, HOUR]
    assert outcome.promised_ms == {}


def test_a_gang_that_short_ones_would_starve_gets_its_node_near_its_target() -> None:
    gang: Job = (60, 2 * HOUR, 8)
    jobs = [*a_stream_of_short_jobs(100), gang]
    shortest_first = simulate_queueing(
        a_trace(*jobs), PoolShape(1), QueuePolicy(Order.SJF, Skip.GREEDY)
    )
    starved = shortest_first.trace.gpus.index(8)
    assert shortest_first.queue_ms[starved] > 20 * HOUR * 1000
    outcome = bounded(4 * HOUR, *jobs)
    waited_ms = outcome.queue_ms[starved]
    assert waited_ms <= 5 * HOUR * 1000
    assert outcome.start_ms[starved] == outcome.promised_ms[starved]


def test_who_is_over_before_a_slot_begins_passes_and_nobody_else() -> None:
    # From 2 s on the gang has a slot at 100 s, when the node is whole again.
    jobs: tuple[Job, ...] = ((0, 100, 4), (1, 50, 8), (10, 90, 2), (11, 95, 2))
    outcome = bounded(8, *jobs)
    assert outcome.promised_ms[1] == 100_000
    assert in_seconds(outcome.start_ms) == [0, 100, 10, 150]


def test_a_small_job_goes_where_the_node_is_held_longer_anyway() -> None:
    # Consolidation would take node 0, which has fewer GPUs free, and hold it until 300 s.
    jobs: tuple[Job, ...] = ((0, 50, 6), (0, 400, 4), (10, 290, 2), (60, 10, 8))
    outcome = bounded(HOUR, *jobs, nodes=2)
    assert in_seconds(outcome.start_ms) == [0, 0, 10, 60]


def test_a_short_job_goes_before_a_long_one_in_the_plan() -> None:
    # Both are late when the node is free: by arrival the third would wait for eleven hours.
    jobs: tuple[Job, ...] = ((0, HOUR, 8), (10, 10 * HOUR, 8), (20, 30 * MINUTE, 8))
    outcome = bounded(55 * MINUTE, *jobs)
    assert in_seconds(outcome.start_ms) == [0, HOUR + 30 * MINUTE, HOUR]


def test_a_plan_has_an_end_and_whoever_is_late_then_gets_a_slot_when_there_is_room() -> None:
    jobs = [(number, HOUR, 8) for number in range(MOST_PLANNED + 40)]
    outcome = bounded(MINUTE, *jobs)
    assert in_seconds(sorted(outcome.start_ms)) == [HOUR * turn for turn in range(len(jobs))]
    first_ms = min(outcome.promised_ms.values())
    assert first_ms == HOUR * 1000
    assert len(outcome.promised_ms) == len(jobs) - 1


def test_a_small_job_is_placed_however_many_nodes_are_taken_by_slots() -> None:
    nodes = MOST_NODES + 2
    # Every node has three GPUs free, and all but the last a slot for a gang from 100 s on.
    parts: list[Job] = [(0, 100, 5)] * nodes
    gang: Job = (1, HOUR, 8 * (nodes - 1))
    outcome = bounded(10, *parts, gang, (30, 2 * HOUR, 2), nodes=nodes)
    assert outcome.promised_ms[nodes] == 100_000
    assert in_seconds(outcome.start_ms)[-2:] == [100, 30]


def test_what_the_order_needs_is_asked_for() -> None:
    with pytest.raises(ValueError, match="backfill alone"):
        QueuePolicy(Order.BOUNDED, Skip.GREEDY)
    with pytest.raises(ValueError, match="known durations"):
        QueuePolicy(Order.BOUNDED, Skip.BACKFILL, Durations.ESTIMATED)
    with pytest.raises(ValueError, match="at least a second"):
        WaitTarget(999)


def test_a_calendar_keeps_the_steps_that_change_something() -> None:
    node = NodeCalendar(8)
    node.add(10, 30, -4)
    node.add(20, 40, -4)
    assert (node.times, node.free) == ([0, 10, 20, 30, 40], [8, 4, 0, 4, 8])
    node.add(20, 40, 4)
    assert (node.times, node.free) == ([0, 10, 30], [8, 4, 8])
    node.add(15, 15, -8)
    assert node.times == [0, 10, 30]
    node.forget(12)
    assert (node.times, node.free) == ([10, 30], [4, 8])


def test_the_least_that_is_free_is_that_of_the_whole_stretch() -> None:
    node = NodeCalendar(8)
    node.add(10, 30, -3)
    node.add(20, 25, -5)
    assert [node.least(0, end) for end in (5, 10, 11, 20, 21)] == [8, 8, 5, 5, 0]
    assert node.least(26, 26) == 5


def test_the_earliest_slot_lasts_the_whole_run() -> None:
    calendar = Calendar(PoolShape(2))
    calendar.take(((0, 8), (1, 6)), 0, 100)
    calendar.take(((1, 8),), 150, 200)
    assert calendar.find_slot(0, 2, 100) == Slot(0, ((1, 2),))
    assert calendar.find_slot(0, 2, 200) == Slot(100, ((0, 2),))
    assert calendar.find_slot(0, 8, 10) == Slot(100, ((0, 8),))
    assert calendar.find_slot(0, 16, 50) == Slot(100, ((0, 8), (1, 8)))
    assert calendar.find_slot(0, 16, 51) == Slot(200, ((0, 8), (1, 8)))
    assert calendar.find_slot(0, 12, 500) == Slot(200, ((0, 8), (1, 4)))


def test_the_rest_of_a_gang_may_share_a_node() -> None:
    calendar = Calendar(PoolShape(2))
    calendar.take(((0, 3),), 0, 100)
    assert calendar.find_slot(0, 12, 10) == Slot(0, ((1, 8), (0, 4)))
    assert calendar.find_slot(0, 14, 10) == Slot(100, ((0, 8), (1, 6)))
