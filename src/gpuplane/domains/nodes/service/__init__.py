"""Use cases of nodes: take in what a backend sees, and the operator's marks."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from gpuplane.backends.interface import GpuObservation, NodeObservation
from gpuplane.core.hardware import find_model
from gpuplane.core.ids import ClusterId, NodeId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.nodes import repository
from gpuplane.domains.nodes.errors import NodeChanged, NodeNotFound
from gpuplane.domains.nodes.rules import (
    CONTROL_PLANE_KEYS,
    FACTS,
    GPU_FACTS,
    MASTER,
    Gpu,
    Held,
    InventoryChanges,
    Node,
    Workers,
    compare_gpu,
    compare_node,
    compute_shapes,
    compute_used_percent,
    compute_workers,
    differs,
    is_schedulable,
)
from gpuplane.domains.nodes.service import elsewhere
from gpuplane.domains.nodes.service.elsewhere import FindHeld
from gpuplane.kit.ids import find_id

__all__ = [
    "Gpu",
    "Held",
    "InventoryChanges",
    "Node",
    "Workers",
    "compute_used_percent",
    "compute_workers",
    "is_schedulable",
]


def sync_inventory(
    session: WriteSession,
    cluster_id: ClusterId,
    seen: Sequence[NodeObservation],
    new_id: Callable[[], UUID],
    now: int,
    find_held: FindHeld = elsewhere.find_none,
) -> InventoryChanges:
    """Store what a backend sees of its nodes and return what changed.

    A node or GPU that is not seen any more is kept and marked absent: its history stays. A GPU that
    another cluster or node has is not taken: its node tells so until it is gone there and idle.
    """
    stored = {node.name: node for node in repository.list_nodes(session, cluster_id)}
    uses_masters = clusters.get_cluster(session, cluster_id).enable_master_node
    counted = [_counted(each, uses_masters=uses_masters) for each in seen]
    others = elsewhere.find_others(session, cluster_id, stored, counted, find_held)
    ours = elsewhere.leave_out(counted, others)
    changes = _compare(cluster_id, stored, ours, new_id, now)
    told = elsewhere.tell(stored, ours, counted, others)
    changes = replace(changes, sentences=(*changes.sentences, *told), elsewhere=others.awaited)
    if not changes.any:
        return changes
    repository.insert_nodes(session, changes.new_nodes)
    repository.insert_gpus(session, changes.new_gpus, now)
    repository.update_facts(session, changes.changed_nodes, now)
    repository.update_gpus(session, changes.changed_gpus, now)
    events.record_many(
        session,
        [
            NewEvent(
                kind=kind,
                at=now,
                cluster_id=cluster_id,
                subject_kind="node",
                subject_id=name,
                message=sentence,
            )
            for kind, name, sentence in changes.sentences
        ],
    )
    present = [node for node in repository.list_nodes(session, cluster_id) if node.present]
    clusters.note_shapes(session, cluster_id, compute_shapes(present))
    clusters.bump_generation(session, cluster_id, now)
    return changes


def note_synced(session: WriteSession, cluster_id: ClusterId, now: int) -> None:
    """Say that the nodes of a cluster were compared as a whole, changed or not."""
    repository.touch_synced(session, cluster_id, now)


def note_used(
    session: WriteSession, cluster_id: ClusterId, used: Mapping[str, int], now: int
) -> None:
    """Store how much of each device its cluster says is given away, and that it told so.

    Nothing here is scheduled by it: a look that finds other numbers wakes nobody.
    """
    repository.update_used(session, cluster_id, used, now)


def list_nodes(session: ReadSession, cluster_id: ClusterId | None = None) -> tuple[Node, ...]:
    """Return nodes with their GPUs, by name."""
    return repository.list_nodes(session, cluster_id)


def get_node(session: ReadSession, cluster_id: ClusterId, key: UUID | str) -> Node:
    """Return a node by id or name.

    Raises:
        NodeNotFound: If the cluster has no such node.
    """
    found = repository.find_node(session, cluster_id, _as_id(key))
    if found is None:
        raise NodeNotFound(
            f"There is no node {str(key)!r} in this cluster.",
            field="node",
            fix="List the nodes of the cluster to see their names.",
        )
    return found


def _as_id(key: UUID | str) -> UUID | str:
    """Return a text that is an id as one; names of nodes are never UUIDs of other nodes."""
    return (find_id(key) or key) if isinstance(key, str) else key


def has_node(session: ReadSession, cluster_id: ClusterId, name: str) -> bool:
    """Return whether a cluster has a node of this name."""
    return repository.find_node(session, cluster_id, name) is not None


def count_models(session: ReadSession, cluster_ids: Sequence[ClusterId]) -> dict[str, int]:
    """Return GPUs present per model over some clusters."""
    return repository.count_models(session, cluster_ids)


def largest_node(session: ReadSession, cluster_id: ClusterId) -> tuple[int, int]:
    """Return the most milli-CPU and the most MiB of memory that a node of a cluster has."""
    return repository.largest_node(session, cluster_id)


def largest_gpus(session: ReadSession, cluster_id: ClusterId) -> dict[str, int]:
    """Return the most MiB of memory that a GPU of each model on a cluster has."""
    return repository.largest_gpus(session, cluster_id)


def models_of(session: ReadSession, gpu_ids: Collection[str]) -> dict[str, str]:
    """Return the model of each GPU that is known."""
    return repository.models_of(session, gpu_ids)


def cordon(
    session: WriteSession, cluster_id: ClusterId, key: UUID | str, actor: str, now: int
) -> Node:
    """Let nothing new start on a node."""
    node = _get_locked(session, cluster_id, key)
    return _mark(session, node, "node.cordoned", f"{actor} cordoned {node.name}.", actor, now,
                 cordoned=True)  # fmt: skip


def uncordon(
    session: WriteSession, cluster_id: ClusterId, key: UUID | str, actor: str, now: int
) -> Node:
    """Let work start on a node again; ends a drain."""
    node = _get_locked(session, cluster_id, key)
    return _mark(session, node, "node.uncordoned", f"{actor} uncordoned {node.name}.", actor, now,
                 cordoned=False, drain_started_at=None, drain_wait_s=None)  # fmt: skip


def start_drain(
    session: WriteSession,
    cluster_id: ClusterId,
    key: UUID | str,
    wait_s: int,
    actor: str,
    now: int,
) -> Node:
    """Cordon a node and have its work moved: a checkpoint signal, a wait, then the move."""
    node = _get_locked(session, cluster_id, key)
    said = f"{actor} drains {node.name}; work gets {wait_s} s to write a checkpoint."
    session.wake("monitor")
    return _mark(session, node, "node.draining", said, actor, now,
                 cordoned=True, drain_started_at=now, drain_wait_s=wait_s)  # fmt: skip


def list_cordoned(session: ReadSession, cluster_id: ClusterId) -> frozenset[str]:
    """Return the names of the nodes of a cluster that are cordoned here."""
    return repository.list_cordoned(session, cluster_id)


def note_cordon_failed(
    session: WriteSession, cluster_id: ClusterId, name: str, message: str, now: int
) -> None:
    """Tell that a cluster does not keep a cordon, or not its end; it is tried again."""
    events.record(
        session,
        NewEvent(
            kind="node.cordon_failed",
            at=now,
            cluster_id=cluster_id,
            subject_kind="node",
            subject_id=name,
            message=message,
        ),
    )


def list_draining(session: ReadSession) -> tuple[Node, ...]:
    """Return nodes whose work is to be moved away."""
    return repository.list_draining(session)


def end_drain(session: WriteSession, node: Node, now: int) -> Node:
    """Say that nothing runs on a drained node any more; it stays cordoned."""
    message = f"Nothing runs on {node.name} any more; it stays cordoned."
    return _mark(session, node, "node.drained", message, "system", now,
                 drain_started_at=None, drain_wait_s=None)  # fmt: skip


def _get_locked(session: WriteSession, cluster_id: ClusterId, key: UUID | str) -> Node:
    """Return a node that nobody else changes meanwhile: an operator's word is not a race."""
    repository.lock_node(session, get_node(session, cluster_id, key).id)
    return get_node(session, cluster_id, key)


def _mark(
    session: WriteSession,
    node: Node,
    kind: str,
    message: str,
    actor: str,
    now: int,
    **marks: int | bool | None,
) -> Node:
    if not repository.update_marks(session, node.id, node.version, now, **marks):
        raise NodeChanged(
            f"Node {node.name} was changed by somebody else meanwhile.",
            fix="Read it again and repeat the change.",
        )
    events.record(
        session,
        NewEvent(
            kind=kind,
            at=now,
            cluster_id=node.cluster_id,
            subject_kind="node",
            subject_id=node.name,
            actor=actor,
            message=message,
        ),
    )
    clusters.bump_generation(session, node.cluster_id, now)
    session.wake("inventory")
    return get_node(session, node.cluster_id, node.id)


def _counted(seen: NodeObservation, *, uses_masters: bool) -> NodeObservation:
    """Return a node as it counts: one of the control plane gives nothing unless that is enabled."""
    if seen.details.kind != MASTER:
        return seen
    taints = tuple(taint for taint in seen.taints if taint[0] not in CONTROL_PLANE_KEYS)
    if uses_masters:
        return replace(seen, taints=taints)
    return replace(
        seen,
        gpus=(),
        cpu_milli=0,
        memory_mib=0,
        ephemeral_mib=0,
        taints=(*taints, (CONTROL_PLANE_KEYS[0], "", "NoSchedule")),
        details=replace(seen.details, is_counted=False),
    )


def _compare(
    cluster_id: ClusterId,
    stored: dict[str, Node],
    seen: Sequence[NodeObservation],
    new_id: Callable[[], UUID],
    now: int,
) -> InventoryChanges:
    new_nodes: list[Node] = []
    changed_nodes: list[Node] = []
    new_gpus: list[Gpu] = []
    changed_gpus: list[Gpu] = []
    sentences: list[tuple[str, str, str]] = []
    for observation in seen:
        before = stored.get(observation.name)
        node_id = before.id if before else NodeId(new_id())
        node = _node_of(observation, before, cluster_id, node_id, now)
        if before is None:
            new_nodes.append(node)
        elif differs(before, node, FACTS):
            changed_nodes.append(node)
        told = compare_node(before, node)
        if told is not None:
            sentences.append((told[0], node.name, told[1]))
        known = {gpu.gpu_id: gpu for gpu in before.gpus} if before else {}
        for gpu in node.gpus:
            old = known.pop(gpu.gpu_id, None)
            if old is None:
                new_gpus.append(gpu)
            elif differs(old, gpu, GPU_FACTS):
                changed_gpus.append(gpu)
                health = compare_gpu(old, gpu, node.name)
                if health is not None:
                    sentences.append((health[0], node.name, health[1]))
        changed_gpus.extend(replace(old, present=False) for old in known.values() if old.present)
    there = {gpu.gpu_id for observation in seen for gpu in observation.gpus}
    changed_gpus = [gpu for gpu in changed_gpus if gpu.present or gpu.gpu_id not in there]
    names = {observation.name for observation in seen}
    for name, before in stored.items():
        if name not in names and before.present:
            changed_nodes.append(replace(before, present=False, ready=False, message="not seen"))
            changed_gpus.extend(
                replace(gpu, present=False)
                for gpu in before.gpus
                if gpu.present and gpu.gpu_id not in there
            )
            sentences.append(("node.removed", name, f"Node {name} is gone from the cluster."))
    return InventoryChanges(
        tuple(new_nodes),
        tuple(changed_nodes),
        tuple(new_gpus),
        tuple(changed_gpus),
        tuple(sentences),
    )


def _node_of(
    seen: NodeObservation, before: Node | None, cluster_id: ClusterId, node_id: NodeId, now: int
) -> Node:
    return Node(
        id=node_id,
        cluster_id=cluster_id,
        name=seen.name,
        ready=seen.ready,
        message=seen.message,
        present=True,
        cordoned=before.cordoned if before else False,
        drain_started_at=before.drain_started_at if before else None,
        drain_wait_s=before.drain_wait_s if before else None,
        cpu_milli=seen.cpu_milli,
        memory_mib=seen.memory_mib,
        ephemeral_mib=seen.ephemeral_mib,
        labels=dict(seen.labels),
        taints=tuple(seen.taints),
        topology=seen.topology,
        rack=seen.rack,
        block=seen.block,
        rdma_fabric=seen.rdma_fabric,
        created_at=before.created_at if before else now,
        updated_at=now,
        version=before.version if before else 1,
        gpus=tuple(_gpu_of(gpu, cluster_id, node_id) for gpu in seen.gpus),
        details=seen.details,
        status_sync_at=now,
    )


def _gpu_of(seen: GpuObservation, cluster_id: ClusterId, node_id: NodeId) -> Gpu:
    model = find_model(seen.model)
    return Gpu(
        gpu_id=seen.gpu_id,
        node_id=node_id,
        cluster_id=cluster_id,
        gpu_index=seen.index,
        model=model.name if model else seen.model,
        product=seen.model,
        memory_mib=seen.memory_mib,
        healthy=seen.healthy,
        present=True,
        message=seen.message,
        numa=seen.numa,
        mig_enabled=seen.mig_enabled,
        mig_instances=tuple(seen.mig_instances),
        mig_table=seen.mig_table,
    )
