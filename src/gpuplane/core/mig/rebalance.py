"""Cutting GPUs anew: which instances give way, which come, and never one that somebody holds.

Owns two plans: room for more instances of one profile, and layouts whose instances come in given
shares. Both destroy Available instances only (`core.lifecycle.mig`). Never carries a plan out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

from gpuplane.core.ids import GpuId
from gpuplane.core.lifecycle.mig import HELD, MigState
from gpuplane.core.mig.layouts import (
    MigInstance,
    MigLayout,
    find_problem,
    mig_rules,
)
from gpuplane.core.mig.profiles import MigTable

BEAM = 256
"""Sums of layouts kept from GPU to GPU. While there are fewer the plan is the optimum; beyond, the
ones nearest to the shares are carried on."""

_BILLION = 1_000_000_000
"""Deviations are compared in whole parts of this, so that equal plans compare equal."""


@dataclass(frozen=True, slots=True)
class MigGpu:
    """One GPU in MIG mode as it stands.

    Attributes:
        instances: What exists on it, each with its state.
    """

    gpu_id: GpuId
    table: MigTable
    instances: tuple[tuple[MigInstance, MigState], ...] = ()

    @property
    def held(self) -> tuple[MigInstance, ...]:
        """Return the instances that a workload holds: they stay."""
        return tuple(one for one, state in self.instances if state in HELD)

    @property
    def available(self) -> tuple[MigInstance, ...]:
        """Return the instances that may be destroyed."""
        return tuple(one for one, state in self.instances if state is MigState.AVAILABLE)

    @property
    def is_settled(self) -> bool:
        """Return whether nothing on it is being made or destroyed at the moment."""
        return len(self.held) + len(self.available) == len(self.instances)


@dataclass(frozen=True, slots=True)
class GpuChange:
    """What changes on one GPU: first the destroyed ones go, then the created ones come."""

    gpu_id: GpuId
    destroy: tuple[MigInstance, ...]
    create: tuple[MigInstance, ...]

    @property
    def is_empty(self) -> bool:
        """Return whether nothing changes."""
        return not self.destroy and not self.create


def plan_room(gpus: Sequence[MigGpu], profile: str, count: int) -> tuple[GpuChange, ...] | None:
    """Return the least change that makes `count` more instances of a profile, or None.

    Least is: fewest memory slices destroyed, then fewest instances destroyed, then most
    placements still open around what is held and made, then the first GPU by id, then the
    highest start. Instances of the profile that are Available already stay and do not count.

    Args:
        gpus: GPUs in MIG mode; those whose table lacks the profile, or where something is being
            made or destroyed, are left alone.
        profile: NVIDIA's name of the profile.
        count: How many instances are wanted, at least 1.

    Raises:
        ValueError: If the count is not positive.
    """
    if count < 1:
        raise ValueError(f"at least one instance is to be made, not {count}")
    left = {gpu.gpu_id: gpu for gpu in gpus if _offers(gpu, profile)}
    best = {gpu_id: _cheapest_cut(gpu, profile) for gpu_id, gpu in left.items()}
    for _ in range(count):
        options = [cut for cut in best.values() if cut is not None]
        if not options:
            return None
        chosen = min(options, key=lambda cut: cut.key)
        gpu_id = chosen.gpu.gpu_id
        left[gpu_id] = _apply(chosen)
        best[gpu_id] = _cheapest_cut(left[gpu_id], profile)
    return _differences(gpus, left)


def plan_shares(
    gpus: Sequence[MigGpu], shares: Mapping[str, int]
) -> tuple[tuple[MigLayout, ...], tuple[GpuChange, ...]]:
    """Return a full layout for each GPU so that their instances come near the shares.

    Near is: the least sum over the profiles of |share got - share wanted|, then the fewest
    memory slices destroyed, then the first layouts by their instances. A layout holds what is
    held, and is full: nothing that is asked for could be added.

    Args:
        gpus: GPUs of one model in MIG mode; held instances stay whatever they are.
        shares: Weight of each profile among all instances, such as 70, 20, 10; they need not add
            up to 100.

    Returns:
        The layouts in the order of the GPUs, and what has to change to get there.

    Raises:
        ValueError: If there is no GPU, the GPUs differ in their table, a profile is unknown, or
            no weight is positive.
    """
    table = _common_table(gpus)
    weights = _weights(table, shares)
    kept: dict[tuple[int, ...], _Partial] = {(0,) * len(weights): _Partial(0, ())}
    names = tuple(weights)
    for gpu in gpus:
        options = _options(table, gpu, names)
        grown: dict[tuple[int, ...], _Partial] = {}
        for sums, partial in kept.items():
            for counts, cost, layout in options:
                total = tuple(a + b for a, b in zip(sums, counts, strict=True))
                step = _Partial(partial.destroyed + cost, (*partial.layouts, layout))
                if total not in grown or step < grown[total]:
                    grown[total] = step
        kept = _nearest(grown, tuple(weights.values()))
    best = min(kept, key=lambda sums: (_deviation(sums, tuple(weights.values())), kept[sums]))
    layouts = tuple(MigLayout(table, instances) for instances in kept[best].layouts)
    changes = tuple(
        _difference(gpu, layout.instances) for gpu, layout in zip(gpus, layouts, strict=True)
    )
    return layouts, tuple(change for change in changes if not change.is_empty)


@dataclass(frozen=True, slots=True)
class _Cut:
    """One way to make one instance on one GPU."""

    gpu: MigGpu
    destroy: tuple[MigInstance, ...]
    create: MigInstance
    cost: tuple[int, int, int]

    @property
    def key(self) -> tuple[tuple[int, int, int], str, int]:
        """Return the order of `plan_room`."""
        return self.cost, self.gpu.gpu_id, -self.create.start


def _offers(gpu: MigGpu, profile: str) -> bool:
    return gpu.is_settled and gpu.table.find_profile(profile) is not None


def _cheapest_cut(gpu: MigGpu, profile: str) -> _Cut | None:
    """Return the least change that makes one more instance on a GPU, or None."""
    held, available = tuple(sorted(gpu.held)), tuple(sorted(gpu.available))
    found = _cheapest_way(gpu.table, held, available, profile)
    return None if found is None else _Cut(gpu, *found)


_Way = tuple[tuple[MigInstance, ...], MigInstance, tuple[int, int, int]]


@lru_cache(maxsize=4096)
def _cheapest_way(
    table: MigTable, held: tuple[MigInstance, ...], available: tuple[MigInstance, ...], profile: str
) -> _Way | None:
    """Return (what goes, what comes, cost); cached, because most GPUs of a fleet are cut alike."""
    wanted = table.find_profile(profile)
    assert wanted is not None, "GPUs without the profile were left out"
    fixed = sum(_mask(table, one) for one in held)
    ways: list[tuple[tuple[int, int, int], int, tuple[MigInstance, ...], MigInstance]] = []
    for start in wanted.starts:
        create, mask = MigInstance(start, wanted.name), wanted.mask_at(start)
        destroy = None if mask & fixed else _least_in_the_way(table, held, available, create, mask)
        if destroy is not None:
            lost = -int(mig_rules(table).open_placements[fixed | mask])
            cost = (_total_size(table, destroy), len(destroy), lost)
            ways.append((cost, -start, destroy, create))
    if not ways:
        return None
    cost, _, destroy, create = min(ways)
    return destroy, create, cost


def _least_in_the_way(
    table: MigTable,
    held: tuple[MigInstance, ...],
    available: tuple[MigInstance, ...],
    create: MigInstance,
    mask: int,
) -> tuple[MigInstance, ...] | None:
    """Return the least that must go for an instance, or None if all that may go is not enough.

    Mostly that is what lies on its slices; where the limits of engines or of a count stand
    against it too, more goes, the fewest slices first.
    """

    def fits_without(gone: tuple[MigInstance, ...]) -> bool:
        kept = [one for one in available if one not in gone]
        return find_problem(table, (*held, *kept, create)) is None

    may_go = tuple(one for one in available if one.profile != create.profile)
    on_slices = tuple(one for one in may_go if _mask(table, one) & mask)
    if fits_without(on_slices):
        return on_slices
    if not fits_without(may_go):
        return None
    rest = [one for one in may_go if one not in on_slices]
    ways = [
        tuple(sorted((*on_slices, *more)))
        for size in range(1, len(rest) + 1)
        for more in combinations(rest, size)
    ]
    ways.sort(key=lambda gone: (_total_size(table, gone), len(gone), gone))
    return next(gone for gone in ways if fits_without(gone))


def _total_size(table: MigTable, instances: Iterable[MigInstance]) -> int:
    return sum(_size(table, one) for one in instances)


def _apply(cut: _Cut) -> MigGpu:
    """Return the GPU after a cut; what was made counts as taken."""
    kept = tuple(pair for pair in cut.gpu.instances if pair[0] not in cut.destroy)
    return replace(cut.gpu, instances=(*kept, (cut.create, MigState.ALLOCATED)))


def _differences(before: Iterable[MigGpu], after: Mapping[GpuId, MigGpu]) -> tuple[GpuChange, ...]:
    changes = (
        _difference(gpu, tuple(one for one, _ in after[gpu.gpu_id].instances))
        for gpu in before
        if gpu.gpu_id in after
    )
    return tuple(sorted((c for c in changes if not c.is_empty), key=lambda c: c.gpu_id))


def _difference(gpu: MigGpu, after: tuple[MigInstance, ...]) -> GpuChange:
    before = {one for one, _ in gpu.instances}
    return GpuChange(
        gpu.gpu_id, tuple(sorted(before - set(after))), tuple(sorted(set(after) - before))
    )


@dataclass(frozen=True, slots=True, order=True)
class _Partial:
    """Layouts chosen for the first GPUs, and the memory slices destroyed for them."""

    destroyed: int
    layouts: tuple[tuple[MigInstance, ...], ...]


def _common_table(gpus: Sequence[MigGpu]) -> MigTable:
    tables = {gpu.table for gpu in gpus}
    if len(tables) != 1:
        raise ValueError(f"shares are planned for GPUs of one model, not of {len(tables)}")
    return tables.pop()


def _weights(table: MigTable, shares: Mapping[str, int]) -> dict[str, int]:
    weights: dict[str, int] = {}
    for name, weight in sorted(shares.items()):
        profile = table.find_profile(name)
        if profile is None:
            near = ", ".join(table.nearest_profiles(name))
            raise ValueError(f"{table.model} has no profile {name}; nearest are {near}")
        if weight < 0:
            raise ValueError(f"the share of {name} is {weight}; it must not be negative")
        weights[profile.name] = weights.get(profile.name, 0) + weight
    if not any(weights.values()):
        raise ValueError("no profile has a share above 0")
    return {name: weight for name, weight in weights.items() if weight}


def _options(
    table: MigTable, gpu: MigGpu, names: tuple[str, ...]
) -> list[tuple[tuple[int, ...], int, tuple[MigInstance, ...]]]:
    """Return (counts, slices destroyed, layout) of each full layout, the cheapest of each counts.

    A GPU on which something is being made or destroyed stays as it is.
    """
    fixed = gpu.held if gpu.is_settled else tuple(one for one, _ in gpu.instances)
    cheapest: dict[tuple[int, ...], tuple[int, tuple[MigInstance, ...]]] = {}
    full = _full_layouts(table, tuple(sorted(fixed)), names) if gpu.is_settled else (fixed,)
    for layout in full:
        counts = tuple(sum(one.profile == name for one in layout) for name in names)
        destroyed = sum(_size(table, one) for one in gpu.available if one not in layout)
        if counts not in cheapest or (destroyed, layout) < cheapest[counts]:
            cheapest[counts] = (destroyed, layout)
    return [(counts, *rest) for counts, rest in sorted(cheapest.items())]


@lru_cache(maxsize=1024)
def _full_layouts(
    table: MigTable, fixed: tuple[MigInstance, ...], names: tuple[str, ...]
) -> tuple[tuple[MigInstance, ...], ...]:
    """Return every layout around what is fixed to which none of the profiles can be added."""
    profiles = [profile for profile in table.profiles if profile.name in names]
    found: set[tuple[MigInstance, ...]] = set()
    seen: set[tuple[MigInstance, ...]] = set()

    def extend(placed: tuple[MigInstance, ...]) -> None:
        if placed in seen:
            return
        seen.add(placed)
        is_full = True
        for profile in profiles:
            for start in profile.starts:
                grown = (*placed, MigInstance(start, profile.name))
                if find_problem(table, grown) is None:
                    is_full = False
                    extend(tuple(sorted(grown)))
        if is_full:
            found.add(placed)

    extend(fixed)
    return tuple(sorted(found))


def _nearest(
    grown: dict[tuple[int, ...], _Partial], weights: tuple[int, ...]
) -> dict[tuple[int, ...], _Partial]:
    if len(grown) <= BEAM:
        return grown
    order = sorted(grown, key=lambda sums: (_deviation(sums, weights), grown[sums].destroyed, sums))
    return {sums: grown[sums] for sums in order[:BEAM]}


def _deviation(sums: tuple[int, ...], weights: tuple[int, ...]) -> int:
    """Return the sum of |share got - share wanted| in whole parts of a billion."""
    total, whole = sum(sums), sum(weights)
    if not total:
        return 2 * _BILLION
    apart = sum(
        abs(got * whole - weight * total) for got, weight in zip(sums, weights, strict=True)
    )
    return apart * _BILLION // (total * whole)


def _mask(table: MigTable, instance: MigInstance) -> int:
    profile = table.find_profile(instance.profile)
    return 0 if profile is None else profile.mask_at(instance.start)


def _size(table: MigTable, instance: MigInstance) -> int:
    return _mask(table, instance).bit_count()
