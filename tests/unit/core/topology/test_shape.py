"""The parts of a node: what a link matrix proves, and nothing beyond."""

import pytest

from gpuplane.core.topology.matrix import matrix_from_rows, parse_topo_matrix
from gpuplane.core.topology.named import named_topology, unknown_topology
from gpuplane.core.topology.shape import NvlinkFabric, compute_shape
from tests.unit.core.topology.matrices import (
    CUBE_MESH,
    MIXED_5,
    bridged_pairs,
    nested_switches,
    real_matrices,
)


@pytest.mark.parametrize(
    ("name", "count", "fabric"),
    [
        ("single", 1, NvlinkFabric.NONE),
        ("pcie-4", 4, NvlinkFabric.NONE),
        ("nvlink-4", 4, NvlinkFabric.BRIDGES),
        ("nvlink-cube-mesh-8", 8, NvlinkFabric.BRIDGES),
        ("nvl72-node-4", 4, NvlinkFabric.SWITCH),
        ("nvswitch-8", 8, NvlinkFabric.SWITCH),
        ("nvswitch-16", 16, NvlinkFabric.SWITCH),
    ],
)
def test_more_links_than_a_gpu_has_give_a_switch_away(
    name: str, count: int, fabric: NvlinkFabric
) -> None:
    assert compute_shape(named_topology(name, count)).nvlink is fabric


def test_the_real_listings_are_of_the_fabrics_that_their_names_say() -> None:
    for name, matrix in real_matrices().items():
        fabric = compute_shape(matrix).nvlink
        if "hgx" in name or "dgx_h100" in name or "h200" in name or "b200" in name:
            assert fabric is NvlinkFabric.SWITCH, name
        if "pcie" in name or "rtx" in name:
            assert fabric is NvlinkFabric.NONE, name
        if "v100" in name:
            assert fabric is NvlinkFabric.BRIDGES, name


def test_bridged_pairs_are_domains_of_their_own() -> None:
    shape = compute_shape(bridged_pairs())
    assert shape.nvlink_domains == ((0, 1), (2, 3))
    assert (shape.find_nvlink_domain(1), shape.find_nvlink_domain(2)) == (0, 1)
    assert shape.describe() == "2 NVLink domains, 2 NUMA nodes with GPUs"


def test_a_chain_of_bridges_is_one_domain() -> None:
    matrix = matrix_from_rows(["X NV1 SYS", "NV1 X NV1", "SYS NV1 X"], [0, 0, 1])
    assert compute_shape(matrix).nvlink_domains == ((0, 1, 2),)


def test_nested_switches_are_one_part_below_each_host_bridge() -> None:
    shape = compute_shape(nested_switches())
    assert shape.pcie_switches == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert shape.find_pcie_switch(6) == 1
    assert shape.numa_nodes == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}


def test_a_gpu_that_shares_nothing_is_in_no_part() -> None:
    shape = compute_shape(parse_topo_matrix(MIXED_5))
    assert shape.pcie_switches == ()
    assert shape.find_pcie_switch(0) is None
    assert shape.numa_nodes == {0: (1, 2, 3, 4), 1: (0,)}
    assert compute_shape(unknown_topology(3)).nvlink_domains == ()


def test_what_is_known_of_a_cube_mesh_is_said_in_words() -> None:
    shape = compute_shape(parse_topo_matrix(CUBE_MESH))
    assert shape.describe() == (
        "one NVLink domain, 2 PCIe switches with several GPUs, 2 NUMA nodes with GPUs"
    )
