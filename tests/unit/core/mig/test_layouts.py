"""MIG layouts: what may exist together, and the place that keeps most others open."""

import pytest

from gpuplane.core.mig.layouts import (
    MigLayout,
    MigLayoutError,
    best_placement,
    free_placements,
    layout_of,
    list_full_layouts,
    mig_rules,
)
from gpuplane.core.mig.profiles import (
    KNOWN_TABLES,
    MigProfile,
    MigTable,
    PlacementSource,
)

A100 = KNOWN_TABLES["nvidia-a100-80gb"]
A30 = KNOWN_TABLES["nvidia-a30"]
PRO = KNOWN_TABLES["nvidia-rtx-pro-6000"]


def _profile(name: str) -> MigProfile:
    profile = A100.find_profile(name)
    assert profile is not None
    return profile


@pytest.mark.parametrize(
    "instances",
    [
        [],
        [("7g.80gb", 0)],
        [("3g.40gb", 0), ("3g.40gb", 4)],
        [("4g.40gb", 0), ("3g.40gb", 4)],
        [("1g.10gb", start) for start in range(7)],
        [("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)],
        [("2g.20gb", 0), ("2g.20gb", 2), ("2g.20gb", 4), ("1g.10gb", 6)],
        [("1g.10gb+me", 0), ("1g.10gb", 1)],
    ],
)
def test_a_layout_that_a_device_accepts_is_valid(instances: list[tuple[str, int]]) -> None:
    layout = layout_of(A100, instances)
    assert sorted((one.profile, one.start) for one in layout.instances) == sorted(instances)
    assert layout.occupied_mask & layout.free_mask == 0
    assert layout.occupied_mask | layout.free_mask == 0xFF


@pytest.mark.parametrize(
    ("instances", "text"),
    [
        ([("3g.40gb", 0), ("4g.40gb", 0)], "overlaps"),
        ([("7g.80gb", 0), ("1g.10gb", 6)], "overlaps"),
        ([("2g.20gb", 1)], "starts at 0, 2, 4, not at 1"),
        ([("1g.10gb", 7)], "not at 7"),
        ([("3g.20gb", 0)], "has no profile 3g.20gb; nearest are"),
        ([("1g.10gb+me", 0), ("1g.10gb+me", 1)], "at most 1 of"),
    ],
)
def test_a_layout_that_no_device_accepts_is_refused_with_the_cause(
    instances: list[tuple[str, int]], text: str
) -> None:
    with pytest.raises(MigLayoutError, match=text):
        layout_of(A100, instances)


def test_compute_slices_are_checked_for_tables_read_from_a_device() -> None:
    wide = MigProfile("4g.10gb", 4, 1, 10, 8, tuple(range(8)))
    table = MigTable("x", 8, 7, (wide,), PlacementSource.DEVICE)
    with pytest.raises(MigLayoutError, match="8 compute slices are asked for, the GPU has 7"):
        layout_of(table, [("4g.10gb", 0), ("4g.10gb", 1)])
    assert layout_of(table, [("4g.10gb", 0)]).free_placements("4g.10gb") == ()


def test_the_media_engines_exist_once() -> None:
    with pytest.raises(MigLayoutError, match="only one instance"):
        layout_of(A30, [("1g.6gb+me", 0), ("2g.12gb+me", 2)])
    with pytest.raises(MigLayoutError, match="leaves only profiles without"):
        layout_of(PRO, [("1g.24gb+me.all", 0), ("1g.24gb", 1)])
    assert layout_of(PRO, [("1g.24gb+me.all", 0), ("1g.24gb-me", 1)]).compute_used == 2


def test_free_placements_are_the_legal_starts_on_free_slices() -> None:
    assert free_placements(0, _profile("3g.40gb")) == (0, 4)
    assert free_placements(0b0000_0001, _profile("3g.40gb")) == (4,)
    assert free_placements(0b0001_0001, _profile("3g.40gb")) == ()
    assert free_placements(0b0111_1111, _profile("1g.10gb")) == ()
    assert free_placements(0b0011_1111, _profile("1g.20gb")) == (6,)


@pytest.mark.parametrize(
    ("profile", "start"),
    [("1g.10gb", 6), ("1g.20gb", 6), ("2g.20gb", 4), ("3g.40gb", 4), ("4g.40gb", 0)],
)
def test_the_first_instance_goes_where_it_spoils_least(profile: str, start: int) -> None:
    assert best_placement(A100, 0, _profile(profile)) == start


def test_seven_small_instances_fill_a_gpu_from_the_end() -> None:
    layout = MigLayout(A100)
    starts = []
    while (start := layout.best_placement("1g.10gb")) is not None:
        starts.append(start)
        layout = layout.with_instance("1g.10gb", start)
    assert starts == [6, 5, 4, 3, 2, 1, 0]
    assert layout.counts() == {"1g.10gb": 7}
    assert layout.compute_used == 7
    assert layout.best_placement("1g.20gb") is None


def test_two_halves_leave_the_low_one_for_the_larger_profile() -> None:
    layout = MigLayout(A100)
    start = layout.best_placement("3g.40gb")
    assert start == 4
    assert layout.with_instance("3g.40gb", start).best_placement("4g.40gb") == 0


def test_among_equals_the_place_that_leaves_the_largest_instance_wins() -> None:
    # After a 2g at 0, slices 3 and 6 keep equally many places; only 3 keeps the 3g at 4.
    layout = layout_of(A100, [("2g.20gb", 0)])
    assert layout.best_placement("1g.10gb") == 3


def test_an_instance_can_be_taken_out_again() -> None:
    layout = layout_of(A100, [("3g.40gb", 0), ("3g.40gb", 4)])
    assert layout.without_instance(0) == layout_of(A100, [("3g.40gb", 4)])
    with pytest.raises(MigLayoutError, match="no instance starts at slice 2"):
        layout.without_instance(2)


def test_a_limited_profile_has_no_placement_once_its_limit_is_reached() -> None:
    layout = layout_of(A100, [("1g.10gb+me", 3)])
    assert layout.free_placements("1g.10gb+me") == ()
    assert layout.best_placement("1g.10gb+me") is None
    # Beside it: its pair of slices is spoilt already.
    assert layout.best_placement("1g.10gb") == 2


def test_the_capacity_of_an_empty_gpu_is_the_published_count() -> None:
    for table in KNOWN_TABLES.values():
        for profile in table.profiles:
            assert mig_rules(table).capacity[profile.name][0] == profile.max_instances


def test_an_a100_without_double_memory_has_its_nineteen_layouts() -> None:
    # NVIDIA's user guide draws them as the figure of A100 configurations.
    full = list_full_layouts(A100)
    assert len([layout for layout in full if "1g.20gb" not in layout.counts()]) == 19
    assert all(not layout.free_placements("1g.10gb") for layout in full)


def test_an_a30_has_its_five_layouts() -> None:
    assert sorted(sorted(layout.counts().items()) for layout in list_full_layouts(A30)) == [
        [("1g.6gb", 2), ("2g.12gb", 1)],
        [("1g.6gb", 2), ("2g.12gb", 1)],
        [("1g.6gb", 4)],
        [("2g.12gb", 2)],
        [("4g.24gb", 1)],
    ]


def test_slice_seven_is_never_taken_alone() -> None:
    reachable = mig_rules(A100).reachable
    assert 0 in reachable
    assert 0xFF in reachable
    assert 0x80 not in reachable
    assert all(mask & 0x40 for mask in reachable if mask & 0x80)


def test_equal_tables_share_their_rules() -> None:
    copy = MigTable(
        A100.model, A100.memory_slices, A100.compute_slices, A100.profiles, A100.placements
    )
    assert mig_rules(copy) is mig_rules(A100)
