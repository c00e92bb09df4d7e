"""Room for the largest requests: which nodes have it, and that others are taken first."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.scheduling.bench import Bench
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.large import MAX_LARGE, LargeClass, LargeRoom, choose_large
from gpuplane.core.scheduling.placement import place_workload
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.workload import Workload
from tests.builders import A100, NOW, a_fleet, a_node, a_workload

EVERYWHERE = slice(None)


def wide(gpus: int, **rest: object) -> LargeClass:
    shape: dict[str, object] = {"cpu_milli": 1000, "memory_mib": 1024, "gpu_model": "", **rest}
    return LargeClass(gpus, **shape)  # type: ignore[arg-type]  # fields of a class


def room(fleet: Fleet, *classes: tuple[LargeClass, int]) -> tuple[list[int], list[int]]:
    made = LargeRoom(classes, fleet)
    return made.largest(EVERYWHERE).tolist(), made.shares(EVERYWHERE).tolist()


def test_a_node_counts_for_the_requests_that_it_could_start_now() -> None:
    fleet = a_fleet(a_node("a", 8), a_node("b", 4), a_node("c", 8, cpu_milli=16_000))
    eight, four = wide(8, cpu_milli=64_000), wide(4)
    largest, shares = room(fleet, (eight, 1), (four, 2))
    assert largest == [1024, 0, 0]
    assert shares == [1024, 512, 512]


def test_classes_that_no_node_could_ever_hold_do_not_count_as_largest() -> None:
    fleet = a_fleet(a_node("a", 8), a_node("b", 4))
    assert room(fleet, (wide(16), 5), (wide(8), 1)) == ([1024, 0], [1024, 0])
    assert LargeRoom(((wide(16), 5),), fleet).is_empty


def test_only_nodes_of_the_model_count_for_a_class_that_asks_for_one() -> None:
    fleet = a_fleet(a_node("a", 4), a_node("b", 4, model=A100))
    assert room(fleet, (wide(4, gpu_model=A100), 1))[0] == [0, 1024]
    assert room(fleet, (wide(4, gpu_model=f"x|{A100}"), 1))[0] == [0, 1024]


def test_the_largest_classes_are_kept_when_there_are_too_many() -> None:
    counted = {wide(2, cpu_milli=i): 1000 for i in range(MAX_LARGE)} | {wide(8): 1}
    chosen = choose_large(counted)
    assert len(chosen) == MAX_LARGE
    assert chosen[0] == (wide(8), 1)


def test_columns_that_follow_changes_equal_columns_made_anew() -> None:
    fleet = a_fleet(*(a_node(f"n{i}", 8) for i in range(6)))
    classes = ((wide(8, cpu_milli=120_000), 3), (wide(4), 2), (wide(2), 1))
    followed = LargeRoom(classes, fleet)
    random = Random(5)
    for _ in range(60):
        mark = fleet.checkpoint()
        for _ in range(random.choice([1, 1, 9])):
            node = random.randrange(len(fleet))
            free = int(fleet.gpu_free_mask[node])
            fleet.allocate(Take(node, free & -free, 1000, random.choice([0, 5000]), 0, 0))
        if random.random() < 0.7:
            fleet.rollback(mark)
        anew = LargeRoom(classes, fleet)
        assert np.array_equal(followed.largest(EVERYWHERE), anew.largest(EVERYWHERE))
        assert np.array_equal(followed.shares(EVERYWHERE), anew.shares(EVERYWHERE))


def nodes_taken(policy: PlacementPolicy, mix: Sequence[Workload], asked: Workload) -> list[str]:
    """Return where four replicas of one workload go, one after the other."""
    fleet = a_fleet(a_node("a", 8, cpu_milli=128_000), a_node("b", 4, cpu_milli=64_000))
    typical = compute_typical_mix(mix, share=0.5, max_classes=4)
    bench = Bench(fleet, Policy(placement=policy), typical, NOW, 1)
    taken = []
    for _ in range(4):
        spots = place_workload(asked, bench, None)
        assert spots is not None
        taken += [fleet.nodes[take.node].name for take in spots.takes]
    return taken


def test_single_gpus_are_not_taken_where_only_the_largest_request_fits() -> None:
    small = a_workload("small").gpus(1, cpu_milli=16_000).build()
    # So rare that a mix of half of all replicas leaves it out.
    large = a_workload("large").gpus(8).build()
    often = [a_workload(f"small-{i}").gpus(1, cpu_milli=16_000).build() for i in range(9)]
    for policy in (PlacementPolicy.FRAGMENTATION, PlacementPolicy.BALANCED):
        assert nodes_taken(policy, [*often, large], small) == ["b"] * 4
    assert nodes_taken(PlacementPolicy.FRAGMENTATION, often, small) == ["a"] * 4
