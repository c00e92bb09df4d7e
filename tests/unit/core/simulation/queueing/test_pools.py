"""Where GPUs come from: the rule of consolidation, case by case."""

from __future__ import annotations

import pytest

from gpuplane.core.simulation.queueing.pools import Placement, Pool, PoolShape


def a_pool(*free: int) -> Pool:
    pool = Pool(PoolShape(len(free)))
    for node, count in enumerate(free):
        pool.set_free(node, count)
    return pool


@pytest.mark.parametrize(
    ("free", "gpus", "found"),
    [
        ((8, 3, 5), 2, ((1, 2),)),
        ((8, 5, 5), 4, ((1, 4),)),
        ((8, 7, 8), 8, ((0, 8),)),
        ((7, 7, 7), 8, None),
        ((4, 8, 8), 16, ((1, 8), (2, 8))),
        ((4, 8, 7), 16, None),
        ((8, 4, 8), 12, ((0, 8), (2, 4))),
        ((8, 4, 7), 12, ((0, 8), (2, 4))),
        ((8, 7, 7), 12, ((0, 8), (1, 4))),
        ((8, 3, 2), 12, None),
        ((0, 0, 0), 1, None),
    ],
    ids=[
        "fewest free that suffice",
        "lowest index of two alike",
        "a whole node is a free one",
        "a whole node is not two halves",
        "two whole nodes",
        "one whole node is not two",
        "the rest goes to a further whole node",
        "else to the freest",
        "the lowest of the freest",
        "the rest must fit on one",
        "nothing free",
    ],
)
def test_consolidation(free: tuple[int, ...], gpus: int, found: Placement | None) -> None:
    assert a_pool(*free).find(gpus) == found


def test_what_is_taken_and_given_back_leaves_the_pool_as_it_was() -> None:
    pool = a_pool(8, 5, 8)
    placement = pool.find(13)
    assert placement == ((0, 8), (2, 5))
    pool.take(placement)
    assert pool.free == [0, 5, 3]
    assert pool.sets[8] == 0
    pool.give(placement)
    assert pool.free == [8, 5, 8]
    assert pool.sets[8] == 0b101


def test_more_than_is_free_cannot_be_taken() -> None:
    pool = a_pool(2)
    with pytest.raises(ValueError, match="cannot have -1 of 8"):
        pool.take(((0, 3),))
    with pytest.raises(ValueError, match="cannot have 9 of 8"):
        pool.give(((0, 7),))


def test_a_cap_hides_gpus_without_taking_them() -> None:
    pool = a_pool(4, 8)
    assert pool.find_capped(2, {0: 1}) == ((1, 2),)
    assert pool.find_capped(8, {1: 7}) is None
    assert pool.find_capped(1, {0: 1}) == ((0, 1),)
    assert pool.free == [4, 8]


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_a_pool_without_nodes_or_gpus_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least one node"):
        PoolShape(*shape)
