"""Whose turn it is: the order across queues, by borrowing, priority and age.

Owns the order while usage stands still, and what a queue's head is owed when it moves. Within a
queue the order is `ordering`'s; that of fair sharing comes from `core.quota.ordering`.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from gpuplane.core.quota.ordering import FairOrder, Head
from gpuplane.core.quota.specs import AdmissionMode, FlavorResource
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.lineup import Lineup
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.pools import Numbers

Request = Callable[[Entry], tuple[Mapping[FlavorResource, int], int]]
"""For an entry: the flavors it would use first, and the borrowing level of that."""


class Turns:
    """The turns of everyone lined up: the best head of all queues is next.

    A head comes by the borrowing level that it has when it becomes head, or by a higher one that
    it has when its turn comes; then by its key.

    Attributes:
        order: Places in the line-up in the order of turns at the usage of the last `refresh`.
        passed: How many of them had their turns; counted by the caller.
    """

    def __init__(self, tree: QuotaTree, lineup: Lineup) -> None:
        self._tree = tree
        self._lineup = lineup
        self._left = np.ones(len(lineup), dtype=np.bool_)
        self._standing = lineup.standing
        self._by_standing: Numbers = np.argsort(self._standing)
        self._heads: Numbers = lineup.starts[:-1].copy()
        self._owed: Numbers = np.full(len(lineup.queues), -1, dtype=np.int64)
        self._levels: Numbers = np.zeros(len(lineup), dtype=np.int64)
        self._levels_at = -1
        self._begin(self._by_standing)

    def _begin(self, order: Numbers) -> None:
        self.order = order
        self.passed = 0

    @property
    def is_fair(self) -> bool:
        """Whether the order follows shares, which every start changes."""
        return self._tree.mode is AdmissionMode.FAIR_SHARING

    def leave_out(self, places: list[int]) -> None:
        """Give no turn to these, before anybody has one: they had theirs."""
        self._left[places] = False
        starts = self._lineup.starts.tolist()
        for line in range(len(starts) - 1):
            self._heads[line] = self._next_left(starts[line], starts[line + 1])
        self._begin(self._by_standing[self._left[self._by_standing]])

    def refresh(self, changes: int) -> bool:
        """Make the order that of this usage; tell whether anybody is left.

        Args:
            changes: How often usage has changed for good.
        """
        questions = self._lineup.questions
        if len(self._lineup.queues) > 1:
            questions.refresh(changes)
            if questions.level_changes != self._levels_at:
                self._note_turns(self.order[: self.passed])
                self._levels_at = questions.level_changes
                self._begin(self._find_order(self.order[self.passed :]))
        return self.passed < len(self.order)

    def _find_order(self, rest: Numbers) -> Numbers:
        """Return those who are left in their order, given in the one until now."""
        lineup, questions = self._lineup, self._lineup.questions
        self._levels = questions.levels[questions.of]
        is_open = self._heads < lineup.starts[1:]
        heads = self._heads[is_open]
        self._levels[heads] = np.maximum(self._levels[heads], self._owed[is_open])
        levels = self._levels[rest]
        if not len(rest) or int(levels.max()) == int(levels.min()):
            return self._by_standing[self._left[self._by_standing]]
        # Who stands behind a worse one in its queue comes right after that one.
        count = len(lineup)
        worth = self._levels * count + self._standing
        worth[~self._left] = -1
        apart = lineup.lines * (count * (int(levels.max()) + 1))
        worst = np.maximum.accumulate(worth + apart) - apart
        return rest[np.argsort(worst[rest], kind="stable")]

    def _note_turns(self, order: Numbers) -> None:
        """Note what each head is owed after these had their turns at the levels until now."""
        lineup, count = self._lineup, len(self._lineup)
        if not len(order):
            return
        self._left[order] = False
        moved = np.bincount(lineup.lines[order], minlength=len(lineup.queues))
        worth = self._levels * count + self._standing
        latest = int(worth[order].max())
        for line, steps in enumerate(moved.tolist()):
            head, end = int(self._heads[line]), int(lineup.starts[line + 1])
            if steps:
                self._heads[line] = head = self._next_left(head, end)
            if head == end:
                continue
            # Who was first found what level it has by then, and so did who became head.
            if steps or self._owed[line] * count + self._standing[head] < latest:
                self._owed[line] = self._levels[head]
        self._owed[lineup.lines[order[-1]]] = -1

    def iterate_fairly(self, request: Request) -> Iterator[int]:
        """Yield the places of all who are left; what the caller places counts for the next."""
        order = FairOrder(self._tree)
        for line, name in enumerate(self._lineup.queues):
            self._push(order, request, line, name)
        lines = {name: line for line, name in enumerate(self._lineup.queues)}
        while (head := order.pop()) is not None:
            line = lines[head.cluster_queue]
            place = int(self._heads[line])
            yield place
            self._left[place] = False
            self._heads[line] = self._next_left(place, int(self._lineup.starts[line + 1]))
            self._push(order, request, line, head.cluster_queue)

    def _push(self, order: FairOrder, request: Request, line: int, name: str) -> None:
        place = int(self._heads[line])
        if place == self._lineup.starts[line + 1]:
            return
        entry = self._lineup.entry(place)
        usage, level = request(entry)
        queued_at = entry.workload.queued_at
        order.push(Head(entry.key[2], name, usage, entry.effective, queued_at, level))

    def _next_left(self, place: int, end: int) -> int:
        """Return the first from a place on that had no turn yet, the end if there is none."""
        while place < end and not self._left[place]:
            place += 1
        return place
