"""Sums over the ledger: by group, by state, and what is held now."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    RowMapping,
    and_,
    case,
    func,
    literal,
    null,
    or_,
    select,
    text,
)

from gpuplane.core.capacity import DeviceState
from gpuplane.core.ids import ClusterId, GpuId, ProjectId, TenantId
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.usage.repository.ledger import chunks, touches
from gpuplane.domains.usage.rules import (
    LABEL_PREFIX,
    HeldRow,
    Scope,
    StateTotals,
    UsageQuery,
)
from gpuplane.domains.usage.tables import devices, holdings, intervals, jobs, shares


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


def has_real_use(session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None) -> bool:
    """Return whether a tenant, or one project of it, ever held real devices or hosts.

    What a job held is a holding; what was reserved and nobody used is a share of no job.
    """
    held = select(literal(1)).where(
        holdings.c.tenant_id == tenant_id, holdings.c.simulated.is_(False)
    )
    source = shares.join(intervals, intervals.c.id == shares.c.interval_id).join(
        devices, devices.c.gpu_id == intervals.c.gpu_id
    )
    kept = select(literal(1)).select_from(source)
    kept = kept.where(
        shares.c.tenant_id == tenant_id, shares.c.job_id.is_(None), devices.c.simulated.is_(False)
    )
    if project_id is not None:
        held = held.where(holdings.c.project_id == project_id)
        kept = kept.where(shares.c.project_id == project_id)
    return any(session.scalar(query.limit(1)) is not None for query in (held, kept))


def sum_states(
    session: ReadSession, from_at: int, to_at: int, cluster_id: ClusterId | None
) -> tuple[StateTotals, ...]:
    """Return where the devices' time went, by cluster; the window ends no later than now."""
    spent = _overlap(intervals, from_at, to_at)
    keys = (intervals.c.cluster_id, devices.c.simulated)
    joined = intervals.join(devices, devices.c.gpu_id == intervals.c.gpu_id)
    touching = touches(intervals, from_at, to_at)
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
        ours = select(intervals.c.gpu_id).where(touching, intervals.c.cluster_id == cluster_id)
        lives = lives.where(intervals.c.gpu_id.in_(ours))
    spent_by: dict[tuple[ClusterId, bool], dict[DeviceState, int]] = {}
    for row in session.rows(states):
        found = spent_by.setdefault((row["cluster_id"], row["simulated"]), {})
        found[DeviceState(row["state"])] = int(row["spent"])
    rows = session.rows(lives)
    shuttled = _find_shuttled(rows)
    if shuttled:
        rows = [row for row in rows if row["gpu_id"] not in shuttled]
        rows.extend(_list_stays(session, sorted(shuttled), from_at, to_at))
    wall: dict[tuple[ClusterId, bool], dict[GpuId, int]] = {}
    for row in rows:
        if cluster_id is None or row["cluster_id"] == cluster_id:
            lengths = wall.setdefault((row["cluster_id"], row["simulated"]), {})
            life = min(row["last"], to_at) - max(row["first"], from_at)
            lengths[row["gpu_id"]] = lengths.get(row["gpu_id"], 0) + life
    return tuple(
        StateTotals(
            key[0],
            key[1],
            len(lengths),
            {state: spent_by.get(key, {}).get(state, 0) for state in DeviceState},
            sum(lengths.values()),
        )
        for key, lengths in sorted(wall.items())
    )


def _find_shuttled(lives: Sequence[RowMapping]) -> set[GpuId]:
    """Return the devices that came back to a cluster: their lives on several overlap."""
    by_device: dict[GpuId, list[tuple[int, int]]] = {}
    for row in lives:
        by_device.setdefault(row["gpu_id"], []).append((row["first"], row["last"]))
    return {
        gpu_id
        for gpu_id, spans in by_device.items()
        if any(before[1] > after[0] for before, after in pairwise(sorted(spans)))
    }


def _list_stays(
    session: ReadSession, gpu_ids: Sequence[GpuId], from_at: int, to_at: int
) -> list[RowMapping]:
    """Return each unbroken stay of these devices on a cluster: its first and last instant."""
    stays: list[RowMapping] = []
    for chunk in chunks(gpu_ids):
        before = func.lag(intervals.c.cluster_id).over(
            partition_by=intervals.c.gpu_id, order_by=intervals.c.from_at
        )
        ordered = select(
            intervals.c.gpu_id,
            intervals.c.cluster_id,
            intervals.c.from_at,
            func.coalesce(intervals.c.to_at, to_at).label("to_at"),
            case((before == intervals.c.cluster_id, 0), else_=1).label("arrives"),
        )
        ordered = ordered.where(touches(intervals, from_at, to_at), intervals.c.gpu_id.in_(chunk))
        each = ordered.subquery()
        stay = func.sum(each.c.arrives).over(partition_by=each.c.gpu_id, order_by=each.c.from_at)
        numbered = select(each, stay.label("stay")).subquery()
        keys = (numbered.c.cluster_id, devices.c.simulated, numbered.c.gpu_id)
        found = select(
            *keys,
            func.min(numbered.c.from_at).label("first"),
            func.max(numbered.c.to_at).label("last"),
        ).select_from(numbered.join(devices, devices.c.gpu_id == numbered.c.gpu_id))
        stays.extend(session.rows(found.group_by(*keys, numbered.c.stay)))
    return stays


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
    selected = selected.where(touches(intervals, from_at, to_at))
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
    selected = selected.where(touches(holdings, from_at, to_at))
    selected = _filtered(selected, query, holdings, holdings, holdings.c.simulated)
    return _grouped(session, selected, len(keys))


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
