"""Guards and ledger rows follow the inventory of nodes and devices."""

from collections.abc import Sequence

from gpuplane.core.ids import ClusterId, GpuId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements import repository
from gpuplane.domains.placements.rules.values import DeviceGuard, NodeGuard
from gpuplane.domains.placements.service.following import follow
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.service import DeviceFacts


def register_devices(
    session: WriteSession, nodes: Sequence[Node], at: int, *, simulated: bool
) -> int:
    """Make guards and ledger rows follow the inventory; return how many devices changed state.

    Idempotent. A GPU is down while it is unhealthy or absent or its node is not ready. A node
    that shrinks below what is held on it keeps that much as its total until it is given back. The
    time of a GPU that moved to another node counts there from now on; one that moved to another
    cluster is no reservation's any more.
    """
    guards = repository.lock_nodes(session, [node.id for node in nodes])
    known = repository.lock_devices(session, [gpu.gpu_id for node in nodes for gpu in node.gpus])
    new_nodes = [_new_node(node, simulated) for node in nodes if node.id not in guards]
    for node in nodes:
        if node.id in guards:
            _resize(guards[node.id], node)
    new_devices: list[DeviceGuard] = []
    facts: list[DeviceFacts] = []
    followed: list[GpuId] = []
    moved: set[GpuId] = set()
    for node in nodes:
        for gpu in node.gpus:
            down = not (gpu.healthy and gpu.present and node.ready and node.present)
            guard = known.get(gpu.gpu_id)
            wanted = (node.id, node.cluster_id, gpu.model, down)
            if guard is None:
                guard = DeviceGuard(gpu.gpu_id, *wanted[:3], 0, 0, down, None, 1)
                new_devices.append(guard)
                known[gpu.gpu_id] = guard
            elif (guard.node_id, guard.cluster_id, guard.model, guard.down) == wanted:
                continue
            else:
                if guard.node_id != node.id:
                    moved.add(gpu.gpu_id)
                if guard.cluster_id != node.cluster_id:
                    guard.reservation_id = None
                guard.node_id, guard.cluster_id, guard.model, guard.down = wanted
                guard.changed = True
            followed.append(gpu.gpu_id)
            facts.append(
                DeviceFacts(
                    gpu.gpu_id,
                    node.cluster_id,
                    node.id,
                    node.name,
                    gpu.gpu_index,
                    gpu.model,
                    gpu.memory_mib,
                    simulated,
                )
            )
    repository.insert_guards(session, new_nodes, new_devices)
    repository.store_guards(session, guards.values(), known.values())
    usage.remember_devices(session, facts)
    return follow(session, followed, known, at, moved)


def retire_devices(session: WriteSession, gpu_ids: Sequence[GpuId], at: int) -> tuple[GpuId, ...]:
    """Take devices that nobody holds out for good and return them; held ones stay for later."""
    guards = repository.lock_devices(session, gpu_ids)
    gone = tuple(gpu_id for gpu_id, guard in guards.items() if not guard.allocated_milli)
    usage.end_devices(session, gone, at)
    repository.delete_devices(session, gone)
    return gone


def retire_cluster(session: WriteSession, cluster_id: ClusterId, at: int) -> tuple[GpuId, ...]:
    """Take the devices of a cluster that is deleted out for good; its time ends with it."""
    guards = repository.list_device_guards(session, cluster_id)
    return retire_devices(session, [guard.gpu_id for guard in guards], at)


def count_unheld(session: ReadSession, cluster_ids: Sequence[ClusterId]) -> dict[ClusterId, int]:
    """Return how many devices that nothing holds are counted for each of these clusters."""
    return repository.count_unheld(session, cluster_ids)


def find_held(session: ReadSession, gpu_ids: Sequence[GpuId]) -> set[GpuId]:
    """Return which of these devices work of ours holds now."""
    return {row.gpu_id for row in repository.holders_on(session, gpu_ids)}


def _new_node(node: Node, simulated: bool) -> NodeGuard:  # noqa: FBT001 - a fact, not a switch
    return NodeGuard(
        node.id,
        node.cluster_id,
        node.cpu_milli,
        0,
        node.memory_mib,
        0,
        node.ephemeral_mib,
        0,
        simulated,
        1,
    )


def _resize(guard: NodeGuard, node: Node) -> None:
    """Take over a node's totals, no lower than what is used of them."""
    for name in ("cpu_milli", "memory_mib", "ephemeral_mib"):
        total = max(getattr(node, name), getattr(guard, f"{name}_used"))
        if getattr(guard, name) != total:
            setattr(guard, name, total)
            guard.changed = True
