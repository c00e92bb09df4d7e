"""When work starts and ends, as values with an interval and what they rest on.

Owns the shapes of a forecast; how long work takes is `core.prediction.durations`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.ids import JobId
from gpuplane.core.prediction.durations import (
    Basis,
    Durations,
    Quantile,
    choose_durations,
    outlived_ms,
)
from gpuplane.core.scheduling.workload import RunningWorkload, Workload


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


_WEAKNESS = {basis: place for place, basis in enumerate(Basis)}


def durations_of(workload: Workload, default_s: int) -> Durations:
    """Return how long a workload is counted on to run."""
    return choose_durations(
        workload.estimated_duration_s, workload.learned, workload.max_duration_s, default_s
    )


def expected_end(
    running: RunningWorkload, durations: Durations, quantile: Quantile, now: int
) -> int:
    """Return when a running workload ends, later than now (`outlived_ms` when it is late)."""
    end = running.started_at + durations.at(quantile) * MS_PER_S
    if quantile is Quantile.MEDIAN and running.expected_end is not None:
        end = running.expected_end
    limit = running.workload.max_duration_s
    if limit is not None:
        end = min(end, running.started_at + limit * MS_PER_S)
    if end > now:
        return end
    lasts_ms = outlived_ms(now - running.started_at, durations, quantile)
    if limit is not None:
        lasts_ms = min(lasts_ms, limit * MS_PER_S)
    return max(now + MS_PER_S, running.started_at + lasts_ms)


def weakest(first: Basis, second: Basis) -> Basis:
    """Return the weaker of two bases: an estimate is worth no more than what it rests on."""
    return max(first, second, key=lambda each: _WEAKNESS[each])
