"""A queue whose first has a start set aside for it, which nobody who passes may move.

Owns EASY backfill on nodes: the start that is set aside and the GPUs of each node that go with it.

Source: Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; on nodes instead of a plain count of
processors, because a gang needs its GPUs in the right places.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpuplane.core.simulation.queueing.lines import jobs_by_rank
from gpuplane.core.simulation.queueing.pools import Placement
from gpuplane.core.simulation.queueing.runs import NEVER_MS, Run


class ShortestTree:
    """Waiting jobs in the order of their ranks, searched for the first that is short enough.

    A tree of minima over the run times: putting, removing and finding cost its height, where a
    walk along the queue would cost its length.
    """

    __slots__ = ("_least", "_width")

    def __init__(self, places: int) -> None:
        """Make an empty tree with so many places."""
        self._width = 1 << max(0, places - 1).bit_length()
        self._least = [NEVER_MS] * (2 * self._width)

    def put(self, place: int, run_ms: int) -> None:
        """Put a job at a place, or take it away with a run time of `NEVER_MS`."""
        least, index = self._least, place + self._width
        least[index] = run_ms
        while index > 1:
            index >>= 1
            left, right = least[2 * index], least[2 * index + 1]
            smaller = left if left < right else right
            if least[index] == smaller:
                return
            least[index] = smaller

    def find(self, limit_ms: int) -> int:
        """Return the first place with a run time of at most a limit, -1 if there is none."""
        least, index = self._least, 1
        if least[1] > limit_ms or least[1] == NEVER_MS:
            return -1
        while index < self._width:
            index *= 2
            if least[index] > limit_ms:
                index += 1
        return index - self._width


class WaitingJobs:
    """Everyone who waits, by number of GPUs and then by rank.

    Attributes:
        jobs: The job of each rank.
        count: How many wait.
    """

    def __init__(self, ranks: Sequence[int], gpus: Sequence[int], run_ms: Sequence[int]) -> None:
        """Make room for jobs of these ranks, sizes and run times; nobody waits yet."""
        self._run_ms = run_ms
        self._gpus = gpus
        self.jobs = jobs_by_rank(ranks)
        self.count = 0
        self._ranks_of: dict[int, list[int]] = {size: [] for size in sorted(set(gpus))}
        self._place = [0] * len(ranks)
        for rank, job in enumerate(self.jobs):
            of_size = self._ranks_of[gpus[job]]
            self._place[job] = len(of_size)
            of_size.append(rank)
        self._trees = {size: ShortestTree(len(of)) for size, of in self._ranks_of.items()}

    def add(self, job: int) -> None:
        """Let a job wait."""
        self.count += 1
        self._trees[self._gpus[job]].put(self._place[job], self._run_ms[job])

    def remove(self, job: int) -> None:
        """Let a job wait no more."""
        self.count -= 1
        self._trees[self._gpus[job]].put(self._place[job], NEVER_MS)

    def find_rank(self, size: int, limit_ms: int = NEVER_MS - 1) -> int:
        """Return the first rank of this size that runs at most so long, -1 if nobody does."""
        place = self._trees[size].find(limit_ms)
        return place if place < 0 else self._ranks_of[size][place]

    def heads(self) -> list[tuple[int, int]]:
        """Return rank and size of the first of each size that waits, the first of all in front."""
        found = [(self.find_rank(size), size) for size in self._trees]
        return sorted(each for each in found if each[0] >= 0)


@dataclass(slots=True)
class Reservation:
    """The start that is set aside for the first of the queue.

    Attributes:
        job: Whose it is.
        start_ms: The earliest instant at which it fits if everything ends as is thought.
        spare: Of each node that it will use, the GPUs that it leaves free then; what runs beyond
            the start may take no more of them.
    """

    job: int
    start_ms: int
    spare: dict[int, int] = field(default_factory=dict)


class ExpectedEnds:
    """When each running job is thought to end, in that order."""

    __slots__ = ("_ends", "_jobs", "_run_ms")

    def __init__(self, run_ms: Sequence[int]) -> None:
        """Make it for jobs that are thought to run so long; nobody runs yet."""
        self._run_ms = run_ms
        self._jobs = len(run_ms)
        self._ends: list[int] = []  # an end and a job in one integer, `end * jobs + job`

    def add(self, run: Run, job: int) -> None:
        """Note a job that has started."""
        insort(self._ends, self._key(run, job))

    def remove(self, run: Run, job: int) -> bool:
        """Forget a job that has ended; return whether it ended just when it was thought to."""
        key = self._key(run, job)
        del self._ends[bisect_left(self._ends, key)]
        return key // self._jobs == run.now_ms

    def _key(self, run: Run, job: int) -> int:
        return (run.start_ms[job] + self._run_ms[job]) * self._jobs + job

    def walk(self, now_ms: int) -> Iterator[tuple[int, list[int]]]:
        """Yield each instant to come with those who end then; who is over time may end any moment.

        Args:
            now_ms: The present instant.
        """
        at_ms, together = now_ms + 1, list[int]()
        for key in self._ends:
            end_ms, job = divmod(key, self._jobs)
            if end_ms > at_ms:
                if together:
                    yield at_ms, together
                at_ms, together = end_ms, []
            together.append(job)
        if together:
            yield at_ms, together


def compute_reservation(run: Run, job: int, ends: ExpectedEnds) -> Reservation:
    """Return the earliest start of a job that does not fit now, and the nodes it takes then."""
    pool = run.pool.copy()
    for end_ms, ended in ends.walk(run.now_ms):
        for other in ended:
            pool.give(run.running[other])
        placement = pool.find(run.trace.gpus[job])
        if placement is not None:
            spare = {node: pool.free[node] - gpus for node, gpus in placement}
            return Reservation(job, end_ms, spare)
    raise RuntimeError(f"job {job} fits on no empty pool, and was let in")


class BackfillLine:
    """Whoever fits passes, unless that moved the start that is set aside for the first.

    The start is set aside when the first does not fit and somebody could pass it. It holds until
    the job starts or another comes before it; it is made anew where something ended at another
    time than was thought.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        gpus: Sequence[int],
        run_ms: Sequence[int],
        promised_ms: dict[int, int],
    ) -> None:
        """Make an empty line.

        Args:
            ranks: The jobs' ranks.
            gpus: Their sizes.
            run_ms: How long they are thought to run.
            promised_ms: Where the first start that is set aside for a job is noted.
        """
        self._waiting = WaitingJobs(ranks, gpus, run_ms)
        self._run_ms = run_ms
        self._promised_ms = promised_ms
        self._ends = ExpectedEnds(run_ms)
        self._ranks = ranks
        self._arrived: list[int] = []
        self._reservation: Reservation | None = None

    def add(self, job: int) -> None:
        self._arrived.append(job)

    def wakes_at_ms(self) -> int:
        return NEVER_MS

    def serve(self, run: Run, ended: list[int]) -> None:
        for job in ended:
            if not self._ends.remove(run, job):
                self._reservation = None
        arrived = sorted(self._arrived, key=self._ranks.__getitem__)
        self._arrived.clear()
        made = self._reservation
        if made is not None and (
            made.start_ms <= run.now_ms
            or (arrived and self._ranks[arrived[0]] < self._ranks[made.job])
        ):
            made = self._reservation = None
        if made is None or ended:
            self._start_at_once(run, arrived)
            self._serve_all(run)
            return
        # Nobody else may pass: they were all looked at when GPUs last came back, and the time
        # that is left until the start that is set aside only shrinks.
        for job in arrived:
            placement = self._find_beside(run, job, made)
            if placement is None:
                self._waiting.add(job)
            else:
                self._start(run, job, placement)

    def _start_at_once(self, run: Run, arrived: list[int]) -> None:
        """Start who finds nobody waiting and GPUs free, without standing in line; let others."""
        for job in arrived:
            placement = None
            if not self._waiting.count:
                placement = run.pool.find(run.trace.gpus[job])
            if placement is None:
                self._waiting.add(job)
            else:
                self._start(run, job, placement)

    def _serve_all(self, run: Run) -> None:
        if not self._waiting.count or not run.pool.has_free:
            return
        heads = self._start_first(run)
        if not heads or not run.pool.has_free:
            return
        first = self._waiting.jobs[heads[0][0]]
        made = self._reservation
        if made is None or made.job != first:
            made = self._reservation = compute_reservation(run, first, self._ends)
            self._promised_ms.setdefault(first, made.start_ms)
        self._let_pass(run, heads, made)

    def _start_first(self, run: Run) -> list[tuple[int, int]]:
        """Start the first as long as it fits; return the heads, the first of which does not."""
        heads = self._waiting.heads()
        while heads:
            rank, size = heads[0]
            placement = run.pool.find(size)
            if placement is None:
                break
            self._leave(run, rank, placement)
            self._reservation = None
            rank = self._waiting.find_rank(size)
            if rank < 0:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (rank, size))
        return heads

    def _let_pass(self, run: Run, heads: list[tuple[int, int]], made: Reservation) -> None:
        room_ms = made.start_ms - run.now_ms
        limits_ms = dict.fromkeys((size for _, size in heads), NEVER_MS - 1)
        while heads:
            rank, size = heads[0]
            if run.pool.find(size) is None:
                heapq.heappop(heads)
                continue
            placement = self._find_beside(run, self._waiting.jobs[rank], made)
            if placement is None:
                # From here on of this size only those pass who are over before the start.
                limits_ms[size] = room_ms
            else:
                self._leave(run, rank, placement)
            rank = self._waiting.find_rank(size, limits_ms[size])
            if rank < 0:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (rank, size))

    def _find_beside(self, run: Run, job: int, made: Reservation) -> Placement | None:
        """Return where a job goes without moving the start set aside, and note it there."""
        gpus = run.trace.gpus[job]
        if run.now_ms + self._run_ms[job] <= made.start_ms:
            return run.pool.find(gpus)
        placement = run.pool.find_capped(gpus, made.spare)
        for node, count in placement or ():
            if node in made.spare:
                made.spare[node] -= count
        return placement

    def _leave(self, run: Run, rank: int, placement: Placement) -> None:
        """Start one of those who stand in line."""
        job = self._waiting.jobs[rank]
        self._waiting.remove(job)
        self._start(run, job, placement)

    def _start(self, run: Run, job: int, placement: Placement) -> None:
        run.start(job, placement)
        self._ends.add(run, job)
