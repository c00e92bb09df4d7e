"""The choice of GPUs inside a node: known optima, required preferences, deterministic ties."""

from itertools import combinations

import numpy as np
import pytest

from gpuplane.core.topology.matrix import (
    LinkMatrix,
    LinkPreference,
    matrix_from_rows,
    parse_topo_matrix,
)
from gpuplane.core.topology.named import named_topology
from gpuplane.core.topology.tables import (
    TopologyClass,
    stack_score_tables,
    topology_class,
)
from tests.unit.core.topology.matrices import (
    CUBE_MESH,
    Oracle,
    best_worths,
    bridged_pairs,
    gpus_of,
    nested_switches,
    real_matrices,
    sets_of,
    worth_of_sets,
)

NONE, NVLINK, NUMA, PCIE = LinkPreference


def _links(matrix: LinkMatrix, mask: int) -> int:
    """Return the weight of the published optima: NVLinks, or PIX 5 .. SYS 1 without any."""
    if any(any(row) for row in matrix.nvlinks):
        return sum(matrix.nvlinks[i][j] for i, j in combinations(gpus_of(mask), 2))
    return sum(int(matrix.pcie[i][j]) + 1 for i, j in combinations(gpus_of(mask), 2))


@pytest.mark.parametrize(("count", "best"), [(2, 2), (3, 5), (4, 9), (6, 14)])
def test_the_cube_mesh_gives_its_known_optimum(count: int, best: int) -> None:
    matrix = parse_topo_matrix(CUBE_MESH)
    chosen = topology_class(matrix).best_subset(0xFF, count, NONE)
    assert chosen is not None
    assert _links(matrix, chosen) == best


@pytest.mark.parametrize(("count", "best"), [(2, 5), (4, 26)])
def test_nested_switches_give_their_known_optimum(count: int, best: int) -> None:
    matrix = nested_switches()
    chosen = topology_class(matrix).best_subset(0xFF, count, NONE)
    assert chosen is not None
    assert _links(matrix, chosen) == best


@pytest.mark.parametrize("preference", list(LinkPreference))
@pytest.mark.parametrize("required", [False, True])
def test_every_choice_on_every_real_listing_is_of_most_worth(
    preference: LinkPreference, required: bool
) -> None:
    """Every mask and count of every file, against comparing all sets by the written rules."""
    for name, matrix in real_matrices().items():
        table = topology_class(matrix).subset_table(preference, required=required).astype(np.int64)
        best = best_worths(matrix, preference, required=required)
        masks, worth = np.arange(1 << matrix.gpu_count), worth_of_sets(matrix, preference)
        for count in range(1, matrix.gpu_count + 1):
            found = table[count] > 0
            assert np.array_equal(found, best[count] >= 0), (name, count)
            assert (table[count][found] & ~masks[found] == 0).all(), (name, count)
            chosen = worth[table[count][found]]
            assert np.array_equal(chosen, best[count][found]), (name, count)


def test_every_choice_on_every_real_listing_is_the_optimum() -> None:
    for name, matrix in real_matrices().items():
        entry = topology_class(matrix)
        best = np.zeros((matrix.gpu_count + 1, 1 << matrix.gpu_count), dtype=np.int64)
        for mask in range(1 << matrix.gpu_count):
            best[len(gpus_of(mask)), mask] = _links(matrix, mask) + 1
        for bit in range(matrix.gpu_count):
            halves = best.reshape(matrix.gpu_count + 1, -1, 2, 1 << bit)
            halves[:, :, 1] = np.maximum(halves[:, :, 1], halves[:, :, 0])
        table = entry.subset_table(NONE, required=False)
        for count in range(1, matrix.gpu_count + 1):
            for free in range(1 << matrix.gpu_count):
                chosen = int(table[count, free])
                found = _links(matrix, chosen) + 1 if chosen else 0
                assert found == best[count, free], (name, count, free)


@pytest.mark.parametrize("preference", [NVLINK, NUMA, PCIE])
@pytest.mark.parametrize("required", [False, True])
def test_every_choice_equals_the_exhaustive_one(preference: LinkPreference, required: bool) -> None:
    for matrix in (parse_topo_matrix(CUBE_MESH), nested_switches(), bridged_pairs()):
        entry, oracle = topology_class(matrix), Oracle(matrix)
        for free in range(1 << matrix.gpu_count):
            for count in range(matrix.gpu_count + 1):
                expected = oracle.best(free, count, preference, required=required)
                found = entry.best_subset(free, count, preference, required=required)
                assert found == expected, (free, count)


def test_a_single_gpu_is_taken_where_it_spoils_least() -> None:
    entry = topology_class(parse_topo_matrix(CUBE_MESH))
    # 0-3 are a full quad; 4 alone is the one to give away.
    assert entry.best_subset(0b0001_1111, 1, NONE) == 0b0001_0000


def test_a_choice_on_nvswitch_stays_on_one_socket_and_keeps_the_other_whole() -> None:
    entry = topology_class(named_topology("nvswitch-8", 8))
    assert entry.best_subset(0xFF, 4, NONE) == 0x0F
    assert entry.best_subset(0b1111_0011, 2, NONE) == 0b0000_0011


def test_equal_choices_fall_to_the_lowest_mask() -> None:
    entry = topology_class(named_topology("pcie-4", 4))
    assert [entry.best_subset(0b1110, k, NONE) for k in range(4)] == [0, 0b0010, 0b0110, 0b1110]


def test_more_gpus_than_are_free_cannot_be_chosen() -> None:
    entry = topology_class(named_topology("pcie-4", 4))
    assert entry.best_subset(0b0011, 3, NONE) is None
    assert entry.best_subset(0b1111, 5, NONE) is None
    assert entry.best_subset(0, 0, NONE) == 0


def test_a_required_nvlink_is_refused_where_a_pair_has_none() -> None:
    entry = topology_class(bridged_pairs())
    assert entry.best_subset(0b1111, 2, NVLINK, required=True) == 0b0011
    assert entry.best_subset(0b0101, 2, NVLINK, required=True) is None
    assert entry.best_subset(0b0101, 2, NVLINK) == 0b0101
    assert entry.best_subset(0b1111, 3, NVLINK, required=True) is None
    assert entry.best_subset(0b0001, 1, NVLINK, required=True) == 0b0001


def test_a_required_numa_node_is_refused_where_too_few_gpus_share_one() -> None:
    entry = topology_class(parse_topo_matrix(CUBE_MESH))
    assert entry.best_subset(0b0011_0111, 3, NUMA, required=True) == 0b0000_0111
    assert entry.best_subset(0b0011_0011, 3, NUMA, required=True) is None


def test_a_required_pcie_switch_holds_at_most_the_gpus_below_it() -> None:
    entry = topology_class(nested_switches())
    assert entry.best_subset(0xFF, 4, PCIE, required=True) == 0x0F
    assert entry.best_subset(0xFF, 5, PCIE, required=True) is None


def test_a_preference_can_outweigh_more_links() -> None:
    # GPU 0 has two links across the sockets and one to its neighbour.
    rows = ["X NV1 NV2", "NV1 X SYS", "NV2 SYS X"]
    entry = topology_class(matrix_from_rows(rows, [0, 0, 1]))
    assert entry.best_subset(0b111, 2, NVLINK) == 0b101
    assert entry.best_subset(0b111, 2, NUMA) == 0b011


@pytest.mark.parametrize("preference", [NONE, NVLINK])
def test_more_nvlinks_go_before_fewer_however_few_both_are(preference: LinkPreference) -> None:
    """One link on a NUMA node and five across, on a node where a pair has eighteen."""
    rows = ["X NV1 NV5 SYS", "NV1 X SYS SYS", "NV5 SYS X NV18", "SYS SYS NV18 X"]
    entry = topology_class(matrix_from_rows(rows, [0, 0, 1, 2]))
    assert entry.best_subset(0b0111, 2, preference) == 0b0101
    scores = entry.score_table(NVLINK, required=False)[2]
    assert scores[0b0011] < scores[0b0101] < scores[0b1100]


@pytest.mark.parametrize("preference", [NONE, NVLINK])
def test_one_nvlink_more_goes_before_every_path_over_pcie(preference: LinkPreference) -> None:
    """Three GPUs below one switch, or two joined by a single link and one across the sockets."""
    rows = ["X PIX PIX SYS SYS", "PIX X PIX SYS SYS", "PIX PIX X NV1 SYS", "SYS SYS NV1 X NV4",
            "SYS SYS SYS NV4 X"]  # fmt: skip
    entry = topology_class(matrix_from_rows(rows, [0, 0, 0, 1, 1]))
    assert entry.best_subset(0b01111, 3, preference) == 0b01101
    # With equally many links the nearer path decides.
    assert entry.best_subset(0b00111, 2, preference) == 0b00011


def test_links_are_counted_and_not_rounded_away() -> None:
    """Six and six and six are eighteen: as many as one pair has, so other things decide."""
    rows = ["X NV6 NV6 SYS SYS", "NV6 X NV6 SYS SYS", "NV6 NV6 X SYS SYS", "SYS SYS SYS X NV18",
            "SYS SYS SYS NV18 X"]  # fmt: skip
    entry = topology_class(matrix_from_rows(rows, [0, 0, 0, 1, 2]))
    assert entry.preference_score(0b00111, NVLINK) == entry.preference_score(0b11001, NVLINK) == 67
    assert entry.best_subset(0b11111, 3, NVLINK) == 0b00111


def test_scores_stay_in_the_range_of_their_preference() -> None:
    tops = {NONE: 50, NVLINK: 100, NUMA: 90, PCIE: 80}
    for matrix in (parse_topo_matrix(CUBE_MESH), nested_switches(), bridged_pairs()):
        entry, oracle = topology_class(matrix), Oracle(matrix)
        for preference, top in tops.items():
            for mask in range(1, 1 << matrix.gpu_count):
                score = entry.preference_score(mask, preference)
                assert 50 <= score <= top
                assert score == oracle.score(mask, preference)
                assert 0 <= entry.score(mask) <= 100


def test_known_sets_have_their_golden_scores() -> None:
    entry = topology_class(parse_topo_matrix(CUBE_MESH))
    best = [int(entry.score_table(NVLINK, required=False)[k, 0xFF]) for k in range(9)]
    assert best == [100, 100, 100, 92, 88, 78, 73, 71, 71]
    best = [int(entry.score_table(NUMA, required=False)[k, 0xFF]) for k in range(9)]
    assert best == [90, 90, 90, 87, 85, 73, 69, 67, 67]
    plain = topology_class(named_topology("pcie-4", 4))
    scores = {p: int(plain.score_table(p, required=False)[2, 0xF]) for p in LinkPreference}
    assert scores == {NONE: 50, NVLINK: 55, NUMA: 72, PCIE: 74}


def test_the_score_table_holds_the_score_of_the_chosen_set() -> None:
    entry = topology_class(parse_topo_matrix(CUBE_MESH))
    for preference in LinkPreference:
        for required in (False, True):
            table = entry.score_table(preference, required=required)
            assert table.shape == (9, 256)
            assert table.dtype == np.int16
            for free in range(256):
                for count in range(9):
                    chosen = entry.best_subset(free, count, preference, required=required)
                    if chosen is None:
                        assert table[count, free] == -1
                    else:
                        assert table[count, free] == entry.preference_score(chosen, preference)


def test_tables_cannot_be_written_to() -> None:
    table = topology_class(named_topology("pcie-4", 4)).score_table(NVLINK, required=False)
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0] = 1


def test_equal_wiring_shares_one_class_whatever_its_numa_numbers() -> None:
    rows = ["X NV4", "NV4 X"]
    first = topology_class(matrix_from_rows(rows, [3, 1]))
    assert topology_class(matrix_from_rows(rows, [0, 1])) is first
    assert topology_class(matrix_from_rows(rows, [0, 0])) is not first


def test_a_mask_beyond_the_node_is_a_mistake() -> None:
    entry = topology_class(named_topology("pcie-4", 4))
    with pytest.raises(ValueError, match="beyond the node's 4"):
        entry.best_subset(0x10, 1, NONE)
    with pytest.raises(ValueError, match="beyond the node's 4"):
        entry.score(-1)


def test_a_node_of_more_than_sixteen_gpus_is_refused() -> None:
    matrix = LinkMatrix(
        ((0,) * 17,) * 17, ((named_topology("single", 1).pcie[0][0],) * 17,) * 17, (0,) * 17
    )
    with pytest.raises(ValueError, match="1 to 16"):
        TopologyClass(matrix)


def test_stacked_tables_answer_for_nodes_of_different_sizes() -> None:
    classes = [topology_class(named_topology("pcie-4", 4)), topology_class(nested_switches())]
    stack = stack_score_tables(classes, NVLINK, required=False)
    assert stack.shape == (2, 9, 256)
    assert stack[0, 2, 0xF] == 55
    assert stack[0, 5, 0xF] == -1
    assert stack[0, 1, 0x10] == -1
    assert np.array_equal(stack[1], classes[1].score_table(NVLINK, required=False))


def test_whether_a_set_satisfies_a_preference_is_known() -> None:
    matrix = bridged_pairs()
    entry, oracle = topology_class(matrix), Oracle(matrix)
    for preference in LinkPreference:
        for count in range(1, 5):
            for mask in sets_of(0xF, count):
                assert entry.satisfies(mask, preference) == oracle.allowed(mask, preference)
