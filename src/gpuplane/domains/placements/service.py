"""Use cases of placements: place whole attempts, follow their work, give back; reservations.

Every verb keeps guards, allocations and the ledger together in the caller's transaction.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuplane.core.fleet.facts import Allocation as HeldByReplica
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import (
    AllocationId,
    AttemptId,
    ClusterId,
    GpuId,
    JobId,
    NodeId,
    ReplicaId,
    ReservationId,
    TenantId,
)
from gpuplane.core.reasons import Reason
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements import repository
from gpuplane.domains.placements.errors import (
    BadReservation,
    NotEnoughCapacity,
    ReservationNotFound,
    ReservationOver,
)
from gpuplane.domains.placements.rules import (
    Allocation,
    DeviceGuard,
    NodeGuard,
    PlacementOrder,
    PlacementResult,
    ReplicaOrder,
    Reservation,
    ReservationState,
    choose_devices,
    device_faults,
    fits_beside,
    give_back,
    node_faults,
    share_of,
    take,
)
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.service import DeviceChange, DeviceFacts, DeviceState, Holding, Share
from gpuplane.kit.ids import new_id

__all__ = [
    "Allocation",
    "PlacementOrder",
    "PlacementResult",
    "ReplicaOrder",
    "Reservation",
    "ReservationChanges",
    "ReservationState",
]


@dataclass(frozen=True, slots=True)
class ReservationChanges:
    """What one turn of the reservations did.

    Args:
        in_the_way: Jobs that hold devices which are reserved for others now; the devices become
            the reservation's when those jobs end or are moved.
    """

    activated: tuple[ReservationId, ...] = ()
    ended: tuple[ReservationId, ...] = ()
    in_the_way: tuple[JobId, ...] = ()


# -- devices and nodes ------------------------------------------------------------------------


def register_devices(
    session: WriteSession, nodes: Sequence[Node], at: int, *, simulated: bool
) -> int:
    """Make guards and ledger rows follow the inventory; return how many devices changed state.

    Idempotent. A GPU is down while it is unhealthy or absent or its node is not ready. A node
    that shrinks below what is held on it keeps that much as its total until it is given back.
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
    return _follow(session, followed, known, at)


def retire_devices(session: WriteSession, gpu_ids: Sequence[GpuId], at: int) -> tuple[GpuId, ...]:
    """Take devices that nobody holds out for good and return them; held ones stay for later."""
    guards = repository.lock_devices(session, gpu_ids)
    gone = tuple(gpu_id for gpu_id, guard in guards.items() if not guard.allocated_milli)
    usage.end_devices(session, gone, at)
    repository.delete_devices(session, gone)
    return gone


# -- placing and giving back ------------------------------------------------------------------


def place(session: WriteSession, orders: Sequence[PlacementOrder], at: int) -> PlacementResult:
    """Give each order all it asks or nothing, in the order given, against the guards as they are.

    Placing again what is placed already changes nothing and counts as placed. New allocations
    are idle until `mark_busy`.
    """
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
    refused: dict[AttemptId, Reason] = {}
    rows: list[Allocation] = []
    for order in todo:
        reason = take(order, nodes, devices)
        if reason is None:
            rows.extend(_allocations(order, devices, at))
        else:
            refused[order.attempt_id] = reason
    repository.store_guards(session, nodes.values(), devices.values())
    repository.insert_allocations(session, rows)
    usage.begin_holdings(session, [_holding(r, nodes) for r in rows if r.gpu_id is None], at)
    _follow(session, {r.gpu_id for r in rows if r.gpu_id is not None}, devices, at)
    placed = tuple(each for each in attempt_ids if each not in refused)
    return PlacementResult(placed, refused)


def mark_busy(session: WriteSession, attempt_ids: Sequence[AttemptId], at: int) -> None:
    """Say that these attempts work from now on; again changes nothing."""
    _mark(session, attempt_ids, at, at)


def mark_idle(session: WriteSession, attempt_ids: Sequence[AttemptId], at: int) -> None:
    """Say that these attempts hold what they have and do not work (paused, stopping, lost)."""
    _mark(session, attempt_ids, at, None)


def release(session: WriteSession, attempt_ids: Sequence[AttemptId], at: int) -> int:
    """Give back all that these attempts hold; return how many allocations ended. Idempotent."""
    return _release(session, lambda: repository.open_of_attempts(session, attempt_ids), at)


def release_replicas(session: WriteSession, replica_ids: Sequence[ReplicaId], at: int) -> int:
    """Give back what single replicas hold, when a job shrinks; idempotent."""
    return _release(session, lambda: repository.open_of_replicas(session, replica_ids), at)


# -- reading ----------------------------------------------------------------------------------


def list_open(session: ReadSession, cluster_id: ClusterId | None = None) -> tuple[Allocation, ...]:
    """Return everything held now (on a cluster), one row for each device and each node part."""
    return tuple(repository.list_open(session, cluster_id))


def held_by_jobs(
    session: ReadSession, cluster_id: ClusterId | None = None
) -> dict[JobId, tuple[HeldByReplica, ...]]:
    """Return what each job holds now as the decision core reads it, one value per replica."""
    by_replica: dict[ReplicaId, list[Allocation]] = {}
    for row in repository.list_open(session, cluster_id):
        by_replica.setdefault(row.replica_id, []).append(row)
    held: dict[JobId, list[HeldByReplica]] = {}
    for rows in by_replica.values():
        held.setdefault(rows[0].job_id, []).append(_held(rows))
    return {job: tuple(sorted(each, key=lambda one: one.rank)) for job, each in held.items()}


def list_for_jobs(session: ReadSession, job_ids: Sequence[JobId]) -> tuple[Allocation, ...]:
    """Return everything these jobs held or hold, by start, rank and device."""
    return tuple(repository.list_of_jobs(session, job_ids))


def reserved_devices(session: ReadSession, cluster_id: ClusterId) -> dict[GpuId, ReservationId]:
    """Return the devices that reservations hold now."""
    return {
        guard.gpu_id: guard.reservation_id
        for guard in repository.list_device_guards(session, cluster_id)
        if guard.reservation_id is not None
    }


def check(session: ReadSession) -> list[str]:
    """Return a sentence for each broken promise: oversold, guards off, ledger out of step."""
    held = repository.list_open(session, None)
    faults = node_faults(repository.list_node_guards(session), held)
    guards = repository.list_device_guards(session)
    faults.extend(device_faults(guards, held))
    shares = usage.list_open_shares(session)
    for row in held:
        if row.gpu_id is not None and shares.get((row.id, row.gpu_id)) != row.gpu_milli:
            faults.append(f"Allocation {row.id} has no share in the open interval of {row.gpu_id}.")
    ids = {row.id for row in held}
    reserved = {guard.reservation_id for guard in guards}
    faults.extend(
        f"{gpu_id}: its open interval names {holder}, which holds nothing."
        for holder, gpu_id in shares
        if holder not in ids and holder not in reserved
    )
    metered = usage.list_open_holdings(session)
    on_nodes = {row.id for row in held if row.gpu_id is None}
    faults.extend(f"Allocation {each} is not metered." for each in sorted(on_nodes - metered))
    faults.extend(f"Allocation {each} is metered and over." for each in sorted(metered - on_nodes))
    wanted = {each.gpu_id: each.state for each in _changes(session, guards)}
    found = usage.list_open_states(session)
    faults.extend(
        f"{gpu_id} is {state}, its open interval says {found.get(gpu_id, 'nothing')}."
        for gpu_id, state in wanted.items()
        if found.get(gpu_id) is not state
    )
    return faults


# -- reservations -----------------------------------------------------------------------------


def create_reservation(
    session: WriteSession, wanted: Reservation, actor: str, now: int
) -> Reservation:
    """Set GPUs of a model aside from start to end, if the cluster has so many then.

    Raises:
        BadReservation: If the window is over, or the cluster has no GPU of the model.
        NotEnoughCapacity: If other reservations leave too few.
    """
    if wanted.end_at <= max(now, wanted.start_at):
        raise BadReservation(
            "The reservation would end before it begins or in the past.",
            field="end",
            fix="Give an end after the start and after now.",
        )
    guards = repository.lock_model(session, wanted.cluster_id, wanted.model)
    if not guards:
        models = ", ".join(repository.list_models(session, wanted.cluster_id)) or "no GPU at all"
        raise BadReservation(
            f"The cluster has no GPU of model {wanted.model}.",
            field="model",
            fix=f"It has {models}.",
        )
    others = repository.list_reservations(
        session,
        cluster_id=wanted.cluster_id,
        model=wanted.model,
        states=(ReservationState.SCHEDULED, ReservationState.ACTIVE),
    )
    fits, left = fits_beside(wanted, others, len(guards))
    if not fits:
        raise NotEnoughCapacity(
            f"{wanted.gpu_count} {wanted.model} are wanted and {left} of {len(guards)} are left "
            "throughout that time.",
            field="count",
            fix=f"Reserve at most {left}, or another time.",
        )
    repository.insert_reservation(session, wanted)
    _announce(session, wanted, "reservation.created", f"{actor} reserved GPUs.", actor, now)
    return wanted


def cancel_reservation(
    session: WriteSession, reservation_id: ReservationId, actor: str, now: int
) -> Reservation:
    """Give a reservation up; jobs that run on its devices go on.

    Raises:
        ReservationNotFound: If there is none of that id.
        ReservationOver: If it has ended or was cancelled.
    """
    found = get_reservation(session, reservation_id)
    if found.state not in (ReservationState.SCHEDULED, ReservationState.ACTIVE):
        raise ReservationOver(f"The reservation is {found.state} already.")
    _end(session, found, ReservationState.CANCELLED, now)
    _announce(session, found, "reservation.cancelled", f"{actor} gave it up.", actor, now)
    return get_reservation(session, reservation_id)


def get_reservation(session: ReadSession, reservation_id: ReservationId) -> Reservation:
    """Return a reservation.

    Raises:
        ReservationNotFound: If there is none of that id.
    """
    found = repository.find_reservation(session, reservation_id)
    if found is None:
        raise ReservationNotFound("There is no reservation of that id.", fix="Check the id.")
    return found


def list_reservations(
    session: ReadSession,
    *,
    cluster_id: ClusterId | None = None,
    tenant_id: TenantId | None = None,
    states: Sequence[ReservationState] = (),
) -> tuple[Reservation, ...]:
    """Return reservations by start."""
    return repository.list_reservations(
        session, cluster_id=cluster_id, tenant_id=tenant_id, states=states
    )


def advance_reservations(session: WriteSession, now: int) -> ReservationChanges:
    """Begin and end what is due, and give active ones the devices they still lack."""
    activated: list[ReservationId] = []
    ended: list[ReservationId] = []
    in_the_way: set[JobId] = set()
    for each in repository.lock_due_reservations(session, now):
        if each.end_at <= now:
            _end(session, each, ReservationState.ENDED, now)
            _announce(session, each, "reservation.ended", "The reservation ended.", "system", now)
            ended.append(each.id)
            continue
        began = each.state is ReservationState.SCHEDULED
        taken, jobs = _take_devices(session, each, now)
        in_the_way.update(jobs)
        if began:
            repository.set_reservation_state(session, each.id, ReservationState.ACTIVE, None)
            activated.append(each.id)
            text = f"The reservation began with {len(taken)} of {each.gpu_count} GPUs."
            _announce(session, each, "reservation.activated", text, "system", now)
    return ReservationChanges(tuple(activated), tuple(ended), tuple(sorted(in_the_way)))


def _take_devices(
    session: WriteSession, reservation: Reservation, now: int
) -> tuple[tuple[GpuId, ...], set[JobId]]:
    """Give a reservation the devices it lacks; return them and the jobs of others on them."""
    guards = repository.lock_model(session, reservation.cluster_id, reservation.model)
    open_to_it = [guard for guard in guards.values() if guard.reservation_id is None]
    lacking = reservation.gpu_count - len(reservation.gpu_ids)
    taken = choose_devices(lacking, open_to_it)
    for gpu_id in taken:
        guards[gpu_id].reservation_id = reservation.id
        guards[gpu_id].changed = True
    repository.store_guards(session, (), guards.values())
    _follow(session, taken, guards, now)
    if taken:
        clusters.bump_generation(session, reservation.cluster_id, now)
    return taken, {
        row.job_id
        for row in repository.open_on_devices(session, taken)
        if row.project_id != reservation.project_id
    }


def _end(
    session: WriteSession, reservation: Reservation, state: ReservationState, now: int
) -> None:
    guards = repository.lock_devices(session, reservation.gpu_ids)
    for guard in guards.values():
        guard.reservation_id = None
        guard.changed = True
    repository.store_guards(session, (), guards.values())
    repository.set_reservation_state(session, reservation.id, state, now)
    _follow(session, guards, guards, now)
    clusters.bump_generation(session, reservation.cluster_id, now)


def _announce(
    session: WriteSession, about: Reservation, kind: str, message: str, actor: str, now: int
) -> None:
    events.record(
        session,
        NewEvent(
            kind=kind,
            at=now,
            subject_kind="reservation",
            subject_id=about.id,
            tenant_id=about.tenant_id,
            project_id=about.project_id,
            cluster_id=about.cluster_id,
            actor=actor,
            message=message,
            data={"model": about.model, "gpu_count": about.gpu_count},
        ),
    )


# -- private ----------------------------------------------------------------------------------


def _follow(
    session: WriteSession,
    gpu_ids: Iterable[GpuId],
    guards: Mapping[GpuId, DeviceGuard],
    at: int,
) -> int:
    """Let the ledger say what these devices are now."""
    return usage.apply_changes(session, _changes(session, [guards[each] for each in gpu_ids]), at)


def _changes(session: ReadSession, guards: Sequence[DeviceGuard]) -> list[DeviceChange]:
    """Return what devices are: state, and shares of allocations and of unused reservations."""
    held: dict[GpuId, list[Allocation]] = {}
    for row in repository.open_on_devices(session, [guard.gpu_id for guard in guards]):
        if row.gpu_id is not None:
            held.setdefault(row.gpu_id, []).append(row)
    reserved = repository.load_reservations(
        session, {guard.reservation_id for guard in guards if guard.reservation_id is not None}
    )
    changes = []
    for guard in guards:
        rows = held.get(guard.gpu_id, [])
        shares = [
            Share(
                row.id,
                row.tenant_id,
                row.project_id,
                row.gpu_milli,
                row.job_id,
                row.busy_since is not None,
            )
            for row in rows
        ]
        state = _state(guard, rows)
        reservation = None
        if guard.reservation_id is not None and not guard.down:
            reservation = reserved[guard.reservation_id]
        unused = 1000 - sum(row.gpu_milli for row in rows)
        if reservation is not None and unused:
            shares.append(
                Share(
                    reservation.id,
                    reservation.tenant_id,
                    reservation.project_id,
                    unused,
                    None,
                    billable=reservation.charge_unused,
                )
            )
        changes.append(DeviceChange(guard.gpu_id, state, tuple(shares)))
    return changes


def _state(guard: DeviceGuard, rows: Sequence[Allocation]) -> DeviceState:
    """Return the one state of a device: what holds it comes before what ails it."""
    if any(row.busy_since is not None for row in rows):
        return DeviceState.BUSY
    if rows:
        return DeviceState.ALLOCATED_IDLE
    if guard.down:
        return DeviceState.DOWN
    return DeviceState.FREE if guard.reservation_id is None else DeviceState.RESERVED


def _mark(
    session: WriteSession, attempt_ids: Sequence[AttemptId], at: int, since: int | None
) -> None:
    found = repository.open_of_attempts(session, attempt_ids)
    guards = repository.lock_devices(session, _held_gpus(found))
    ids = [row.id for row in found if (row.busy_since is None) is not (since is None)]
    if not ids:
        return
    repository.set_busy(session, ids, since)
    _follow(session, guards, guards, at)


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
    _follow(session, devices, devices, at)
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


def _held(rows: Sequence[Allocation]) -> HeldByReplica:
    """Return the rows of one replica as one value."""
    on_node = next(row for row in rows if row.gpu_id is None)
    on_gpus = [row for row in rows if row.gpu_id is not None]
    mig = None
    for row in on_gpus:
        if row.gpu_id is not None and row.mig_profile is not None and row.mig_start is not None:
            mig = MigPlacement(row.gpu_id, row.mig_profile, row.mig_start)
    return HeldByReplica(
        on_node.job_id,
        on_node.node_id,
        on_node.rank,
        tuple(row.gpu_id for row in on_gpus if row.gpu_id is not None),
        on_gpus[0].gpu_milli if on_gpus else 1000,
        mig,
        on_node.cpu_milli,
        on_node.memory_mib,
        on_node.ephemeral_mib,
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
