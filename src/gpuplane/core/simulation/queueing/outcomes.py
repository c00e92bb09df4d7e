"""What came of a simulation: when each job started, and the figures made of that.

Owns the figures and how a quantile is taken; never runs anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuplane.core.simulation.queueing.traces import SECOND_MS, Trace


@dataclass(frozen=True, slots=True)
class Outcome:
    """When each job of a trace started and ended.

    Attributes:
        trace: The jobs.
        start_ms: When each started.
        end_ms: When each ended.
        promised_ms: The first start that was set aside for a job, for those for whom one was.
        events: Arrivals and completions that were worked off.
    """

    trace: Trace
    start_ms: tuple[int, ...]
    end_ms: tuple[int, ...]
    promised_ms: Mapping[int, int] = field(default_factory=dict)
    events: int = 0

    @property
    def queue_ms(self) -> tuple[int, ...]:
        """Return how long each job waited for its start."""
        return tuple(
            start - arrival
            for start, arrival in zip(self.start_ms, self.trace.arrival_ms, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run, in seconds.

    Attributes:
        mean_jct_s: Mean of completion minus arrival.
        mean_queue_s: Mean wait for the start.
        p50_queue_s, p90_queue_s, p99_queue_s, p999_queue_s: Quantiles of the waits.
        max_queue_s: The longest wait.
        jobs: How many jobs ran.
        events: Arrivals and completions.
    """

    mean_jct_s: float
    mean_queue_s: float
    p50_queue_s: float
    p90_queue_s: float
    p99_queue_s: float
    p999_queue_s: float
    max_queue_s: float
    jobs: int
    events: int


def compute_figures(outcome: Outcome) -> Figures:
    """Return the figures of a run; those of no job at all are 0."""
    waits = sorted(outcome.queue_ms)
    jobs = len(waits)
    total_ms = sum(outcome.end_ms) - sum(outcome.trace.arrival_ms)
    return Figures(
        mean_jct_s=total_ms / (max(1, jobs) * SECOND_MS),
        mean_queue_s=sum(waits) / (max(1, jobs) * SECOND_MS),
        p50_queue_s=_quantile_s(waits, 500),
        p90_queue_s=_quantile_s(waits, 900),
        p99_queue_s=_quantile_s(waits, 990),
        p999_queue_s=_quantile_s(waits, 999),
        max_queue_s=_quantile_s(waits, 1000),
        jobs=jobs,
        events=outcome.events,
    )


def _quantile_s(ordered_ms: Sequence[int], share_milli: int) -> float:
    """Return a quantile in seconds, linear between its two neighbours.

    The seventh definition of Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996,
    which NumPy and the published tables use. In integers up to the last division.
    """
    if not ordered_ms:
        return 0.0
    below, part = divmod((len(ordered_ms) - 1) * share_milli, 1000)
    value = ordered_ms[below] * 1000
    if part:
        value += (ordered_ms[below + 1] - ordered_ms[below]) * part
    return value / (1000 * SECOND_MS)
