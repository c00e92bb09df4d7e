"""The fragmentation gradient: how much GPU capacity a placement makes useless to the typical mix.

Owns the typical mix and the exact change of the fragment of a node; never which node is taken.
All sums are integers, so a node looked at alone scores as it does among a thousand.

A fragment follows from a node's models, its free shares in whatever order, and from which classes
of the mix its free CPU is enough for. So fragments are looked up by (pattern, CPU step), worked out
at their first use: of the node as it is, and of what each kind of request would leave.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023, sections 3 and 4; score = truncated 100 x logistic of the
gradient in whole GPUs, as in the authors' simulator.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.fleet.states import Pattern
from gpuplane.core.scheduling.filters import Where
from gpuplane.core.scheduling.needs import OR, Need
from gpuplane.core.scheduling.workload import Workload

Counts = NDArray[np.int64]

_WORST = np.iinfo(np.int64).max
_UNKNOWN = np.iinfo(np.int64).min
_MAX_CELLS = 1 << 20
"""Most entries of a table by milli-CPU, and of the arrays in which fragments are worked out."""

_STEPS = tuple(WHOLE_GPU_MILLI * math.log(s / (100 - s)) for s in range(1, 100))
"""Gradient in milli-GPU from which the score is 1, 2, … 99: the inverse of the logistic."""


class TypicalClass(NamedTuple):
    """One kind of request in the mix; memory is left out, as in the source."""

    cpu_milli: int
    gpu_milli: int
    gpu_count: int
    gpu_model: str


class TypicalMix(NamedTuple):
    """The most frequent classes with how many replicas each has."""

    classes: tuple[TypicalClass, ...]
    weights: tuple[int, ...]


def compute_typical_mix(
    workloads: Iterable[Workload], *, share: float, max_classes: int
) -> TypicalMix:
    """Return the shortest list of classes, most frequent first, that covers a share of replicas.

    Args:
        workloads: Pending and running workloads, in any order.
        share: Part of all replicas to cover, in [0, 1].
        max_classes: Most classes in the mix.
    """
    counted: Counter[str] = Counter()
    members: dict[str, Workload] = {}
    for workload in workloads:
        counted[workload.class_key] += workload.replicas.count
        members.setdefault(workload.class_key, workload)
    merged: Counter[TypicalClass] = Counter()
    for key, count in counted.items():
        resources = members[key].resources
        if resources.mig_profile is None:
            merged[
                TypicalClass(
                    resources.cpu_milli,
                    resources.gpu_milli if resources.gpu_count else 0,
                    resources.gpu_count,
                    resources.gpu_model or "",
                )
            ] += count
    # Ties: the larger request first, so that the cut does not depend on the order given.
    ranked = sorted(merged.items(), key=lambda item: (item[1], item[0]), reverse=True)
    wanted = share * sum(merged.values())
    chosen: list[tuple[TypicalClass, int]] = []
    covered = 0
    for each, count in ranked[:max_classes]:
        if covered >= wanted:
            break
        chosen.append((each, count))
        covered += count
    return TypicalMix(tuple(each for each, _ in chosen), tuple(count for _, count in chosen))


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
    """Turns gradients into scores: the steps behind a mesh so fine that none holds two of them."""

    def __init__(self, total: int) -> None:
        steps = np.array([math.ceil(step * total) for step in _STEPS], dtype=np.int64)
        self._shift = int(np.diff(steps).min()).bit_length() - 1
        self._first = int(steps[0])
        cells = (int(steps[-1]) - self._first >> self._shift) + 2
        starts = self._first + (np.arange(cells, dtype=np.int64) << self._shift)
        self._passed = np.searchsorted(steps, starts, side="left")
        self._next = np.append(steps, _WORST)[self._passed]

    def scores(self, gradient: Counts) -> Counts:
        """Return how many steps each gradient reaches: 0–99."""
        cells = (gradient - self._first) >> self._shift
        passed = self._passed.take(cells, mode="clip")
        return np.asarray(passed + (gradient >= self._next.take(cells, mode="clip")))


class BoundMix:
    """The typical mix against one fleet, with the fragments that were worked out so far.

    A fragment here is times the total weight of the mix: an integer.
    """

    def __init__(self, mix: TypicalMix, fleet: Fleet) -> None:
        pairs = [
            (each, weight)
            for each, weight in zip(mix.classes, mix.weights, strict=True)
            if each.gpu_count
        ]
        self._fleet = fleet
        self._total = sum(mix.weights)
        self._levels = np.array(sorted({each.gpu_milli for each, _ in pairs}), dtype=np.int64)
        self._cpu = np.array(sorted({each.cpu_milli for each, _ in pairs}), dtype=np.int64)
        self._step_count = len(self._cpu) + 1
        highest = int(self._cpu.max(initial=0))
        self._step_by_cpu: NDArray[np.int64] | None = None
        if highest < _MAX_CELLS:
            self._step_by_cpu = self._cpu.searchsorted(np.arange(highest + 1), side="right")
        self._models = {each.models: 0 for each in fleet.states.patterns}
        for place, models in enumerate(sorted(self._models, key=sorted)):
            self._models[models] = place
        self._make_hosted(pairs)
        self.mesh = _Mesh(max(1, self._total))
        self._forget()

    def _make_hosted(self, pairs: list[tuple[TypicalClass, int]]) -> None:
        """Sum the weights of the classes that a node hosts.

        By the share asked of a GPU (level), the node's models, its CPU step, and how many of its
        GPUs have that share free; laid flat.
        """
        width = self._fleet.gpu_count_max + 1
        hosted = np.zeros(
            (len(self._levels), len(self._models), self._step_count, width), dtype=np.int64
        )
        for each, weight in pairs:
            level = int(self._levels.searchsorted(each.gpu_milli))
            step = int(self._cpu.searchsorted(each.cpu_milli)) + 1
            wanted = {
                i for i, name in enumerate(self._fleet.models) if name in each.gpu_model.split(OR)
            }
            for models, place in self._models.items():
                if models & wanted or (models and not each.gpu_model):
                    hosted[level, place, step:, each.gpu_count :] += weight
        self._hosted = hosted.reshape(-1)
        self._level_base = np.arange(len(self._levels)) * (self._hosted.size // max(1, len(hosted)))
        self._width = width

    def _forget(self) -> None:
        """Begin without fragments: the patterns are numbered anew."""
        self._epoch = self._fleet.epoch
        self._shares: Counts = np.zeros((0, self._fleet.gpu_count_max), dtype=np.int64)
        self._place: Counts = np.zeros(0, dtype=np.int64)
        self._tables: dict[Request, Counts] = {}
        self._before: Counts | None = None
        self._seen = 0

    def steps_of(self, cpu: Counts) -> Counts:
        """Return how many of the CPU amounts in the mix fit into each amount."""
        if self._step_by_cpu is None:
            return self._cpu.searchsorted(cpu, side="right")
        # Less than nothing counts as nothing: such a node fits no class anyway.
        return self._step_by_cpu.take(cpu, mode="clip")

    def before(self) -> Counts:
        """Return the fragment of every node as it is, shape (node,); not to be written to."""
        fleet = self._fleet
        if self._epoch != fleet.epoch:
            self._forget()
        clock = fleet.clock
        if self._before is None:
            cells = fleet.pattern * self._step_count + self.steps_of(fleet.cpu_free)
            self._before = self.look_up(NOTHING, cells)
        elif clock != self._seen:
            changed = np.array(fleet.list_changed(self._seen), dtype=np.int64)
            steps = self.steps_of(fleet.cpu_free[changed])
            cells = fleet.pattern[changed] * self._step_count + steps
            self._before[changed] = self.look_up(NOTHING, cells)
        self._seen = clock
        return self._before

    def cells_of(self, where: Where, cpu_milli: int) -> Counts:
        """Return where the nodes' patterns stand in a table once this CPU is taken."""
        fleet = self._fleet
        return fleet.pattern[where] * self._step_count + self.steps_of(
            fleet.cpu_free[where] - cpu_milli
        )

    def look_up(self, request: Request, cells: Counts) -> Counts:
        """Return the fragment that a request leaves in each cell of its table."""
        table = self._tables.get(request)
        if table is None or len(table) < len(self._fleet.states.patterns) * self._step_count:
            table = self._grow(request, table)
        found = table.take(cells)
        if len(found) and int(found.min()) == _UNKNOWN:
            unknown = np.unique(cells[found == _UNKNOWN])
            self._read_patterns()
            patterns, steps = np.divmod(unknown, self._step_count)
            table[unknown] = self._compute(request, patterns, steps)
            found = table.take(cells)
        return found

    def _grow(self, request: Request, table: Counts | None) -> Counts:
        size = 2 * len(self._fleet.states.patterns) * self._step_count
        grown: Counts = np.full(size, _UNKNOWN, dtype=np.int64)
        if table is not None:
            grown[: len(table)] = table
        self._tables[request] = grown
        return grown

    def _read_patterns(self) -> None:
        """Take over the patterns that are new since the last look."""
        new: list[Pattern] = self._fleet.states.patterns[len(self._place) :]
        if new:
            shares = np.array([each.shares for each in new], dtype=np.int64)
            places = [self._models[each.models] for each in new]
            self._shares = np.concatenate((self._shares, shares))
            self._place = np.concatenate((self._place, np.array(places, dtype=np.int64)))

    def _compute(self, request: Request, patterns: Counts, steps: Counts) -> Counts:
        shares, places = self._shares[patterns], self._place[patterns]
        if not request.milli:
            idle, usable, enough = self._measure(shares)
            taken = request.whole * WHOLE_GPU_MILLI
            # Every whole free GPU serves every level, so each level loses as much as is taken.
            left = np.maximum(enough - request.whole, 0)
            return self._sum(idle - taken, usable - taken, left, places, steps)
        after = np.where(
            shares >= request.milli,
            self.compute_shared(shares, places, steps, request.milli),
            _WORST,
        )
        return np.asarray(after.min(axis=1))

    def compute_shared(
        self, shares: Counts, places: Counts, steps: Counts, milli: int
    ) -> Counts:
        """Return the fragment left when a share is taken from each GPU in turn.

        Args:
            shares: Free share of each GPU, shape (case, gpu).
            places: The place of each case's models, see `place_of`, shape (case,).
            steps: CPU step of each case once the CPU is taken, shape (case,).
            milli: The share.

        Returns:
            Shape (case, gpu); without meaning where the share does not fit.
        """
        after: Counts = np.empty(shares.shape, dtype=np.int64)
        size = max(1, _MAX_CELLS // max(1, shares.shape[1] * len(self._levels)))
        for start in range(0, len(shares), size):
            part = slice(start, start + size)
            free = shares[part, :, None]
            was, remains = free >= self._levels, free - milli >= self._levels
            idle, usable, enough = self._measure(shares[part])
            usable = usable[:, None, :] - free * was + (free - milli) * remains
            enough = enough[:, None, :] - (was & ~remains)
            after[part] = self._sum(
                (idle - milli)[:, None],
                usable,
                enough,
                places[part, None],
                steps[part, None],
            )
        return after

    def place_of(self, node: int) -> int:
        """Return the place of a node's models in the tables."""
        state = self._fleet.states.values[self._fleet.state_of[node]]
        return self._models[self._fleet.states.models_of(state.kind)]

    def _measure(self, shares: Counts) -> tuple[Counts, Counts, Counts]:
        """Return what is idle, and by level what of it is usable and on how many GPUs."""
        fits = shares[:, :, None] >= self._levels
        usable = (shares[:, :, None] * fits).sum(axis=1)
        return shares.sum(axis=1), usable, fits.sum(axis=1, dtype=np.int64)

    def _sum(
        self, idle: Counts, usable: Counts, enough: Counts, places: Counts, steps: Counts
    ) -> Counts:
        """Return the fragment: all that is idle, less what each class can use where it fits."""
        cells = (places * self._step_count + steps)[..., None] * self._width + enough
        hosted = self._hosted.take(self._level_base + cells)
        return np.asarray(idle * self._total - (usable * hosted).sum(axis=-1))


def bind_mix(mix: TypicalMix, fleet: Fleet) -> BoundMix:
    """Return the mix bound to a fleet, the same as before when the mix is the same.

    Classes without GPUs count every idle GPU as fragment.
    """
    return fleet.keep(("mix", mix), lambda: BoundMix(mix, fleet))


def compute_gradient_scores(need: Need, fleet: Fleet, where: Where, mix: BoundMix) -> Counts:
    """Return 0–100 per node: how little the class's placement there adds to the fragment.

    A share goes to the GPU where it adds least. Nodes where the class does not fit get a number
    without meaning.
    """
    before = mix.before()[where]
    after = mix.look_up(_request_of(need), mix.cells_of(where, need.resources.cpu_milli))
    if need.is_share and need.partly_granted is not None:
        partly = np.flatnonzero(need.partly_granted[where])
        if len(partly):
            nodes = np.arange(len(fleet))[where][partly]
            after[partly] = _compute_partly(need, fleet, nodes, mix)
    return mix.mesh.scores(before - after)


def _request_of(need: Need) -> Request:
    if need.is_share:
        return Request(milli=need.resources.gpu_milli)
    return Request(need.resources.gpu_count) if need.wants_gpus else NOTHING


def _compute_partly(need: Need, fleet: Fleet, nodes: Counts, mix: BoundMix) -> Counts:
    """Return the fragment a share leaves on nodes where only some GPUs may be taken."""
    return np.asarray(_compute_each(need, fleet, nodes, mix).min(axis=1))


def _compute_each(need: Need, fleet: Fleet, nodes: Counts, mix: BoundMix) -> Counts:
    """Return the fragment left by a share of each GPU of each node, shape (node, gpu).

    Where the share does not fit it is as large as can be.
    """
    milli = need.resources.gpu_milli
    shares = fleet.gpu_free_milli[:, nodes].T.astype(np.int64)
    bits = np.arange(fleet.gpu_count_max, dtype=np.uint16)
    allowed = (need.granted_mask[nodes][:, None] >> bits) & np.uint16(1)
    steps = mix.steps_of(fleet.cpu_free[nodes] - need.resources.cpu_milli)
    places = np.array([mix.place_of(node) for node in nodes.tolist()], dtype=np.int64)
    after = mix.compute_shared(shares, places, steps, milli)
    return np.where((shares >= milli) & (allowed != 0), after, _WORST)


def choose_share_gpu(need: Need, fleet: Fleet, node: int, mix: BoundMix) -> int:
    """Return the GPU index of a node where the share adds least fragment.

    On ties the fuller GPU, then the lowest.

    Raises:
        ValueError: If the share fits on no GPU of the node.
    """
    after = _compute_each(need, fleet, np.array([node]), mix)[0]
    best = after == after.min()
    if after[best][0] == _WORST:
        raise ValueError(f"the share fits on no GPU of {fleet.nodes[node].name}")
    free = fleet.gpu_free_milli[:, node].astype(np.int64)
    return int(np.argmin(np.where(best, free, _WORST)))
