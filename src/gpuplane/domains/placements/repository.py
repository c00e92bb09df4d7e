"""Every query on guards, allocations and reservations; rows in, values out.

Guards are locked in one order, nodes before devices and each by key, so that two transactions
on PostgreSQL wait for each other and never in a circle.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    Table,
    bindparam,
    case,
    func,
    insert,
    select,
    update,
)

from gpuplane.core.capacity import ReservationState
from gpuplane.core.ids import (
    AttemptId,
    ClusterId,
    GpuId,
    JobId,
    NodeId,
    ReplicaId,
    ReservationId,
    TenantId,
)
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.placements.errors import GuardBroken
from gpuplane.domains.placements.rules.values import (
    Allocation,
    DeviceGuard,
    Holder,
    NodeGuard,
    Repartition,
    RepartitionState,
    Reservation,
)
from gpuplane.domains.placements.tables import (
    allocations,
    devices,
    nodes,
    repartitions,
    reservations,
)

CHUNK = 1000
"""Values in one IN list: well under SQLite's 32,766 parameters, and one plan for most batches."""

_NODE_KEYS = ("cpu_milli_used", "memory_mib_used", "ephemeral_mib_used")
_NODE_TOTALS = ("cpu_milli", "memory_mib", "ephemeral_mib")
_DEVICE_KEYS = (
    "node_id",
    "cluster_id",
    "model",
    "allocated_milli",
    "allocated_mig_mask",
    "down",
    "reservation_id",
)


def lock_nodes(session: ReadSession, node_ids: Iterable[NodeId]) -> dict[NodeId, NodeGuard]:
    """Return the guards of these nodes, locked until the transaction ends."""
    rows = _locked(session, nodes, nodes.c.node_id, sorted(set(node_ids)))
    return {row["node_id"]: NodeGuard(**row) for row in rows}


def lock_devices(session: ReadSession, gpu_ids: Iterable[GpuId]) -> dict[GpuId, DeviceGuard]:
    """Return the guards of these devices, locked until the transaction ends."""
    rows = _locked(session, devices, devices.c.gpu_id, sorted(set(gpu_ids)))
    return {row["gpu_id"]: DeviceGuard(**row) for row in rows}


def lock_model(session: ReadSession, cluster_id: ClusterId, model: str) -> dict[GpuId, DeviceGuard]:
    """Return the guards of every device of a model on a cluster, locked."""
    query = select(devices.c.gpu_id).where(
        devices.c.cluster_id == cluster_id, devices.c.model == model
    )
    return lock_devices(session, [row["gpu_id"] for row in session.rows(query)])


def list_node_guards(session: ReadSession, cluster_id: ClusterId | None = None) -> list[NodeGuard]:
    """Return every node's guard (of a cluster), without a lock."""
    query = select(nodes)
    if cluster_id is not None:
        query = query.where(nodes.c.cluster_id == cluster_id)
    return [NodeGuard(**row) for row in session.rows(query)]


def list_device_guards(
    session: ReadSession, cluster_id: ClusterId | None = None
) -> list[DeviceGuard]:
    """Return every device's guard (of a cluster), without a lock, by node and id."""
    query = select(devices).order_by(devices.c.node_id, devices.c.gpu_id)
    if cluster_id is not None:
        query = query.where(devices.c.cluster_id == cluster_id)
    return [DeviceGuard(**row) for row in session.rows(query)]


def count_unheld(session: ReadSession, cluster_ids: Sequence[ClusterId]) -> dict[ClusterId, int]:
    """Return how many devices that nothing holds are counted for each of these clusters."""
    found: dict[ClusterId, int] = {}
    for chunk in _chunks(cluster_ids):
        ours = (devices.c.cluster_id.in_(chunk), devices.c.allocated_milli == 0)
        query = select(devices.c.cluster_id, func.count().label("count")).where(*ours)
        rows = session.rows(query.group_by(devices.c.cluster_id))
        found.update({ClusterId(row["cluster_id"]): row["count"] for row in rows})
    return found


def insert_guards(
    session: WriteSession, new_nodes: Sequence[NodeGuard], new_devices: Sequence[DeviceGuard]
) -> None:
    """Write guards of nodes and devices seen for the first time."""
    session.execute(insert(nodes), [_values(each) for each in new_nodes])
    session.execute(insert(devices), [_values(each) for each in new_devices])


def store_guards(
    session: WriteSession, node_guards: Iterable[NodeGuard], device_guards: Iterable[DeviceGuard]
) -> None:
    """Write guards that changed, each against the version that was read.

    Raises:
        GuardBroken: If a guard is not as it was read.
    """
    _store(session, nodes, "node_id", (*_NODE_KEYS, *_NODE_TOTALS), node_guards)
    _store(session, devices, "gpu_id", _DEVICE_KEYS, device_guards)


def delete_devices(session: WriteSession, gpu_ids: Sequence[GpuId]) -> None:
    """Drop the guards of devices that are gone for good."""
    for chunk in _chunks(gpu_ids):
        session.execute(devices.delete().where(devices.c.gpu_id.in_(chunk)))


def insert_allocations(session: WriteSession, rows: Sequence[Allocation]) -> None:
    """Write what was placed."""
    session.execute(insert(allocations), [row._asdict() for row in rows])


def open_of_attempts(session: ReadSession, attempt_ids: Sequence[AttemptId]) -> list[Allocation]:
    """Return what these attempts hold now."""
    return _open_where(session, allocations.c.attempt_id, attempt_ids)


def open_of_replicas(session: ReadSession, replica_ids: Sequence[ReplicaId]) -> list[Allocation]:
    """Return what these replicas hold now."""
    return _open_where(session, allocations.c.replica_id, replica_ids)


def holders_on(session: ReadSession, gpu_ids: Sequence[GpuId]) -> list[Holder]:
    """Return who holds these devices now."""
    return _holders_where(session, allocations.c.gpu_id, gpu_ids)


def holders_of(session: ReadSession, attempt_ids: Sequence[AttemptId]) -> list[Holder]:
    """Return which devices these attempts hold now."""
    return _holders_where(session, allocations.c.attempt_id, attempt_ids)


def holders_of_replicas(session: ReadSession, replica_ids: Sequence[ReplicaId]) -> list[Holder]:
    """Return which devices these replicas hold now."""
    return _holders_where(session, allocations.c.replica_id, replica_ids)


def list_open(session: ReadSession, cluster_id: ClusterId | None) -> list[Allocation]:
    """Return everything held now (on a cluster), by job and rank."""
    query = select(allocations).where(allocations.c.to_at.is_(None))
    if cluster_id is not None:
        query = query.where(allocations.c.cluster_id == cluster_id)
    query = query.order_by(allocations.c.job_id, allocations.c.rank, allocations.c.gpu_id)
    return [_allocation(row) for row in session.rows(query)]


def list_of_jobs(session: ReadSession, job_ids: Sequence[JobId]) -> list[Allocation]:
    """Return everything these jobs held or hold, by start, rank and device."""
    found: list[Allocation] = []
    for chunk in _chunks(job_ids):
        query = select(allocations).where(allocations.c.job_id.in_(chunk))
        found.extend(_allocation(row) for row in session.rows(query))
    return sorted(found, key=lambda each: (each.from_at, each.rank, each.gpu_id or ""))


def end_allocations(session: WriteSession, ids: Sequence[UUID], at: int) -> None:
    """End these allocations, never before they began."""
    end = case((allocations.c.from_at > at, allocations.c.from_at), else_=at)
    ending = update(allocations).where(allocations.c.to_at.is_(None))
    for chunk in _chunks(ids):
        session.execute(
            ending.where(allocations.c.id.in_(chunk)).values(to_at=end, busy_since=None)
        )


def set_busy(session: WriteSession, ids: Sequence[UUID], since: int | None) -> None:
    """Say since when these allocations are busy; None for idle."""
    for chunk in _chunks(ids):
        session.execute(
            update(allocations)
            .where(allocations.c.id.in_(chunk), allocations.c.to_at.is_(None))
            .values(busy_since=since)
        )


def insert_reservation(session: WriteSession, row: Reservation) -> None:
    """Write a new reservation."""
    values = {name: getattr(row, name) for name in type(row).__slots__ if name != "gpu_ids"}
    session.execute(
        insert(reservations).values(
            **values,
        )
    )


def set_reservation_state(
    session: WriteSession,
    reservation_id: ReservationId,
    state: ReservationState,
    ended_at: int | None,
) -> None:
    """Store where a reservation stands now."""
    session.execute(
        update(reservations)
        .where(reservations.c.id == reservation_id)
        .values(state=str(state), ended_at=ended_at)
    )


def find_reservation(session: ReadSession, reservation_id: ReservationId) -> Reservation | None:
    """Return a reservation with its devices, or None."""
    found = _reservations(session, reservations.c.id == reservation_id)
    return found[0] if found else None


def lock_reservation(session: ReadSession, reservation_id: ReservationId) -> Reservation | None:
    """Return a reservation, locked until the transaction ends, or None; locked before devices."""
    query = select(reservations.c.id).where(reservations.c.id == reservation_id)
    if session.dialect == "postgresql":
        session.rows(query.with_for_update())
    return find_reservation(session, reservation_id)


def load_reservations(
    session: ReadSession, ids: Iterable[ReservationId]
) -> dict[ReservationId, Reservation]:
    """Return reservations by id."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    return {each.id: each for each in _reservations(session, reservations.c.id.in_(wanted))}


def list_reservations(
    session: ReadSession,
    *,
    cluster_id: ClusterId | None = None,
    tenant_id: TenantId | None = None,
    states: Sequence[ReservationState] = (),
    model: str | None = None,
) -> tuple[Reservation, ...]:
    """Return reservations by start, with the devices they hold."""
    where: list[ColumnElement[bool]] = []
    if cluster_id is not None:
        where.append(reservations.c.cluster_id == cluster_id)
    if tenant_id is not None:
        where.append(reservations.c.tenant_id == tenant_id)
    if states:
        where.append(reservations.c.state.in_([str(state) for state in states]))
    if model is not None:
        where.append(reservations.c.model == model)
    return _reservations(session, *where)


def lock_due_reservations(
    session: ReadSession, now: int, *, looks_at_all: bool = False
) -> tuple[Reservation, ...]:
    """Return reservations that should begin, end, or hold more devices than they do, locked.

    Args:
        session: A session.
        now: The instant.
        looks_at_all: Return every active one, because some may have to be given up.
    """
    query = select(reservations.c.id).where(
        ((reservations.c.state == "scheduled") & (reservations.c.start_at <= now))
        | (reservations.c.state == "active")
    )
    if session.dialect == "postgresql":
        query = query.order_by(reservations.c.id).with_for_update()
    ids = [row["id"] for row in session.rows(query)]
    found = load_reservations(session, ids).values()
    return tuple(
        each
        for each in found
        if each.state is ReservationState.SCHEDULED
        or each.end_at <= now
        or len(each.gpu_ids) < each.gpu_count
        or looks_at_all
    )


def list_models(session: ReadSession, cluster_id: ClusterId) -> list[str]:
    """Return the models a cluster has, by name."""
    query = select(devices.c.model).where(devices.c.cluster_id == cluster_id).distinct()
    return sorted(row["model"] for row in session.rows(query))


def insert_repartitions(session: WriteSession, rows: Sequence[Repartition]) -> None:
    """Write GPUs that are to be cut anew."""
    session.execute(insert(repartitions), [_repartition_values(each) for each in rows])


def list_repartitions(
    session: ReadSession, cluster_id: ClusterId | None = None
) -> tuple[Repartition, ...]:
    """Return the GPUs that are being cut anew, or could not be, by id."""
    query = select(repartitions).order_by(repartitions.c.gpu_id)
    if cluster_id is not None:
        query = query.where(repartitions.c.cluster_id == cluster_id)
    return tuple(_repartition(row) for row in session.rows(query))


def set_repartition_state(
    session: WriteSession, gpu_id: GpuId, state: RepartitionState, message: str
) -> None:
    """Store how far the cutting of a GPU is."""
    session.execute(
        update(repartitions)
        .where(repartitions.c.gpu_id == gpu_id)
        .values(state=str(state), message=message)
    )


def delete_repartition(session: WriteSession, gpu_id: GpuId) -> None:
    """Drop the order to cut a GPU."""
    session.execute(repartitions.delete().where(repartitions.c.gpu_id == gpu_id))


def _repartition_values(each: Repartition) -> dict[str, Any]:
    values = {name: getattr(each, name) for name in type(each).__slots__}
    return {**values, "state": str(each.state)}


def _repartition(row: RowMapping) -> Repartition:
    slots = {
        name: tuple((str(profile), int(start)) for profile, start in row[name])
        for name in ("destroy", "create")
    }
    return Repartition(**{**row, **slots, "state": RepartitionState(row["state"])})


def _reservations(session: ReadSession, *where: ColumnElement[bool]) -> tuple[Reservation, ...]:
    query = select(reservations).where(*where)
    rows = session.rows(query.order_by(reservations.c.start_at, reservations.c.id))
    held: dict[UUID, list[GpuId]] = {}
    for chunk in _chunks([row["id"] for row in rows]):
        taken = select(devices.c.reservation_id, devices.c.gpu_id)
        taken = taken.where(devices.c.reservation_id.in_(chunk)).order_by(devices.c.gpu_id)
        for row in session.rows(taken):
            held.setdefault(row["reservation_id"], []).append(row["gpu_id"])
    return tuple(
        Reservation(
            **{**row, "state": ReservationState(row["state"])},
            gpu_ids=tuple(held.get(row["id"], ())),
        )
        for row in rows
    )


def _locked(
    session: ReadSession, table: Table, key: Any, ids: Sequence[Any]
) -> Iterator[RowMapping]:
    for chunk in _chunks(ids):
        query = select(table).where(key.in_(chunk)).order_by(key)
        if session.dialect == "postgresql":
            query = query.with_for_update()
        yield from session.rows(query)


def _open_where(session: ReadSession, key: Any, ids: Sequence[Any]) -> list[Allocation]:
    found: list[Allocation] = []
    for chunk in _chunks(ids):
        query = select(allocations).where(key.in_(chunk), allocations.c.to_at.is_(None))
        found.extend(_allocation(row) for row in session.rows(query))
    return found


def _holders_where(session: ReadSession, key: Any, ids: Sequence[Any]) -> list[Holder]:
    """Return holders of devices; few columns, because each id read costs as much as a row."""
    columns = [allocations.c[name] for name in Holder._fields]
    found: list[Holder] = []
    for chunk in _chunks(ids):
        query = select(*columns).where(key.in_(chunk), allocations.c.to_at.is_(None))
        query = query.where(allocations.c.gpu_id.is_not(None))
        found.extend(Holder._make(row.values()) for row in session.rows(query))
    return found


def _allocation(row: RowMapping) -> Allocation:
    return Allocation._make(row.values())


def _store(
    session: WriteSession,
    table: Table,
    key: str,
    names: Sequence[str],
    guards: Iterable[NodeGuard | DeviceGuard],
) -> None:
    changed = [guard for guard in guards if guard.changed]
    statement = (
        update(table)
        .where(table.c[key] == bindparam("the_key"), table.c.version == bindparam("the_version"))
        .values(
            version=bindparam("the_version") + 1,
            **{name: bindparam(f"new_{name}") for name in names},
        )
    )
    touched = session.execute(
        statement,
        [
            {
                "the_key": getattr(guard, key),
                "the_version": guard.version,
                **{f"new_{name}": getattr(guard, name) for name in names},
            }
            for guard in changed
        ],
    )
    if touched != len(changed):
        raise GuardBroken(f"{touched} of {len(changed)} guards in {table.name} were as read")
    for guard in changed:
        guard.version += 1
        guard.changed = False


def _values(guard: NodeGuard | DeviceGuard) -> dict[str, Any]:
    return {name: getattr(guard, name) for name in type(guard).__slots__ if name != "changed"}


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]
