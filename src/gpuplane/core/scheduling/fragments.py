"""Fragments: what of a node's idle GPU capacity the typical mix cannot use, looked up.

Owns the exact arithmetic of fragments and of the score of a gradient; never who asks or why. All
sums are integers, so a node looked at alone scores as it does among a thousand.

A fragment follows from a node's models, its free shares in whatever order, and from which classes
of the mix its free CPU is enough for. So fragments are looked up by (pattern, CPU step), worked out
at their first use: of the node as it is, and of what each kind of request would leave.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 3.
"""

import math
from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Fleet, Ints
from gpuplane.core.fleet.states import Pattern
from gpuplane.core.scheduling.filters import EVERYWHERE, Where
from gpuplane.core.scheduling.large import LargeClass, bind_large
from gpuplane.core.scheduling.needs import OR

Counts = Ints

_WORST = np.iinfo(np.int64).max
MAX_MIXES = 2
"""Mixes whose fragments a fleet keeps: a few questions about one job look at mixes of their own."""
MAX_SINGLY = 6
"""Nodes looked at one by one; more are cheaper together."""
_MAX_CELLS_SINGLY = 24
"""Unknown fragments worked out one by one; more are cheaper by whole rows."""
_MAX_CELLS = 1 << 20
"""Most entries of a table by milli-CPU."""
_MAX_TABLE_CELLS = 1 << 24
"""Cells of all tables of a mix: bounds their memory to 64 MB, or 128 for very many replicas."""
_MAX_ROWS = 2_048
"""Patterns worked out at once: bounds the arrays needed for it."""

_STEPS = tuple(WHOLE_GPU_MILLI * math.log(s / (100 - s)) for s in range(1, 100))
"""Gradient in milli-GPU from which the score is 1, 2, … 99: the inverse of the logistic."""


class TypicalClass(NamedTuple):
    """One kind of request in the mix; memory is left out, as in the source."""

    cpu_milli: int
    gpu_milli: int
    gpu_count: int
    gpu_model: str


class TypicalMix(NamedTuple):
    """The most frequent classes with how many replicas each has.

    Args:
        large: The largest requests, however rare, with how many replicas each has.
    """

    classes: tuple[TypicalClass, ...]
    weights: tuple[int, ...]
    large: tuple[tuple[LargeClass, int], ...] = ()


class Request(NamedTuple):
    """What a replica takes of a node's GPUs, as far as the fragment goes.

    Args:
        whole: Whole GPUs.
        milli: The share of one GPU, 0 without.
    """

    whole: int = 0
    milli: int = 0


NOTHING = Request()


class _Mesh:
    """Turns gradients into scores: the steps behind a mesh so fine that none holds two of them.

    A cell is 2^shift wide. Its entry holds the steps before it, and how far inside it the next one
    lies, such that adding the place of a gradient in its cell carries over exactly from there on.
    """

    def __init__(self, total: int, dtype: type[np.int32] | type[np.int64]) -> None:
        self._steps = [math.ceil(step * total) for step in _STEPS]
        steps = np.array(self._steps, dtype=np.int64)
        self._shift = int(np.diff(steps).min()).bit_length() - 1
        width = 1 << self._shift
        # The first cell is for what lies below all steps, the last for what lies above.
        self._first = int(steps[0]) - width
        count = (int(steps[-1]) - self._first >> self._shift) + 2
        starts = self._first + np.arange(count, dtype=np.int64) * width
        passed = np.searchsorted(steps, starts, side="left")
        inside = np.append(steps, _WORST)[passed] - starts
        self._entries: Counts = (passed * width + width - np.minimum(inside, width)).astype(dtype)

    def scores(self, gradient: Counts) -> Counts:
        """Return how many steps each gradient reaches: 0–99."""
        places = gradient - self._first
        cells = (places >> self._shift).astype(np.intp)
        places &= (1 << self._shift) - 1
        places += self._entries.take(cells, mode="clip")
        places >>= self._shift
        return places

    def score(self, gradient: int) -> int:
        """Return the same for one gradient."""
        return bisect_right(self._steps, gradient)


class _Profile(NamedTuple):
    """A pattern against the mix.

    Args:
        place: Which models the node has.
        idle: The sum of the free shares.
        shares: The different free shares.
        usable: By level, the sum of the free shares that reach it. `enough`: how many those are.
    """

    place: int
    idle: int
    shares: tuple[int, ...]
    usable: tuple[int, ...]
    enough: tuple[int, ...]


class BoundMix:
    """The typical mix against one fleet, with the fragments that were worked out so far.

    A fragment here is times the total weight of the mix: an integer. Tables have a row for each
    pattern and a column for each CPU step, laid flat; a place in one is a cell.
    """

    def __init__(self, mix: TypicalMix, fleet: Fleet) -> None:
        pairs = zip(mix.classes, mix.weights, strict=True)
        hosted = sorted(pair for pair in pairs if pair[0].gpu_count)
        self._classes = [each for each, _ in hosted]
        self._weights = np.array([weight for _, weight in hosted], dtype=np.int64)
        self._fleet = fleet
        self.large = bind_large(mix.large, fleet)
        self._total = sum(mix.weights)
        # Fragments, and the steps of the score, which reach to five GPUs.
        largest = self._total * max(8, fleet.gpu_count_max) * WHOLE_GPU_MILLI
        self._dtype = np.int32 if largest < 1 << 30 else np.int64
        self._unknown = int(np.iinfo(self._dtype).min)
        self._worst = int(np.iinfo(self._dtype).max) // 2
        self.mesh = _Mesh(max(1, self._total), self._dtype)
        self._lay_out_classes()
        self._lay_out_models()
        self._forget()

    def _lay_out_classes(self) -> None:
        """Index the classes, in order of CPU, by CPU and by the share they ask of a GPU."""
        levels = sorted({each.gpu_milli for each in self._classes})
        self._level_list = levels
        self._levels = np.array(levels, dtype=np.int64)
        self._level_of = np.array([levels.index(each.gpu_milli) for each in self._classes], np.intp)
        self._gpu_count = np.array([each.gpu_count for each in self._classes], dtype=np.int64)
        cpu = np.array([each.cpu_milli for each in self._classes], dtype=np.int64)
        self._cpu = np.unique(cpu)
        self._cpu_amounts: list[int] = self._cpu.tolist()
        self._step_count = len(self._cpu) + 1
        # How many classes there are up to each step.
        self._class_ends = np.append(0, cpu.searchsorted(self._cpu, side="right"))
        # The amounts are multiples of their divisor, so a table by that divisor tells the step.
        self._divisor = max(1, math.gcd(*self._cpu_amounts))
        cells = max(self._cpu_amounts, default=0) // self._divisor + 1
        self._step_by_part: Counts | None = None
        if cells <= _MAX_CELLS:
            # In front stand as many zeros: from a place among them on, it tells the step after
            # so many parts are taken.
            amounts = np.arange(-cells, cells) * self._divisor
            self._step_by_part = self._cpu.searchsorted(amounts, side="right")
            self._step_by_part[:cells] = 0

    @property
    def is_of_gpus_alone(self) -> bool:
        """Whether no class of the mix asks for CPU or memory."""
        return not any(self._cpu_amounts) and self.large.is_of_gpus_alone

    def _lay_out_models(self) -> None:
        """Note which classes are for the models of which nodes."""
        sets = {each.models for each in self._fleet.states.patterns}
        self._place_of_models = {models: i for i, models in enumerate(sorted(sets, key=sorted))}
        self._matches = np.zeros((len(sets), len(self._classes)), dtype=np.bool_)
        for number, each in enumerate(self._classes):
            names = each.gpu_model.split(OR)
            wanted = {i for i, name in enumerate(self._fleet.models) if name in names}
            for models, place in self._place_of_models.items():
                is_any = bool(models) and not each.gpu_model
                self._matches[place, number] = is_any or bool(models & wanted)

    def _forget(self) -> None:
        """Begin without fragments: the patterns are numbered anew."""
        self._epoch = self._fleet.epoch
        self._shares: Counts = np.zeros((0, self._fleet.gpu_count_max), dtype=np.int64)
        self._places = np.zeros(0, dtype=np.intp)
        self._tables: dict[Request, Counts] = {}
        self._profiles: dict[int, _Profile] = {}
        self._hosted: dict[tuple[int, int], list[list[int]]] = {}
        self._before: Counts | None = None
        self._rows: Counts = self._fleet.pattern * self._step_count
        self._parts: Counts = self._fleet.cpu_free.astype(np.intp) // self._divisor
        self._seen = self._fleet.clock

    def refresh(self) -> None:
        """Look again at the nodes that changed."""
        fleet = self._fleet
        if self._epoch != fleet.epoch:
            self._forget()
        clock = fleet.clock
        if clock == self._seen:
            return
        changed = fleet.list_changed(self._seen)
        self._seen = clock
        if len(changed) > MAX_SINGLY:
            where = np.array(changed, dtype=np.int64)
            self._rows[where] = fleet.pattern[where] * self._step_count
            self._parts[where] = fleet.cpu_free[where] // self._divisor
            if self._before is not None:
                self._before[where] = self.look_up(NOTHING, self._cells_of(where, 0))
            return
        for node in changed:
            self._rows[node] = fleet.pattern[node] * self._step_count
            self._parts[node] = fleet.cpu_free[node] // self._divisor
            if self._before is not None:
                self._before[node] = self._look_up_one(NOTHING, self._cell_on(node, 0))

    def gradient(self, where: Where, request: Request, cpu_milli: int) -> Counts:
        """Return the fragment before less the fragment after a placement on each node."""
        return self.before(where) - self.look_up(request, self._cells_of(where, cpu_milli))

    def gradient_on(self, node: int, request: Request, cpu_milli: int) -> int:
        """Return the same for one node."""
        if self._epoch != self._fleet.epoch:
            self._forget()
        before = self._look_up_one(NOTHING, self._cell_on(node, 0))
        return before - self._look_up_one(request, self._cell_on(node, cpu_milli))

    def before(self, where: Where) -> Counts:
        """Return the fragments of nodes as they are."""
        self.refresh()
        if self._before is None:
            self._before = self.look_up(NOTHING, self._cells_of(EVERYWHERE, 0))
        before: Counts = self._before[where]
        return before

    def _cells_of(self, where: Where, cpu_milli: int) -> Counts:
        """Return the cells of nodes once this CPU is taken."""
        rows: Counts = self._rows[where]
        if self._step_by_part is None:
            left = self._fleet.cpu_free[where] - cpu_milli
            return rows + self._cpu.searchsorted(left, side="right")
        zero = len(self._step_by_part) // 2
        parts: Counts = self._parts[where]
        taken, rest = divmod(cpu_milli, self._divisor)
        if rest or taken > zero:
            left = self._fleet.cpu_free[where] - cpu_milli
            parts, taken = (left // self._divisor).astype(np.intp), 0
        # Less than nothing counts as nothing: such a node fits no class anyway.
        return rows + self._step_by_part[zero - taken :].take(parts, mode="clip")

    def _cell_on(self, node: int, cpu_milli: int) -> int:
        states = self._fleet.states
        state = self._fleet.state_of[node]
        step = bisect_right(self._cpu_amounts, states.values[state].cpu - cpu_milli)
        return states.pattern[state] * self._step_count + step

    def look_up(self, request: Request, cells: Counts) -> Counts:
        """Return the fragment that a request leaves in each cell."""
        table = self._table_of(request)
        found = table.take(cells, mode="clip")
        if len(found) and int(found.min()) == self._unknown:
            unknown = np.flatnonzero(found == self._unknown)
            if len(unknown) <= _MAX_CELLS_SINGLY:
                for place in unknown.tolist():
                    found[place] = self._look_up_one(request, int(cells[place]))
                return found
            rows = np.unique(cells[unknown] // self._step_count)
            self._read_patterns()
            shaped = table.reshape(-1, self._step_count)
            for start in range(0, len(rows), _MAX_ROWS):
                part = rows[start : start + _MAX_ROWS]
                shaped[part] = np.minimum(self._compute_rows(request, part), self._worst)
            found = table.take(cells, mode="clip")
        return found

    def _look_up_one(self, request: Request, cell: int) -> int:
        table = self._table_of(request)
        found = int(table[cell])
        if found == self._unknown:
            pattern, step = divmod(cell, self._step_count)
            found = min(self._compute_one(request, pattern, step), self._worst)
            table[cell] = found
        return found

    def _table_of(self, request: Request) -> Counts:
        table = self._tables.get(request)
        if table is None or len(table) < len(self._fleet.states.patterns) * self._step_count:
            table = self._grow(request, table)
        return table

    def _grow(self, request: Request, table: Counts | None) -> Counts:
        size = 2 * len(self._fleet.states.patterns) * self._step_count
        if (len(self._tables) + 1) * size > _MAX_TABLE_CELLS:
            self._tables.clear()
        grown: Counts = np.full(size, self._unknown, dtype=self._dtype)
        if table is not None:
            grown[: len(table)] = table
        self._tables[request] = grown
        return grown

    def _read_patterns(self) -> None:
        """Take over the patterns that are new since the last look."""
        new: list[Pattern] = self._fleet.states.patterns[len(self._places) :]
        if new:
            shares = np.array([each.shares for each in new], dtype=np.int64)
            places = [self._place_of_models[each.models] for each in new]
            self._shares = np.concatenate((self._shares, shares))
            self._places = np.concatenate((self._places, np.array(places, dtype=np.intp)))

    # Many nodes at once, at every CPU step.

    def _compute_rows(self, request: Request, patterns: Counts) -> Counts:
        """Return the fragment that a request leaves of each pattern, shape (pattern, step)."""
        shares, places = self._shares[patterns], self._places[patterns]
        fits = shares[:, :, None] >= self._levels
        usable = (shares[:, :, None] * fits).sum(axis=1)
        enough = fits.sum(axis=1, dtype=np.int64)
        idle = shares.sum(axis=1)
        if not request.milli:
            # Every whole free GPU serves every level, so each level loses as much as is taken.
            taken = request.whole * WHOLE_GPU_MILLI
            return self._sum(idle - taken, usable - taken, enough - request.whole, places)
        # Shares are in order within a pattern: equal ones are tried once.
        tried = shares >= request.milli
        tried[:, 1:] &= shares[:, 1:] != shares[:, :-1]
        row, gpu = np.nonzero(tried)
        free = shares[row, gpu][:, None]
        was, remains = free >= self._levels, free - request.milli >= self._levels
        after = self._sum(
            idle[row] - request.milli,
            usable[row] - free * was + (free - request.milli) * remains,
            enough[row] - (was & ~remains),
            places[row],
        )
        least: Counts = np.full((len(patterns), self._step_count), _WORST, dtype=np.int64)
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        if len(starts):
            least[row[starts]] = np.minimum.reduceat(after, starts, axis=0)
        return least

    def _sum(self, idle: Counts, usable: Counts, enough: Counts, places: Counts) -> Counts:
        """Return all that is idle, less what each class can use where it fits, by CPU step.

        Args:
            idle: Shape (case,). `places`: which models the node has, shape (case,).
            usable: Free share on GPUs that have the level's share free, shape (case, level).
            enough: How many GPUs those are, shape (case, level).
        """
        hosts = (enough[:, self._level_of] >= self._gpu_count) & self._matches[places]
        used = np.zeros((len(idle), len(self._classes) + 1), dtype=np.int64)
        np.cumsum(hosts * usable[:, self._level_of] * self._weights, axis=1, out=used[:, 1:])
        return np.asarray((idle * self._total)[:, None] - used[:, self._class_ends])

    # One node, in plain integers: arrays would cost more.

    def _compute_one(self, request: Request, pattern: int, step: int) -> int:
        if request.milli:
            return min(self._compute_shared(pattern, step, request.milli).values(), default=_WORST)
        profile = self._profile_of(pattern)
        taken = request.whole * WHOLE_GPU_MILLI
        fragment = (profile.idle - taken) * self._total
        hosted = self._list_hosted(profile.place, step)
        for usable, count, row in zip(profile.usable, profile.enough, hosted, strict=True):
            fragment -= (usable - taken) * row[
                count - request.whole if count > request.whole else 0
            ]
        return fragment

    def compute_shared(self, node: int, cpu_milli: int, milli: int) -> dict[int, int]:
        """Return the fragment left on a node when a share is taken from one of its GPUs.

        Args:
            node: The node.
            cpu_milli: CPU that is taken with it.
            milli: The share.

        Returns:
            By the free share of the GPU that it is taken from, for those where it fits.
        """
        states, state = self._fleet.states, self._fleet.state_of[node]
        step = bisect_right(self._cpu_amounts, states.values[state].cpu - cpu_milli)
        return self._compute_shared(states.pattern[state], step, milli)

    def _compute_shared(self, pattern: int, step: int, milli: int) -> dict[int, int]:
        profile = self._profile_of(pattern)
        hosted = self._list_hosted(profile.place, step)
        levels = self._level_list
        found = {}
        for free in profile.shares:
            if free < milli:
                continue
            left = free - milli
            fragment = (profile.idle - milli) * self._total
            for level, usable, count, row in zip(
                levels, profile.usable, profile.enough, hosted, strict=True
            ):
                if left >= level:
                    fragment -= (usable - milli) * row[count]
                elif free >= level:
                    fragment -= (usable - free) * row[count - 1]
                else:
                    fragment -= usable * row[count]
            found[free] = fragment
        return found

    def _profile_of(self, pattern: int) -> _Profile:
        profile = self._profiles.get(pattern)
        if profile is None:
            models, shares = self._fleet.states.patterns[pattern]
            fits = [[free for free in shares if free >= level] for level in self._level_list]
            profile = self._profiles[pattern] = _Profile(
                self._place_of_models[models],
                sum(shares),
                tuple(free for free in dict.fromkeys(shares) if free),
                tuple(sum(some) for some in fits),
                tuple(len(some) for some in fits),
            )
        return profile

    def _list_hosted(self, place: int, step: int) -> list[list[int]]:
        """Return the weights hosted by level and by how many GPUs have that share free."""
        found = self._hosted.get((place, step))
        if found is None:
            width = self._fleet.gpu_count_max + 1
            table = np.zeros((len(self._levels), width), dtype=np.int64)
            for number in range(int(self._class_ends[step])):
                if self._matches[place, number]:
                    level, least = self._level_of[number], self._gpu_count[number]
                    table[level, least:] += self._weights[number]
            found = self._hosted[place, step] = table.tolist()
        return found


def bind_mix(mix: TypicalMix, fleet: Fleet) -> BoundMix:
    """Return the mix bound to a fleet, the same as before when the mix is the same.

    Classes without GPUs count every idle GPU as fragment.
    """
    bound: dict[TypicalMix, BoundMix] = fleet.find_pinned("mixes") or {}
    found = bound.get(mix)
    if found is None:
        found = BoundMix(mix, fleet)
        latest = list(bound.items())[1 - MAX_MIXES :]
        fleet.pin("mixes", {**dict(latest), mix: found})
    return found
