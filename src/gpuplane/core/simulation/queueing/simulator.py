"""The simulation of a queue: a trace, a pool, an order and who may pass, and what comes of them.

Owns the choice of the parts; the parts are the modules beside this one.
"""

from dataclasses import dataclass, field

from gpuplane.core.simulation.queueing.backfill import BackfillLine
from gpuplane.core.simulation.queueing.bounded import BoundedLine, WaitTarget
from gpuplane.core.simulation.queueing.lines import GreedyLine, StrictLine
from gpuplane.core.simulation.queueing.orders import Durations, Order, Skip, compute_ranks
from gpuplane.core.simulation.queueing.outcomes import Outcome
from gpuplane.core.simulation.queueing.pools import PoolShape
from gpuplane.core.simulation.queueing.runs import Line, Run, run_trace
from gpuplane.core.simulation.queueing.traces import Trace


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How a queue is served.

    Args:
        order: Who comes first.
        skip: What becomes of the rest when the first does not fit.
        durations: What is known of how long a job runs.
        target: How long a job should wait at most; the order `bounded` aims at it.

    Raises:
        ValueError: If the order is `bounded` without backfill or without known durations.
    """

    order: Order = Order.FIFO
    skip: Skip = Skip.STRICT
    durations: Durations = Durations.KNOWN
    target: WaitTarget = field(default_factory=WaitTarget)

    def __post_init__(self) -> None:
        if self.order is not Order.BOUNDED:
            return
        if self.skip is not Skip.BACKFILL:
            raise ValueError("the order bounded keeps slots free, so it goes with backfill alone")
        if self.durations is not Durations.KNOWN:
            raise ValueError("the order bounded plans ahead, so it needs the known durations")


def simulate_queueing(trace: Trace, shape: PoolShape, policy: QueuePolicy) -> Outcome:
    """Return what comes of a trace on a pool.

    At one instant completions come before arrivals, and then the queue is served.

    Raises:
        Misfit: If a job is larger than the pool.
        ValueError: If the policy wants estimates and the trace has none.
    """
    if policy.durations is Durations.KNOWN:
        run_ms = trace.duration_ms
    elif len(trace.estimate_ms) == len(trace):
        run_ms = trace.estimate_ms
    else:
        raise ValueError("the trace has no estimates of how long its jobs run")
    run = Run(trace, shape)
    ranks = compute_ranks(trace, policy.order, run_ms)
    promised_ms: dict[int, int] = {}
    line: Line
    if policy.order is Order.BOUNDED:
        line = BoundedLine(trace, shape, ranks, policy.target, promised_ms)
    elif policy.skip is Skip.STRICT:
        line = StrictLine(ranks)
    elif policy.skip is Skip.GREEDY:
        line = GreedyLine(ranks, trace.gpus)
    else:
        line = BackfillLine(ranks, trace.gpus, run_ms, promised_ms)
    run_trace(run, line)
    if -1 in run.start_ms:
        raise RuntimeError(f"job {run.start_ms.index(-1)} was let in and never started")
    return Outcome(
        trace=trace,
        start_ms=tuple(run.start_ms),
        end_ms=tuple(
            start + length for start, length in zip(run.start_ms, trace.duration_ms, strict=True)
        ),
        promised_ms=promised_ms,
        events=2 * len(trace),
    )
