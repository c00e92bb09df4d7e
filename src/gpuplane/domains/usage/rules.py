"""The ledger as values, and the pure plan of closing and opening intervals.

The plan keeps the promise: intervals of one device tile its time without gap or overlap, whatever
the clock does, but between two clusters: from the deletion of one until another tells of the device
it is nobody's. An instant before the open interval's start counts as that start.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from gpuplane.core.capacity import DeviceState
from gpuplane.core.ids import AllocationId, ClusterId, GpuId, JobId, NodeId, ProjectId, TenantId

DAY_MS = 86_400_000
MAX_DAYS = 400
"""Most day buckets of one question: a year and the month around it."""
LABEL_PREFIX = "label:"
_LABEL_KEY = re.compile(r"[A-Za-z0-9._/-]{1,317}")


class Share(NamedTuple):
    """The part of a device that one holder has during an interval.

    Args:
        holder_id: The allocation, or the reservation whose unused part this is.
        job_id: None for the unused part of a reservation.
        billable: Whether it is charged; always for allocations.
    """

    holder_id: UUID
    tenant_id: TenantId
    project_id: ProjectId
    milli: int
    job_id: JobId | None
    busy: bool = False
    billable: bool = True


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """What a device is from an instant on."""

    gpu_id: GpuId
    state: DeviceState
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device is for the ledger; remembered after it has left its node."""

    gpu_id: GpuId
    cluster_id: ClusterId
    node_id: NodeId
    node_name: str
    gpu_index: int
    model: str
    memory_mib: int
    simulated: bool


@dataclass(frozen=True, slots=True)
class OpenInterval:
    """The interval a device is in now."""

    id: UUID
    gpu_id: GpuId
    from_at: int
    state: DeviceState
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class NewInterval:
    """An interval to write; `to_at` None leaves it open."""

    gpu_id: GpuId
    from_at: int
    to_at: int | None
    state: DeviceState
    shares: tuple[Share, ...]


@dataclass(slots=True)
class LedgerPlan:
    """What to write: intervals to end, zero-length ones to drop, intervals to begin."""

    ended: list[tuple[UUID, int]] = field(default_factory=list)
    dropped: list[UUID] = field(default_factory=list)
    begun: list[NewInterval] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Holding:
    """CPU and memory that a replica holds on a node."""

    allocation_id: AllocationId
    job_id: JobId
    tenant_id: TenantId
    project_id: ProjectId
    cluster_id: ClusterId
    node_id: NodeId
    simulated: bool
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What questions to the ledger group and filter by; told once, at submit."""

    job_id: JobId
    name: str
    tenant_id: TenantId
    project_id: ProjectId
    labels: Mapping[str, str]
    cost_centre: str
    queue: str
    priority: str
    job_type: str
    source_type: str
    simulated: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose use may be told: that of whole tenants and of single projects."""

    tenant_ids: frozenset[TenantId] = frozenset()
    project_ids: frozenset[ProjectId] = frozenset()

    def covers(self, tenant_id: TenantId, project_id: ProjectId) -> bool:
        """Return whether something of this tenant and project may be told."""
        return tenant_id in self.tenant_ids or project_id in self.project_ids


@dataclass(frozen=True, slots=True)
class HeldRow:
    """What one queue's jobs of one tenant hold on a cluster now."""

    queue: str
    tenant_id: TenantId
    job_count: int
    gpu_milli: int
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A question: the window [from_at, to_at) in ms, what to group by, what to look at.

    Args:
        group_by: Names of `DIMENSIONS`, or `label:KEY`.
        scope: Whose use may be told; None for everybody's.
        simulated: True or False for only these; None for both, always told apart in the rows.
    """

    from_at: int
    to_at: int
    group_by: tuple[str, ...] = ()
    job_ids: tuple[JobId, ...] | None = None
    tenant_id: TenantId | None = None
    project_id: ProjectId | None = None
    cluster_id: ClusterId | None = None
    node_id: NodeId | None = None
    gpu_id: GpuId | None = None
    model: str | None = None
    cost_centre: str | None = None
    queue: str | None = None
    label: tuple[str, str] | None = None
    scope: Scope | None = None
    simulated: bool | None = None


DIMENSIONS = [
    "job",
    "project",
    "tenant",
    "cluster",
    "node",
    "device",
    "model",
    "cost_centre",
    "queue",
    "priority",
    "job_type",
    "source",
    "day",
]


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One group's use. Amounts are milli-GPU, milli-CPU or MiB, times milliseconds.

    Args:
        keys: One value for each name in `group_by`; None where there is none (a job of a
            reservation's unused part, a device of CPU time).
        gpu_busy: Held by jobs and working. `gpu_idle`: held and not working.
        gpu_reserved: Reserved and unused. `gpu_reserved_billable`: of that, what is charged.
    """

    keys: Mapping[str, str | None]
    simulated: bool
    gpu_busy: int = 0
    gpu_idle: int = 0
    gpu_reserved: int = 0
    gpu_reserved_billable: int = 0
    cpu: int = 0
    memory: int = 0

    @property
    def gpu_billable(self) -> int:
        """Return what is charged: all that was held, busy or not, and charged reservations."""
        return self.gpu_busy + self.gpu_idle + self.gpu_reserved_billable


@dataclass(frozen=True, slots=True)
class StateTotals:
    """Where the time of a cluster's devices went, in device-milliseconds.

    Args:
        states: By state; all five are there.
        wall_clock: What the states must add up to: each device's life there within the window,
            without the times that it was another cluster's.
    """

    cluster_id: ClusterId
    simulated: bool
    device_count: int
    states: Mapping[DeviceState, int]
    wall_clock: int

    @property
    def adds_up(self) -> bool:
        """Return whether the states are exactly the wall clock."""
        return sum(self.states.values()) == self.wall_clock


@dataclass(frozen=True, slots=True)
class DeviceInterval:
    """One interval of a device with who held it, for the timeline."""

    id: UUID
    gpu_id: GpuId
    node_id: NodeId
    cluster_id: ClusterId
    from_at: int
    to_at: int | None
    state: DeviceState
    shares: tuple[Share, ...]


def plan_changes(
    open_intervals: Mapping[GpuId, OpenInterval],
    ended_at: Mapping[GpuId, int],
    changes: Sequence[DeviceChange],
    at: int,
    moved: Collection[GpuId] = (),
    arrived: Collection[GpuId] = (),
) -> LedgerPlan:
    """Return how the ledger follows these changes, each device named once.

    Args:
        open_intervals: The open interval of each device that has one.
        ended_at: Where the row of a device without an open interval ends, if it ever had one;
            its time away is told as down.
        changes: What the devices are from now on.
        at: The instant of the change in ms; may lie before what is written.
        moved: Devices that are on another node from then on: their interval ends there, and one
            begins here, even where nothing else changed.
        arrived: Devices whose row ended on another cluster, which was deleted: nobody's are the
            times between, and they count here from now on.
    """
    plan = LedgerPlan()
    for change in changes:
        current = open_intervals.get(change.gpu_id)
        shares = tuple(sorted(change.shares))
        if current is None:
            start = at
            last = ended_at.get(change.gpu_id)
            if last is not None:
                if last < at and change.gpu_id not in arrived:
                    away = NewInterval(change.gpu_id, last, at, DeviceState.DOWN, ())
                    plan.begun.append(away)
                start = max(at, last)
            plan.begun.append(NewInterval(change.gpu_id, start, None, change.state, shares))
            continue
        is_same = (current.state, current.shares) == (change.state, shares)
        if is_same and change.gpu_id not in moved:
            continue
        start = end_interval(plan, current, at)
        plan.begun.append(NewInterval(change.gpu_id, start, None, change.state, shares))
    return plan


def end_interval(plan: LedgerPlan, current: OpenInterval, at: int) -> int:
    """Add the end of an open interval to the plan and return the instant it counts from."""
    end = max(at, current.from_at)
    if end == current.from_at:
        plan.dropped.append(current.id)
    else:
        plan.ended.append((current.id, end))
    return end


def is_label_key(key: str) -> bool:
    """Return whether a text can be the key of a label at all; what cannot is never looked for."""
    return _LABEL_KEY.fullmatch(key) is not None


def split_days(from_at: int, to_at: int) -> list[tuple[str, int, int]]:
    """Return (day, start, end) of each UTC day that a window touches."""
    days = []
    start = from_at
    while start < to_at:
        end = min((start // DAY_MS + 1) * DAY_MS, to_at)
        day = datetime.fromtimestamp(start // 1000, UTC).strftime("%Y-%m-%d")
        days.append((day, start, end))
        start = end
    return days
