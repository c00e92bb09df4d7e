"""Nodes and GPUs as values, and the pure comparison of what is stored with what is seen."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuplane.core.ids import ClusterId, GpuId, NodeId
from gpuplane.core.mig.profiles import MigTable
from gpuplane.core.nodedetails import NodeDetails


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as stored."""

    gpu_id: GpuId
    node_id: NodeId
    cluster_id: ClusterId
    gpu_index: int
    model: str
    product: str
    memory_mib: int
    healthy: bool
    present: bool
    message: str
    numa: int | None
    mig_enabled: bool
    mig_instances: tuple[tuple[str, int], ...]
    """(profile, first memory slice) of each instance."""
    mig_table: MigTable | None = None
    """How it can be cut as the device told it, or None."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node as stored, with its GPUs by index."""

    id: NodeId
    cluster_id: ClusterId
    name: str
    ready: bool
    message: str
    present: bool
    cordoned: bool
    drain_started_at: int | None
    drain_wait_s: int | None
    cpu_milli: int
    memory_mib: int
    ephemeral_mib: int
    labels: dict[str, str]
    taints: tuple[tuple[str, str, str], ...]
    topology: str | None
    rack: str
    block: str
    rdma_fabric: str
    created_at: int
    updated_at: int
    version: int
    gpus: tuple[Gpu, ...] = ()
    details: NodeDetails = field(default_factory=NodeDetails)
    status_sync_at: int | None = None
    """When it was last seen as it is or otherwise."""


FACTS = (
    "ready",
    "message",
    "present",
    "cpu_milli",
    "memory_mib",
    "ephemeral_mib",
    "labels",
    "taints",
    "topology",
    "rack",
    "block",
    "rdma_fabric",
    "details",
)
GPU_FACTS = (
    "gpu_index",
    "model",
    "product",
    "memory_mib",
    "healthy",
    "present",
    "message",
    "numa",
    "mig_enabled",
    "mig_instances",
    "mig_table",
)


@dataclass(frozen=True, slots=True)
class InventoryChanges:
    """What a look at a cluster changes in what is stored."""

    new_nodes: tuple[Node, ...] = ()
    changed_nodes: tuple[Node, ...] = ()
    new_gpus: tuple[Gpu, ...] = ()
    changed_gpus: tuple[Gpu, ...] = ()
    sentences: tuple[tuple[str, str, str], ...] = field(default_factory=tuple)
    """(event kind, node name, sentence) of what people should hear of."""

    @property
    def any(self) -> bool:
        """Return whether anything is to be stored."""
        return bool(self.new_nodes or self.changed_nodes or self.new_gpus or self.changed_gpus)


CONTROL_PLANE_KEYS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""Taints of nodes that run the control plane; work tolerates them where its cluster allows it."""
MASTER = "MASTER"


def differs(stored: object, seen: object, facts: tuple[str, ...]) -> bool:
    """Return whether any of the named facts is another one now."""
    return any(getattr(stored, fact) != getattr(seen, fact) for fact in facts)


def compare_node(stored: Node | None, seen: Node) -> tuple[str, str] | None:
    """Return (event kind, sentence) of a change of readiness worth telling, or None."""
    if stored is None:
        return ("node.added", f"Node {seen.name} joined with {len(seen.gpus)} GPUs.")
    if stored.ready and not seen.ready:
        return ("node.not_ready", f"Node {seen.name} is not ready. {seen.message}".strip())
    if not stored.ready and seen.ready:
        return ("node.ready", f"Node {seen.name} is ready again.")
    return None


def compare_gpu(stored: Gpu, seen: Gpu, node_name: str) -> tuple[str, str] | None:
    """Return (event kind, sentence) of a change of a GPU's health, or None."""
    if stored.healthy and not seen.healthy:
        return ("gpu.failed", f"GPU {seen.gpu_index} of {node_name} failed. {seen.message}".strip())
    if not stored.healthy and seen.healthy:
        return ("gpu.recovered", f"GPU {seen.gpu_index} of {node_name} works again.")
    return None


def compute_shapes(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Return for each GPU model [most on one node, all], over GPUs that are present."""
    shapes: dict[str, list[int]] = {}
    for node in nodes:
        counts = Counter(gpu.model for gpu in node.gpus if gpu.present)
        for model, count in counts.items():
            most, total = shapes.get(model, [0, 0])
            shapes[model] = [max(most, count), total + count]
    return shapes
