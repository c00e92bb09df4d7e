"""What each node has free from now on, if everything ends when it is known to end.

Owns the steps in which a node's free GPUs change, and the search for the earliest slot in them.
Never chooses whom a slot is for.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from gpuplane.core.simulation.queueing.pools import Placement, PoolShape
from gpuplane.core.simulation.queueing.runs import NEVER_MS


@dataclass(frozen=True, slots=True)
class Slot:
    """A place to run, from an instant on."""

    start_ms: int
    placement: Placement


class NodeCalendar:
    """The steps of one node: from `times[i]` on, until the next, `free[i]` GPUs are free."""

    __slots__ = ("free", "times")

    def __init__(self, gpus: int) -> None:
        """Make the calendar of a node that is free for ever."""
        self.times = [0]
        self.free = [gpus]

    def add(self, start_ms: int, end_ms: int, gpus: int) -> None:
        """Let GPUs be free (fewer than none: taken) over `[start_ms, end_ms)`."""
        if start_ms == end_ms:
            return
        first, last = self._step_at(start_ms), self._step_at(end_ms)
        free = self.free
        for step in range(first, last):
            free[step] += gpus
        # Steps that change nothing any more would only be walked over.
        for step in (last, first):
            if step and free[step] == free[step - 1]:
                del free[step], self.times[step]

    def _step_at(self, instant_ms: int) -> int:
        """Return the step that begins at an instant, made if there is none."""
        step = bisect_left(self.times, instant_ms)
        if step == len(self.times) or self.times[step] != instant_ms:
            self.times.insert(step, instant_ms)
            self.free.insert(step, self.free[step - 1])
        return step

    def forget(self, now_ms: int) -> None:
        """Drop the steps that are over."""
        over = bisect_right(self.times, now_ms) - 1
        if over > 0:
            del self.times[:over], self.free[:over]

    def least(self, now_ms: int, end_ms: int) -> int:
        """Return how many GPUs are free all the time in `[now_ms, end_ms)`."""
        first = bisect_right(self.times, now_ms) - 1
        return min(self.free[first : max(first + 1, bisect_left(self.times, end_ms))])

    def windows(self, now_ms: int, gpus: int, run_ms: int) -> Iterator[tuple[int, int, int]]:
        """Yield the first and last start of each stretch that holds a run, and what is free then.

        What is free is said of the first of them.
        """
        times, free = self.times, self.free
        step, steps = bisect_right(times, now_ms) - 1, len(times)
        while step < steps:
            if free[step] < gpus:
                step += 1
                continue
            start, there = max(now_ms, times[step]), free[step]
            while step < steps and free[step] >= gpus:
                step += 1
            end = times[step] if step < steps else NEVER_MS
            if end - start >= run_ms:
                yield start, end - run_ms, there


class Calendar:
    """The calendars of all nodes of a pool."""

    def __init__(self, shape: PoolShape) -> None:
        """Make a calendar of a pool that is free for ever."""
        self.size = shape.gpus_per_node
        self.nodes = [NodeCalendar(self.size) for _ in range(shape.nodes)]

    def take(self, placement: Placement, start_ms: int, end_ms: int) -> None:
        """Note that GPUs are taken over `[start_ms, end_ms)`."""
        for node, gpus in placement:
            self.nodes[node].add(start_ms, end_ms, -gpus)

    def give(self, placement: Placement, start_ms: int, end_ms: int) -> None:
        """Note that they are not, after all."""
        for node, gpus in placement:
            self.nodes[node].add(start_ms, end_ms, gpus)

    def forget(self, now_ms: int) -> None:
        """Drop what is over."""
        for node in self.nodes:
            node.forget(now_ms)

    def find_slot(self, now_ms: int, gpus: int, run_ms: int) -> Slot:
        """Return the earliest slot that holds a run in full.

        Of the nodes that offer the earliest start, the one with the fewest GPUs free then, and of
        several alike the one with the lowest index; a gang takes its nodes by index.
        """
        if gpus > self.size:
            return self._find_gang_slot(now_ms, gpus, run_ms)
        best = (NEVER_MS, 0, 0)
        for index, node in enumerate(self.nodes):
            for start_ms, _, free in node.windows(now_ms, gpus, run_ms):
                best = min(best, (start_ms, free, index))
                break
        return Slot(best[0], ((best[2], gpus),))

    def _find_gang_slot(self, now_ms: int, gpus: int, run_ms: int) -> Slot:
        whole, rest = divmod(gpus, self.size)
        wholes = [list(node.windows(now_ms, self.size, run_ms)) for node in self.nodes]
        rests = [list(node.windows(now_ms, rest, run_ms)) for node in self.nodes] if rest else []
        starts = {window[0] for node in (*wholes, *rests) for window in node}
        for start_ms in sorted(starts):
            full = [
                (index, self.size)
                for index, windows in enumerate(wholes)
                if any(first <= start_ms <= last for first, last, _ in windows)
            ]
            if len(full) < whole:
                continue
            taken = {index for index, _ in full[:whole]}
            others = [
                (index, rest)
                for index, windows in enumerate(rests)
                if index not in taken
                and any(first <= start_ms <= last for first, last, _ in windows)
            ]
            if rest and not others:
                continue
            return Slot(start_ms, (*full[:whole], *others[:1]))
        raise RuntimeError(f"{gpus} GPUs fit on no empty pool, and were let in")
