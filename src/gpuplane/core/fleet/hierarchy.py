"""The hierarchy of a cluster as one tree, from the cluster down to the MIG instance.

Owns the shape of the tree. Levels that nobody named are left out, and so are parts of a node that
hold all of its GPUs or one alone. NVLink and NVSwitch lie across the tree: a node says them.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.topology.matrix import LinkMatrix
from gpuplane.core.topology.shape import NodeShape, compute_shape


class HierarchyLevel(StrEnum):
    """The levels, from the outermost to the innermost."""

    CLUSTER = "cluster"
    BLOCK = "block"
    RACK = "rack"
    CLIQUE = "clique"
    NODE = "node"
    NUMA = "numa"
    PCIE_SWITCH = "pcie_switch"
    GPU = "gpu"
    MIG = "mig"


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """One GPU of a node and its MIG instances as (profile, first memory slice)."""

    index: int
    model: str
    instances: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node and where it stands; empty names are levels that nobody named.

    Args:
        matrix: Its links, or None where they are not known; row i is the GPU of index i.
    """

    name: str
    gpus: tuple[GpuPlace, ...] = ()
    block: str = ""
    rack: str = ""
    clique: str = ""
    matrix: LinkMatrix | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """One part of the hierarchy with the parts inside it, by name.

    Attributes:
        note: What lies across the tree, such as NVSwitch; empty for nothing.
    """

    level: HierarchyLevel
    name: str
    children: tuple["Branch", ...] = ()
    note: str = ""

    def count(self, level: HierarchyLevel) -> int:
        """Return how many parts of a level it holds, itself included."""
        return (self.level is level) + sum(child.count(level) for child in self.children)


def compute_hierarchy(cluster: str, nodes: Sequence[NodePlace]) -> Branch:
    """Return the tree of a cluster, whatever the order of its nodes."""
    ordered = sorted(nodes, key=lambda node: node.name)
    return Branch(HierarchyLevel.CLUSTER, cluster, _group(ordered, _OUTER))


_Namer = Callable[[NodePlace], str]
_OUTER: tuple[tuple[HierarchyLevel, _Namer], ...] = (
    (HierarchyLevel.BLOCK, lambda node: node.block),
    (HierarchyLevel.RACK, lambda node: node.rack),
    (HierarchyLevel.CLIQUE, lambda node: node.clique),
)


def _group(
    nodes: Sequence[NodePlace], levels: Sequence[tuple[HierarchyLevel, _Namer]]
) -> tuple[Branch, ...]:
    """Return the named parts of the outermost level, then what no part of it holds."""
    if not levels:
        return tuple(_node(node) for node in nodes)
    (level, name_of), rest = levels[0], levels[1:]
    names = sorted({name_of(node) for node in nodes} - {""})
    named = tuple(
        Branch(level, name, _group([each for each in nodes if name_of(each) == name], rest))
        for name in names
    )
    return named + _group([each for each in nodes if not name_of(each)], rest)


def _node(node: NodePlace) -> Branch:
    gpus = sorted(node.gpus, key=lambda gpu: gpu.index)
    matrix = node.matrix
    if matrix is None or any(gpu.index >= matrix.gpu_count for gpu in gpus):
        return Branch(HierarchyLevel.NODE, node.name, tuple(map(_gpu, gpus)))
    shape = compute_shape(matrix)
    children = _split(gpus, HierarchyLevel.NUMA, lambda gpu: matrix.numa[gpu.index],
                      lambda inside: _below_switches(inside, shape))  # fmt: skip
    return Branch(HierarchyLevel.NODE, node.name, children, shape.describe() if gpus else "")


def _below_switches(gpus: Sequence[GpuPlace], shape: NodeShape) -> tuple[Branch, ...]:
    return _split(
        gpus,
        HierarchyLevel.PCIE_SWITCH,
        lambda gpu: shape.find_pcie_switch(gpu.index),
        lambda inside: tuple(map(_gpu, inside)),
    )


def _split(
    gpus: Sequence[GpuPlace],
    level: HierarchyLevel,
    part_of: Callable[[GpuPlace], Hashable | None],
    inner: Callable[[Sequence[GpuPlace]], tuple[Branch, ...]],
) -> tuple[Branch, ...]:
    """Return the parts that GPUs are in, in the order of their first GPU; one part is no split."""
    parts = dict.fromkeys(part_of(gpu) for gpu in gpus)
    if len(parts) < 2:
        return inner(gpus)
    found: list[Branch] = []
    for part in parts:
        inside = [gpu for gpu in gpus if part_of(gpu) == part]
        branches = inner(inside)
        found += branches if part is None else [Branch(level, str(part), branches)]
    return tuple(found)


def _gpu(gpu: GpuPlace) -> Branch:
    instances = tuple(
        Branch(HierarchyLevel.MIG, f"{profile}@{start}")
        for profile, start in sorted(gpu.instances, key=lambda one: one[1])
    )
    return Branch(HierarchyLevel.GPU, str(gpu.index), instances, gpu.model)
