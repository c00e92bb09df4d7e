"""A queueing simulator without any cleverness: every list is walked, every sum taken anew.

Written from the protocol alone; it shares nothing with the product but the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuplane.core.simulation.queueing.traces import Trace

Nodes = list[int]
"""Free GPUs of each node."""
Taken = dict[int, int]
"""GPUs taken, by node."""


def place(nodes: Nodes, size: int, gpus: int) -> Taken | None:
    """Return what the rule of consolidation takes."""
    if gpus <= size:
        fitting = [(free, node) for node, free in enumerate(nodes) if free >= gpus]
        return {min(fitting)[1]: gpus} if fitting else None
    whole, rest = gpus // size, gpus % size
    empty = [node for node, free in enumerate(nodes) if free == size]
    if len(empty) < whole:
        return None
    taken = dict.fromkeys(empty[:whole], size)
    if rest:
        others = [(-free, node) for node, free in enumerate(nodes) if node not in taken]
        if not others or -min(others)[0] < rest:
            return None
        taken[min(others)[1]] = rest
    return taken


@dataclass
class PlainQueue:
    """One run of it."""

    trace: Trace
    nodes: int
    size: int
    order: str
    skip: str
    run_ms: tuple[int, ...]

    def __post_init__(self) -> None:
        self.free: Nodes = [self.size] * self.nodes
        self.start: dict[int, int] = {}
        self.taken: dict[int, Taken] = {}
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.now = 0
        self.reserved: tuple[int, int, Taken] | None = None
        self.promised: dict[int, int] = {}

    def key(self, job: int) -> tuple[int, int]:
        run, gpus = self.run_ms[job], self.trace.gpus[job]
        return {"fifo": 0, "sjf": run, "ssf": run * gpus}[self.order], job

    def end(self, job: int) -> int:
        return self.start[job] + self.trace.duration_ms[job]

    def expected(self, job: int) -> int:
        return max(self.start[job] + self.run_ms[job], self.now + 1)

    def run(self) -> list[int]:
        """Return the start of every job."""
        jobs = range(len(self.trace))
        while len(self.start) < len(jobs) or self.running:
            coming = [t for j, t in enumerate(self.trace.arrival_ms) if not self._seen(j)]
            self.now = min(coming + [self.end(job) for job in self.running])
            for job in [job for job in self.running if self.end(job) == self.now]:
                self.running.remove(job)
                for node, gpus in self.taken[job].items():
                    self.free[node] += gpus
                if self.run_ms[job] != self.trace.duration_ms[job]:
                    self.reserved = None
            self.waiting += [
                job
                for job in jobs
                if self.trace.arrival_ms[job] == self.now and not self._seen(job)
            ]
            self.waiting.sort(key=self.key)
            self.serve()
        return [self.start[job] for job in jobs]

    def _seen(self, job: int) -> bool:
        return job in self.start or job in self.waiting

    def begin(self, job: int, taken: Taken) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        self.start[job], self.taken[job] = self.now, taken
        for node, gpus in taken.items():
            self.free[node] -= gpus

    def serve(self) -> None:
        passing = False
        for job in list(self.waiting):
            taken = place(self.free, self.size, self.trace.gpus[job])
            if passing and self.skip == "backfill":
                taken = self.backfill(job)
            if taken is not None:
                self.begin(job, taken)
                if not passing:
                    self.reserved = None
            elif self.skip == "strict":
                return
            elif not passing:
                passing = True
                if self.skip == "backfill" and any(self.free):
                    self.reserve(job)

    def reserve(self, job: int) -> None:
        """Set a start aside for the first, unless the one that it has still holds."""
        if self.reserved and self.reserved[0] == job and self.reserved[1] > self.now:
            return
        for instant in sorted({self.expected(other) for other in self.running}):
            taken = place(self.free_at(instant), self.size, self.trace.gpus[job])
            if taken is not None:
                self.reserved = (job, instant, taken)
                self.promised.setdefault(job, instant)
                return

    def free_at(self, instant: int) -> Nodes:
        """Return what is free at an instant if nobody starts any more."""
        free = list(self.free)
        for job in self.running:
            if self.expected(job) <= instant:
                for node, gpus in self.taken[job].items():
                    free[node] += gpus
        return free

    def backfill(self, job: int) -> Taken | None:
        """Return what a job takes that may not move the start that is set aside."""
        if self.reserved is None:
            return None
        _, instant, aside = self.reserved
        if self.now + self.run_ms[job] <= instant:
            return place(self.free, self.size, self.trace.gpus[job])
        then = self.free_at(instant)
        usable = [
            min(free, then[node] - aside[node]) if node in aside else free
            for node, free in enumerate(self.free)
        ]
        return place(usable, self.size, self.trace.gpus[job])
