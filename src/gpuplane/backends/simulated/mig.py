"""Reads the MIG layouts of a group's GPUs and finds the place of every instance.

Owns the notation; legality and places are the decision core's (`core.mig`).
"""

from collections.abc import Sequence

from gpuplane.backends.simulated.reading import Section
from gpuplane.core.hardware import GpuModel
from gpuplane.core.mig.layouts import MigInstance, MigLayoutError, find_problem, layout_of
from gpuplane.core.mig.profiles import MigProfile, MigTable, find_table

Layout = tuple[tuple[str, int], ...]
"""(profile, first memory slice) of each instance of a GPU."""


def read_layouts(group: Section, model: GpuModel | None, gpu_count: int) -> dict[int, Layout]:
    """Return the layout of each GPU of a node that has one, by the GPU's index."""
    if not group.has("mig"):
        return {}
    table = None if model is None else find_table(model.name)
    if model is not None and table is None:
        group.refuse("mig", f"{model.name} has no MIG", "take this out, or choose another model")
    layouts: dict[int, Layout] = {}
    for section in group.sections("mig"):
        indices = section.integers("gpus", 0, gpu_count - 1)
        written = section.texts("layout")
        section.finish()
        if not indices:
            section.refuse("gpus", "no GPU is named", "list the indices such as [0, 1]")
        for index in indices:
            if index in layouts:
                section.refuse("gpus", f"GPU {index} has a layout already", "name each once")
        layout = _read_layout(section, table, written)
        layouts.update(dict.fromkeys(indices, layout))
    return layouts


def _read_layout(section: Section, table: MigTable | None, written: Sequence[str]) -> Layout:
    if table is None:
        return ()
    if not written:
        section.refuse("layout", "no instance is named", "list profiles such as [3g.40gb]")
        return ()
    wishes: list[tuple[str, int | None]] = []
    for position, text in enumerate(written):
        profile, at, start = text.partition("@")
        if at and not start.isdigit():
            fix = "write a profile such as 3g.40gb, or with its first memory slice 3g.40gb@4"
            section.refuse(f"layout[{position}]", f"{text[:60]!r} is no placement", fix)
            return ()
        if table.find_profile(profile) is None:
            reason = f"{table.model} has no MIG profile {profile[:60]!r}"
            fix = f"nearest: {', '.join(table.nearest_profiles(profile))}"
            section.refuse(f"layout[{position}]", reason, fix)
            return ()
        wishes.append((profile, int(start) if at else None))
    try:
        return _place(table, wishes)
    except MigLayoutError as error:
        section.refuse("layout", str(error), "choose instances that can exist together")
        return ()


def _place(table: MigTable, wishes: Sequence[tuple[str, int | None]]) -> Layout:
    """Return a place for every instance: fixed ones first, then large before small.

    Raises:
        MigLayoutError: If the instances cannot exist together on one GPU.
    """
    fixed = layout_of(table, [(name, start) for name, start in wishes if start is not None])
    loose = [
        profile
        for name, start in wishes
        if start is None and (profile := table.find_profile(name)) is not None
    ]
    # Large first and, of one size, the pickiest first: then the first try nearly always holds.
    loose.sort(key=lambda p: (-p.memory_slices, len(p.starts), p.name))
    found = _search(table, fixed.instances, loose)
    if found is None:
        names = ", ".join(name for name, _ in wishes)
        raise MigLayoutError(f"{names} do not fit together on one {table.model}")
    return tuple((one.profile, one.start) for one in sorted(found))


def _search(
    table: MigTable, placed: tuple[MigInstance, ...], loose: Sequence[MigProfile]
) -> tuple[MigInstance, ...] | None:
    if not loose:
        return placed
    for start in loose[0].starts:
        tried = (*placed, MigInstance(start, loose[0].name))
        if find_problem(table, tried) is None:
            found = _search(table, tried, loose[1:])
            if found is not None:
                return found
    return None
