"""Place whole attempts, follow their work, give back what they held."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import (
    AllocationId,
    AttemptId,
    GpuId,
    NodeId,
    ProjectId,
    ReplicaId,
    ReservationId,
)
from gpuplane.core.reasons import Reason, Word
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.placements import repository
from gpuplane.domains.placements.rules.booking import give_back, share_of, take, take_running
from gpuplane.domains.placements.rules.values import (
    Allocation,
    DeviceGuard,
    Holder,
    NodeGuard,
    PlacementOrder,
    PlacementResult,
    ReplicaOrder,
)
from gpuplane.domains.placements.service.following import follow
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.service import Holding
from gpuplane.kit.ids import new_id

Take = Callable[
    [
        PlacementOrder,
        Mapping[NodeId, NodeGuard],
        Mapping[GpuId, DeviceGuard],
        Mapping[ReservationId, ProjectId],
    ],
    Reason | None,
]
"""Takes all that an order asks from the guards, or nothing and says why not."""


def place(session: WriteSession, orders: Sequence[PlacementOrder], at: int) -> PlacementResult:
    """Give each order all it asks or nothing, in the order given, against the guards as they are.

    Placing again what is placed already changes nothing and counts as placed. New allocations
    are idle until `mark_busy`.
    """
    return _place(session, orders, at, take)


def place_running(
    session: WriteSession, orders: Sequence[PlacementOrder], at: int
) -> PlacementResult:
    """Record what work holds that its cluster has bound already, as `place` does.

    Reservations, ailing GPUs and full nodes do not count: it runs there all the same. Refused is
    only what cannot be counted: a node that is not known, a GPU that somebody holds.
    """
    return _place(
        session, orders, at, lambda order, nodes, devices, _: take_running(order, nodes, devices)
    )


def _place(
    session: WriteSession, orders: Sequence[PlacementOrder], at: int, how: Take
) -> PlacementResult:
    attempt_ids = [order.attempt_id for order in orders]
    held = {each.replica_id for each in repository.open_of_attempts(session, attempt_ids)}
    todo = [
        replace(order, replicas=tuple(r for r in order.replicas if r.replica_id not in held))
        if held
        else order
        for order in orders
    ]
    replicas = [replica for order in todo for replica in order.replicas]
    nodes = repository.lock_nodes(session, {replica.node_id for replica in replicas})
    devices = repository.lock_devices(session, _gpu_ids(replicas))
    owners = _owners(session, devices.values())
    doomed = _doomed(session, replicas)
    refused: dict[AttemptId, Reason] = {}
    rows: list[Allocation] = []
    for order in todo:
        reason = _refuse_doomed(order, doomed) or how(order, nodes, devices, owners)
        if reason is None:
            rows.extend(_allocations(order, devices, at))
        else:
            refused[order.attempt_id] = reason
    repository.store_guards(session, nodes.values(), devices.values())
    repository.insert_allocations(session, rows)
    usage.begin_holdings(session, [_holding(r, nodes) for r in rows if r.gpu_id is None], at)
    follow(session, {r.gpu_id for r in rows if r.gpu_id is not None}, devices, at)
    placed = tuple(each for each in attempt_ids if each not in refused)
    return PlacementResult(placed, refused)


def choose_running(
    session: WriteSession,
    gpu_ids: Sequence[GpuId],
    count: int,
    gpu_milli: int,
    project_id: ProjectId,
    beside: Mapping[GpuId, int] | None = None,
) -> tuple[GpuId, ...]:
    """Return which devices work holds that runs on a node, where nothing tells which it has.

    Those that still have such a share free, at most so many: open or its own before what is
    reserved for others, healthy before ailing, the fullest first.

    Args:
        session: Where to look; what is chosen from is locked.
        gpu_ids: The devices of its node.
        count: How many it holds.
        gpu_milli: The share of each.
        project_id: Whose work it is.
        beside: What was chosen in the same unit of work already, milli by device.
    """
    also = beside or {}
    if not count:
        return ()
    guards = repository.lock_devices(session, gpu_ids)
    owners = _owners(session, guards.values())
    fitting = [
        each
        for each in guards.values()
        if not each.allocated_mig_mask
        and each.allocated_milli + also.get(each.gpu_id, 0) + gpu_milli <= WHOLE_GPU_MILLI
    ]
    order = {gpu_id: index for index, gpu_id in enumerate(gpu_ids)}

    def unlikely(each: DeviceGuard) -> tuple[bool, bool, int, int]:
        held = each.reservation_id
        is_others = held is not None and owners.get(held) != project_id
        return each.down, is_others, -each.allocated_milli, order[each.gpu_id]

    return tuple(each.gpu_id for each in sorted(fitting, key=unlikely)[:count])


def choose_running_instance(
    session: WriteSession, instances: Sequence[MigPlacement]
) -> MigPlacement | None:
    """Return the first of these MIG instances that nobody holds, None where all are held.

    It is what work holds that runs on a node already, whatever else is said of the GPU.
    """
    if not instances:
        return None
    guards = repository.lock_devices(session, {each.gpu_id for each in instances})
    for each in instances:
        guard = guards.get(each.gpu_id)
        is_whole = guard is None or (guard.allocated_milli and not guard.allocated_mig_mask)
        if guard is not None and not is_whole and not guard.allocated_mig_mask >> each.start & 1:
            return each
    return None


def mark_busy(session: WriteSession, attempt_ids: Sequence[AttemptId], at: int) -> None:
    """Say that these attempts work from now on; again changes nothing."""
    _mark(session, attempt_ids, at, at)


def mark_replicas_busy(session: WriteSession, replica_ids: Sequence[ReplicaId], at: int) -> None:
    """Say that single replicas work from now on, when a job has grown; again changes nothing."""
    _mark_holders(session, repository.holders_of_replicas(session, replica_ids), at, at)


def mark_idle(session: WriteSession, attempt_ids: Sequence[AttemptId], at: int) -> None:
    """Say that these attempts hold what they have and do not work (paused, stopping, lost)."""
    _mark(session, attempt_ids, at, None)


def release(session: WriteSession, attempt_ids: Sequence[AttemptId], at: int) -> int:
    """Give back all that these attempts hold; return how many allocations ended. Idempotent."""
    return _release(session, lambda: repository.open_of_attempts(session, attempt_ids), at)


def release_replicas(session: WriteSession, replica_ids: Sequence[ReplicaId], at: int) -> int:
    """Give back what single replicas hold, when a job shrinks; idempotent."""
    return _release(session, lambda: repository.open_of_replicas(session, replica_ids), at)


def _doomed(session: ReadSession, replicas: Sequence[ReplicaOrder]) -> set[MigPlacement]:
    """Return the MIG instances that are being destroyed; asked only for MIG."""
    if not any(replica.mig for replica in replicas):
        return set()
    return {
        MigPlacement(row.gpu_id, profile, start)
        for row in repository.list_repartitions(session)
        if row.is_underway
        for profile, start in row.destroy
    }


def _refuse_doomed(order: PlacementOrder, doomed: set[MigPlacement]) -> Reason | None:
    for replica in order.replicas:
        if replica.mig is not None and replica.mig in doomed:
            said = f"{replica.mig.profile} of {replica.mig.gpu_id} is being destroyed."
            return Reason(Word.MIG_UNAVAILABLE, said)
    return None


def _owners(session: ReadSession, guards: Iterable[DeviceGuard]) -> dict[ReservationId, ProjectId]:
    """Return the project of each reservation that holds one of these devices."""
    ids = {guard.reservation_id for guard in guards if guard.reservation_id is not None}
    found = repository.load_reservations(session, ids)
    return {key: each.project_id for key, each in found.items()}


def _mark(
    session: WriteSession, attempt_ids: Sequence[AttemptId], at: int, since: int | None
) -> None:
    _mark_holders(session, repository.holders_of(session, attempt_ids), at, since)


def _mark_holders(
    session: WriteSession, found: Sequence[Holder], at: int, since: int | None
) -> None:
    guards = repository.lock_devices(session, {row.gpu_id for row in found})
    ids = [row.id for row in found if (row.busy_since is None) is not (since is None)]
    if not ids:
        return
    repository.set_busy(session, ids, since)
    follow(session, guards, guards, at)


def _release(session: WriteSession, find: Callable[[], list[Allocation]], at: int) -> int:
    """Lock what these hold, read again what is still held, and give it back."""
    found = find()
    if not found:
        return 0
    nodes = repository.lock_nodes(session, {row.node_id for row in found})
    devices = repository.lock_devices(session, _held_gpus(found))
    if session.dialect == "postgresql":
        found = find()
    for row in found:
        give_back(row, nodes, devices)
    repository.end_allocations(session, [row.id for row in found], at)
    repository.store_guards(session, nodes.values(), devices.values())
    usage.end_holdings(session, [row.id for row in found if row.gpu_id is None], at)
    follow(session, devices, devices, at)
    session.wake("scheduler")
    return len(found)


def _allocations(
    order: PlacementOrder, devices: Mapping[GpuId, DeviceGuard], at: int
) -> Iterable[Allocation]:
    """Return a row for each replica's part of its node and one for each of its devices."""
    for replica in order.replicas:
        parts: list[tuple[GpuId | None, int]] = [(None, 0), *share_of(replica, devices)]
        for gpu_id, milli in parts:
            on_node, mig = gpu_id is None, replica.mig if gpu_id is not None else None
            yield Allocation(
                AllocationId(new_id()),
                order.job_id,
                order.attempt_id,
                replica.replica_id,
                replica.rank,
                order.tenant_id,
                order.project_id,
                order.cluster_id,
                replica.node_id,
                gpu_id,
                milli,
                mig.profile if mig is not None else None,
                mig.start if mig is not None else None,
                replica.cpu_milli if on_node else 0,
                replica.memory_mib if on_node else 0,
                replica.ephemeral_mib if on_node else 0,
                at,
            )


def _holding(row: Allocation, nodes: Mapping[NodeId, NodeGuard]) -> Holding:
    return Holding(
        row.id,
        row.job_id,
        row.tenant_id,
        row.project_id,
        row.cluster_id,
        row.node_id,
        nodes[row.node_id].simulated,
        row.cpu_milli,
        row.memory_mib,
    )


def _gpu_ids(replicas: Iterable[ReplicaOrder]) -> set[GpuId]:
    found: set[GpuId] = set()
    for replica in replicas:
        found.update(replica.gpu_ids)
        if replica.mig is not None:
            found.add(replica.mig.gpu_id)
    return found


def _held_gpus(rows: Iterable[Allocation]) -> set[GpuId]:
    return {row.gpu_id for row in rows if row.gpu_id is not None}
