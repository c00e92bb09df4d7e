"""The published optima, and a choice beside all others on any wiring."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpuplane.core.topology.comparison import compare_choice
from gpuplane.core.topology.matrix import LinkMatrix, LinkPreference, parse_topo_matrix
from gpuplane.core.topology.named import named_topology
from tests.unit.core.topology.matrices import (
    CUBE_MESH,
    MIXED_5,
    bridged_pairs,
    gpus_of,
    nested_switches,
    nested_switches_16,
    real_matrices,
    sets_of,
)

CUBE, NESTED, MIXED = (
    "v100_sxm2_8x_cube_mesh_1nic.txt",
    "pcie_8x_nested_switches.txt",
    "mixed_5x_pcie_phb_node_sys.txt",
)
OURS = {
    CUBE: parse_topo_matrix(CUBE_MESH),
    NESTED: nested_switches(),
    MIXED: parse_topo_matrix(MIXED_5),
}
# file, count, best, optimal sets, all sets, first by index, mean in hundredths, worst
OPTIMA = [
    (CUBE, 2, 2, 8, 28, 1, 86, 0),
    (CUBE, 3, 5, 4, 56, 4, 257, 1),
    (CUBE, 4, 9, 2, 70, 9, 514, 2),
    (CUBE, 6, 14, 8, 28, 14, 1286, 12),
    (NESTED, 2, 5, 4, 28, 5, 243, 1),
    (NESTED, 4, 26, 2, 70, 26, 1457, 12),
    (MIXED, 2, 3, 2, 10, 1, 180, 1),
    (MIXED, 3, 7, 4, 10, 5, 540, 4),
]


def check_row(matrix: LinkMatrix, row: tuple[str, int, int, int, int, int, int, int]) -> None:
    _, count, best, best_sets, sets, first, mean, worst = row
    found = compare_choice(matrix, count)
    assert found is not None
    assert found.links == found.best_links == best
    assert (found.best_sets, found.sets) == (best_sets, sets)
    assert (found.first_links, found.worst_links) == (first, worst)
    assert (found.mean_links_milli + 5) // 10 == mean


@pytest.mark.parametrize("row", OPTIMA, ids=lambda row: f"{row[0].split('_')[0]}-{row[1]}")
def test_the_published_optima_hold_on_our_copies(
    row: tuple[str, int, int, int, int, int, int, int],
) -> None:
    check_row(OURS[row[0]], row)


@pytest.mark.parametrize("row", OPTIMA, ids=lambda row: f"{row[0].split('_')[0]}-{row[1]}")
def test_the_published_optima_hold_on_the_real_listings(
    row: tuple[str, int, int, int, int, int, int, int],
) -> None:
    check_row(real_matrices()[row[0]], row)


@pytest.mark.parametrize(
    "matrix",
    [parse_topo_matrix(CUBE_MESH), nested_switches(), parse_topo_matrix(MIXED_5), bridged_pairs()],
    ids=["cube", "nested", "mixed", "bridged"],
)
def test_every_figure_is_that_of_comparing_set_by_set(matrix: LinkMatrix) -> None:
    has_nvlink = any(any(row) for row in matrix.nvlinks)

    def links(mask: int) -> int:
        return sum(
            matrix.nvlinks[i][j] if has_nvlink else int(matrix.pcie[i][j]) + 1
            for i, j in combinations(gpus_of(mask), 2)
        )

    for free in range(1, 1 << matrix.gpu_count):
        for count in range(1, len(gpus_of(free)) + 1):
            found = compare_choice(matrix, count, free_mask=free)
            assert found is not None
            sums = [links(mask) for mask in sets_of(free, count)]
            chosen = sum(1 << gpu for gpu in found.gpus)
            assert found.links == links(chosen)
            assert (found.best_links, found.worst_links) == (max(sums), min(sums))
            assert (found.best_sets, found.sets) == (sums.count(max(sums)), len(sums))
            assert found.first_links == links(sum(1 << gpu for gpu in gpus_of(free)[:count]))
            rest = free & ~chosen
            assert found.left == {
                size: max(links(mask) for mask in sets_of(rest, size))
                for size in (2, 4, 8)
                if len(gpus_of(rest)) >= size
            }


def test_the_choice_is_the_optimum_of_every_real_listing() -> None:
    for name, matrix in real_matrices().items():
        for count in range(1, matrix.gpu_count + 1):
            found = compare_choice(matrix, count)
            assert found is not None
            assert found.links == found.best_links, (name, count)


def test_sixteen_gpus_are_compared_too() -> None:
    found = compare_choice(nested_switches_16(), 8)
    assert found is not None
    assert (found.gpus, found.sets) == (tuple(range(8)), 12_870)
    assert found.links == found.best_links
    assert found.left[8] == found.links


def test_a_count_that_does_not_fit_has_no_choice() -> None:
    assert compare_choice(named_topology("pcie-4", 4), 5) is None
    assert compare_choice(named_topology("pcie-4", 4), 3, free_mask=0b11) is None
    nvlink = LinkPreference.NVLINK
    assert compare_choice(named_topology("pcie-4", 4), 2, nvlink, required=True) is None
    with pytest.raises(ValueError, match="at least one GPU"):
        compare_choice(named_topology("pcie-4", 4), 0)
