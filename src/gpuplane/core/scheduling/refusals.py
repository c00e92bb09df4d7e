"""How many nodes each filter keeps a class away from, kept true by looking at changed nodes only.

Owns the first filter that refuses each node. The filters and their order are `filters`'.
"""

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling import filters
from gpuplane.core.scheduling.filters import EVERYWHERE, Filter, Where
from gpuplane.core.scheduling.needs import Need

_Stages = NDArray[np.int8]


class RefusalCounts:
    """One class against one fleet: which filter refuses each node first, and how many each does."""

    def __init__(self, need: Need, fleet: Fleet) -> None:
        """Ask every filter about every node."""
        self._need = need
        self._fleet = fleet
        self._filters = filters.list_active(need, filters.FILTERS)
        static = set(filters.list_active(need, filters.STATIC_FILTERS))
        self._first_dynamic = next(
            (i for i, each in enumerate(self._filters) if each not in static), len(self._filters)
        )
        self._seen = fleet.clock
        self._stages = self._find_stages(EVERYWHERE, self._filters, 0)
        self._counts = self._tally(self._stages)

    def list_counts(self) -> list[tuple[Word, int]]:
        """Return the nodes refused per filter, in the order of the filters, without zeros."""
        self._refresh()
        counts = self._counts.tolist()
        return [
            (each.word, count)
            for each, count in zip(self._filters, counts[:-1], strict=True)
            if count
        ]

    def _refresh(self) -> None:
        fleet = self._fleet
        if fleet.clock == self._seen:
            return
        changed = np.array(sorted(set(fleet.list_changed(self._seen))), dtype=np.int64)
        self._seen = fleet.clock
        # What a node is stays as it was: only what is free on it has to be asked about.
        where = changed[self._stages[changed] >= self._first_dynamic]
        if not len(where):
            return
        fresh = self._find_stages(where, self._filters[self._first_dynamic :], self._first_dynamic)
        self._counts += self._tally(fresh) - self._tally(self._stages[where])
        self._stages[where] = fresh

    def _find_stages(self, where: Where, asked: tuple[Filter, ...], first: int) -> _Stages:
        """Return the place of the first filter that refuses each node, their number for none."""
        stages: _Stages = np.full(len(self._fleet.ready[where]), len(self._filters), np.int8)
        left = np.ones(len(stages), dtype=np.bool_)
        for place, each in enumerate(asked, start=first):
            passing = each.passes(self._need, self._fleet, where)
            stages[left & ~passing] = place
            left &= passing
        return stages

    def _tally(self, stages: _Stages) -> NDArray[np.int64]:
        return np.bincount(stages, minlength=len(self._filters) + 1)
