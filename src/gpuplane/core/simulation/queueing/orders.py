"""The orders in which a queue can be served, as a rank a job.

Owns the names and the keys; never says who may pass whom, nor where a job goes.
"""

from collections.abc import Sequence
from enum import StrEnum

from gpuplane.core.simulation.queueing.traces import Trace


class Order(StrEnum):
    """Who comes first."""

    FIFO = "fifo"
    """The one that arrived first."""
    SJF = "sjf"
    """The one with the shortest run."""
    SSF = "ssf"
    """The one with the smallest service: run times GPUs."""
    BOUNDED = "bounded"
    """The one with the shortest run, but for those who would wait longer than a target."""


class Skip(StrEnum):
    """What becomes of the rest when the first of the queue does not fit."""

    STRICT = "strict"
    """It waits too."""
    GREEDY = "greedy"
    """Whoever fits passes."""
    BACKFILL = "backfill"
    """Whoever fits passes, unless it would move the start that is set aside for the first."""


class Durations(StrEnum):
    """What an order and a backfill know of how long a job runs."""

    KNOWN = "known"
    """The truth."""
    ESTIMATED = "estimated"
    """The trace's estimate; it may be wrong either way."""


def compute_ranks(trace: Trace, order: Order, run_ms: Sequence[int]) -> list[int]:
    """Return each job's rank, 0 for the first; ties go to the earlier arrival.

    Args:
        trace: The jobs.
        order: Who comes first.
        run_ms: How long each job is thought to run.
    """
    keys: Sequence[int]
    if order in (Order.SJF, Order.BOUNDED):
        keys = run_ms
    elif order is Order.SSF:
        keys = [run * gpus for run, gpus in zip(run_ms, trace.gpus, strict=True)]
    else:
        return list(range(len(trace)))
    ranks = [0] * len(trace)
    # Sorting is stable and the trace stands in order of arrival, which breaks the ties.
    for rank, job in enumerate(sorted(range(len(trace)), key=keys.__getitem__)):
        ranks[job] = rank
    return ranks
