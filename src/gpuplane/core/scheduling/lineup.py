"""Everyone whom a cycle considers, as columns of numbers.

Owns the columns by which many workloads are looked at in one array operation: what each asks, with
whom it shares its fate, and its place by priority and age. Decides nothing.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.scheduling.answers import Answers
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.pools import PendingPool

Numbers = NDArray[np.int64]


class Lineup:
    """Entries queue after queue, each queue best first.

    Attributes:
        queues: The names of the queues. `starts`: where each begins, and the end of the last.
        questions: What they ask of the quotas.
        kinds, askers: As in `Entry`, -1 for None, shape (entry,).
        fates: Kind and flavors: where there is no room for one of them there is none for the
            others, in whatever queue. -1 where the flavors depend on usage.
        fate_count: All of them are below this.
    """

    def __init__(
        self, queues: Mapping[str, Sequence[Entry]], answers: Answers, pool: PendingPool
    ) -> None:
        """Line up the entries of these queues."""
        self.queues = [name for name in sorted(queues) if queues[name]]
        self.entries = [entry for name in self.queues for entry in queues[name]]
        lengths = [len(queues[name]) for name in self.queues]
        self.starts: Numbers = np.cumsum([0, *lengths])
        self.lines: Numbers = np.repeat(np.arange(len(lengths)), lengths)
        for entry in self.entries:
            if not entry.is_numbered:
                pool.number(entry)
        self.questions = answers.ask_for(self.entries)
        self.kinds = _column([entry.kind for entry in self.entries])
        self.askers = _column([entry.asker for entry in self.entries])
        flavors = self.questions.flavors[self.questions.of]
        fates = self.kinds * self.questions.flavor_count + flavors
        self.fates: Numbers = np.where((flavors < 0) | (self.kinds < 0), -1, fates)
        self.fate_count = int(self.fates.max(initial=0)) + 1

    def __len__(self) -> int:
        return len(self.entries)

    def find_standing(self) -> Numbers:
        """Return the place of each entry among all by key alone, shape (entry,)."""
        standing = np.arange(len(self.entries))
        if len(self.queues) <= 1:
            return standing
        keys = [entry.key for entry in self.entries]
        effective = np.array([key[0] for key in keys], dtype=np.int64)
        queued = np.array([key[1] for key in keys], dtype=np.int64)
        order = np.lexsort((queued, effective))
        effective, queued = effective[order], queued[order]
        is_tied = (effective[1:] == effective[:-1]) & (queued[1:] == queued[:-1])
        for first, last in _list_runs(is_tied):
            order[first:last] = sorted(order[first:last].tolist(), key=lambda place: keys[place])
        standing[order] = np.arange(len(order))
        return standing


def _list_runs(is_tied: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return where runs of equals begin and end, from whether each equals the one after it."""
    edges = np.flatnonzero(np.diff(np.r_[False, is_tied, False].astype(np.int8)))
    return [(first, last + 1) for first, last in edges.reshape(-1, 2).tolist()]


def _column(values: Sequence[Hashable | None]) -> Numbers:
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)
