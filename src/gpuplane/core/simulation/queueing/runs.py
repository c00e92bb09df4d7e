"""The clock of a simulation: who runs, where, until when, and which event comes next.

Owns the course of time: at one instant first every completion, then every arrival, then the queue
is served once. Never chooses a job.
"""

import heapq
from typing import Protocol

from gpuplane.core.simulation.queueing.pools import Placement, Pool, PoolShape
from gpuplane.core.simulation.queueing.traces import Trace

NEVER_MS = 1 << 62
"""Later than every instant of a trace."""


class Misfit(ValueError):
    """A job is larger than the whole pool, so it could never start."""

    def __init__(self, trace: Trace, job: int, shape: PoolShape) -> None:
        self.job = job
        self.expected = f"at most {shape.gpus} ({shape.nodes} nodes of {shape.gpus_per_node})"
        self.found = f"job {trace.names[job]!r} wants {trace.gpus[job]} GPUs"
        super().__init__(f"{self.found}; expected {self.expected}")


class Run:
    """What runs now, and what has run.

    Attributes:
        trace: The jobs, named by their index everywhere else.
        pool: The free GPUs.
        now_ms: The instant.
        start_ms: When each job started; -1 while it has not.
        running: Where each running job is, in the order of their starts.
    """

    __slots__ = ("_ends", "now_ms", "pool", "running", "start_ms", "trace")

    def __init__(self, trace: Trace, shape: PoolShape) -> None:
        """Make a run of a trace on a pool that is all free.

        Raises:
            Misfit: If a job is larger than the pool.
        """
        for job, gpus in enumerate(trace.gpus):
            if gpus > shape.gpus:
                raise Misfit(trace, job, shape)
        self.trace = trace
        self.pool = Pool(shape)
        self.now_ms = 0
        self.start_ms = [-1] * len(trace)
        self.running: dict[int, Placement] = {}
        # An end and a job in one integer, `end * jobs + job`: half the cost of pairs in a heap.
        self._ends: list[int] = []

    def start(self, job: int, placement: Placement) -> None:
        """Start a job now."""
        self.pool.take(placement)
        self.running[job] = placement
        self.start_ms[job] = self.now_ms
        end_ms = self.now_ms + self.trace.duration_ms[job]
        heapq.heappush(self._ends, end_ms * len(self.trace) + job)

    def next_end_ms(self) -> int:
        """Return when the next running job ends."""
        return self._ends[0] // len(self.trace) if self._ends else NEVER_MS

    def complete(self) -> list[int]:
        """End every job whose end has come, and return them."""
        ends, jobs = self._ends, len(self.trace)
        limit = (self.now_ms + 1) * jobs
        ended = []
        while ends and ends[0] < limit:
            job = heapq.heappop(ends) % jobs
            self.pool.give(self.running.pop(job))
            ended.append(job)
        return ended


class Line(Protocol):
    """Those who wait, and how they are served."""

    def add(self, job: int) -> None:
        """Let a job stand in line."""
        ...

    def serve(self, run: Run, ended: list[int]) -> None:
        """Start whoever may start now; `ended` are the jobs that ended at this instant."""
        ...

    def wakes_at_ms(self) -> int:
        """Return the next instant at which the line wants to be served whatever else happens."""
        ...


def run_trace(run: Run, line: Line) -> None:
    """Run a trace to its last completion."""
    arrivals, jobs = run.trace.arrival_ms, len(run.trace)
    arrived = 0
    while True:
        now_ms = min(
            arrivals[arrived] if arrived < jobs else NEVER_MS,
            run.next_end_ms(),
            line.wakes_at_ms(),
        )
        if now_ms == NEVER_MS:
            return
        run.now_ms = now_ms
        ended = run.complete()
        while arrived < jobs and arrivals[arrived] == now_ms:
            line.add(arrived)
            arrived += 1
        line.serve(run, ended)
