"""The queueing simulator on random traces: against a plain one, and against its own promises."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.simulation.queueing.bounded import WaitTarget
from gpuplane.core.simulation.queueing.orders import Durations, Order, Skip, compute_ranks
from gpuplane.core.simulation.queueing.outcomes import Outcome
from gpuplane.core.simulation.queueing.pools import PoolShape
from gpuplane.core.simulation.queueing.simulator import QueuePolicy, simulate_queueing
from gpuplane.core.simulation.queueing.traces import Trace
from tests.property.plain_queues import PlainQueue

KEYED = (Order.FIFO, Order.SJF, Order.SSF)
POLICIES = [(order, skip) for order in KEYED for skip in Skip] + [(Order.BOUNDED, Skip.BACKFILL)]


@dataclass(frozen=True)
class Case:
    """A trace, a pool and what is known of the durations."""

    trace: Trace
    shape: PoolShape
    durations: Durations
    target: WaitTarget

    @property
    def run_ms(self) -> tuple[int, ...]:
        known = self.durations is Durations.KNOWN
        return self.trace.duration_ms if known else self.trace.estimate_ms

    def simulate(self, order: Order, skip: Skip) -> Outcome:
        durations = Durations.KNOWN if order is Order.BOUNDED else self.durations
        policy = QueuePolicy(order, skip, durations, self.target)
        return simulate_queueing(self.trace, self.shape, policy)

    def plain(self, order: Order, skip: Skip) -> PlainQueue:
        return PlainQueue(
            self.trace, self.shape.nodes, self.shape.gpus_per_node, order, skip, self.run_ms
        )


@st.composite
def cases(draw: st.DrawFn, durations: Durations | None = None) -> Case:
    """Return a crowd: several times as much work as the pool can hold at once."""
    shape = PoolShape(draw(st.integers(1, 4)), draw(st.sampled_from((1, 2, 4, 8))))
    wanted = st.tuples(
        st.integers(0, 30),
        st.integers(0, 20),
        st.integers(1, shape.gpus),
        st.integers(0, 25),
    )
    unit_ms = draw(st.sampled_from((1_000, 600_000)))
    jobs = sorted(draw(st.lists(wanted, max_size=25)), key=lambda job: job[0])
    trace = Trace(
        names=tuple(str(number) for number in range(len(jobs))),
        arrival_ms=tuple(job[0] * unit_ms for job in jobs),
        duration_ms=tuple(job[1] * unit_ms for job in jobs),
        gpus=tuple(job[2] for job in jobs),
        estimate_ms=tuple(job[3] * unit_ms for job in jobs),
    )
    target = WaitTarget(draw(st.integers(1, 40)) * unit_ms)
    return Case(trace, shape, durations or draw(st.sampled_from(list(Durations))), target)


@given(cases(), st.sampled_from(KEYED), st.sampled_from(list(Skip)))
def test_it_is_equal_to_a_simulator_without_any_cleverness(
    case: Case, order: Order, skip: Skip
) -> None:
    plain = case.plain(order, skip)
    outcome = case.simulate(order, skip)
    assert list(outcome.start_ms) == plain.run()
    assert outcome.promised_ms == plain.promised


@given(cases(), st.sampled_from(POLICIES))
def test_every_job_runs_once_in_full_and_never_before_it_arrived(
    case: Case, policy: tuple[Order, Skip]
) -> None:
    outcome = case.simulate(*policy)
    assert len(outcome.start_ms) == len(outcome.end_ms) == len(case.trace)
    for start, end, arrival, duration in zip(
        outcome.start_ms, outcome.end_ms, case.trace.arrival_ms, case.trace.duration_ms, strict=True
    ):
        assert start >= arrival
        assert end == start + duration
    assert outcome.events == 2 * len(case.trace)


@given(cases(), st.sampled_from(POLICIES))
def test_no_gpu_is_sold_twice(case: Case, policy: tuple[Order, Skip]) -> None:
    outcome = case.simulate(*policy)
    for instant in outcome.start_ms:
        running = sum(
            gpus
            for gpus, start, end in zip(
                case.trace.gpus, outcome.start_ms, outcome.end_ms, strict=True
            )
            if start <= instant < end
        )
        assert running <= case.shape.gpus


@given(cases(), st.sampled_from(KEYED))
def test_strict_never_lets_anybody_pass(case: Case, order: Order) -> None:
    outcome = case.simulate(order, Skip.STRICT)
    ranks = compute_ranks(case.trace, order, case.run_ms)
    jobs = range(len(case.trace))
    passed = [
        (first, second)
        for first in jobs
        for second in jobs
        if ranks[first] < ranks[second]
        and case.trace.arrival_ms[first] <= outcome.start_ms[second] < outcome.start_ms[first]
    ]
    assert passed == []


@given(cases(Durations.KNOWN))
def test_a_backfill_by_arrival_keeps_every_start_that_it_set_aside(case: Case) -> None:
    outcome = case.simulate(Order.FIFO, Skip.BACKFILL)
    late = {
        job: (promised, outcome.start_ms[job])
        for job, promised in outcome.promised_ms.items()
        if outcome.start_ms[job] > promised
    }
    assert late == {}


@given(cases(Durations.KNOWN))
def test_backfill_never_moves_the_first_of_the_queue_behind_where_strict_would_start_it(
    case: Case,
) -> None:
    """The first that has to wait at all finds the same pool in both, so it starts no later."""
    strict = case.simulate(Order.FIFO, Skip.STRICT)
    filled = case.simulate(Order.FIFO, Skip.BACKFILL)
    waited = [
        job for job, start in enumerate(strict.start_ms) if start > case.trace.arrival_ms[job]
    ]
    for job in waited[:1]:
        assert filled.start_ms[job] <= strict.start_ms[job]


@given(cases())
def test_whoever_has_no_slot_waits_less_than_the_target(case: Case) -> None:
    outcome = case.simulate(Order.BOUNDED, Skip.BACKFILL)
    step_ms = 60_000  # between two looks at a job
    for job, wait in enumerate(outcome.queue_ms):
        assert wait < case.target.target_ms + step_ms or job in outcome.promised_ms


@given(cases(), st.sampled_from(POLICIES))
def test_equal_traces_have_equal_outcomes(case: Case, policy: tuple[Order, Skip]) -> None:
    assert case.simulate(*policy) == case.simulate(*policy)
