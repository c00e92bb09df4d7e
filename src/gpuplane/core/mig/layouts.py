"""MIG layouts: which instances a GPU carries, what still fits, and where the next one should go.

Owns the arithmetic on memory-slice masks (bit `i` is slice `i`). Never creates or destroys an
instance: a layout is a value, and a change of it is another value.

On every built-in model the compute slices of any set of non-overlapping instances fit on the GPU,
so a mask of occupied memory slices is the whole state for profiles without media engines. Layouts
check compute slices, counts and media engines all the same, because a device may report others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.mig.profiles import MigProfile, MigTable


class MigLayoutError(ValueError):
    """A set of instances cannot exist on one GPU; the text says which and why."""


@dataclass(frozen=True, slots=True, order=True)
class MigInstance:
    """One GPU instance: where it starts, in memory slices, and its profile's name."""

    start: int
    profile: str


@dataclass(frozen=True, slots=True)
class MigLayout:
    """The instances of one GPU, ascending by start.

    Raises:
        MigLayoutError: If they overlap, lie where the table allows none, are too many, take more
            compute slices than there are, or share a media engine that exists once.
    """

    table: MigTable
    instances: tuple[MigInstance, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "instances", tuple(sorted(self.instances)))
        problem = find_problem(self.table, self.instances)
        if problem is not None:
            raise MigLayoutError(problem)

    @property
    def occupied_mask(self) -> int:
        """Return the memory slices in use."""
        mask = 0
        for instance in self.instances:
            mask |= self._profile(instance.profile).mask_at(instance.start)
        return mask

    @property
    def free_mask(self) -> int:
        """Return the memory slices not in use."""
        return self.table.full_mask & ~self.occupied_mask

    @property
    def compute_used(self) -> int:
        """Return the compute slices in use."""
        return sum(self._profile(one.profile).compute_slices for one in self.instances)

    def counts(self) -> dict[str, int]:
        """Return the number of instances by profile."""
        return dict(Counter(instance.profile for instance in self.instances))

    def free_placements(self, profile: str) -> tuple[int, ...]:
        """Return the starts at which another instance may be created, ascending.

        Raises:
            MigLayoutError: If the model has no such profile.
        """
        wanted = self._profile(profile)
        return tuple(
            start
            for start in free_placements(self.occupied_mask, wanted)
            if find_problem(self.table, (*self.instances, MigInstance(start, wanted.name))) is None
        )

    def best_placement(self, profile: str) -> int | None:
        """Return the start that keeps most future placements open, or None if none is free."""
        if not self.free_placements(profile):
            return None
        return best_placement(self.table, self.occupied_mask, self._profile(profile))

    def with_instance(self, profile: str, start: int) -> "MigLayout":
        """Return the layout with one instance more."""
        name = self._profile(profile).name
        return MigLayout(self.table, (*self.instances, MigInstance(start, name)))

    def without_instance(self, start: int) -> "MigLayout":
        """Return the layout without the instance that starts at `start`.

        Raises:
            MigLayoutError: If none starts there.
        """
        kept = tuple(instance for instance in self.instances if instance.start != start)
        if len(kept) == len(self.instances):
            raise MigLayoutError(f"no instance starts at slice {start}")
        return MigLayout(self.table, kept)

    def _profile(self, name: str) -> MigProfile:
        return _get_profile(self.table, name)


def layout_of(table: MigTable, instances: Iterable[tuple[str, int]]) -> MigLayout:
    """Return the layout of (profile, start) pairs, profiles in any spelling.

    Raises:
        MigLayoutError: If a profile is unknown or the instances cannot exist together.
    """
    return MigLayout(
        table,
        tuple(MigInstance(start, _get_profile(table, name).name) for name, start in instances),
    )


def find_problem(table: MigTable, instances: Iterable[MigInstance]) -> str | None:
    """Return why the instances cannot exist on one GPU, or None."""
    chosen: list[MigProfile] = []
    occupied = compute = 0
    for instance in instances:
        profile = table.find_profile(instance.profile)
        if profile is None:
            return f"{table.model} has no profile {instance.profile}"
        if instance.start not in profile.starts:
            allowed = ", ".join(map(str, profile.starts))
            return f"{profile.name} starts at {allowed}, not at {instance.start}"
        mask = profile.mask_at(instance.start)
        if occupied & mask:
            return f"{profile.name} at {instance.start} overlaps another instance"
        occupied |= mask
        compute += profile.compute_slices
        chosen.append(profile)
    if compute > table.compute_slices:
        return f"{compute} compute slices are asked for, the GPU has {table.compute_slices}"
    for profile in chosen:
        if chosen.count(profile) > profile.max_instances:
            return f"at most {profile.max_instances} of {profile.name} fit on one GPU"
    if sum(profile.has_media for profile in chosen) > 1:
        return "only one instance can hold the media engines (+me)"
    if any(profile.has_all_media for profile in chosen) and not all(
        profile.has_all_media or profile.name.endswith("-me") for profile in chosen
    ):
        return "an instance with all media engines (+me.all) leaves only profiles without (-me)"
    return None


def free_placements(occupied_mask: int, profile: MigProfile) -> tuple[int, ...]:
    """Return the starts whose memory slices are all free, ascending."""
    return tuple(start for start in profile.starts if not occupied_mask & profile.mask_at(start))


def best_placement(table: MigTable, occupied_mask: int, profile: MigProfile) -> int | None:
    """Return the start that keeps most future placements open, or None if none is free.

    Counted are the placements of every distinct size that would still be legal afterwards; among
    equals the one that leaves the largest instance possible, then the highest start, because
    slices at the low end serve more profiles.
    """
    start = int(mig_rules(table).best_start[profile.name][occupied_mask & table.full_mask])
    return start if start >= 0 else None


def compute_loss(
    table: MigTable, occupied_mask: int, profile: MigProfile, start: int
) -> tuple[int, int]:
    """Return what a GPU loses when an instance is taken there; less is better.

    Returns:
        (placements of all distinct sizes that are legal before and not afterwards, memory slices
        by which the largest instance that is still possible shrinks). Equal to the order of
        `best_placement` on one GPU, and comparable between GPUs of one model.
    """
    rules = mig_rules(table)
    before = occupied_mask & table.full_mask
    after = before | profile.mask_at(start)
    return (
        int(rules.open_placements[before]) - int(rules.open_placements[after]),
        int(rules.largest[before]) - int(rules.largest[after]),
    )


@dataclass(frozen=True, slots=True)
class MigRules:
    """Tables of one model, indexed by the mask of occupied memory slices; all read-only.

    Attributes:
        open_placements: Legal placements of all distinct sizes, int16, shape (mask,).
        largest: Memory slices of the largest instance that still fits, int8, shape (mask,).
        best_start: By profile, the start of `best_placement` or -1, int8, shape (mask,).
        capacity: By profile, the most instances that fit together, int8, shape (mask,).
        reachable: Every mask that a set of instances can occupy, ascending.
    """

    open_placements: NDArray[np.int16]
    largest: NDArray[np.int8]
    best_start: Mapping[str, NDArray[np.int8]]
    capacity: Mapping[str, NDArray[np.int8]]
    reachable: tuple[int, ...]


@lru_cache(maxsize=256)
def mig_rules(table: MigTable) -> MigRules:
    """Return the tables of a model; equal tables share one instance."""
    sizes = _distinct_sizes(table)
    masks = np.arange(table.full_mask + 1)
    open_placements = np.zeros(masks.size, dtype=np.int16)
    largest = np.zeros(masks.size, dtype=np.int8)
    for profile in sizes:
        for start in profile.starts:
            fits = (masks & profile.mask_at(start)) == 0
            open_placements += fits
            largest = np.maximum(largest, np.where(fits, profile.memory_slices, 0).astype(np.int8))
    best: dict[str, NDArray[np.int8]] = {}
    capacity: dict[str, NDArray[np.int8]] = {}
    for profile in table.profiles:
        best[profile.name] = _best_starts(profile, masks, open_placements, largest)
        capacity[profile.name] = _capacity(profile, masks)
    open_placements.setflags(write=False)
    for array in (largest, *best.values(), *capacity.values()):
        array.setflags(write=False)
    return MigRules(
        open_placements,
        largest,
        MappingProxyType(best),
        MappingProxyType(capacity),
        _reachable(sizes),
    )


def list_full_layouts(table: MigTable) -> tuple[MigLayout, ...]:
    """Return every layout to which nothing can be added, ascending by instances.

    Profiles that differ from another in engines only are left out: they lie where the plain one
    lies.
    """
    sizes = _distinct_sizes(table)
    found: set[tuple[MigInstance, ...]] = set()

    def extend(placed: tuple[MigInstance, ...], occupied: int, compute: int, lowest: int) -> None:
        is_full = True
        for profile in sizes:
            if compute + profile.compute_slices > table.compute_slices:
                continue
            for start in free_placements(occupied, profile):
                is_full = False
                if start >= lowest:
                    extend(
                        (*placed, MigInstance(start, profile.name)),
                        occupied | profile.mask_at(start),
                        compute + profile.compute_slices,
                        start + profile.memory_slices,
                    )
        if is_full:
            found.add(placed)

    extend((), 0, 0, 0)
    return tuple(MigLayout(table, placed) for placed in sorted(found))


def _get_profile(table: MigTable, name: str) -> MigProfile:
    profile = table.find_profile(name)
    if profile is None:
        near = ", ".join(table.nearest_profiles(name))
        raise MigLayoutError(f"{table.model} has no profile {name}; nearest are {near}")
    return profile


def _distinct_sizes(table: MigTable) -> tuple[MigProfile, ...]:
    """Return the profiles without those that differ from another in engines only."""
    return tuple(profile for profile in table.profiles if not profile.is_variant)


def _best_starts(
    profile: MigProfile,
    masks: NDArray[np.int64],
    open_placements: NDArray[np.int16],
    largest: NDArray[np.int8],
) -> NDArray[np.int8]:
    best = np.full(masks.size, -1, dtype=np.int8)
    best_worth = np.full(masks.size, -1, dtype=np.int64)
    for start in profile.starts:
        mask = profile.mask_at(start)
        after = masks | mask
        worth = open_placements[after].astype(np.int64) * 64 + largest[after]
        # Starts ascend, so `>=` takes the highest of equals.
        better = ((masks & mask) == 0) & (worth >= best_worth)
        best = np.where(better, start, best).astype(np.int8)
        best_worth = np.where(better, worth, best_worth)
    return best


def _capacity(profile: MigProfile, masks: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the most instances of one profile by occupied mask.

    Placements of one profile are equal intervals: taking every free one from the low end is
    optimal, and the profile's own limit caps it.
    """
    taken = masks.copy()
    count = np.zeros(masks.size, dtype=np.int8)
    for start in profile.starts:
        mask = profile.mask_at(start)
        fits = (taken & mask) == 0
        taken = np.where(fits, taken | mask, taken)
        count += fits
    return np.minimum(count, profile.max_instances).astype(np.int8)


def _reachable(sizes: tuple[MigProfile, ...]) -> tuple[int, ...]:
    """Return every mask that non-overlapping placements can occupy, ascending."""
    found = {0}
    frontier = [0]
    while frontier:
        occupied = frontier.pop()
        for profile in sizes:
            for start in free_placements(occupied, profile):
                after = occupied | profile.mask_at(start)
                if after not in found:
                    found.add(after)
                    frontier.append(after)
    return tuple(sorted(found))
