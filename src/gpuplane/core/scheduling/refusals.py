"""How many nodes each filter keeps a class away from, kept true by looking at changed nodes only.

Owns the first filter that refuses each node. The filters and their order are `filters`'.
"""

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.fleet.columns import Bools, Fleet
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling import filters
from gpuplane.core.scheduling.filters import EVERYWHERE, Filter, Where
from gpuplane.core.scheduling.needs import Need

_Stages = NDArray[np.int8]

_FITS = len(filters.FILTERS)
"""The stage of a node that no filter refuses."""
_PLACE = {each.word: place for place, each in enumerate(filters.FILTERS)}
_AMOUNTS = (Word.CPU, Word.MEMORY, Word.EPHEMERAL_STORAGE, Word.GPU_COUNT)
"""Filters over what is free that compare two numbers, in their order."""
_FIRST_ROOM = 16


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


class RefusalTable:
    """Many classes against one fleet: changed nodes are looked at once for all of them.

    Only for classes that amounts alone keep away (`covers`): there a filter over what is free is
    a comparison of two numbers, and one array operation makes it for every class and node.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Hold no class yet."""
        self._fleet = fleet
        self._seen = fleet.clock
        self._free = list(range(_FIRST_ROOM - 1, -1, -1))
        self._used = 0
        shape = (_FIRST_ROOM, len(fleet))
        self._wanted: NDArray[np.int64] = np.zeros((5, _FIRST_ROOM, 1), dtype=np.int64)
        self._most: _Stages = np.zeros(shape, dtype=np.int8)
        self._stages: _Stages = np.zeros(shape, dtype=np.int8)
        self._counts: NDArray[np.int64] = np.zeros((_FIRST_ROOM, _FITS + 1), dtype=np.int64)

    @staticmethod
    def covers(need: Need) -> bool:
        """Tell whether a class can be in the table."""
        active = filters.list_active(need, filters.DYNAMIC_FILTERS)
        return not need.is_partly_eligible and all(each.word in _AMOUNTS for each in active)

    def add(self, need: Need) -> int:
        """Take in a class and return its place."""
        self._refresh()
        if not self._free:
            self._grow()
        place = self._free.pop()
        self._used = max(self._used, place + 1)
        resources = need.resources
        self._wanted[:, place, 0] = (
            resources.cpu_milli,
            resources.memory_mib,
            resources.ephemeral_mib,
            resources.gpu_count if need.wants_gpus and not need.is_share else 0,
            resources.gpu_milli if need.is_share else 0,
        )
        self._most[place] = self._find_most(need)
        some = slice(place, place + 1)
        self._stages[place] = self._find_stages(some, filters.EVERYWHERE)[0]
        self._counts[place] = np.bincount(self._stages[place], minlength=_FITS + 1)
        return place

    def remove(self, place: int) -> None:
        """Let go of a class; from now on its place may be another's."""
        self._free.append(place)

    def fits(self, place: int) -> Bools:
        """Return which nodes a class fits on now, shape (node,)."""
        self._refresh()
        return np.asarray(self._stages[place] == _FITS)

    def fits_any(self, place: int) -> bool:
        """Tell whether there is any such node."""
        self._refresh()
        return bool(self._counts[place, _FITS])

    def list_counts(self, place: int) -> list[tuple[Word, int]]:
        """Return the nodes refused per filter, in the order of the filters, without zeros."""
        self._refresh()
        counts = self._counts[place, :_FITS].tolist()
        return [
            (each.word, count) for each, count in zip(filters.FILTERS, counts, strict=True) if count
        ]

    def _grow(self) -> None:
        room = len(self._stages)
        self._free = list(range(2 * room - 1, room - 1, -1))
        self._wanted = np.concatenate((self._wanted, np.zeros_like(self._wanted)), axis=1)
        self._most = np.concatenate((self._most, np.zeros_like(self._most)))
        self._stages = np.concatenate((self._stages, np.zeros_like(self._stages)))
        self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))

    def _find_most(self, need: Need) -> _Stages:
        """Return how far each node gets at best: to the first filter over facts that refuses it."""
        most: _Stages = np.full(len(self._fleet), _FITS, dtype=np.int8)
        if need.wants_gpus:
            most[need.eligible_mask == 0] = _PLACE[Word.GPU_COUNT]
        if filters.compute_suiting(need, self._fleet).all():
            return most
        for each in reversed(filters.list_active(need, filters.STATIC_FILTERS)):
            most[~each.passes(need, self._fleet, filters.EVERYWHERE)] = _PLACE[each.word]
        return most

    def _find_stages(self, some: slice, where: Where) -> _Stages:
        """Return the stages of some classes on some nodes, shape (class, node)."""
        fleet = self._fleet
        cpu, memory, ephemeral, whole, share = self._wanted[:, some]
        lacks_gpus = (fleet.gpu_free_count[where] < whole) | (fleet.gpu_free_most[where] < share)
        stages: _Stages = np.where(lacks_gpus, np.int8(_PLACE[Word.GPU_COUNT]), np.int8(_FITS))
        for word, free, wanted in (
            (Word.EPHEMERAL_STORAGE, fleet.ephemeral_free, ephemeral),
            (Word.MEMORY, fleet.memory_free, memory),
            (Word.CPU, fleet.cpu_free, cpu),
        ):
            np.copyto(stages, np.int8(_PLACE[word]), where=free[where] < wanted)
        return np.minimum(stages, self._most[some, where])

    def _refresh(self) -> None:
        fleet = self._fleet
        clock = fleet.clock
        if clock == self._seen:
            return
        changed = fleet.list_changed(self._seen)
        self._seen = clock
        where = np.array(list(dict.fromkeys(changed)), dtype=np.int64)
        some = slice(0, self._used)
        before, after = self._stages[some, where], self._find_stages(some, where)
        self._counts[some] += self._tally(after) - self._tally(before)
        self._stages[some, where] = after

    def _tally(self, stages: _Stages) -> NDArray[np.int64]:
        """Return how many nodes are at each stage, by class."""
        width = _FITS + 1
        cells = stages + np.arange(0, width * len(stages), width)[:, None]
        counts = np.bincount(cells.ravel(), minlength=width * len(stages))
        return counts.reshape(len(stages), width)
