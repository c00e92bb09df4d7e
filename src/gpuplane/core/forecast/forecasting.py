"""Estimated starts and ends of everything pending, with an interval.

Owns how runs of the clock at three quantiles become one estimate per workload.
"""

from collections.abc import Mapping
from dataclasses import replace

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.forecast.clock import Run, run_clock
from gpuplane.core.forecast.estimates import (
    Forecast,
    ForecastLimits,
    StartEstimate,
    durations_of,
    weakest,
)
from gpuplane.core.ids import JobId
from gpuplane.core.prediction.durations import Quantile
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Waiting
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.protection import find_openings
from gpuplane.core.scheduling.workload import Workload

DEFAULT_LIMITS = ForecastLimits()


def forecast(
    snapshot: Snapshot,
    policy: Policy,
    now: int,
    seed: int,
    limits: ForecastLimits = DEFAULT_LIMITS,
) -> Forecast:
    """Return when each pending workload is expected to start and end.

    Pure and deterministic like `decide`; the snapshot is the same before and after.

    Args:
        snapshot: The installation now.
        policy: The scheduler's policy.
        now: The instant of the forecast, in ms since the epoch.
        seed: As for `decide`.
        limits: Bounds; what does not start within them has no estimate.
    """
    return _forecast(snapshot, policy, now, seed, limits, None)


def earliest_start(
    snapshot: Snapshot,
    workload: Workload,
    policy: Policy,
    now: int,
    seed: int,
    limits: ForecastLimits = DEFAULT_LIMITS,
) -> StartEstimate | None:
    """Return when a workload that is not submitted yet would start, or None if not in bounds.

    It is taken to join the queue now, behind everyone who is there already.
    """
    others = tuple(each for each in snapshot.pending if each.job_id != workload.job_id)
    asked = replace(snapshot, pending=(*others, workload))
    found = _forecast(asked, policy, now, seed, limits, workload.job_id)
    return found.estimates.get(workload.job_id)


def _forecast(
    snapshot: Snapshot,
    policy: Policy,
    now: int,
    seed: int,
    limits: ForecastLimits,
    until: JobId | None,
) -> Forecast:
    first = decide(snapshot, policy, now, seed)
    waiting = {verdict.job_id for verdict in first.verdicts if isinstance(verdict, Waiting)}
    openings = find_openings(snapshot, waiting, policy, now, seed)
    runs = {
        quantile: run_clock(snapshot, policy, now, seed, quantile, first, limits, openings, until)
        for quantile in Quantile
    }
    estimates = {}
    known = {
        workload.job_id: workload
        for workload in (*snapshot.pending, *(each.workload for each in snapshot.running))
    }
    cut = {verdict.job_id for verdict in first.repartitioning} | set(snapshot.recutting)
    for workload in snapshot.pending:
        if workload.job_id in cut:
            estimate: StartEstimate | None = _once_cut(workload, now, policy)
        else:
            estimate = _combine(workload, runs, known, policy)
        if estimate is not None:
            estimates[workload.job_id] = estimate
    return Forecast(
        estimates,
        sum(run.events for run in runs.values()),
        all(run.is_complete for run in runs.values()),
    )


def _once_cut(workload: Workload, now: int, policy: Policy) -> StartEstimate:
    """Return the estimate of a workload for which a GPU is cut: now, without an upper bound.

    Cutting takes seconds where it works; when it would start where that fails is not known.
    """
    own = durations_of(workload, policy.default_duration_s)
    return StartEstimate(
        start=now,
        end=now + own.at(Quantile.MEDIAN) * MS_PER_S,
        low=now,
        high=None,
        end_low=now + own.at(Quantile.LOW) * MS_PER_S,
        end_high=None,
        basis=own.basis,
    )


def _combine(
    workload: Workload,
    runs: Mapping[Quantile, Run],
    known: Mapping[JobId, Workload],
    policy: Policy,
) -> StartEstimate | None:
    """Return the estimate of one workload, None when it does not start in the median run."""
    starts = {quantile: run.starts.get(workload.job_id) for quantile, run in runs.items()}
    start = starts[Quantile.MEDIAN]
    if start is None:
        return None

    default_s = policy.default_duration_s
    own = durations_of(workload, default_s)
    basis = own.basis
    before = runs[Quantile.MEDIAN].waited_for.get(workload.job_id)
    if before is not None and before in known:
        basis = weakest(basis, durations_of(known[before], default_s).basis)
    # With other durations the order of starts may turn over: a bound is never inside out.
    found = [each for each in starts.values() if each is not None]
    low, high = min(found), max(found)
    is_bounded = starts[Quantile.HIGH] is not None
    return StartEstimate(
        start=start,
        end=start + own.at(Quantile.MEDIAN) * MS_PER_S,
        low=low,
        high=high if is_bounded else None,
        end_low=low + own.at(Quantile.LOW) * MS_PER_S,
        end_high=high + own.at(Quantile.HIGH) * MS_PER_S if is_bounded else None,
        basis=basis,
    )
