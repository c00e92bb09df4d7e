"""Does an order still fit, what does it take, and do guards and rows say the same: all pure."""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.hardware import KNOWN_MODELS
from gpuplane.core.ids import (
    GpuId,
    NodeId,
    ProjectId,
    ReservationId,
)
from gpuplane.core.pricing.cost import mig_share_milli
from gpuplane.core.reasons import Reason, Word
from gpuplane.domains.placements.rules.values import (
    Allocation,
    Capacity,
    DeviceGuard,
    ModelCapacity,
    NodeGuard,
    PlacementOrder,
    ReplicaOrder,
    Reservation,
)

MIG_SLICES = 7
"""Compute slices of a model that the table does not know: all MIG GPUs but A30 have 7."""


def used_percent(node: NodeGuard) -> int:
    """Return how much of a node's CPU or memory is held, the greater: at least 1 of any."""
    shares = [
        -(-100 * used // total)
        for used, total in (
            (node.cpu_milli_used, node.cpu_milli),
            (node.memory_mib_used, node.memory_mib),
        )
        if total
    ]
    return max(shares, default=0)


def compute_capacity(nodes: Sequence[NodeGuard], devices: Iterable[DeviceGuard]) -> Capacity:
    """Return what the guards of a cluster's nodes and devices add up to."""
    models: dict[str, ModelCapacity] = {}
    for each in devices:
        now = models.get(each.model, ModelCapacity(each.model))
        used = each.allocated_milli > 0
        shared = used and not each.down and not each.allocated_mig_mask
        models[each.model] = ModelCapacity(
            each.model,
            now.total + 1,
            now.free + (not used and not each.down and each.reservation_id is None),
            now.reserved + (not used and not each.down and each.reservation_id is not None),
            now.in_use + used,
            now.down + (each.down and not used),
            now.partly_free_milli + (WHOLE_GPU_MILLI - each.allocated_milli if shared else 0),
        )
    return Capacity(
        len(nodes),
        tuple(models[name] for name in sorted(models)),
        (sum(n.cpu_milli for n in nodes), sum(n.cpu_milli_used for n in nodes)),
        (sum(n.memory_mib for n in nodes), sum(n.memory_mib_used for n in nodes)),
        (sum(n.ephemeral_mib for n in nodes), sum(n.ephemeral_mib_used for n in nodes)),
    )


def share_of(order: ReplicaOrder, devices: Mapping[GpuId, DeviceGuard]) -> list[tuple[GpuId, int]]:
    """Return (device, milli) of each device a replica is to hold; a MIG instance by its slices."""
    if order.mig is None:
        return [(gpu_id, order.gpu_milli) for gpu_id in order.gpu_ids]
    guard = devices.get(order.mig.gpu_id)
    known = KNOWN_MODELS.get(guard.model) if guard is not None else None
    slices = known.mig_slices if known is not None and known.mig_slices else MIG_SLICES
    return [(order.mig.gpu_id, mig_share_milli(order.mig.profile, slices))]


def take(
    order: PlacementOrder,
    nodes: Mapping[NodeId, NodeGuard],
    devices: Mapping[GpuId, DeviceGuard],
    owners: Mapping[ReservationId, ProjectId],
) -> Reason | None:
    """Take all that an order asks from the guards, or nothing and return why not.

    Args:
        owners: The project of each reservation that holds one of the devices.
    """
    taken: list[ReplicaOrder] = []
    for replica in order.replicas:
        reason = _refusal(order, replica, nodes, devices, owners)
        if reason is not None:
            for earlier in taken:
                _add(earlier, nodes, devices, -1)
            return reason
        _add(replica, nodes, devices, 1)
        taken.append(replica)
    return None


def take_running(
    order: PlacementOrder,
    nodes: Mapping[NodeId, NodeGuard],
    devices: Mapping[GpuId, DeviceGuard],
) -> Reason | None:
    """Take what work holds that runs already, or nothing and return why it cannot be counted.

    Its cluster has bound it: what a reservation, an ailing GPU or a full node says here changes
    nothing of that. A node that has too little by the books counts as that much larger until it is
    given back; a GPU is counted once, whatever else is said of it.
    """
    taken: list[ReplicaOrder] = []
    for replica in order.replicas:
        node = nodes.get(replica.node_id)
        reason = None
        if node is None:
            reason = Reason(Word.NOT_READY, "The node is not known any more.")
        else:
            reason = _uncountable(replica, devices)
        if node is None or reason is not None:
            for earlier in taken:
                _add(earlier, nodes, devices, -1)
            return reason
        _add(replica, nodes, devices, 1)
        _grow(node)
        taken.append(replica)
    return None


def _uncountable(replica: ReplicaOrder, devices: Mapping[GpuId, DeviceGuard]) -> Reason | None:
    seen: set[GpuId] = set()
    for gpu_id, milli in share_of(replica, devices):
        device = devices.get(gpu_id)
        if device is None or device.node_id != replica.node_id or gpu_id in seen:
            return Reason(Word.GPU_COUNT, f"{gpu_id} is not a GPU of this node to be had.")
        seen.add(gpu_id)
        reason = _share_refusal(replica, device, milli)
        if reason is not None:
            return reason
    return None


def _grow(node: NodeGuard) -> None:
    node.cpu_milli = max(node.cpu_milli, node.cpu_milli_used)
    node.memory_mib = max(node.memory_mib, node.memory_mib_used)
    node.ephemeral_mib = max(node.ephemeral_mib, node.ephemeral_mib_used)


def give_back(
    allocation: Allocation,
    nodes: Mapping[NodeId, NodeGuard],
    devices: Mapping[GpuId, DeviceGuard],
) -> None:
    """Return what one allocation held to the guards."""
    if allocation.gpu_id is None:
        node = nodes[allocation.node_id]
        node.cpu_milli_used -= allocation.cpu_milli
        node.memory_mib_used -= allocation.memory_mib
        node.ephemeral_mib_used -= allocation.ephemeral_mib
        node.changed = True
        return
    device = devices[allocation.gpu_id]
    device.allocated_milli -= allocation.gpu_milli
    if allocation.mig_start is not None:
        device.allocated_mig_mask &= ~(1 << allocation.mig_start)
    device.changed = True


def _refusal(
    order: PlacementOrder,
    replica: ReplicaOrder,
    nodes: Mapping[NodeId, NodeGuard],
    devices: Mapping[GpuId, DeviceGuard],
    owners: Mapping[ReservationId, ProjectId],
) -> Reason | None:
    node = nodes.get(replica.node_id)
    if node is None:
        return Reason(Word.NOT_READY, "The node is not known any more.")
    for word, total, used, asked, unit in (
        (Word.CPU, node.cpu_milli, node.cpu_milli_used, replica.cpu_milli, "milli-CPU"),
        (Word.MEMORY, node.memory_mib, node.memory_mib_used, replica.memory_mib, "MiB of memory"),
        (
            Word.EPHEMERAL_STORAGE,
            node.ephemeral_mib,
            node.ephemeral_mib_used,
            replica.ephemeral_mib,
            "MiB of ephemeral storage",
        ),
    ):
        if used + asked > total:
            return Reason(word, f"The node has {total - used} {unit} left, {asked} are needed.")
    seen: set[GpuId] = set()
    for gpu_id, milli in share_of(replica, devices):
        device = devices.get(gpu_id)
        if device is None or device.node_id != replica.node_id or gpu_id in seen:
            return Reason(Word.GPU_COUNT, f"{gpu_id} is not a GPU of this node to be had.")
        seen.add(gpu_id)
        held = device.reservation_id
        if held not in (None, order.reservation_id) and owners.get(held) != order.project_id:
            return Reason(Word.RESERVED, f"{gpu_id} is reserved for others.")
        reason = _device_refusal(replica, device, milli)
        if reason is not None:
            return reason
    return None


def _device_refusal(replica: ReplicaOrder, device: DeviceGuard, milli: int) -> Reason | None:
    if device.down:
        return Reason(Word.NOT_READY, f"{device.gpu_id} is down.")
    return _share_refusal(replica, device, milli)


def _share_refusal(replica: ReplicaOrder, device: DeviceGuard, milli: int) -> Reason | None:
    if replica.mig is None:
        if not 0 < milli <= WHOLE_GPU_MILLI - device.allocated_milli or device.allocated_mig_mask:
            left = 0 if device.allocated_mig_mask else WHOLE_GPU_MILLI - device.allocated_milli
            return Reason(Word.GPU_COUNT, f"{device.gpu_id} has {left} of {milli} milli left.")
        return None
    in_use = device.allocated_mig_mask & 1 << replica.mig.start
    shared = device.allocated_milli and not device.allocated_mig_mask
    if in_use or shared or device.allocated_milli + milli > WHOLE_GPU_MILLI:
        return Reason(Word.MIG_UNAVAILABLE, f"{replica.mig.profile} of {device.gpu_id} is in use.")
    return None


def _add(
    replica: ReplicaOrder,
    nodes: Mapping[NodeId, NodeGuard],
    devices: Mapping[GpuId, DeviceGuard],
    sign: int,
) -> None:
    node = nodes[replica.node_id]
    node.cpu_milli_used += sign * replica.cpu_milli
    node.memory_mib_used += sign * replica.memory_mib
    node.ephemeral_mib_used += sign * replica.ephemeral_mib
    node.changed = True
    for gpu_id, milli in share_of(replica, devices):
        device = devices[gpu_id]
        device.allocated_milli += sign * milli
        if replica.mig is not None:
            device.allocated_mig_mask ^= 1 << replica.mig.start
        device.changed = True


def choose_reservation(held: Iterable[Reservation], model: str | None) -> ReservationId | None:
    """Return which of a project's active reservations a workload may use, the longest first.

    Args:
        held: The active reservations of its project on one cluster.
        model: The model it asks for; None takes any.
    """
    fitting = [each for each in held if model in (None, each.model)]
    return max(fitting, key=lambda each: (each.end_at, each.id)).id if fitting else None


def choose_devices(
    count: int,
    devices: Sequence[DeviceGuard],
    kept: frozenset[GpuId] = frozenset(),
    fixed: frozenset[GpuId] = frozenset(),
) -> tuple[GpuId, ...]:
    """Return which devices a reservation takes: healthy and unused first, whole nodes first.

    Args:
        count: How many.
        devices: Devices of the model that no other reservation holds.
        kept: Devices it should take before all others.
        fixed: Devices whose work nobody may stop: taken last, though they are free some day.
    """
    free_on: dict[UUID, int] = {}
    for each in devices:
        free_on[each.node_id] = free_on.get(each.node_id, 0) + (
            not each.down and not each.allocated_milli
        )
    ordered = sorted(
        devices,
        key=lambda each: (
            each.gpu_id not in kept,
            each.down,
            each.gpu_id in fixed,
            each.allocated_milli > 0,
            -free_on[each.node_id],
            str(each.node_id),
            each.gpu_id,
        ),
    )
    return tuple(each.gpu_id for each in ordered[:count])


def node_faults(guards: Iterable[NodeGuard], held: Iterable[Allocation]) -> list[str]:
    """Return a sentence for each node whose guard is not the sum of what is held there."""
    sums: dict[NodeId, list[int]] = {}
    for row in held:
        found = sums.setdefault(row.node_id, [0, 0, 0])
        found[0] += row.cpu_milli
        found[1] += row.memory_mib
        found[2] += row.ephemeral_mib
    faults = []
    for guard in guards:
        used = [guard.cpu_milli_used, guard.memory_mib_used, guard.ephemeral_mib_used]
        found = sums.pop(guard.node_id, [0, 0, 0])
        if used != found:
            faults.append(f"Node {guard.node_id}: guard says {used} used, allocations {found}.")
    faults.extend(f"Node {node_id} has allocations and no guard." for node_id in sums)
    return faults


def device_faults(guards: Iterable[DeviceGuard], held: Iterable[Allocation]) -> list[str]:
    """Return a sentence for each device sold twice or whose guard is not what is held of it."""
    on: dict[GpuId, list[Allocation]] = {}
    for row in held:
        if row.gpu_id is not None:
            on.setdefault(row.gpu_id, []).append(row)
    faults = []
    for guard in guards:
        rows = on.pop(guard.gpu_id, [])
        milli = sum(row.gpu_milli for row in rows)
        starts = [row.mig_start for row in rows if row.mig_start is not None]
        mask = sum(1 << start for start in set(starts))
        if milli > WHOLE_GPU_MILLI or len(starts) != len(set(starts)):
            faults.append(f"{guard.gpu_id} is sold twice: {milli} of 1000, MIG starts {starts}.")
        if (guard.allocated_milli, guard.allocated_mig_mask) != (milli, mask):
            faults.append(
                f"{guard.gpu_id}: guard says {guard.allocated_milli} milli and mask "
                f"{guard.allocated_mig_mask:#x}, allocations {milli} and {mask:#x}."
            )
    faults.extend(f"{gpu_id} has allocations and no guard." for gpu_id in on)
    return faults
