"""Traces written as a few words a job, and the slow simulator that the fast one is held against."""

from __future__ import annotations

from collections.abc import Sequence

from gpuplane.core.simulation.queueing.traces import Trace

Job = tuple[int, int, int]
"""Arrival in seconds, duration in seconds, GPUs."""


def a_trace(*jobs: Job, estimates_s: Sequence[int] = ()) -> Trace:
    """Return a trace of jobs in the order in which they are written."""
    order = sorted(range(len(jobs)), key=lambda job: jobs[job][0])
    return Trace(
        names=tuple(f"job-{job}" for job in order),
        arrival_ms=tuple(jobs[job][0] * 1000 for job in order),
        duration_ms=tuple(jobs[job][1] * 1000 for job in order),
        gpus=tuple(jobs[job][2] for job in order),
        estimate_ms=tuple(estimates_s[job] * 1000 for job in order) if estimates_s else (),
        lines=tuple(job + 2 for job in order),
    )


def in_seconds(instants_ms: Sequence[int]) -> list[float]:
    return [each / 1000 for each in instants_ms]
