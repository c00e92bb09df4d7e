"""Counts of a node become instances of its GPUs, the same for equal counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.mig.layouts import MigLayout, layout_of
from gpuplane.core.mig.profiles import MigTable, find_table
from gpuplane.core.mig.spreading import spread_instances


def table_of(model: str) -> MigTable:
    found = find_table(model)
    assert found is not None
    return found


A100 = table_of("nvidia-a100-40gb")


def test_equal_cuts_lie_on_each_gpu_alike() -> None:
    counts = {"1g.5gb": 16, "2g.10gb": 8, "3g.20gb": 8}
    spread = spread_instances(A100, 8, counts)
    assert len(set(spread)) == 1
    assert sorted(name for name, _ in spread[0]) == ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]


def test_unequal_cuts_lie_where_they_may() -> None:
    spread = spread_instances(A100, 3, {"7g.40gb": 1, "1g.5gb": 7, "3g.20gb": 2})
    assert sum(map(len, spread)) == 10
    assert [name for name, _ in min(spread, key=len)] == ["7g.40gb"]


def test_what_the_table_lacks_or_cannot_hold_is_left_out() -> None:
    assert spread_instances(A100, 1, {"9g.90gb": 3}) == ((),)
    assert len(spread_instances(A100, 1, {"3g.20gb": 5})[0]) == 2


def test_names_of_resources_are_understood() -> None:
    assert [name for name, _ in spread_instances(A100, 1, {"1g.5gb.me": 1})[0]] == ["1g.5gb+me"]


NAMES = st.sampled_from([each.name for each in A100.profiles])


@given(st.integers(1, 8), st.lists(NAMES, max_size=7))
def test_what_all_gpus_are_cut_into_alike_is_found_whole(gpu_count: int, wishes: list[str]) -> None:
    layout = MigLayout(A100)
    for name in wishes:
        start = layout.best_placement(name)
        layout = layout if start is None else layout.with_instance(name, start)
    counts: dict[str, int] = {}
    for each in layout.instances:
        counts[each.profile] = counts.get(each.profile, 0) + gpu_count
    spread = spread_instances(A100, gpu_count, counts)
    assert sum(map(len, spread)) == sum(counts.values())
    for instances in spread:
        layout_of(A100, instances)  # raises where they could not exist together
