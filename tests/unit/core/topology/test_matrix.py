"""Reading `nvidia-smi topo -m`: every real shape is read, every broken one is located."""

import pytest

from gpuplane.core.topology.matrix import (
    LinkMatrix,
    PcieLink,
    TopologyFormatError,
    matrix_from_rows,
    parse_topo_matrix,
)
from tests.unit.core.topology.matrices import CUBE_MESH, MIXED_5, data_folder, real_matrices

RANGED = """\
        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV4     PXB     SYS     0       0-1
GPU1    NV4      X      SYS     PXB     0       0-1
NIC0    PXB     SYS      X      SYS
NIC1    SYS     PXB     SYS      X
"""


def test_a_listing_with_tabs_and_nics_is_read() -> None:
    matrix = parse_topo_matrix(CUBE_MESH)
    assert matrix.gpu_count == 8
    assert matrix.link(0, 3) == "NV2"
    assert matrix.link(0, 5) == "SYS"
    assert matrix.link(4, 4) == "X"


def test_numa_nodes_follow_cpu_affinity_where_no_column_names_them() -> None:
    assert parse_topo_matrix(CUBE_MESH).numa == (0, 0, 0, 0, 1, 1, 1, 1)


def test_the_path_under_nvlink_follows_from_a_shared_nic() -> None:
    matrix = parse_topo_matrix(CUBE_MESH)
    assert matrix.pcie[0][1] is PcieLink.PIX
    assert matrix.pcie[0][2] is PcieLink.PHB
    assert matrix.pcie[0][4] is PcieLink.SYS


def test_a_listing_with_spaces_and_a_numa_column_is_read() -> None:
    matrix = parse_topo_matrix(MIXED_5)
    assert matrix.numa == (1, 0, 0, 0, 0)
    assert matrix.to_rows() == (
        "X SYS SYS SYS SYS",
        "SYS X PHB NODE NODE",
        "SYS PHB X NODE NODE",
        "SYS NODE NODE X PHB",
        "SYS NODE NODE PHB X",
    )


def test_a_numa_range_claims_no_shared_node_that_the_nics_disprove() -> None:
    assert parse_topo_matrix(RANGED).numa == (0, 1)


def test_colours_comments_legend_and_windows_line_ends_are_ignored() -> None:
    coloured = MIXED_5.replace("        GPU0", "\x1b[4m        GPU0").replace(
        "NUMA ID", "NUMA ID\x1b[0m"
    )
    text = "# source: a test\n\n" + coloured + "\nLegend:\n\n  X    = Self\n  GPU9 = nothing\n"
    assert parse_topo_matrix(text.replace("\n", "\r\n")) == parse_topo_matrix(MIXED_5)


def test_the_old_name_of_sys_is_understood() -> None:
    assert parse_topo_matrix(MIXED_5.replace("SYS", "SOC")) == parse_topo_matrix(MIXED_5)


def test_missing_nic_rows_are_no_loss() -> None:
    without = "\n".join(line for line in CUBE_MESH.splitlines() if not line.startswith("mlx"))
    assert parse_topo_matrix(without) == parse_topo_matrix(CUBE_MESH)


def test_rows_and_text_form_are_each_others_inverse() -> None:
    matrix = parse_topo_matrix(CUBE_MESH)
    assert matrix_from_rows(matrix.to_rows(), matrix.numa) == matrix


def test_rows_without_a_path_take_it_from_the_numa_nodes() -> None:
    matrix = matrix_from_rows(["X NV1 NV1", "NV1 X NV1", "NV1 NV1 X"], [0, 0, 1])
    assert matrix.pcie[0][1] is PcieLink.NODE
    assert matrix.pcie[0][2] is PcieLink.SYS


LAST = "GPU4    SYS     NODE    NODE    PHB      X      0-7,16-23       0               N/A\n"


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "column", "expected"),
    [
        ("", "", "", 1, "column 1", "header"),
        ("hello world\n", "", "", 1, "column 1", "header"),
        (MIXED_5, "PHB      X      NODE", "PHB      X      NDOE", 4, "column 5 (GPU3)", "PIX"),
        (MIXED_5, "PHB      X      NODE", "PHB      PHB    NODE", 4, "column 4 (GPU2)", "itself"),
        (MIXED_5, LAST, "", 1, "GPU4", "a row GPU4"),
        (MIXED_5, LAST, "GPU4    SYS     NODE\n", 6, "column 4 (GPU2)", "NV#"),
        (MIXED_5, "GPU4    SYS", "GPU7    SYS", 6, "column 1", "a GPU of the header"),
        (MIXED_5, "GPU4    SYS", "GPU3    SYS", 6, "column 1", "each GPU once"),
        (MIXED_5, "SYS     PHB      X", "SYS     PIX      X", 4, "column 3 (GPU1)", "PHB as in"),
        (MIXED_5, "GPU1    GPU2", "GPU1    GPU1", 1, "header", "each device once"),
        (CUBE_MESH, "NV2\tNV2\tSYS", "NV2\tNV0\tSYS", 2, "column 6 (GPU4)", "NV#"),
        (CUBE_MESH, "NV2\tNV2\tSYS", "NV2\tNV999\tSYS", 2, "column 6 (GPU4)", "NV#"),
    ],
)
def test_a_broken_listing_is_located(
    text: str, old: str, new: str, line: int, column: str, expected: str
) -> None:
    assert old in text
    with pytest.raises(TopologyFormatError) as caught:
        parse_topo_matrix(text.replace(old, new, 1))
    assert (caught.value.line, caught.value.column) == (line, column)
    assert expected in str(caught.value)


def test_a_matrix_that_differs_with_the_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="differs with the direction"):
        LinkMatrix(((0, 1), (2, 0)), ((PcieLink.PIX,) * 2,) * 2, (0, 0))


def test_a_matrix_of_unequal_shapes_is_refused() -> None:
    with pytest.raises(ValueError, match="2 rows of 2 values"):
        LinkMatrix(((0,),), ((PcieLink.PIX,),), (0, 0))


@pytest.mark.parametrize(
    "rows", [["X PIX"], ["X PIX", "PIX"], ["X FOO", "FOO X"], ["PIX X", "X PIX"]]
)
def test_link_rows_that_are_no_matrix_are_refused(rows: list[str]) -> None:
    with pytest.raises(TopologyFormatError):
        matrix_from_rows(rows, [0, 0])


def test_every_real_listing_is_read() -> None:
    matrices = real_matrices()
    assert len(matrices) == 14
    assert {name: m.numa for name, m in matrices.items() if m.gpu_count != 8} == {
        "a100_4x_nv4.txt": (0, 1, 2, 3),
        "h100_4x_nv6_numa3175.txt": (3, 1, 7, 5),
        "mixed_5x_pcie_phb_node_sys.txt": (1, 0, 0, 0, 0),
        "rtx_4x_single_socket_phb.txt": (0, 0, 0, 0),
    }
    assert matrices["a100_hgx_8x_epyc7763.txt"].numa == (3, 3, 1, 1, 7, 7, 5, 5)
    assert matrices["a100_hgx_8x_epyc7763.txt"].pcie[2][3] is PcieLink.PXB
    assert matrices["pcie_8x_nested_switches.txt"].numa == (0, 0, 0, 0, 1, 1, 1, 1)
    assert matrices["v100_sxm2_8x_cube_mesh_1nic.txt"].numa == (0, 0, 0, 0, 1, 1, 1, 1)
    for matrix in matrices.values():
        assert matrix_from_rows(matrix.to_rows(), matrix.numa) == matrix


def test_every_link_of_a_real_listing_is_as_printed() -> None:
    folder = data_folder()
    for name, matrix in real_matrices().items():
        assert folder is not None
        lines = (folder / "topology" / name).read_text().splitlines()
        rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("GPU")}
        for i in range(matrix.gpu_count):
            printed = rows[f"GPU{i}"][: matrix.gpu_count]
            assert printed == [matrix.link(i, j) for j in range(matrix.gpu_count)], name
