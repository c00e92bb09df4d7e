"""MIG instances that a node counts by profile, laid onto its GPUs: pure.

Owns one choice: which GPU has which instance, where nothing but the node's counts tells. The choice
is the same for equal counts, so that an instance keeps its name as long as the counts stay.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpuplane.core.mig.layouts import MigInstance, MigLayout
from gpuplane.core.mig.profiles import MigProfile, MigTable

Instances = tuple[tuple[str, int], ...]
"""(profile, first memory slice) of the instances of one GPU, ascending by slice."""


def spread_instances(
    table: MigTable, gpu_count: int, counts: Mapping[str, int]
) -> tuple[Instances, ...]:
    """Return the instances of each GPU of a node that offers so many of each profile.

    They are spread evenly, as a configuration for all GPUs cuts them, or else one GPU is filled
    after the other. What fits in neither way (a table that does not know the device) is left out.

    Args:
        counts: Instances by profile in any spelling; profiles that the table lacks are left out.
    """
    wanted: list[MigProfile] = []
    for name, count in sorted(counts.items()):
        profile = table.find_profile(name)
        if profile is not None:
            wanted += [profile] * min(count, gpu_count * profile.max_instances)
    wanted.sort(key=lambda each: (-each.memory_slices, -each.compute_slices, each.name))
    even = _fill(table, gpu_count, wanted, even=True)
    if sum(map(len, even)) < len(wanted):
        packed = _fill(table, gpu_count, wanted, even=False)
        if sum(map(len, packed)) > sum(map(len, even)):
            return packed
    return even


def _fill(
    table: MigTable, gpu_count: int, wanted: Sequence[MigProfile], *, even: bool
) -> tuple[Instances, ...]:
    layouts = [MigLayout(table) for _ in range(gpu_count)]
    for profile in wanted:
        for index in _order(layouts, profile, even=even):
            start = layouts[index].best_placement(profile.name)
            if start is not None:
                layouts[index] = layouts[index].with_instance(profile.name, start)
                break
    return tuple(tuple(_told(each) for each in layout.instances) for layout in layouts)


def _order(layouts: Sequence[MigLayout], profile: MigProfile, *, even: bool) -> Iterator[int]:
    """Yield GPUs: those with the fewest of this profile first, or in their own order."""

    def have(index: int) -> tuple[int, int]:
        instances = layouts[index].instances
        return sum(each.profile == profile.name for each in instances), index

    yield from sorted(range(len(layouts)), key=have) if even else range(len(layouts))


def _told(instance: MigInstance) -> tuple[str, int]:
    return instance.profile, instance.start
