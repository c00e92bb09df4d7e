"""Named topologies: machines whose wiring is known well enough to be called by a word.

Owns the words and their matrices. A real node is described by its own `nvidia-smi topo -m`;
these serve simulated fleets, manifests and nodes whose agent cannot read the links.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpuplane.core.topology.matrix import LinkMatrix, PcieLink, parse_topo_matrix

MAX_NODE_GPUS = 16
"""The most GPUs in one node that the tables hold (HGX-2 has 16)."""

TOPOLOGY_NAMES = (
    "single",
    "nvlink-4",
    "nvl72-node-4",
    "nvlink-cube-mesh-8",
    "nvswitch-8",
    "nvswitch-16",
    "pcie-N",
    "pcie-dual-socket-N",
)
"""Every name; `N` stands for the number of GPUs."""


def named_topology(name: str, gpu_count: int) -> LinkMatrix:
    """Return the matrix of a named topology.

    Args:
        name: One of `TOPOLOGY_NAMES`; `N` may be left out (`pcie`) or must equal `gpu_count`.
        gpu_count: GPUs of the node, 1 to `MAX_NODE_GPUS`.

    Raises:
        ValueError: If the name is unknown or has another number of GPUs.
    """
    word = name.strip().lower()
    if not 1 <= gpu_count <= MAX_NODE_GPUS:
        raise ValueError(f"a node has 1 to {MAX_NODE_GPUS} GPUs, not {gpu_count}")
    fixed = _FIXED.get(word)
    if fixed is not None:
        count, build = fixed
        if gpu_count != count:
            raise ValueError(f"topology {word} has {count} GPUs, not {gpu_count}")
        return build()
    match = re.fullmatch(r"(pcie(?:-dual-socket)?)(?:-(\d{1,3}))?", word)
    if match is None:
        raise ValueError(f"unknown topology {name!r}; known are {', '.join(TOPOLOGY_NAMES)}")
    if match[2] is not None and int(match[2]) != gpu_count:
        raise ValueError(f"topology {word} has {int(match[2])} GPUs, not {gpu_count}")
    return _pcie(gpu_count) if match[1] == "pcie" else _pcie_dual_socket(gpu_count)


def unknown_topology(gpu_count: int) -> LinkMatrix:
    """Return the matrix of a node whose links nobody has read: it claims nothing.

    Every pair is SYS and every GPU on a NUMA node of its own, so that a required preference is
    refused rather than granted on a guess.
    """
    return _uniform(tuple(range(gpu_count)), 0, PcieLink.SYS, PcieLink.SYS)


def described_topology(description: str, gpu_count: int) -> LinkMatrix:
    """Return the matrix of a node that is described by a name or by `nvidia-smi topo -m`.

    Raises:
        ValueError: If neither fits, or the matrix has another number of GPUs.
    """
    if "\n" not in description.strip():
        return named_topology(description, gpu_count)
    matrix = parse_topo_matrix(description)
    if matrix.gpu_count != gpu_count:
        raise ValueError(f"the link matrix has {matrix.gpu_count} GPUs, the node {gpu_count}")
    return matrix


def _uniform(numa: tuple[int, ...], nvlinks: int, near: PcieLink, far: PcieLink) -> LinkMatrix:
    """Return equal links between all GPUs, `near` PCIe paths on a NUMA node, `far` between."""
    count = len(numa)
    return LinkMatrix(
        tuple(tuple(0 if i == j else nvlinks for j in range(count)) for i in range(count)),
        tuple(
            tuple(
                PcieLink.PIX if i == j else near if numa[i] == numa[j] else far
                for j in range(count)
            )
            for i in range(count)
        ),
        numa,
    )


def _sockets(gpu_count: int) -> tuple[int, ...]:
    """Return NUMA nodes 0 and 1, the first half of the GPUs (rounded up) on 0."""
    return tuple(0 if i < (gpu_count + 1) // 2 else 1 for i in range(gpu_count))


def _single() -> LinkMatrix:
    return _uniform((0,), 0, PcieLink.PIX, PcieLink.SYS)


def _nvlink_4() -> LinkMatrix:
    """Four A100 in a direct mesh, four links a pair, one NUMA node each.

    Source: NVIDIA/nccl-tests issue 331; the same shape with NV6 in NVIDIA/nccl issue 1617.
    """
    return _uniform((0, 1, 2, 3), 4, PcieLink.NODE, PcieLink.SYS)


def _nvl72_node_4() -> LinkMatrix:
    """One compute tray of a GB200 NVL72: four GPUs, two to a Grace CPU.

    Source: `nvidia-smi topo -m` of a GB200 in NVIDIA/k8s-test-infra issue 371. GPUs of a tray sit
    in PCIe domains of their own, each behind its own root port.
    """
    return _uniform((0, 0, 1, 1), 18, PcieLink.NODE, PcieLink.SYS)


def _nvswitch_8() -> LinkMatrix:
    """HGX H100 with eight GPUs, every pair over NVSwitch, four GPUs to a socket.

    Source: NVIDIA/nccl issue 1264; HGX A100 is the same with NV12. How GPUs share PCIe switches
    depends on the maker of the server, so nothing closer than the socket is claimed.
    """
    return _uniform(_sockets(8), 18, PcieLink.NODE, PcieLink.SYS)


def _nvswitch_16() -> LinkMatrix:
    """HGX-2 (DGX-2) with sixteen V100, every pair over NVSwitch, eight GPUs to a socket.

    Source: NVIDIA/nccl-tests issue 78.
    """
    return _uniform(_sockets(16), 6, PcieLink.NODE, PcieLink.SYS)


def _cube_mesh_8() -> LinkMatrix:
    """DGX-1 with eight V100: a hybrid cube mesh of one or two NVLinks, pairs on PCIe switches.

    Source: rapidsai/ucx-py, docs/source/ucx-debug.rst.
    """
    nvlinks = (
        (0, 1, 1, 2, 2, 0, 0, 0),
        (1, 0, 2, 1, 0, 2, 0, 0),
        (1, 2, 0, 2, 0, 0, 1, 0),
        (2, 1, 2, 0, 0, 0, 0, 1),
        (2, 0, 0, 0, 0, 1, 1, 2),
        (0, 2, 0, 0, 1, 0, 2, 1),
        (0, 0, 1, 0, 1, 2, 0, 2),
        (0, 0, 0, 1, 2, 1, 2, 0),
    )

    def path(first: int, second: int) -> PcieLink:
        if first // 4 != second // 4:
            return PcieLink.SYS
        return PcieLink.PIX if first // 2 == second // 2 else PcieLink.PHB

    return LinkMatrix(
        nvlinks, tuple(tuple(path(i, j) for j in range(8)) for i in range(8)), _sockets(8)
    )


def _pcie(gpu_count: int) -> LinkMatrix:
    """One socket, every pair through its host bridge.

    Source: aikitoria/open-gpu-kernel-modules issue 1 (four GPUs on one desktop CPU).
    """
    return _uniform((0,) * gpu_count, 0, PcieLink.PHB, PcieLink.SYS)


def _pcie_dual_socket(gpu_count: int) -> LinkMatrix:
    """Two sockets with half of the GPUs each: NODE on a socket, SYS between them.

    Source: the legend of `nvidia-smi topo -m` (host bridges of one NUMA node are NODE).
    """
    return _uniform(_sockets(gpu_count), 0, PcieLink.NODE, PcieLink.SYS)


_FIXED: Mapping[str, tuple[int, Callable[[], LinkMatrix]]] = MappingProxyType(
    {
        "single": (1, _single),
        "nvlink-4": (4, _nvlink_4),
        "nvl72-node-4": (4, _nvl72_node_4),
        "nvlink-cube-mesh-8": (8, _cube_mesh_8),
        "nvswitch-8": (8, _nvswitch_8),
        "nvswitch-16": (16, _nvswitch_16),
    }
)
