"""Wide nodes: any wiring of nine to sixteen GPUs, every mask, against the slow way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.topology.matrix import LinkMatrix, LinkPreference, PcieLink
from gpuplane.core.topology.named import named_topology
from gpuplane.core.topology.tables import TopologyClass, topology_class
from tests.examples import examples
from tests.unit.core.topology.matrices import (
    Oracle,
    best_worths,
    nested_switches_16,
    worth_of_sets,
)


@st.composite
def wide_matrices(draw: st.DrawFn, least: int, most: int) -> LinkMatrix:
    """Return any symmetric matrix of so many GPUs; few kinds of links, so that ties are common."""
    count = draw(st.integers(least, most))
    pairs = count * (count - 1) // 2
    links = iter(draw(st.lists(st.sampled_from([0, 0, 1, 2]), min_size=pairs, max_size=pairs)))
    paths = iter(draw(st.lists(st.sampled_from(PcieLink), min_size=pairs, max_size=pairs)))
    nvlinks = [[0] * count for _ in range(count)]
    pcie = [[PcieLink.PIX] * count for _ in range(count)]
    for i in range(count):
        for j in range(i):
            nvlinks[i][j] = nvlinks[j][i] = next(links)
            pcie[i][j] = pcie[j][i] = next(paths)
    numa = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    return LinkMatrix(tuple(map(tuple, nvlinks)), tuple(map(tuple, pcie)), tuple(numa))


@given(wide_matrices(9, 11), st.data(), st.sampled_from(LinkPreference), st.booleans())
@examples(8)
def test_the_choice_and_what_it_leaves_behind_are_those_of_comparing_every_set(
    matrix: LinkMatrix, data: st.DataObject, preference: LinkPreference, required: bool
) -> None:
    entry, oracle = TopologyClass(matrix), Oracle(matrix)
    every = (1 << matrix.gpu_count) - 1
    for _ in range(4):
        free = data.draw(st.integers(1, every))
        count = data.draw(st.integers(1, free.bit_count()))
        expected = oracle.best(free, count, preference, required=required)
        assert entry.best_subset(free, count, preference, required=required) == expected


@given(wide_matrices(16, 16), st.sampled_from(LinkPreference), st.booleans(), st.integers(1, 16))
@examples(6)
def test_every_mask_of_sixteen_gpus_gives_a_set_of_most_worth(
    matrix: LinkMatrix, preference: LinkPreference, required: bool, count: int
) -> None:
    check_every_mask(matrix, preference, count, required=required)


def check_every_mask(
    matrix: LinkMatrix, preference: LinkPreference, count: int, *, required: bool
) -> None:
    """Compare the choice for every mask with the best of all sets inside it."""
    worth = worth_of_sets(matrix, preference)
    best = best_worths(matrix, preference, required=required)[count]
    masks = np.arange(1 << matrix.gpu_count)
    row = TopologyClass(matrix).subset_row(count, preference, required=required).astype(np.int64)
    found = row > 0
    assert np.array_equal(found, best >= 0)
    assert (row[found] & ~masks[found] == 0).all()
    assert (np.bitwise_count(row[found]) == count).all()
    assert np.array_equal(worth[row[found]], best[found])


SIXTEEN = {
    "nested switches": nested_switches_16(),
    "nvswitch": named_topology("nvswitch-16", 16),
    "sockets": named_topology("pcie-dual-socket-16", 16),
}


@pytest.mark.soak
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("preference", list(LinkPreference))
@pytest.mark.parametrize("name", SIXTEEN)
def test_every_mask_and_count_of_sixteen_gpus_is_the_optimum(
    name: str, preference: LinkPreference, required: bool
) -> None:
    """All of them; `make test` draws some of this, on any wiring."""
    for count in range(1, 17):
        check_every_mask(SIXTEEN[name], preference, count, required=required)


def test_a_choice_is_a_look_up_once_the_row_of_its_count_stands() -> None:
    entry = topology_class(nested_switches_16())
    row = entry.subset_row(3, LinkPreference.NVLINK, required=False)
    assert entry.subset_row(3, LinkPreference.NVLINK, required=False) is row
    assert (row.shape, row.nbytes, row.flags.writeable) == ((1 << 16,), 128 << 10, False)
    for free in (0xFFFF, 0x0F0F, 0x8001):
        chosen = entry.best_subset(free, 3, LinkPreference.NVLINK)
        assert (chosen or 0) == int(row[free])


def test_every_node_of_one_wiring_shares_its_tables() -> None:
    first, second = nested_switches_16(), nested_switches_16()
    assert first is not second
    assert topology_class(first) is topology_class(second)
