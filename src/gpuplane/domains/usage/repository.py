"""Every query on the ledger's tables; rows in, values out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    RowMapping,
    and_,
    case,
    delete,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from gpuplane.core.capacity import DeviceState
from gpuplane.core.ids import AllocationId, ClusterId, GpuId, JobId, TenantId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.usage.rules import (
    LABEL_PREFIX,
    DeviceFacts,
    DeviceInterval,
    HeldRow,
    Holding,
    JobFacts,
    LedgerPlan,
    NewInterval,
    OpenInterval,
    Scope,
    Share,
    StateTotals,
    UsageQuery,
)
from gpuplane.domains.usage.tables import devices, holdings, intervals, jobs, shares

CHUNK = 1000
"""Values in one IN list: well under SQLite's 32,766 parameters, and one plan for most batches."""


def load_open(session: ReadSession, gpu_ids: Sequence[GpuId]) -> dict[GpuId, OpenInterval]:
    """Return the open interval of each device that has one, with its shares."""
    held: dict[UUID, list[Share]] = {}
    rows: list[RowMapping] = []
    for chunk in _chunks(gpu_ids):
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


def load_ends(session: ReadSession, gpu_ids: Sequence[GpuId]) -> dict[GpuId, int]:
    """Return where the rows of these devices end, of those that have any."""
    ends: dict[GpuId, int] = {}
    for chunk in _chunks(gpu_ids):
        query = select(intervals.c.gpu_id, func.max(intervals.c.to_at).label("end"))
        query = query.where(intervals.c.gpu_id.in_(chunk)).group_by(intervals.c.gpu_id)
        ends.update((row["gpu_id"], row["end"]) for row in session.rows(query))
    return ends


def load_devices(session: ReadSession, gpu_ids: Sequence[GpuId]) -> dict[GpuId, DeviceFacts]:
    """Return what is remembered of these devices."""
    found: dict[GpuId, DeviceFacts] = {}
    for chunk in _chunks(gpu_ids):
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


def store_plan(
    session: WriteSession,
    plan: LedgerPlan,
    facts: Mapping[GpuId, DeviceFacts],
    ids: Sequence[UUID],
) -> None:
    """Write a plan; `ids` names its new intervals in order."""
    for chunk in _chunks(plan.dropped):
        session.execute(delete(shares).where(shares.c.interval_id.in_(chunk)))
        session.execute(delete(intervals).where(intervals.c.id.in_(chunk)))
    ending = update(intervals).where(intervals.c.to_at.is_(None))
    by_instant: dict[int, list[UUID]] = {}
    for interval_id, at in plan.ended:
        by_instant.setdefault(at, []).append(interval_id)
    for at, ended in by_instant.items():
        for chunk in _chunks(ended):
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
    for chunk in _chunks(allocation_ids):
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


def list_held(
    session: ReadSession, cluster_id: ClusterId, tenant_id: TenantId | None, scope: Scope | None
) -> list[HeldRow]:
    """Return what is held on a cluster now, by queue and tenant."""
    queue = func.coalesce(jobs.c.queue, "").label("queue")
    source = holdings.outerjoin(jobs, jobs.c.job_id == holdings.c.job_id)
    hosts = select(
        queue,
        holdings.c.tenant_id,
        func.count(holdings.c.job_id.distinct()).label("job_count"),
        func.sum(holdings.c.cpu_milli).label("cpu_milli"),
        func.sum(holdings.c.memory_mib).label("memory_mib"),
    ).select_from(source)
    hosts = hosts.where(holdings.c.to_at.is_(None), holdings.c.cluster_id == cluster_id)
    gpus = select(queue, shares.c.tenant_id, func.sum(shares.c.milli).label("gpu_milli"))
    gpus = gpus.select_from(
        shares.join(intervals).outerjoin(jobs, jobs.c.job_id == shares.c.job_id)
    ).where(shares.c.job_id.is_not(None))
    gpus = gpus.where(intervals.c.to_at.is_(None), intervals.c.cluster_id == cluster_id)
    if tenant_id is not None:
        hosts = hosts.where(holdings.c.tenant_id == tenant_id)
    if scope is not None:
        hosts = hosts.where(_in_scope(holdings, scope))
        gpus = gpus.where(_in_scope(shares, scope))
    milli = {
        (row["queue"], row["tenant_id"]): int(row["gpu_milli"])
        for row in session.rows(gpus.group_by(queue, shares.c.tenant_id))
    }
    found = hosts.group_by(queue, holdings.c.tenant_id).order_by(queue, holdings.c.tenant_id)
    return [
        HeldRow(
            row["queue"],
            row["tenant_id"],
            row["job_count"],
            milli.get((row["queue"], row["tenant_id"]), 0),
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
        )
        for row in session.rows(found)
    ]


def job_names(session: ReadSession, job_ids: Sequence[JobId]) -> dict[JobId, str]:
    """Return what these jobs are called."""
    names: dict[JobId, str] = {}
    for chunk in _chunks(job_ids):
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
    query = select(intervals).where(_touches(intervals, from_at, to_at))
    if cluster_id is not None:
        query = query.where(intervals.c.cluster_id == cluster_id)
    if gpu_ids:
        query = query.where(intervals.c.gpu_id.in_(gpu_ids))
    query = query.order_by(intervals.c.gpu_id, intervals.c.from_at).limit(limit)
    rows = session.rows(query)
    held: dict[UUID, list[Share]] = {}
    for chunk in _chunks([row["id"] for row in rows]):
        for row in session.rows(select(shares).where(shares.c.interval_id.in_(chunk))):
            held.setdefault(row["interval_id"], []).append(_share(row))
    return tuple(
        DeviceInterval(
            **{**row, "state": DeviceState(row["state"])},
            shares=tuple(sorted(held.get(row["id"], ()))),
        )
        for row in rows
    )


def sum_states(
    session: ReadSession, from_at: int, to_at: int, cluster_id: ClusterId | None
) -> tuple[StateTotals, ...]:
    """Return where the devices' time went, by cluster; the window ends no later than now."""
    spent = _overlap(intervals, from_at, to_at)
    keys = (intervals.c.cluster_id, devices.c.simulated)
    joined = intervals.join(devices, devices.c.gpu_id == intervals.c.gpu_id)
    touching = _touches(intervals, from_at, to_at)
    states = select(*keys, intervals.c.state, func.sum(spent).label("spent")).select_from(joined)
    end = func.max(func.coalesce(intervals.c.to_at, to_at))
    lives = select(
        *keys,
        intervals.c.gpu_id,
        func.min(intervals.c.from_at).label("first"),
        end.label("last"),
    ).select_from(joined)
    states = states.where(touching).group_by(*keys, intervals.c.state)
    lives = lives.where(touching).group_by(*keys, intervals.c.gpu_id)
    if cluster_id is not None:
        states = states.where(intervals.c.cluster_id == cluster_id)
        lives = lives.where(intervals.c.cluster_id == cluster_id)
    spent_by: dict[tuple[ClusterId, bool], dict[DeviceState, int]] = {}
    for row in session.rows(states):
        found = spent_by.setdefault((row["cluster_id"], row["simulated"]), {})
        found[DeviceState(row["state"])] = int(row["spent"])
    wall: dict[tuple[ClusterId, bool], list[int]] = {}
    for row in session.rows(lives):
        life = min(row["last"], to_at) - max(row["first"], from_at)
        wall.setdefault((row["cluster_id"], row["simulated"]), []).append(life)
    return tuple(
        StateTotals(
            key[0],
            key[1],
            len(lengths),
            {state: spent_by.get(key, {}).get(state, 0) for state in DeviceState},
            sum(lengths),
        )
        for key, lengths in sorted(wall.items())
    )


def sum_gpu_time(
    session: ReadSession, query: UsageQuery, from_at: int, to_at: int
) -> list[dict[str, Any]]:
    """Return device time by group: keys `k0…`, is_simulated, busy, idle, reserved, paid."""
    source = (
        shares.join(intervals, intervals.c.id == shares.c.interval_id)
        .join(devices, devices.c.gpu_id == intervals.c.gpu_id)
        .outerjoin(jobs, jobs.c.job_id == shares.c.job_id)
    )
    spent = _overlap(intervals, from_at, to_at)
    held, working = shares.c.job_id.is_not(None), shares.c.busy
    keys = [_gpu_key(name).label(f"k{i}") for i, name in enumerate(query.group_by)]
    selected: Any = select(
        *keys,
        devices.c.simulated.label("is_simulated"),
        *_sum("busy", shares.c.milli, spent, and_(held, working)),
        *_sum("idle", shares.c.milli, spent, and_(held, ~working)),
        *_sum("reserved", shares.c.milli, spent, ~held),
        *_sum("paid", shares.c.milli, spent, and_(~held, shares.c.billable)),
    ).select_from(source)
    selected = selected.where(_touches(intervals, from_at, to_at))
    selected = _filtered(selected, query, shares, intervals, devices.c.simulated)
    if query.gpu_id is not None:
        selected = selected.where(intervals.c.gpu_id == query.gpu_id)
    if query.model is not None:
        selected = selected.where(devices.c.model == query.model)
    return _grouped(session, selected, len(keys))


def sum_host_time(
    session: ReadSession, query: UsageQuery, from_at: int, to_at: int
) -> list[dict[str, Any]]:
    """Return CPU and memory time by group: keys `k0…`, is_simulated, cpu, memory."""
    source = holdings.outerjoin(jobs, jobs.c.job_id == holdings.c.job_id)
    spent = _overlap(holdings, from_at, to_at)
    keys = [_host_key(name).label(f"k{i}") for i, name in enumerate(query.group_by)]
    selected: Any = select(
        *keys,
        holdings.c.simulated.label("is_simulated"),
        *_sum("cpu", holdings.c.cpu_milli, spent, None),
        *_sum("memory", holdings.c.memory_mib, spent, None),
    ).select_from(source)
    selected = selected.where(_touches(holdings, from_at, to_at))
    selected = _filtered(selected, query, holdings, holdings, holdings.c.simulated)
    return _grouped(session, selected, len(keys))


def find_faults(session: ReadSession) -> list[str]:
    """Return a sentence for each place where intervals do not tile or shares exceed a device."""
    before = func.lag(intervals.c.to_at).over(
        partition_by=intervals.c.gpu_id, order_by=intervals.c.from_at
    )
    numbered = select(
        intervals.c.gpu_id,
        intervals.c.from_at,
        before.label("before"),
        func.row_number()
        .over(partition_by=intervals.c.gpu_id, order_by=intervals.c.from_at)
        .label("position"),
    ).subquery()
    torn = select(numbered).where(
        numbered.c.position > 1,
        or_(numbered.c.before.is_(None), numbered.c.before != numbered.c.from_at),
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


def _touches(table: FromClause, from_at: int, to_at: int) -> ColumnElement[bool]:
    return and_(table.c.from_at < to_at, or_(table.c.to_at.is_(None), table.c.to_at > from_at))


def _overlap(table: FromClause, from_at: int, to_at: int) -> ColumnElement[int]:
    """Return the milliseconds of a row within the window; an open row runs to the window's end."""
    open_or_later = or_(table.c.to_at.is_(None), table.c.to_at > to_at)
    end = case((open_or_later, literal(to_at)), else_=table.c.to_at)
    start = case((table.c.from_at < from_at, literal(from_at)), else_=table.c.from_at)
    return end - start


def _sum(
    name: str, amount: ColumnElement[int], spent: ColumnElement[int], where: Any
) -> tuple[ColumnElement[Any], ...]:
    """Return two sums, of whole seconds and of the rest: SQLite's integers end at 2^63."""
    whole, rest = amount * (spent // 1000), amount * (spent % 1000)
    if where is not None:
        whole, rest = case((where, whole), else_=0), case((where, rest), else_=0)
    return func.sum(whole).label(f"{name}_s"), func.sum(rest).label(f"{name}_ms")


def _gpu_key(name: str) -> ColumnElement[Any]:
    columns = {
        "job": shares.c.job_id,
        "project": shares.c.project_id,
        "tenant": shares.c.tenant_id,
        "cluster": intervals.c.cluster_id,
        "node": intervals.c.node_id,
        "device": intervals.c.gpu_id,
        "model": devices.c.model,
    }
    return columns[name] if name in columns else _job_key(name)


def _host_key(name: str) -> ColumnElement[Any]:
    columns = {
        "job": holdings.c.job_id,
        "project": holdings.c.project_id,
        "tenant": holdings.c.tenant_id,
        "cluster": holdings.c.cluster_id,
        "node": holdings.c.node_id,
        "device": null(),
        "model": null(),
    }
    return columns[name] if name in columns else _job_key(name)


def _job_key(name: str) -> ColumnElement[Any]:
    if name.startswith(LABEL_PREFIX):
        label: ColumnElement[Any] = jobs.c.labels[name.removeprefix(LABEL_PREFIX)].as_string()
        return label
    if name == "day":  # each day is asked by itself
        return null()
    return jobs.c["source_type" if name == "source" else name]


def _filtered(
    selected: Any,
    query: UsageQuery,
    owner: FromClause,
    place: FromClause,
    simulated: ColumnElement[bool],
) -> Any:
    """Add a question's filters; `owner` has job, tenant, project, `place` cluster and node."""
    wanted = (
        (owner.c.tenant_id, query.tenant_id),
        (owner.c.project_id, query.project_id),
        (place.c.cluster_id, query.cluster_id),
        (place.c.node_id, query.node_id),
        (jobs.c.cost_centre, query.cost_centre),
        (jobs.c.queue, query.queue),
        (simulated, query.simulated),
    )
    for column, value in wanted:
        if value is not None:
            selected = selected.where(column == value)
    if query.job_ids is not None:
        selected = selected.where(owner.c.job_id.in_(query.job_ids))
    if query.label is not None:
        name, value = query.label
        selected = selected.where(jobs.c.labels[name].as_string() == value)
    if query.scope is not None:
        selected = selected.where(_in_scope(owner, query.scope))
    return selected


def _in_scope(owner: FromClause, scope: Scope) -> ColumnElement[bool]:
    return or_(
        owner.c.tenant_id.in_(sorted(scope.tenant_ids)),
        owner.c.project_id.in_(sorted(scope.project_ids)),
    )


def _grouped(session: ReadSession, selected: Any, key_count: int) -> list[dict[str, Any]]:
    """Group by the labels of the keys: PostgreSQL does not see equal parameters as equal."""
    grouped = selected.group_by(*(text(f"k{i}") for i in range(key_count)), text("is_simulated"))
    return [dict(row) for row in session.rows(grouped)]


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
    if not rows:
        return
    insert_row = postgresql_insert if session.dialect == "postgresql" else sqlite_insert
    statement = insert_row(table)
    new = {name: statement.excluded[name] for name in rows[0] if name != key}
    session.execute(statement.on_conflict_do_update(index_elements=[key], set_=new), rows)


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]
