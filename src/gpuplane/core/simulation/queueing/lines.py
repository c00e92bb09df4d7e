"""Two ways to serve a queue: nobody passes, or whoever fits does.

Owns the queues of `strict` and `greedy`. Neither looks ahead, so neither needs to know how long a
job runs.
"""

import heapq
from collections.abc import Sequence

from gpuplane.core.simulation.queueing.runs import NEVER_MS, Run


class StrictLine:
    """The first of the queue starts or nobody does."""

    def __init__(self, ranks: Sequence[int]) -> None:
        """Make an empty line of the jobs of these ranks."""
        self._ranks = ranks
        self._jobs = jobs_by_rank(ranks)
        self._waiting: list[int] = []

    def add(self, job: int) -> None:
        heapq.heappush(self._waiting, self._ranks[job])

    def wakes_at_ms(self) -> int:
        return NEVER_MS

    def serve(self, run: Run, ended: list[int]) -> None:
        waiting, gpus, pool = self._waiting, run.trace.gpus, run.pool
        while waiting:
            job = self._jobs[waiting[0]]
            placement = pool.find(gpus[job])
            if placement is None:
                return
            heapq.heappop(waiting)
            run.start(job, placement)


class GreedyLine:
    """Whoever fits starts, the first of the queue first.

    A queue a number of GPUs: where its first does not fit, nobody behind it does, and since
    starting a job only takes GPUs away, no second look at it is needed before some come back.
    """

    def __init__(self, ranks: Sequence[int], gpus: Sequence[int]) -> None:
        """Make an empty line of the jobs of these ranks and sizes."""
        self._ranks = ranks
        self._jobs = jobs_by_rank(ranks)
        self._waiting: dict[int, list[int]] = {size: [] for size in sorted(set(gpus))}
        self._arrived: list[int] = []

    def add(self, job: int) -> None:
        self._arrived.append(self._ranks[job])

    def wakes_at_ms(self) -> int:
        return NEVER_MS

    def serve(self, run: Run, ended: list[int]) -> None:
        arrived, gpus = self._arrived, run.trace.gpus
        if ended:
            for rank in arrived:
                heapq.heappush(self._waiting[gpus[self._jobs[rank]]], rank)
            self._serve_all(run)
        elif arrived:
            # Nobody who waited fits: they were all looked at when GPUs last came back.
            for rank in sorted(arrived):
                job = self._jobs[rank]
                placement = run.pool.find(gpus[job])
                if placement is None:
                    heapq.heappush(self._waiting[gpus[job]], rank)
                else:
                    run.start(job, placement)
        arrived.clear()

    def _serve_all(self, run: Run) -> None:
        pool = run.pool
        heads = [(queue[0], size) for size, queue in self._waiting.items() if queue]
        heapq.heapify(heads)
        while heads:
            rank, size = heads[0]
            placement = pool.find(size)
            if placement is None:
                heapq.heappop(heads)
                continue
            run.start(self._jobs[rank], placement)
            queue = self._waiting[size]
            heapq.heappop(queue)
            if queue:
                heapq.heapreplace(heads, (queue[0], size))
            else:
                heapq.heappop(heads)


def jobs_by_rank(ranks: Sequence[int]) -> list[int]:
    """Return the job of each rank."""
    jobs = [0] * len(ranks)
    for job, rank in enumerate(ranks):
        jobs[rank] = job
    return jobs
