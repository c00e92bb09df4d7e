"""MIG tables agree with layouts built one instance at a time, on every model."""

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.mig.layouts import (
    MigInstance,
    MigLayout,
    best_placement,
    find_problem,
    free_placements,
    mig_rules,
)
from gpuplane.core.mig.profiles import KNOWN_TABLES, MigProfile, MigTable

tables = st.sampled_from(list(KNOWN_TABLES.values()))


def _plain(table: MigTable) -> list[MigProfile]:
    return [profile for profile in table.profiles if not profile.is_variant]


def _open(table: MigTable, occupied: int) -> int:
    return sum(len(free_placements(occupied, profile)) for profile in _plain(table))


@st.composite
def layouts(draw: st.DrawFn) -> MigLayout:
    """Return a layout grown by legal steps at any free place."""
    layout = MigLayout(draw(tables))
    for _ in range(draw(st.integers(0, 8))):
        options = [
            (profile.name, start)
            for profile in layout.table.profiles
            for start in layout.free_placements(profile.name)
        ]
        if not options:
            break
        layout = layout.with_instance(*draw(st.sampled_from(options)))
    return layout


@given(layouts())
def test_what_is_free_and_what_is_taken_tile_the_gpu(layout: MigLayout) -> None:
    slices = [
        profile.memory_slices
        for instance in layout.instances
        for profile in layout.table.profiles
        if profile.name == instance.profile
    ]
    assert sum(slices) == layout.occupied_mask.bit_count()
    assert layout.free_mask ^ layout.occupied_mask == layout.table.full_mask
    assert layout.compute_used <= layout.table.compute_slices
    assert layout.occupied_mask in mig_rules(layout.table).reachable


@given(layouts())
def test_free_slices_alone_decide_for_profiles_without_engines(layout: MigLayout) -> None:
    if any(one.profile.endswith("+me.all") for one in layout.instances):
        return
    for profile in _plain(layout.table):
        assert layout.free_placements(profile.name) == free_placements(
            layout.occupied_mask, profile
        )


@given(layouts())
def test_the_best_place_is_free_and_no_other_keeps_more_open(layout: MigLayout) -> None:
    occupied = layout.occupied_mask
    for profile in _plain(layout.table):
        start = best_placement(layout.table, occupied, profile)
        starts = free_placements(occupied, profile)
        if not starts:
            assert start is None
            continue
        assert start in starts
        kept = {s: _open(layout.table, occupied | profile.mask_at(s)) for s in starts}
        assert start is not None
        assert kept[start] == max(kept.values())


@given(layouts())
def test_the_tables_count_what_is_open(layout: MigLayout) -> None:
    rules, occupied = mig_rules(layout.table), layout.occupied_mask
    fits = [p.memory_slices for p in _plain(layout.table) if free_placements(occupied, p)]
    assert rules.open_placements[occupied] == _open(layout.table, occupied)
    assert rules.largest[occupied] == max(fits, default=0)


@given(layouts())
def test_capacity_is_the_most_that_can_be_packed(layout: MigLayout) -> None:
    rules = mig_rules(layout.table)

    def pack(occupied: int, profile: MigProfile) -> int:
        starts = free_placements(occupied, profile)
        return max((1 + pack(occupied | profile.mask_at(s), profile) for s in starts), default=0)

    for profile in layout.table.profiles:
        if profile.memory_slices > 1:
            expected = min(pack(layout.occupied_mask, profile), profile.max_instances)
        else:
            free = len(free_placements(layout.occupied_mask, profile))
            expected = min(free, profile.max_instances)
        assert rules.capacity[profile.name][layout.occupied_mask] == expected


@given(layouts())
def test_taking_instances_out_in_any_order_keeps_the_layout_valid(layout: MigLayout) -> None:
    for instance in layout.instances:
        smaller = layout.without_instance(instance.start)
        assert instance.start in smaller.free_placements(instance.profile)
        assert smaller.with_instance(instance.profile, instance.start) == layout


@given(
    tables,
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10)), min_size=1, max_size=5),
)
def test_a_set_of_instances_is_refused_exactly_when_it_breaks_a_rule(
    table: MigTable, picks: list[tuple[int, int]]
) -> None:
    chosen = [(table.profiles[index % len(table.profiles)], start) for start, index in picks]
    masks = [profile.mask_at(start) for profile, start in chosen]
    names = [profile.name for profile, _ in chosen]
    everything = any(name.endswith("+me.all") for name in names)
    legal = (
        all(start in profile.starts for profile, start in chosen)
        and sum(mask.bit_count() for mask in masks)
        == (sum(1 << i for i in range(16) if any(m >> i & 1 for m in masks))).bit_count()
        and sum(profile.compute_slices for profile, _ in chosen) <= table.compute_slices
        and all(names.count(p.name) <= p.max_instances for p, _ in chosen)
        and sum("+me" in name for name in names) <= 1
        and (not everything or all(n.endswith(("-me", "+me.all")) for n in names))
    )
    problem = find_problem(table, [MigInstance(start, profile.name) for profile, start in chosen])
    assert (problem is None) == legal
