"""API bodies of the ledger: where device time went, what is held now, the timeline."""

from typing import Annotated
from uuid import UUID

from fastapi import Path, Query

from gpuplane.core.capacity import DeviceState
from gpuplane.kit.bodies import Body, InstantIn, InstantOut

ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]
TenantKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]
FromAt = Annotated[InstantIn | None, Query(alias="from", description="Start of the window.")]
ToAt = Annotated[InstantIn | None, Query(alias="to", description="End of the window; now.")]


class StateTotalsOut(Body):
    """Where the time of one cluster's devices went, in device-milliseconds.

    `adds_up` says that the five states are exactly the wall clock of the devices.
    """

    cluster_id: UUID
    cluster: str
    simulated: bool
    device_count: int
    states_ms: dict[DeviceState, int]
    wall_clock_ms: int
    adds_up: bool


class DeviceUsageOut(Body):
    """Where device time went within a window; simulated clusters are told apart."""

    from_at: InstantOut
    to_at: InstantOut
    adds_up: bool
    clusters: list[StateTotalsOut]


class HeldOut(Body):
    """What one queue's jobs of one tenant hold now."""

    queue: str
    tenant_id: UUID
    job_count: int
    gpu_milli: int
    cpu_milli: int
    memory_mib: int


class ClusterUsageOut(Body):
    """What is held on a cluster now, by queue and tenant."""

    cluster_id: UUID
    cluster: str
    simulated: bool
    at: InstantOut
    queues: list[HeldOut]


class ShareOut(Body):
    """Who held a part of a device; others' jobs and reservations have no names."""

    job_id: UUID | None
    job_name: str | None
    tenant_id: UUID | None
    milli: int
    busy: bool
    reserved: bool


class IntervalOut(Body):
    """One interval of a device; it is open while `to_at` is absent."""

    from_at: InstantOut
    to_at: InstantOut | None
    state: DeviceState
    shares: list[ShareOut]


class DeviceTimelineOut(Body):
    """One device and what it did."""

    gpu_id: str
    node: str
    index: int
    model: str
    intervals: list[IntervalOut]


class TimelineOut(Body):
    """What the devices of a cluster did within a window.

    `complete` is false when there is more than one answer holds; ask for a shorter window.
    """

    cluster_id: UUID
    cluster: str
    simulated: bool
    from_at: InstantOut
    to_at: InstantOut
    complete: bool
    devices: list[DeviceTimelineOut]
