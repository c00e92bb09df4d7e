"""The rows of the ledger: read, written, proved to tile."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    RowMapping,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from gpuplane.core.capacity import DeviceState
from gpuplane.core.ids import AllocationId, ClusterId, GpuId, JobId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.usage.rules import (
    DeviceFacts,
    DeviceInterval,
    Holding,
    JobFacts,
    LedgerPlan,
    NewInterval,
    OpenInterval,
    Share,
)
from gpuplane.domains.usage.tables import devices, holdings, intervals, jobs, shares

_QUEUE_UPDATE = (
    update(jobs).where(jobs.c.job_id == bindparam("of_job")).values(queue=bindparam("now_in"))
)
CHUNK = 1000
"""Values in one IN list: well under SQLite's 32,766 parameters, and one plan for most batches."""


def load_open(session: ReadSession, gpu_ids: Sequence[GpuId]) -> dict[GpuId, OpenInterval]:
    """Return the open interval of each device that has one, with its shares."""
    held: dict[UUID, list[Share]] = {}
    rows: list[RowMapping] = []
    for chunk in chunks(gpu_ids):
        where = and_(intervals.c.to_at.is_(None), intervals.c.gpu_id.in_(chunk))
        rows.extend(
            session.rows(
                select(
                    intervals.c.id, intervals.c.gpu_id, intervals.c.from_at, intervals.c.state
                ).where(where)
            )
        )
        for row in session.rows(select(shares).join(intervals).where(where)):
            held.setdefault(row["interval_id"], []).append(_share(row))
    return {
        row["gpu_id"]: OpenInterval(
            row["id"],
            row["gpu_id"],
            row["from_at"],
            DeviceState(row["state"]),
            tuple(sorted(held.get(row["id"], ()))),
        )
        for row in rows
    }


def load_ends(session: ReadSession, gpu_ids: Sequence[GpuId]) -> dict[GpuId, tuple[ClusterId, int]]:
    """Return on which cluster and where the rows of these devices end, of those that have any."""
    ends: dict[GpuId, tuple[ClusterId, int]] = {}
    last = func.max(intervals.c.to_at).label("end")
    for chunk in chunks(gpu_ids):
        query = select(intervals.c.gpu_id, intervals.c.cluster_id, last)
        query = query.where(intervals.c.gpu_id.in_(chunk))
        query = query.group_by(intervals.c.gpu_id, intervals.c.cluster_id).order_by(last)
        ends.update((r["gpu_id"], (r["cluster_id"], r["end"])) for r in session.rows(query))
    return ends


def load_devices(session: ReadSession, gpu_ids: Sequence[GpuId]) -> dict[GpuId, DeviceFacts]:
    """Return what is remembered of these devices."""
    found: dict[GpuId, DeviceFacts] = {}
    for chunk in chunks(gpu_ids):
        for row in session.rows(select(devices).where(devices.c.gpu_id.in_(chunk))):
            found[row["gpu_id"]] = DeviceFacts(**row)
    return found


def list_devices(session: ReadSession, cluster_id: ClusterId | None) -> tuple[DeviceFacts, ...]:
    """Return every device ever seen on a cluster (or anywhere), by node and index."""
    query = select(devices).order_by(devices.c.node_name, devices.c.gpu_index, devices.c.gpu_id)
    if cluster_id is not None:
        query = query.where(devices.c.cluster_id == cluster_id)
    return tuple(DeviceFacts(**row) for row in session.rows(query))


def store_devices(session: WriteSession, rows: Sequence[DeviceFacts]) -> None:
    """Remember these devices, or what has changed of them."""
    _upsert(session, devices, "gpu_id", [_values(row) for row in rows])


def store_jobs(session: WriteSession, rows: Sequence[JobFacts]) -> None:
    """Remember what questions about these jobs group and filter by."""
    _upsert(session, jobs, "job_id", [_values(row) | {"labels": dict(row.labels)} for row in rows])


def update_queues(session: WriteSession, queues: Mapping[JobId, str]) -> None:
    """Store the queue of each of these jobs, all by one statement."""
    if queues:
        rows = [{"of_job": job_id, "now_in": queue} for job_id, queue in queues.items()]
        session.execute(_QUEUE_UPDATE, rows)


def store_plan(
    session: WriteSession,
    plan: LedgerPlan,
    facts: Mapping[GpuId, DeviceFacts],
    ids: Sequence[UUID],
) -> None:
    """Write a plan; `ids` names its new intervals in order."""
    for chunk in chunks(plan.dropped):
        session.execute(delete(shares).where(shares.c.interval_id.in_(chunk)))
        session.execute(delete(intervals).where(intervals.c.id.in_(chunk)))
    ending = update(intervals).where(intervals.c.to_at.is_(None))
    by_instant: dict[int, list[UUID]] = {}
    for interval_id, at in plan.ended:
        by_instant.setdefault(at, []).append(interval_id)
    for at, ended in by_instant.items():
        for chunk in chunks(ended):
            session.execute(ending.where(intervals.c.id.in_(chunk)).values(to_at=at))
    named = list(zip(ids, plan.begun, strict=True))
    session.execute(
        insert(intervals), [_interval_values(each, i, facts[each.gpu_id]) for i, each in named]
    )
    session.execute(
        insert(shares),
        [
            {**share._asdict(), "interval_id": interval_id}
            for interval_id, each in named
            for share in each.shares
        ],
    )


def insert_holdings(session: WriteSession, rows: Sequence[Holding], at: int) -> None:
    """Write CPU and memory held from an instant on."""
    session.execute(insert(holdings), [_values(row) | {"from_at": at} for row in rows])


def end_holdings(session: WriteSession, allocation_ids: Sequence[AllocationId], at: int) -> None:
    """End these holdings if they are open; never before they began."""
    ending = update(holdings).where(holdings.c.to_at.is_(None))
    end = case((holdings.c.from_at > at, holdings.c.from_at), else_=at)
    for chunk in chunks(allocation_ids):
        session.execute(ending.where(holdings.c.allocation_id.in_(chunk)).values(to_at=end))


def list_open_shares(session: ReadSession) -> list[tuple[UUID, GpuId, int]]:
    """Return (holder, device, milli) of every share in an open interval."""
    query = select(shares.c.holder_id, intervals.c.gpu_id, shares.c.milli).join(intervals)
    rows = session.rows(query.where(intervals.c.to_at.is_(None)))
    return [(row["holder_id"], row["gpu_id"], row["milli"]) for row in rows]


def list_open_states(session: ReadSession) -> dict[GpuId, DeviceState]:
    """Return the state of every device that has an open interval."""
    query = select(intervals.c.gpu_id, intervals.c.state).where(intervals.c.to_at.is_(None))
    return {row["gpu_id"]: DeviceState(row["state"]) for row in session.rows(query)}


def list_open_holdings(session: ReadSession) -> set[UUID]:
    """Return the allocation of every open holding."""
    query = select(holdings.c.allocation_id).where(holdings.c.to_at.is_(None))
    return {row["allocation_id"] for row in session.rows(query)}


def job_names(session: ReadSession, job_ids: Sequence[JobId]) -> dict[JobId, str]:
    """Return what these jobs are called."""
    names: dict[JobId, str] = {}
    for chunk in chunks(job_ids):
        query = select(jobs.c.job_id, jobs.c.name).where(jobs.c.job_id.in_(chunk))
        names.update((row["job_id"], row["name"]) for row in session.rows(query))
    return names


def list_intervals(
    session: ReadSession,
    from_at: int,
    to_at: int,
    cluster_id: ClusterId | None,
    gpu_ids: Sequence[GpuId],
    limit: int,
) -> tuple[DeviceInterval, ...]:
    """Return intervals that touch a window, by device and start, with who held them."""
    query = select(intervals).where(touches(intervals, from_at, to_at))
    if cluster_id is not None:
        query = query.where(intervals.c.cluster_id == cluster_id)
    if gpu_ids:
        query = query.where(intervals.c.gpu_id.in_(gpu_ids))
    query = query.order_by(intervals.c.gpu_id, intervals.c.from_at).limit(limit)
    rows = session.rows(query)
    held: dict[UUID, list[Share]] = {}
    for chunk in chunks([row["id"] for row in rows]):
        for row in session.rows(select(shares).where(shares.c.interval_id.in_(chunk))):
            held.setdefault(row["interval_id"], []).append(_share(row))
    return tuple(
        DeviceInterval(
            **{**row, "state": DeviceState(row["state"])},
            shares=tuple(sorted(held.get(row["id"], ()))),
        )
        for row in rows
    )


def find_faults(session: ReadSession) -> list[str]:
    """Return a sentence for each place where intervals do not tile or shares exceed a device.

    Between a cluster that was deleted and the next one a device is nobody's: there is a gap.
    """
    before, home = (
        func.lag(column).over(partition_by=intervals.c.gpu_id, order_by=intervals.c.from_at)
        for column in (intervals.c.to_at, intervals.c.cluster_id)
    )
    numbered = select(
        intervals.c.gpu_id,
        intervals.c.from_at,
        before.label("before"),
        case((home == intervals.c.cluster_id, 0), else_=1).label("arrives"),
        func.row_number()
        .over(partition_by=intervals.c.gpu_id, order_by=intervals.c.from_at)
        .label("position"),
    ).subquery()
    torn = select(numbered).where(
        numbered.c.position > 1,
        or_(
            numbered.c.before.is_(None),
            numbered.c.before > numbered.c.from_at,
            and_(numbered.c.before < numbered.c.from_at, numbered.c.arrives == 0),
        ),
    )
    faults = [
        f"{row['gpu_id']}: an interval starts at {row['from_at']}, the one before it ends at "
        f"{row['before'] if row['before'] is not None else 'no instant'}."
        for row in session.rows(torn)
    ]
    milli = func.sum(shares.c.milli)
    heavy = select(shares.c.interval_id, milli.label("milli")).group_by(shares.c.interval_id)
    faults.extend(
        f"Interval {row['interval_id']}: its shares add up to {row['milli']} of 1000."
        for row in session.rows(heavy.having(milli > 1000))
    )
    held = select(shares.c.interval_id)
    lone = select(intervals.c.id, intervals.c.gpu_id, intervals.c.state).where(
        intervals.c.state.in_(["busy", "allocated_idle", "reserved"]), intervals.c.id.not_in(held)
    )
    faults.extend(
        f"{row['gpu_id']}: interval {row['id']} is {row['state']} and nobody holds it."
        for row in session.rows(lone)
    )
    return faults


def touches(table: FromClause, from_at: int, to_at: int) -> ColumnElement[bool]:
    """Return whether a row touches the window; an open row has no end."""
    return and_(table.c.from_at < to_at, or_(table.c.to_at.is_(None), table.c.to_at > from_at))


def _share(row: Mapping[Any, Any]) -> Share:
    return Share(
        row["holder_id"],
        row["tenant_id"],
        row["project_id"],
        row["milli"],
        None if row["job_id"] is None else JobId(row["job_id"]),
        row["busy"],
        row["billable"],
    )


def _interval_values(each: NewInterval, interval_id: UUID, facts: DeviceFacts) -> dict[str, Any]:
    return {
        "id": interval_id,
        "gpu_id": each.gpu_id,
        "node_id": facts.node_id,
        "cluster_id": facts.cluster_id,
        "from_at": each.from_at,
        "to_at": each.to_at,
        "state": str(each.state),
    }


def _values(row: Any) -> dict[str, Any]:
    """Return the fields of a frozen row value by name."""
    return {name: getattr(row, name) for name in type(row).__slots__}


def _upsert(session: WriteSession, table: Any, key: str, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        session.execute(_upsert_into(session.dialect, table, key, tuple(rows[0])), rows)


@lru_cache(maxsize=64)
def _upsert_into(dialect: str, table: Any, key: str, names: tuple[str, ...]) -> Any:
    """Return the statement, made once: building it costs more than running it."""
    insert_row = postgresql_insert if dialect == "postgresql" else sqlite_insert
    statement = insert_row(table)
    new = {name: statement.excluded[name] for name in names if name != key}
    return statement.on_conflict_do_update(index_elements=[key], set_=new)


def chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield values in parts that one IN list may have."""
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]
