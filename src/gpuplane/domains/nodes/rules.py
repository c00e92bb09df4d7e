"""Nodes and GPUs as values, and the pure comparison of what is stored with what is seen."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from gpuplane.core.ids import ClusterId, GpuId, NodeId
from gpuplane.core.mig.profiles import MigTable
from gpuplane.core.nodedetails import NodeDetails
from gpuplane.core.reasons import TAKEN_BY_OTHERS


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
    used_percent: int | None = None
    """How much of it its cluster says is given away, by whomever; None where nothing tells."""
    used_at: int | None = None


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
    elsewhere: int = 0
    """How many GPUs that were seen are not taken and may be at any time, whatever is seen here."""

    @property
    def any(self) -> bool:
        """Return whether anything is to be stored."""
        return bool(self.new_nodes or self.changed_nodes or self.new_gpus or self.changed_gpus)


USED_LATE_MS = 300_000
"""What a cluster told of its devices longer ago than this says nothing of now."""


@dataclass(frozen=True, slots=True)
class Held:
    """What work of ours holds on the nodes of a cluster.

    Attributes:
        gpus: Held thousandths of devices; those of which nothing is held may be left out.
        mig: MIG instances in use, by device.
        kept: Devices kept for a reservation.
        nodes: Used percent of CPU or memory, the greater, of nodes where anything of ours runs.
    """

    gpus: Mapping[str, int] = field(default_factory=dict)
    mig: Mapping[str, int] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    nodes: Mapping[UUID, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workers:
    """Places for work on a node: its devices, or the node itself where it has none.

    Attributes:
        total: All that count.
        used: Those with work on them, by whomever.
        available: Those that new work may have; one that is shared may be used and available.
    """

    total: int
    used: int
    available: int


def is_schedulable(node: Node) -> bool:
    """Return whether new work may start on a node: ready, counted, and cordoned nowhere."""
    return (
        node.present
        and node.ready
        and not node.cordoned
        and not node.details.unschedulable
        and node.details.is_counted
    )


def compute_used_percent(gpu: Gpu, held: Held, now: int) -> int:
    """Return how much of a device is given away: by us, or by whomever where its cluster tells."""
    ours = -(-held.gpus.get(gpu.gpu_id, 0) // 10)
    cut = held.mig.get(gpu.gpu_id, 0)
    if cut:
        ours = max(ours, min(100, 100 * cut // max(1, len(gpu.mig_instances))))
    if gpu.used_percent is None or gpu.used_at is None or now - gpu.used_at > USED_LATE_MS:
        return ours
    return max(ours, gpu.used_percent)


def compute_workers(node: Node, held: Held, *, threshold_percent: int, now: int) -> Workers:
    """Return the places for work on a node.

    Args:
        node: With its devices.
        held: What work of ours holds there.
        threshold_percent: A place that is given away so far or farther is not available.
        now: What the cluster told long before it does not count.

    Source:
        The cluster service's design document, 4.1.2 (the three columns) and 7.4.2 (the threshold).
    """
    if not node.details.is_counted:
        return Workers(0, 0, 0)
    schedulable = is_schedulable(node)
    gpus = [gpu for gpu in node.gpus if gpu.present]
    if not gpus:
        percent = held.nodes.get(node.id)
        free = schedulable and (percent or 0) < threshold_percent
        return Workers(1, int(percent is not None), int(free))
    percents = {gpu.gpu_id: compute_used_percent(gpu, held, now) for gpu in gpus}
    available = sum(
        schedulable
        and gpu.healthy
        and gpu.gpu_id not in held.kept
        and percents[gpu.gpu_id] < threshold_percent
        for gpu in gpus
    )
    return Workers(len(gpus), sum(percent > 0 for percent in percents.values()), available)


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
    taken = (stored.message.startswith(TAKEN_BY_OTHERS), seen.message.startswith(TAKEN_BY_OTHERS))
    if stored.healthy and not seen.healthy and taken[1]:
        return ("gpu.taken", f"GPU {seen.gpu_index} of {node_name}: {seen.message}")
    if not stored.healthy and seen.healthy and taken[0]:
        return ("gpu.given_back", f"GPU {seen.gpu_index} of {node_name} is free again.")
    if (stored.healthy or taken[0]) and not seen.healthy and not taken[1]:
        return ("gpu.failed", f"GPU {seen.gpu_index} of {node_name} failed. {seen.message}".strip())
    if not stored.healthy and seen.healthy:
        return ("gpu.recovered", f"GPU {seen.gpu_index} of {node_name} works again.")
    return None


ELSEWHERE = "Not taken: "
"""What the sentence begins with that a node has of GPUs that another place has."""


class Place(NamedTuple):
    """Where a GPU is: `cluster` or `node`, and its name."""

    what: str
    name: str


def tell_elsewhere(index_by_place: Mapping[Place, Sequence[int]]) -> str:
    """Return the sentence on GPUs of a node that other places have; empty without any."""
    if not index_by_place:
        return ""
    parts = [
        f"{name_gpus(indices)} ({f'node {name}' if what == 'node' else name})"
        for (what, name), indices in sorted(index_by_place.items())
    ]
    kinds = " or ".join(sorted({place.what for place in index_by_place}))
    return (
        f"{ELSEWHERE}{', '.join(parts)}: another {kinds} has the same GPU UUIDs, "
        "and keeps them until they are gone there."
    )


def name_gpus(indices: Sequence[int]) -> str:
    """Return how GPUs of one node are named in a sentence: `GPUs 0, 1`."""
    word = "GPU" if len(indices) == 1 else "GPUs"
    return f"{word} {', '.join(map(str, sorted(indices)))}"


def compute_shapes(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Return for each GPU model [most on one node, all], over GPUs that are present."""
    shapes: dict[str, list[int]] = {}
    for node in nodes:
        counts = Counter(gpu.model for gpu in node.gpus if gpu.present)
        for model, count in counts.items():
            most, total = shapes.get(model, [0, 0])
            shapes[model] = [max(most, count), total + count]
    return shapes
