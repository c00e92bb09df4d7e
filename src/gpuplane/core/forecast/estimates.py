"""How long work takes and when it starts, as values with an interval and where they come from.

Owns the shapes of a forecast and the fallback durations where no history is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.ids import JobId
from gpuplane.core.scheduling.workload import RunningWorkload, Workload


class Basis(StrEnum):
    """What a duration rests on, best first."""

    HISTORY = "history"
    """Quantiles of similar jobs that ended."""
    ESTIMATE = "estimate"
    """What the user stated."""
    MAXIMUM = "maximum"
    """Only the time after which it is stopped is known."""
    DEFAULT = "default"
    """Nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long one workload runs: tenth percentile, median, ninetieth percentile."""

    low_s: int
    median_s: int
    high_s: int
    basis: Basis

    def at(self, quantile: "Quantile") -> int:
        """Return the duration at a quantile, in seconds, at least 1."""
        value = {
            Quantile.LOW: self.low_s,
            Quantile.MEDIAN: self.median_s,
            Quantile.HIGH: self.high_s,
        }[quantile]
        return max(1, value)


class Quantile(StrEnum):
    """Which duration a run of the clock takes for everyone."""

    LOW = "low"
    MEDIAN = "median"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """When a workload is expected to start and end; instants in ms since the epoch.

    Args:
        low: Start if everybody takes as little as the tenth percentile.
        high: Start if everybody takes as long as the ninetieth; None when it does not start
            within the bounds of the forecast then.
        basis: The weakest basis among its own duration and those it waits for.
    """

    start: int
    end: int
    low: int
    high: int | None
    end_low: int
    end_high: int | None
    basis: Basis


@dataclass(frozen=True, slots=True)
class ForecastLimits:
    """Bounds of one forecast.

    Args:
        max_events: Ends of work per run of the clock: about a millisecond each on a small fleet.
        max_pending: Workloads looked at, in their order: those behind start later still.
        horizon_s: How far ahead: what starts later is as good as unknown.
    """

    max_events: int = 500
    max_pending: int = 2_000
    horizon_s: int = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Forecast:
    """Estimates by job, and whether everyone pending has one.

    Args:
        events: Ends of work that were played, over all three runs.
        is_complete: False when a bound was reached before everyone had started.
    """

    estimates: Mapping[JobId, StartEstimate]
    events: int
    is_complete: bool


# Where only one number is known the interval is wide on purpose: users' estimates are bounds more
# often than guesses (Mu'alem and Feitelson, IEEE TPDS 2001, found most jobs end well before them).
_ESTIMATE_SHARES = (0.5, 1.0, 1.5)
_MAXIMUM_SHARES = (0.1, 0.5, 1.0)
_DEFAULT_SHARES = (0.25, 1.0, 4.0)

_WEAKNESS = {basis: place for place, basis in enumerate(Basis)}


def fallback_durations(workload: Workload, default_s: int) -> Durations:
    """Return durations for a workload without history: its estimate, its maximum, a default."""
    if workload.estimated_duration_s is not None:
        return _spread(workload.estimated_duration_s, _ESTIMATE_SHARES, Basis.ESTIMATE)
    if workload.max_duration_s is not None:
        return _spread(workload.max_duration_s, _MAXIMUM_SHARES, Basis.MAXIMUM)
    return _spread(default_s, _DEFAULT_SHARES, Basis.DEFAULT)


def _spread(known_s: int, shares: tuple[float, float, float], basis: Basis) -> Durations:
    low, median, high = (round(known_s * share) for share in shares)
    return Durations(low, median, high, basis)


def expected_end(
    running: RunningWorkload, durations: Durations, quantile: Quantile, now: int
) -> int:
    """Return when a running workload ends, later than now.

    What has outlived its duration is taken to last a tenth longer than it has lasted: the longer
    something has run, the longer it goes on.
    """
    end = running.started_at + durations.at(quantile) * MS_PER_S
    if quantile is Quantile.MEDIAN and running.expected_end is not None:
        end = running.expected_end
    limit = running.workload.max_duration_s
    if limit is not None:
        end = min(end, running.started_at + limit * MS_PER_S)
    if end > now:
        return end
    return now + max(MS_PER_S, (now - running.started_at) // 10)


def weakest(first: Basis, second: Basis) -> Basis:
    """Return the weaker of two bases: an estimate is worth no more than what it rests on."""
    return max(first, second, key=lambda each: _WEAKNESS[each])
