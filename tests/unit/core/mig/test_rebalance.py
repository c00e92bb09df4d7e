"""Cutting GPUs anew: the least change, never what is held, and shares as near as they can be."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from gpuplane.core.ids import GpuId
from gpuplane.core.lifecycle.mig import MigState
from gpuplane.core.mig.layouts import MigInstance, list_full_layouts
from gpuplane.core.mig.profiles import (
    KNOWN_TABLES,
    MigProfile,
    MigTable,
    PlacementSource,
)
from gpuplane.core.mig.rebalance import GpuChange, MigGpu, plan_room, plan_shares

A100 = KNOWN_TABLES["nvidia-a100-80gb"]
A30 = KNOWN_TABLES["nvidia-a30"]
PRO = KNOWN_TABLES["nvidia-rtx-pro-6000"]
FREE, HELD, USED = MigState.AVAILABLE, MigState.ALLOCATED, MigState.IN_USE


def a_gpu(name: str, *instances: tuple[str, MigState], table: MigTable = A100) -> MigGpu:
    """Return a GPU with instances written as `1g.10gb@0`."""
    pairs = tuple((_instance(text), state) for text, state in instances)
    return MigGpu(GpuId(name), table, pairs)


def _instance(text: str) -> MigInstance:
    profile, _, start = text.partition("@")
    return MigInstance(int(start), profile)


def told(changes: tuple[GpuChange, ...] | None) -> list[tuple[str, list[str], list[str]]] | None:
    if changes is None:
        return None
    return [
        (c.gpu_id, [f"{i.profile}@{i.start}" for i in c.destroy],
         [f"{i.profile}@{i.start}" for i in c.create])
        for c in changes
    ]  # fmt: skip


def test_an_empty_gpu_is_cut_where_it_spoils_least() -> None:
    assert told(plan_room([a_gpu("a")], "3g.40gb", 1)) == [("a", [], ["3g.40gb@4"])]


def test_free_slices_are_taken_before_anything_is_destroyed() -> None:
    gpus = [a_gpu("a", ("7g.80gb@0", FREE)), a_gpu("b", ("4g.40gb@0", USED))]
    assert told(plan_room(gpus, "3g.40gb", 1)) == [("b", [], ["3g.40gb@4"])]


def test_the_fewest_slices_give_way() -> None:
    gpus = [a_gpu("a", ("4g.40gb@0", FREE), ("3g.40gb@4", FREE)), a_gpu("b", ("2g.20gb@0", FREE))]
    gpus.append(a_gpu("c", ("3g.40gb@4", USED), ("2g.20gb@0", FREE), ("1g.10gb@2", USED)))
    # On b the whole GPU but for one pair is free already; on c the low half is spoilt.
    assert told(plan_room(gpus, "7g.80gb", 1)) == [("b", ["2g.20gb@0"], ["7g.80gb@0"])]


def test_what_is_held_is_never_destroyed() -> None:
    for state in (HELD, USED):
        gpu = a_gpu("a", ("1g.10gb@3", state), ("1g.10gb@4", FREE))
        assert plan_room([gpu], "7g.80gb", 1) is None
        assert told(plan_room([gpu], "3g.40gb", 1)) == [("a", ["1g.10gb@4"], ["3g.40gb@4"])]


def test_a_gpu_on_which_something_happens_is_left_alone() -> None:
    for state in (MigState.PARTITION_CREATED, MigState.PARTITION_DESTROYED):
        assert plan_room([a_gpu("a", ("1g.10gb@0", state))], "1g.10gb", 1) is None


def test_instances_of_the_profile_that_are_there_stay() -> None:
    gpu = a_gpu("a", ("3g.40gb@0", FREE), ("1g.10gb@4", FREE))
    assert told(plan_room([gpu], "3g.40gb", 1)) == [("a", ["1g.10gb@4"], ["3g.40gb@4"])]
    assert plan_room([gpu], "3g.40gb", 2) is None


def test_several_instances_come_from_as_little_as_is_needed() -> None:
    gpus = [a_gpu("b", *((f"1g.10gb@{i}", FREE) for i in range(7))), a_gpu("a")]
    changes = plan_room(gpus, "2g.20gb", 4)
    assert told(changes) == [
        ("a", [], ["2g.20gb@0", "2g.20gb@2", "2g.20gb@4"]),
        ("b", ["1g.10gb@4", "1g.10gb@5"], ["2g.20gb@4"]),
    ]


def test_a_profile_that_the_model_lacks_is_made_nowhere() -> None:
    assert plan_room([a_gpu("a", table=A30)], "3g.40gb", 1) is None
    assert plan_room([], "1g.10gb", 1) is None


def test_a_limit_on_engines_makes_more_give_way() -> None:
    gpu = a_gpu("a", ("1g.24gb+me@3", FREE), table=PRO)
    assert told(plan_room([gpu], "1g.24gb+me.all", 1)) == [
        ("a", ["1g.24gb+me@3"], ["1g.24gb+me.all@3"])
    ]
    held = a_gpu("a", ("1g.24gb+me@3", USED), table=PRO)
    assert plan_room([held], "1g.24gb+me.all", 1) is None


def test_compute_slices_of_a_device_table_are_heeded() -> None:
    wide = MigProfile("4g.10gb", 4, 1, 10, 8, tuple(range(8)))
    small = MigProfile("1g.5gb", 1, 1, 5, 8, tuple(range(8)))
    table = MigTable("x", 8, 7, (small, wide), PlacementSource.DEVICE)
    assert plan_room([a_gpu("a", ("4g.10gb@0", USED), table=table)], "4g.10gb", 1) is None


def test_fewer_than_one_instance_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one instance"):
        plan_room([a_gpu("a")], "1g.10gb", 0)


def counts_of(gpus: int, shares: dict[str, int], table: MigTable = A100) -> dict[str, int]:
    layouts, _ = plan_shares([a_gpu(f"{i:04}", table=table) for i in range(gpus)], shares)
    total: Counter[str] = sum((Counter(layout.counts()) for layout in layouts), Counter())
    return dict(total)


def test_the_published_distribution_is_met_by_every_even_number_of_gpus() -> None:
    shares = {"1g.10gb": 70, "2g.20gb": 20, "3g.40gb": 10}
    for pairs in (1, 2, 5):
        assert counts_of(2 * pairs, shares) == {
            "1g.10gb": 7 * pairs,
            "2g.20gb": 2 * pairs,
            "3g.40gb": pairs,
        }


@pytest.mark.parametrize("gpus", [1, 2, 3])
@pytest.mark.parametrize(
    "shares",
    [
        {"1g.10gb": 70, "2g.20gb": 20, "3g.40gb": 10},
        {"1g.10gb": 1, "3g.40gb": 1},
        {"1g.20gb": 3, "2g.20gb": 2, "4g.40gb": 1},
        {"7g.80gb": 1, "1g.10gb": 6},
    ],
)
def test_a_few_gpus_come_as_near_as_any_choice_of_layouts(
    gpus: int, shares: dict[str, int]
) -> None:
    whole = sum(shares.values())

    def apart(total: Counter[str]) -> float:
        count = sum(total.values())
        return sum(abs(total[name] / count - weight / whole) for name, weight in shares.items())

    def is_full(counts: dict[str, int]) -> bool:
        return set(counts) <= set(shares)

    # Layouts of the asked profiles alone; what is full among all profiles is full among them too,
    # and the rest is found by leaving out what nobody asked for.
    found = plan_shares([a_gpu(f"{i}") for i in range(gpus)], shares)[0]
    got: Counter[str] = sum((Counter(layout.counts()) for layout in found), Counter())
    every = [layout.counts() for layout in list_full_layouts(A100) if is_full(layout.counts())]
    best = min(
        apart(sum((Counter(each) for each in chosen), Counter()))
        for chosen in product(every, repeat=gpus)
    )
    assert apart(got) <= best + 1e-9


def test_what_is_held_stays_in_the_plan_and_what_is_free_gives_way() -> None:
    gpus = [
        a_gpu("a", ("3g.40gb@4", USED), ("1g.10gb@0", FREE)),
        a_gpu("b", ("7g.80gb@0", HELD)),
    ]
    layouts, changes = plan_shares(gpus, {"1g.10gb": 1})
    assert [layout.counts() for layout in layouts] == [
        {"1g.10gb": 4, "3g.40gb": 1},
        {"7g.80gb": 1},
    ]
    assert told(changes) == [("a", [], ["1g.10gb@1", "1g.10gb@2", "1g.10gb@3"])]


def test_a_layout_that_is_as_near_and_destroys_less_is_taken() -> None:
    gpu = a_gpu("a", *((f"1g.10gb@{i}", FREE) for i in range(7)))
    assert plan_shares([gpu], {"1g.10gb": 1})[1] == ()


def test_names_of_profiles_may_be_spelt_as_kubernetes_does() -> None:
    assert counts_of(1, {"nvidia.com/mig-1g.10gb": 1}) == {"1g.10gb": 7}


@pytest.mark.parametrize(
    ("gpus", "shares", "text"),
    [
        ([], {"1g.10gb": 1}, "GPUs of one model"),
        ([a_gpu("a"), a_gpu("b", table=A30)], {"1g.10gb": 1}, "GPUs of one model"),
        ([a_gpu("a")], {"9g.1gb": 1}, "nearest are"),
        ([a_gpu("a")], {"1g.10gb": -1}, "must not be negative"),
        ([a_gpu("a")], {"1g.10gb": 0}, "no profile has a share"),
    ],
)
def test_shares_that_mean_nothing_are_refused(
    gpus: list[MigGpu], shares: dict[str, int], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        plan_shares(gpus, shares)
