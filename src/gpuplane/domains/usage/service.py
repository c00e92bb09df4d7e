"""Use cases of the ledger: follow the devices, remember jobs, answer what was used.

The callers' transaction is the ledger's: what closes and what opens commit together.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpuplane.core.capacity import DeviceState
from gpuplane.core.ids import AllocationId, ClusterId, GpuId, JobId, ProjectId, TenantId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.usage.errors import BadUsageQuery
from gpuplane.domains.usage.repository import ledger, sums
from gpuplane.domains.usage.rules import (
    DIMENSIONS,
    LABEL_PREFIX,
    MAX_DAYS,
    DeviceChange,
    DeviceFacts,
    DeviceInterval,
    HeldRow,
    Holding,
    JobFacts,
    LedgerPlan,
    Scope,
    Share,
    StateTotals,
    UsageQuery,
    UsageRow,
    end_interval,
    is_label_key,
    plan_changes,
    split_days,
)
from gpuplane.kit.ids import new_id

__all__ = [
    "DeviceChange",
    "DeviceFacts",
    "DeviceInterval",
    "DeviceState",
    "HeldRow",
    "Holding",
    "JobFacts",
    "Scope",
    "Share",
    "StateTotals",
    "UsageQuery",
    "UsageRow",
]

MAX_INTERVALS = 50_000
"""Most intervals one timeline reads."""


def remember_devices(session: WriteSession, devices: Sequence[DeviceFacts]) -> None:
    """Keep what devices are, so that their intervals can be told by node and model for ever."""
    ledger.store_devices(session, devices)


def remember_jobs(session: WriteSession, jobs: Sequence[JobFacts]) -> None:
    """Keep what questions to the ledger group jobs by; called at submit and when it changes."""
    ledger.store_jobs(session, jobs)


def note_queues(session: WriteSession, queues: Mapping[JobId, str]) -> None:
    """Keep through which queue jobs were admitted: at submit it is not known yet."""
    ledger.update_queues(session, queues)


def apply_changes(
    session: WriteSession,
    changes: Sequence[DeviceChange],
    at: int,
    moved: Collection[GpuId] = (),
) -> int:
    """End and begin the intervals of devices that changed; return how many intervals began.

    A device that already is what the change says is left alone, unless it moved to another node:
    then what it is there is another interval, of the node that is remembered of it. Each device is
    named once, is remembered, and is locked by the caller where several writers exist.
    """
    gpu_ids = [change.gpu_id for change in changes]
    current = ledger.load_open(session, gpu_ids)
    missing = [gpu_id for gpu_id in gpu_ids if gpu_id not in current]
    ends = ledger.load_ends(session, missing)
    known = ledger.load_devices(session, list(ends))
    arrived = {key for key, (cluster_id, _) in ends.items() if known[key].cluster_id != cluster_id}
    ended = {key: end for key, (_, end) in ends.items()}
    plan = plan_changes(current, ended, changes, at, moved, arrived)
    if not plan.begun:
        return 0
    facts = ledger.load_devices(session, [each.gpu_id for each in plan.begun])
    ledger.store_plan(session, plan, facts, [new_id() for _ in plan.begun])
    return len(plan.begun)


def end_devices(session: WriteSession, gpu_ids: Sequence[GpuId], at: int) -> None:
    """End the rows of devices that are gone for good.

    If one comes back, its absence was down; on another cluster it is new, and its absence nobody's.
    """
    plan = LedgerPlan()
    for current in ledger.load_open(session, gpu_ids).values():
        end_interval(plan, current, at)
    ledger.store_plan(session, plan, {}, [])


def begin_holdings(session: WriteSession, holdings: Sequence[Holding], at: int) -> None:
    """Meter CPU and memory from now on."""
    ledger.insert_holdings(session, holdings, at)


def end_holdings(session: WriteSession, allocation_ids: Sequence[AllocationId], at: int) -> None:
    """Stop metering the CPU and memory of these allocations; again changes nothing."""
    ledger.end_holdings(session, allocation_ids, at)


def list_devices(
    session: ReadSession, cluster_id: ClusterId | None = None
) -> tuple[DeviceFacts, ...]:
    """Return every device the ledger knows, by node and index."""
    return ledger.list_devices(session, cluster_id)


def list_intervals(
    session: ReadSession,
    from_at: int,
    to_at: int,
    cluster_id: ClusterId | None = None,
    gpu_ids: Sequence[GpuId] = (),
    limit: int = MAX_INTERVALS,
) -> tuple[DeviceInterval, ...]:
    """Return the intervals that touch a window, by device and start, for a timeline."""
    return ledger.list_intervals(session, from_at, to_at, cluster_id, gpu_ids, limit)


def list_held(
    session: ReadSession,
    cluster_id: ClusterId,
    tenant_id: TenantId | None = None,
    scope: Scope | None = None,
) -> list[HeldRow]:
    """Return what is held on a cluster now, by queue and tenant."""
    return sums.list_held(session, cluster_id, tenant_id, scope)


def job_names(session: ReadSession, job_ids: Sequence[JobId]) -> dict[JobId, str]:
    """Return what jobs are called, for a timeline."""
    return ledger.job_names(session, job_ids)


def find_use(
    session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None
) -> tuple[str, str] | None:
    """Return that a bill tells of a tenant or project, which must keep its name; and what to do.

    Simulated use is on no bill.
    """
    if not sums.has_real_use(session, tenant_id, project_id):
        return None
    where = "tenant" if project_id is None else "project"
    said = f"The {where} used what is billed, and bills tell its name only while it is there."
    return said, f"Keep the {where}; without members and LocalQueues nothing more starts in it."


def sum_states(
    session: ReadSession, from_at: int, to_at: int, now: int, cluster_id: ClusterId | None = None
) -> tuple[StateTotals, ...]:
    """Return where device time went, by cluster; open intervals count to now."""
    end = min(to_at, now)
    if end <= from_at:
        return ()
    return sums.sum_states(session, from_at, end, cluster_id)


def sum_usage(session: ReadSession, query: UsageQuery, now: int) -> tuple[UsageRow, ...]:
    """Return what was used, one row for each group, open intervals counted to now.

    Simulated use is never in a row with real use.

    Raises:
        BadUsageQuery: If a dimension is unknown or the window touches too many days.
    """
    _check_query(query, now)
    end = min(query.to_at, now)
    if end <= query.from_at:
        return ()
    windows = [("", query.from_at, end)]
    if "day" in query.group_by:
        windows = split_days(query.from_at, end)
    groups: dict[tuple[object, ...], dict[str, int]] = {}
    for day, low, high in windows:
        rows = sums.sum_gpu_time(session, query, low, high)
        if query.gpu_id is None and query.model is None:
            rows.extend(sums.sum_host_time(session, query, low, high))
        for row in rows:
            _add(groups, query, day, row)
    return tuple(
        UsageRow(
            {
                name: None if value is None else str(value)
                for name, value in zip(query.group_by, key[1:], strict=True)
            },
            bool(key[0]),
            gpu_busy=found.get("busy", 0),
            gpu_idle=found.get("idle", 0),
            gpu_reserved=found.get("reserved", 0),
            gpu_reserved_billable=found.get("paid", 0),
            cpu=found.get("cpu", 0),
            memory=found.get("memory", 0),
        )
        for key, found in sorted(groups.items(), key=lambda item: tuple(map(str, item[0])))
        if any(found.values())
    )


def check(session: ReadSession, now: int) -> list[str]:
    """Return a sentence for each broken promise of the ledger: tiling, sums, totals."""
    faults = ledger.find_faults(session)
    for totals in sum_states(session, 0, now, now):
        if not totals.adds_up:
            faults.append(
                f"Cluster {totals.cluster_id}: states add up to {sum(totals.states.values())} ms, "
                f"wall clock is {totals.wall_clock} ms."
            )
    return faults


def list_open_shares(session: ReadSession) -> dict[tuple[object, GpuId], int]:
    """Return the milli-share of each (holder, device) in an open interval, for checks."""
    return {(holder, gpu): milli for holder, gpu, milli in ledger.list_open_shares(session)}


def list_open_states(session: ReadSession) -> dict[GpuId, DeviceState]:
    """Return what every device is now, for checks."""
    return ledger.list_open_states(session)


def list_open_holdings(session: ReadSession) -> set[AllocationId]:
    """Return the allocations whose CPU and memory are being metered, for checks."""
    return {AllocationId(each) for each in ledger.list_open_holdings(session)}


def _check_query(query: UsageQuery, now: int) -> None:
    labels = [] if query.label is None else [query.label[0]]
    for name in query.group_by:
        if name.startswith(LABEL_PREFIX):
            labels.append(name.removeprefix(LABEL_PREFIX))
        elif name not in DIMENSIONS:
            raise BadUsageQuery(
                f"Usage cannot be grouped by {name!r}.",
                field="group_by",
                fix=f"Use {', '.join(DIMENSIONS)} or label:KEY.",
            )
    for key in labels:
        if not is_label_key(key):
            raise BadUsageQuery(
                f"{key!r} is no label key.",
                field="label",
                fix="Use letters, digits, '-', '_', '.' and one '/'.",
            )
    days = len(split_days(query.from_at, min(query.to_at, now))) if "day" in query.group_by else 0
    if days > MAX_DAYS:
        raise BadUsageQuery(
            f"The window has {days} days; at most {MAX_DAYS} can be told by day.",
            field="from",
            fix="Ask for a shorter window, or do not group by day.",
        )


def _add(
    groups: dict[tuple[object, ...], dict[str, int]],
    query: UsageQuery,
    day: str,
    row: dict[str, Any],
) -> None:
    """Add one row of sums (`NAME_s` of whole seconds, `NAME_ms` of the rest) to its group."""
    values = [day if name == "day" else row[f"k{i}"] for i, name in enumerate(query.group_by)]
    found = groups.setdefault((row["is_simulated"], *values), {})
    for name in ("busy", "idle", "reserved", "paid", "cpu", "memory"):
        if f"{name}_s" in row:
            amount = int(row[f"{name}_s"]) * 1000 + int(row[f"{name}_ms"])
            found[name] = found.get(name, 0) + amount
