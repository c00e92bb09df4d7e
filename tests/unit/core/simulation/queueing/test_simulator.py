"""Small queues worked out by hand, order by order."""

from __future__ import annotations

import pytest

from gpuplane.core.simulation.queueing.orders import Durations, Order, Skip
from gpuplane.core.simulation.queueing.outcomes import Outcome, compute_figures
from gpuplane.core.simulation.queueing.pools import PoolShape
from gpuplane.core.simulation.queueing.runs import Misfit
from gpuplane.core.simulation.queueing.simulator import QueuePolicy, simulate_queueing
from tests.unit.core.simulation.queueing.builders import Job, a_trace, in_seconds

NODE = PoolShape(1)
FIFO, SJF, SSF = Order.FIFO, Order.SJF, Order.SSF
STRICT, GREEDY, BACKFILL = Skip.STRICT, Skip.GREEDY, Skip.BACKFILL

# Eight GPUs: the first job leaves two of them, the second wants all, the others little.
CROWD: tuple[Job, ...] = ((0, 100, 6), (1, 50, 8), (2, 40, 2), (3, 200, 1), (4, 20, 1))


def run(order: Order, skip: Skip, *jobs: Job, nodes: int = 1) -> Outcome:
    return simulate_queueing(a_trace(*jobs), PoolShape(nodes), QueuePolicy(order, skip))


def starts(order: Order, skip: Skip, *jobs: Job, nodes: int = 1) -> list[float]:
    return in_seconds(run(order, skip, *jobs, nodes=nodes).start_ms)


def test_strict_lets_nobody_pass() -> None:
    assert starts(FIFO, STRICT, *CROWD) == [0, 100, 150, 150, 150]


def test_greedy_lets_everybody_pass_who_fits() -> None:
    # The job of 200 s that passes at 42 s holds up the one of eight GPUs until 242 s.
    assert starts(FIFO, GREEDY, *CROWD) == [0, 242, 2, 42, 42]


def test_backfill_lets_pass_who_does_not_delay_the_first() -> None:
    assert starts(FIFO, BACKFILL, *CROWD) == [0, 100, 2, 150, 42]


def test_backfill_tells_the_start_that_it_set_aside() -> None:
    outcome = run(FIFO, BACKFILL, *CROWD)
    assert outcome.promised_ms == {1: 100_000}


def test_the_shortest_comes_first() -> None:
    jobs = ((0, 10, 8), (1, 30, 8), (2, 20, 8), (3, 20, 4))
    assert starts(SJF, STRICT, *jobs) == [0, 50, 10, 30]


def test_the_smallest_service_comes_first() -> None:
    jobs = ((0, 10, 8), (1, 30, 1), (2, 20, 8), (3, 25, 2))
    assert starts(SSF, STRICT, *jobs) == [0, 10, 40, 10]


def test_completions_come_before_arrivals_of_the_same_instant() -> None:
    assert starts(FIFO, STRICT, (0, 10, 8), (10, 5, 8)) == [0, 10]


def test_the_queue_is_served_once_all_of_an_instant_have_arrived() -> None:
    assert starts(SJF, STRICT, (0, 50, 8), (0, 10, 8)) == [10, 0]


def test_a_job_that_takes_no_time_leaves_at_once() -> None:
    outcome = run(FIFO, STRICT, (0, 0, 8), (0, 5, 8), (1, 0, 8))
    assert in_seconds(outcome.start_ms) == [0, 0, 5]
    assert in_seconds(outcome.end_ms) == [0, 5, 5]


def test_gangs_wait_for_whole_nodes() -> None:
    jobs = ((0, 10, 5), (0, 30, 12), (1, 5, 16))
    # Eleven GPUs are free, but not four of one node beside a whole one.
    assert starts(FIFO, STRICT, *jobs, nodes=2) == [0, 10, 40]


def test_a_job_beyond_the_start_set_aside_keeps_off_its_nodes() -> None:
    # The gang of sixteen gets nodes 1 and 2 at 20 s; node 3 has room for whoever stays longer.
    jobs = ((0, 50, 8), (0, 20, 8), (0, 20, 4), (0, 500, 5), (1, 10, 16), (2, 500, 3))
    assert starts(FIFO, BACKFILL, *jobs, nodes=4) == [0, 0, 0, 0, 20, 2]
    # Four GPUs are free on node 2 alone, which the gang needs: whoever stays longer waits for it.
    wide = (*jobs[:5], (2, 500, 4))
    assert starts(FIFO, BACKFILL, *wide, nodes=4) == [0, 0, 0, 0, 20, 30]
    # Who is over by then may use them.
    short = (*jobs[:5], (2, 18, 4))
    assert starts(FIFO, BACKFILL, *short, nodes=4) == [0, 0, 0, 0, 20, 2]


def test_a_job_larger_than_the_pool_is_refused_with_its_place() -> None:
    with pytest.raises(Misfit) as caught:
        run(FIFO, STRICT, (0, 1, 8), (0, 1, 9))
    assert caught.value.job == 1
    assert str(caught.value) == "job 'job-1' wants 9 GPUs; expected at most 8 (1 nodes of 8)"


def test_an_estimate_that_is_too_long_is_made_good_when_the_job_ends() -> None:
    trace = a_trace((0, 30, 6), (1, 50, 8), (2, 40, 2), estimates_s=(100, 50, 40))
    policy = QueuePolicy(FIFO, BACKFILL, Durations.ESTIMATED)
    outcome = simulate_queueing(trace, NODE, policy)
    assert in_seconds(outcome.start_ms) == [0, 42, 2]
    assert outcome.promised_ms == {1: 100_000}


def test_an_estimate_that_is_too_short_moves_the_start_that_was_set_aside() -> None:
    trace = a_trace((0, 100, 6), (1, 50, 8), (60, 1, 2), estimates_s=(40, 50, 5))
    policy = QueuePolicy(FIFO, BACKFILL, Durations.ESTIMATED)
    outcome = simulate_queueing(trace, NODE, policy)
    # Whoever is over time may end any moment, so nobody passes any more.
    assert in_seconds(outcome.start_ms) == [0, 100, 150]


def test_an_order_by_estimates_does_not_see_the_truth() -> None:
    trace = a_trace((0, 10, 8), (1, 5, 8), (2, 90, 8), estimates_s=(10, 90, 5))
    known = simulate_queueing(trace, NODE, QueuePolicy(SJF, STRICT))
    thought = simulate_queueing(trace, NODE, QueuePolicy(SJF, STRICT, Durations.ESTIMATED))
    assert in_seconds(known.start_ms) == [0, 10, 15]
    assert in_seconds(thought.start_ms) == [0, 100, 10]


def test_estimates_have_to_be_there() -> None:
    with pytest.raises(ValueError, match="no estimates"):
        simulate_queueing(a_trace((0, 1, 1)), NODE, QueuePolicy(FIFO, STRICT, Durations.ESTIMATED))


def test_the_figures_are_those_of_the_waits() -> None:
    figures = compute_figures(run(FIFO, STRICT, (0, 10, 8), (0, 10, 8), (0, 10, 8), (30, 1, 8)))
    assert (figures.jobs, figures.events) == (4, 8)
    assert figures.mean_queue_s == pytest.approx(7.5)
    assert figures.mean_jct_s == pytest.approx((10 + 20 + 30 + 1) / 4)
    # Waits are 0, 0, 10, 20; a quantile lies on the line between its neighbours.
    assert figures.p50_queue_s == pytest.approx(5)
    assert figures.p90_queue_s == pytest.approx(17)
    assert figures.p99_queue_s == pytest.approx(19.7)
    assert figures.max_queue_s == 20


def test_no_jobs_make_figures_of_nothing() -> None:
    figures = compute_figures(run(FIFO, STRICT))
    assert (figures.jobs, figures.events, figures.mean_jct_s, figures.max_queue_s) == (0, 0, 0, 0)
