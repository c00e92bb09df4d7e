"""Placements as values: what was ordered, what is held, how much of a device is left."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.capacity import ReservationState
from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import (
    AllocationId,
    AttemptId,
    ClusterId,
    GpuId,
    JobId,
    NodeId,
    ProjectId,
    ReplicaId,
    ReservationId,
    TenantId,
    UserId,
)
from gpuplane.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """What one replica is to hold on one node.

    Args:
        gpu_milli: Share of each GPU in `gpu_ids`; ignored with `mig`.
        mig: The MIG instance instead of whole GPUs; its GPU need not be in `gpu_ids`.
    """

    replica_id: ReplicaId
    rank: int
    node_id: NodeId
    gpu_ids: tuple[GpuId, ...] = ()
    gpu_milli: int = WHOLE_GPU_MILLI
    mig: MigPlacement | None = None
    cpu_milli: int = 0
    memory_mib: int = 0
    ephemeral_mib: int = 0


@dataclass(frozen=True, slots=True)
class PlacementOrder:
    """One attempt and all its replicas: placed whole or not at all.

    Args:
        reservation_id: A reservation whose devices it may use besides free ones and those that
            are reserved for its project, or None.
    """

    attempt_id: AttemptId
    job_id: JobId
    tenant_id: TenantId
    project_id: ProjectId
    cluster_id: ClusterId
    replicas: tuple[ReplicaOrder, ...]
    reservation_id: ReservationId | None = None


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """Which orders were placed, in the order given, and why the others were not."""

    placed: tuple[AttemptId, ...]
    refused: Mapping[AttemptId, Reason]


@dataclass(slots=True)
class NodeGuard:
    """A node's totals and what is used of them; changed in memory, written back once."""

    node_id: NodeId
    cluster_id: ClusterId
    cpu_milli: int
    cpu_milli_used: int
    memory_mib: int
    memory_mib_used: int
    ephemeral_mib: int
    ephemeral_mib_used: int
    simulated: bool
    version: int
    changed: bool = False


@dataclass(slots=True)
class DeviceGuard:
    """What is used of a device; changed in memory, written back once."""

    gpu_id: GpuId
    node_id: NodeId
    cluster_id: ClusterId
    model: str
    allocated_milli: int
    allocated_mig_mask: int
    down: bool
    reservation_id: ReservationId | None
    version: int
    changed: bool = False


class Allocation(NamedTuple):
    """One row of who holds what; `gpu_id` None is the replica's part of the node."""

    id: AllocationId
    job_id: JobId
    attempt_id: AttemptId
    replica_id: ReplicaId
    rank: int
    tenant_id: TenantId
    project_id: ProjectId
    cluster_id: ClusterId
    node_id: NodeId
    gpu_id: GpuId | None
    gpu_milli: int
    mig_profile: str | None
    mig_start: int | None
    cpu_milli: int
    memory_mib: int
    ephemeral_mib: int
    from_at: int
    to_at: int | None = None
    busy_since: int | None = None


class Holder(NamedTuple):
    """Who holds a part of a device now: what the ledger is told of an allocation."""

    gpu_id: GpuId
    id: AllocationId
    job_id: JobId
    tenant_id: TenantId
    project_id: ProjectId
    gpu_milli: int
    busy_since: int | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs of one model set aside for a project from start to end.

    Args:
        charge_unused: Whether reserved time that no job uses is paid for.
        gpu_ids: The devices it holds now; empty unless active.
    """

    id: ReservationId
    cluster_id: ClusterId
    tenant_id: TenantId
    project_id: ProjectId
    model: str
    gpu_count: int
    start_at: int
    end_at: int
    charge_unused: bool
    state: ReservationState
    name: str
    created_at: int
    created_by: UserId
    ended_at: int | None = None
    gpu_ids: tuple[GpuId, ...] = ()


class RepartitionState(StrEnum):
    """How far the cutting of a GPU is."""

    ASKED = "asked"
    """The scheduler wants it; its backend was not told yet."""
    SENT = "sent"
    """The backend took it on; the new instances are to be seen."""
    FAILED = "failed"
    """The backend could not; the GPU is left alone until the deadline."""


@dataclass(frozen=True, slots=True)
class Repartition:
    """A GPU that is cut anew for a job.

    Args:
        destroy: (profile, first memory slice) of instances that nobody holds.
        create: The same of those that are to come.
        deadline_at: When it is given up, or a failure is forgotten.
    """

    gpu_id: GpuId
    cluster_id: ClusterId
    node_id: NodeId
    node_name: str
    gpu_index: int
    job_id: JobId
    destroy: tuple[tuple[str, int], ...]
    create: tuple[tuple[str, int], ...]
    state: RepartitionState
    message: str
    asked_at: int
    deadline_at: int

    @property
    def is_underway(self) -> bool:
        """Return whether what is to be destroyed may not be given out."""
        return self.state is not RepartitionState.FAILED

    def is_done(self, instances: Collection[tuple[str, int]]) -> bool:
        """Return whether a GPU with these instances is cut as it was asked for."""
        return set(self.create) <= set(instances) and not set(self.destroy) & set(instances)


@dataclass(frozen=True, slots=True)
class ModelCapacity:
    """The GPUs of one model; each is free, reserved, in use or down.

    Args:
        partly_free_milli: What is left of shared GPUs that are in use.
    """

    model: str
    total: int = 0
    free: int = 0
    reserved: int = 0
    in_use: int = 0
    down: int = 0
    partly_free_milli: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a cluster has; amounts of its nodes are (total, used)."""

    node_count: int
    models: tuple[ModelCapacity, ...]
    cpu_milli: tuple[int, int]
    memory_mib: tuple[int, int]
    ephemeral_mib: tuple[int, int]
