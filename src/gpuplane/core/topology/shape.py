"""The parts of a node that its link matrix shows: NVLink domains, PCIe switches, NUMA nodes.

Owns the names of those parts; what is proven by the matrix and nothing else. Never chooses GPUs.

The whole hierarchy is cluster, block, rack and clique (facts of nodes), then these parts of a
node, then the GPU, then its MIG instances (facts of GPUs).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.topology.matrix import LinkMatrix, PcieLink

MAX_LINKS_PER_GPU = 18
"""Most NVLinks of one GPU today (H100, H200, B200): pairs that show more share them in a switch.

Source: NVIDIA H100 white paper, "18 fourth-generation NVLink links"; HGX B200 data sheet.
"""


class NvlinkFabric(StrEnum):
    """How the GPUs of a node are joined by NVLink."""

    NONE = "none"
    BRIDGES = "nvlink"
    """From GPU to GPU."""
    SWITCH = "nvswitch"
    """Every GPU to switches that join all of them."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The parts of a node; a GPU that shares a part with no other is in none.

    Attributes:
        nvlink_domains: GPUs that reach each other over NVLink, directly or over other GPUs.
        pcie_switches: GPUs that are proven to stay below one host bridge (PIX or PXB).
        numa_nodes: GPUs by the number of their NUMA node.
    """

    nvlink: NvlinkFabric
    nvlink_domains: tuple[tuple[int, ...], ...]
    pcie_switches: tuple[tuple[int, ...], ...]
    numa_nodes: Mapping[int, tuple[int, ...]]

    def find_nvlink_domain(self, gpu: int) -> int | None:
        """Return which NVLink domain a GPU is in, or None."""
        return _place(self.nvlink_domains, gpu)

    def find_pcie_switch(self, gpu: int) -> int | None:
        """Return which PCIe switch a GPU is below, or None."""
        return _place(self.pcie_switches, gpu)

    def describe(self) -> str:
        """Return the parts as people say them."""
        parts = {
            NvlinkFabric.NONE: "no NVLink",
            NvlinkFabric.BRIDGES: f"{len(self.nvlink_domains)} NVLink domains",
            NvlinkFabric.SWITCH: "NVSwitch",
        }
        named = [parts[self.nvlink]]
        if self.nvlink is NvlinkFabric.BRIDGES and len(self.nvlink_domains) == 1:
            named = ["one NVLink domain"]
        if self.pcie_switches:
            named.append(f"{len(self.pcie_switches)} PCIe switches with several GPUs")
        named.append(f"{len(self.numa_nodes)} NUMA nodes with GPUs")
        return ", ".join(named)


def compute_shape(matrix: LinkMatrix) -> NodeShape:
    """Return the parts that a matrix shows."""
    domains = _groups(matrix.gpu_count, lambda i, j: matrix.nvlinks[i][j] > 0)
    switches = _groups(matrix.gpu_count, lambda i, j: matrix.pcie[i][j] >= PcieLink.PXB)
    numa: dict[int, tuple[int, ...]] = {}
    for gpu, node in enumerate(matrix.numa):
        numa[node] = (*numa.get(node, ()), gpu)
    return NodeShape(_fabric(matrix), domains, switches, dict(sorted(numa.items())))


def _fabric(matrix: LinkMatrix) -> NvlinkFabric:
    counts = [sum(row) for row in matrix.nvlinks]
    if not any(counts):
        return NvlinkFabric.NONE
    if max(counts) > MAX_LINKS_PER_GPU:
        return NvlinkFabric.SWITCH
    return NvlinkFabric.BRIDGES


def _groups(count: int, joined: Callable[[int, int], bool]) -> tuple[tuple[int, ...], ...]:
    """Return the sets of two or more GPUs that are joined, directly or over others."""
    group = list(range(count))
    for i in range(count):
        for j in range(i):
            if joined(i, j):
                low, high = sorted((group[i], group[j]))
                group = [low if each == high else each for each in group]
    found = [tuple(g for g in range(count) if group[g] == lead) for lead in sorted(set(group))]
    return tuple(members for members in found if len(members) > 1)


def _place(groups: tuple[tuple[int, ...], ...], gpu: int) -> int | None:
    return next((place for place, members in enumerate(groups) if gpu in members), None)
