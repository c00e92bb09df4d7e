"""What is free on a node, as one number a state, and the way from one state to the next.

Nodes of the same hardware with the same free devices, CPU and memory are in the same state: what
is found for one holds for all of them, so whoever caches by state looks once. Owns the numbers,
the exact arithmetic of taking and giving back, and the patterns of free shares. Never knows which
node is in which state.
"""

from collections.abc import Hashable
from typing import NamedTuple

from gpuplane.core.amounts import WHOLE_GPU_MILLI

Change = tuple[int, int, int, int, int, tuple[int, str, int] | None]
"""A `Take` without its node: GPU mask, milli of each, CPU, memory, ephemeral storage, MIG."""

FreeInstances = tuple[tuple[str, int, int], ...]
"""(profile, GPU, a bit per first slice of each free instance), sorted."""


MAX_WAYS = 400_000
"""Ways between states remembered in each direction; beyond, they are found anew."""


class NodeState(NamedTuple):
    """What is free on a node of one kind.

    Args:
        kind: Number of the node's hardware; see `States.add_kind`.
        gpus: Free share of each usable GPU, 0 elsewhere, in milli.
    """

    kind: int
    cpu: int
    memory: int
    ephemeral: int
    gpus: tuple[int, ...]
    migs: FreeInstances


class FreeGpus(NamedTuple):
    """The free GPUs of a state in brief.

    Args:
        mask: Wholly free GPUs. `whole`: how many those are.
        most: The largest free share of one GPU, in milli.
        idle: The sum of the free shares, in milli.
    """

    mask: int
    whole: int
    most: int
    idle: int


class Pattern(NamedTuple):
    """The free shares of a node in whatever order, and which GPU models it has."""

    models: frozenset[int]
    shares: tuple[int, ...]


class _Kind(NamedTuple):
    usable_mask: int
    healthy_mask: int
    models: frozenset[int]


class States:
    """The states seen so far, numbered from 0 in the order of appearance.

    Attributes:
        values: What each state's number stands for.
        pattern: Number of each state's pattern. `patterns`: what those numbers stand for.
        gpus: The free GPUs of each state.
    """

    def __init__(self) -> None:
        self._kinds: list[_Kind] = []
        self._kind_index: dict[Hashable, int] = {}
        self.values: list[NodeState] = []
        self.pattern: list[int] = []
        self.gpus: list[FreeGpus] = []
        self.patterns: list[Pattern] = []
        self._index: dict[NodeState, int] = {}
        self._pattern_index: dict[Pattern, int] = {}
        self._gpus_known: dict[tuple[frozenset[int], tuple[int, ...]], tuple[int, FreeGpus]] = {}
        self._after: dict[tuple[int, Change], int] = {}
        self._before: dict[tuple[int, Change], int] = {}

    def __getstate__(self) -> dict[str, object]:
        """Leave out what can be found again."""
        return {**self.__dict__, "_after": {}, "_before": {}}

    def __len__(self) -> int:
        return len(self.values)

    def add_kind(
        self, key: Hashable, usable_mask: int, healthy_mask: int, models: frozenset[int]
    ) -> int:
        """Return the number of a kind of node; `key` is all that tells kinds apart."""
        kind = self._kind_index.setdefault(key, len(self._kinds))
        if kind == len(self._kinds):
            self._kinds.append(_Kind(usable_mask, healthy_mask, models))
        return kind

    def find(self, value: NodeState) -> int:
        """Return the number of a state, a new one for a state that was never seen."""
        found = self._index.get(value)
        if found is not None:
            return found
        number = self._index[value] = len(self.values)
        self.values.append(value)
        models = self._kinds[value.kind].models
        known = self._gpus_known.get((models, value.gpus))
        if known is None:
            known = self._read_gpus(models, value.gpus)
            self._gpus_known[models, value.gpus] = known
        self.pattern.append(known[0])
        self.gpus.append(known[1])
        return number

    def _read_gpus(self, models: frozenset[int], shares: tuple[int, ...]) -> tuple[int, FreeGpus]:
        """Return the number of the pattern, and the free GPUs in brief."""
        pattern = Pattern(models, tuple(sorted(shares)))
        place = self._pattern_index.setdefault(pattern, len(self.patterns))
        if place == len(self.patterns):
            self.patterns.append(pattern)
        mask = sum(1 << gpu for gpu, free in enumerate(shares) if free == WHOLE_GPU_MILLI)
        return place, FreeGpus(mask, mask.bit_count(), max(shares), sum(shares))

    def after(self, state: int, change: Change, name: str) -> int:
        """Return the state after a take.

        Raises:
            ValueError: If a usable GPU has not that much free, or the MIG instance is not free.
        """
        found = self._after.get((state, change))
        if found is None:
            found = self.find(self._take(self.values[state], change, name))
            if len(self._after) >= MAX_WAYS:
                self._after.clear()
            self._after[state, change] = found
        return found

    def before(self, state: int, change: Change, name: str) -> int:
        """Return the state after a take is given back.

        Raises:
            ValueError: If a GPU would have more than a whole free, or the instance is free.
        """
        found = self._before.get((state, change))
        if found is None:
            found = self.find(self._give_back(self.values[state], change, name))
            if len(self._before) >= MAX_WAYS:
                self._before.clear()
            self._before[state, change] = found
        return found

    def _take(self, value: NodeState, change: Change, name: str) -> NodeState:
        mask, milli, cpu, memory, ephemeral, mig = change
        kind = self._kinds[value.kind]
        gpus, migs = value.gpus, value.migs
        if mig is not None:
            gpu, profile, start = mig
            if kind.healthy_mask >> gpu & 1:
                if not _free_bits(migs, gpu, profile) >> start & 1:
                    raise ValueError(f"{name}: {profile} at {start} of GPU {gpu} is not free")
                migs = _flip(migs, gpu, profile, start)
        else:
            used = mask & kind.usable_mask
            if used:
                gpus = _add(gpus, used, -milli)
            if used and min(gpus) < 0:
                gpu, left = next((gpu, free) for gpu, free in enumerate(gpus) if free < 0)
                free = left + milli
                raise ValueError(f"{name}: GPU {gpu} has {free} milli free, {milli} asked")
        return NodeState(
            value.kind,
            value.cpu - cpu,
            value.memory - memory,
            value.ephemeral - ephemeral,
            gpus,
            migs,
        )

    def _give_back(self, value: NodeState, change: Change, name: str) -> NodeState:
        mask, milli, cpu, memory, ephemeral, mig = change
        kind = self._kinds[value.kind]
        gpus, migs = value.gpus, value.migs
        if mig is not None:
            gpu, profile, start = mig
            if _free_bits(migs, gpu, profile) >> start & 1:
                raise ValueError(f"{name}: instance {profile} is free already")
            if kind.healthy_mask >> gpu & 1:
                migs = _flip(migs, gpu, profile, start)
        else:
            used = mask & kind.usable_mask
            if used:
                gpus = _add(gpus, used, milli)
            if used and max(gpus) > WHOLE_GPU_MILLI:
                gpu = next(gpu for gpu, free in enumerate(gpus) if free > WHOLE_GPU_MILLI)
                raise ValueError(f"{name}: GPU {gpu} is free already")
        return NodeState(
            value.kind,
            value.cpu + cpu,
            value.memory + memory,
            value.ephemeral + ephemeral,
            gpus,
            migs,
        )


def _add(gpus: tuple[int, ...], mask: int, milli: int) -> tuple[int, ...]:
    changed = list(gpus)
    while mask:
        lowest = mask & -mask
        changed[lowest.bit_length() - 1] += milli
        mask ^= lowest
    return tuple(changed)


def _free_bits(migs: FreeInstances, gpu: int, profile: str) -> int:
    return next((bits for name, at, bits in migs if name == profile and at == gpu), 0)


def _flip(migs: FreeInstances, gpu: int, profile: str, start: int) -> FreeInstances:
    bits = _free_bits(migs, gpu, profile) ^ 1 << start
    rest = [each for each in migs if each[:2] != (profile, gpu)]
    return tuple(sorted([*rest, (profile, gpu, bits)]))
