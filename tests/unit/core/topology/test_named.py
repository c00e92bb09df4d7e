"""Named topologies: the words are known, the matrices are the real ones."""

import pytest

from gpuplane.core.topology.matrix import LinkPreference, PcieLink, parse_topo_matrix
from gpuplane.core.topology.named import (
    TOPOLOGY_NAMES,
    described_topology,
    named_topology,
    unknown_topology,
)
from gpuplane.core.topology.tables import topology_class
from tests.unit.core.topology.matrices import CUBE_MESH, MIXED_5, real_matrices


@pytest.mark.parametrize(
    ("name", "count", "link", "numa"),
    [
        ("single", 1, "X", (0,)),
        ("nvlink-4", 4, "NV4", (0, 1, 2, 3)),
        ("nvl72-node-4", 4, "NV18", (0, 0, 1, 1)),
        ("nvlink-cube-mesh-8", 8, "SYS", (0, 0, 0, 0, 1, 1, 1, 1)),
        ("nvswitch-8", 8, "NV18", (0, 0, 0, 0, 1, 1, 1, 1)),
        ("NVSwitch-16", 16, "NV6", (0,) * 8 + (1,) * 8),
        ("pcie-4", 4, "PHB", (0, 0, 0, 0)),
        ("pcie", 2, "PHB", (0, 0)),
        ("pcie-dual-socket-5", 5, "SYS", (0, 0, 0, 1, 1)),
        ("pcie-dual-socket", 2, "SYS", (0, 1)),
    ],
)
def test_a_name_gives_its_matrix(name: str, count: int, link: str, numa: tuple[int, ...]) -> None:
    matrix = named_topology(name, count)
    assert matrix.link(0, count - 1) == link
    assert matrix.numa == numa


@pytest.mark.parametrize(
    ("name", "count", "text"),
    [
        ("ring-8", 8, "known are single"),
        ("", 1, "known are single"),
        ("nvswitch-8", 4, "has 8 GPUs, not 4"),
        ("pcie-4", 8, "has 4 GPUs, not 8"),
        ("pcie-17", 17, "1 to 16 GPUs"),
        ("pcie", 0, "1 to 16 GPUs"),
    ],
)
def test_a_wrong_name_or_count_is_refused_with_what_is_right(
    name: str, count: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        named_topology(name, count)


def test_every_listed_name_is_known() -> None:
    counts = {"single": 1, "nvlink-4": 4, "nvl72-node-4": 4, "nvswitch-16": 16}
    for name in TOPOLOGY_NAMES:
        count = counts.get(name, 8)
        assert named_topology(name.replace("-N", f"-{count}"), count).gpu_count == count


def test_a_description_is_a_name_or_a_listing() -> None:
    assert described_topology("nvswitch-8\n", 8) == named_topology("nvswitch-8", 8)
    assert described_topology(MIXED_5, 5) == parse_topo_matrix(MIXED_5)
    with pytest.raises(ValueError, match="5 GPUs, the node 8"):
        described_topology(MIXED_5, 8)


def test_the_cube_mesh_has_the_links_of_the_listing() -> None:
    named, listed = named_topology("nvlink-cube-mesh-8", 8), parse_topo_matrix(CUBE_MESH)
    assert named.nvlinks == listed.nvlinks
    assert named.numa == listed.numa
    assert named.pcie[2][3] is PcieLink.PIX


def test_named_machines_equal_their_real_listings() -> None:
    real = real_matrices()
    assert named_topology("nvlink-cube-mesh-8", 8) == real["v100_dgx1_cube_mesh.txt"]
    assert named_topology("pcie-4", 4) == real["rtx_4x_single_socket_phb.txt"]
    assert named_topology("nvlink-4", 4) == real["a100_4x_nv4.txt"]
    assert named_topology("nvswitch-8", 8).nvlinks == real["h100_hgx_8x_10nic.txt"].nvlinks


def test_an_unknown_wiring_fulfils_no_required_preference() -> None:
    entry = topology_class(unknown_topology(4))
    for preference in (LinkPreference.NVLINK, LinkPreference.SAME_NUMA, LinkPreference.SAME_PCIE):
        assert entry.best_subset(0xF, 2, preference, required=True) is None
        assert entry.best_subset(0xF, 2, preference) == 0b0011
        assert entry.preference_score(0b0011, preference) == 50
