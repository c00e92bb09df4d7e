"""Everyone whom a cycle considers, as columns of numbers.

Owns the columns by which many workloads are looked at in one array operation: what each asks, with
whom it shares its fate, and its place by priority and age. Decides nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuplane.core.scheduling.answers import Answers
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.pools import (
    ASKER,
    KIND,
    PLACE,
    QUEUE,
    VERSION,
    Numbers,
    Objects,
    PendingPool,
)


class Lineup:
    """Entries of a pool queue after queue, each queue best first.

    Attributes:
        queues: The names of the queues. `starts`: where each begins, and the end of the last.
        lines: The queue of each entry as a place in `queues`, shape (entry,).
        standing: Its place among all by key alone.
        questions: What they ask of the quotas.
        kinds, askers: As in `Entry`, -1 for None, shape (entry,).
        fates: Kind and flavors: where there is no room for one of them there is none for the
            others, in whatever queue. -1 where the flavors depend on usage.
        fate_count: All of them are below this.
    """

    def __init__(self, pool: PendingPool, answers: Answers, slots: Numbers) -> None:
        """Line up the entries in these slots of a pool.

        Args:
            pool: Where they wait.
            answers: Who is asked for quota.
            slots: Their slots in the order of their keys.
        """
        self._pool = pool
        columns = pool.columns
        names = sorted(pool.queue_names)
        rank = np.array([names.index(name) for name in pool.queue_names], dtype=np.int64)
        lines = rank[columns[QUEUE, slots]]
        counts = np.bincount(lines, minlength=len(names))
        # Queues with nobody in them have no line.
        lines = (np.cumsum(counts > 0) - 1)[lines]
        by_line = np.argsort(lines, kind="stable")
        self.queues = [name for name, count in zip(names, counts, strict=True) if count]
        self.starts: Numbers = np.cumsum(np.r_[0, counts[counts > 0]])
        self.slots, self.lines, self.standing = slots[by_line], lines[by_line], by_line
        self.kinds: Numbers = columns[KIND, self.slots]
        self.askers: Numbers = columns[ASKER, self.slots]
        self.questions = answers.ask_for(columns[PLACE, self.slots], self.entry)
        flavors = self.questions.flavors[self.questions.of]
        fates = self.kinds * self.questions.flavor_count + flavors
        self.fates: Numbers = np.where((flavors < 0) | (self.kinds < 0), -1, fates)
        self.fate_count = int(self.fates.max(initial=0)) + 1

    def __len__(self) -> int:
        return len(self.slots)

    def entry(self, index: int) -> Entry:
        """Return an entry by its place in the line-up."""
        return self._pool.entry_at(self.slots[index])

    def find_places(self, some: Iterable[Entry]) -> list[int]:
        """Return the places of some entries in the line-up; who is not in it has none."""
        place_of = np.full(len(self._pool.entries), -1, dtype=np.int64)
        place_of[self.slots] = np.arange(len(self.slots))
        found = [int(place_of[each.slot]) for each in some]
        return [place for place in found if place >= 0]

    def list_jobs(self, order: Numbers) -> tuple[Objects, list[int]]:
        """Return the ids and versions of the jobs in these places."""
        slots = self.slots[order]
        versions: list[int] = self._pool.columns[VERSION, slots].tolist()
        return self._pool.job_ids[slots], versions


def line_up(queues: Mapping[str, Sequence[Entry]], answers: Answers, pool: PendingPool) -> Lineup:
    """Return a line-up of entries that wait in no pool, given by queue, best first.

    Args:
        queues: The entries.
        answers: Who is asked for quota.
        pool: Gives numbers to their values, and keeps none of them.
    """
    apart = pool.make_like(entry for name in sorted(queues) for entry in queues[name])
    return Lineup(apart, answers, apart.list_order())
