"""API bodies of nodes and GPUs."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from gpuplane.kit.bodies import Body, InstantOut


class GpuOut(Body):
    """One GPU, named by its NVML UUID."""

    gpu_id: str
    index: int
    gpu_type: str
    product: str
    memory_gb: float
    healthy: bool
    message: str
    numa: int | None
    used_percent: int
    """How much of it is given away: by work here, or by whomever where HAMi's metrics tell."""
    mig_enabled: bool
    mig_instances: list[str]
    """`profile@first memory slice` of each instance."""


class TaintOut(Body):
    """A Kubernetes taint."""

    key: str
    value: str
    effect: str


class ConditionOut(Body):
    """A condition that a node reports."""

    type: str
    status: str
    reason: str
    message: str


class NodeOut(Body):
    """One node: what was last seen of it, and the operator's marks."""

    id: UUID
    cluster_id: UUID
    name: str
    ready: bool
    present: bool
    message: str
    not_seen_since: InstantOut | None
    """Since when its cluster has not answered: all else is as of then; null while it does."""
    cordoned: bool
    draining: bool
    drain_started_at: InstantOut | None
    drain_wait_s: int | None
    cpu_cores: float
    memory_gb: float
    ephemeral_storage_gb: float
    labels: dict[str, str]
    taints: list[TaintOut]
    topology: str | None
    rack: str
    block: str
    rdma_fabric: str
    type: str
    """`MASTER`, `WORKER`, `GPU` or `HPU`."""
    internal_ip: str
    schedulable: bool
    """Whether new work may start there: ready, counted, cordoned nowhere, and to be reached."""
    unschedulable: bool
    """Whether it is cordoned in the cluster itself."""
    is_counted: bool
    """False for a node of the control plane where its cluster does not use those."""
    total_workers: int
    """Devices that work may have; 1 for a node without."""
    used_workers: int
    """Those with work on them, by whomever."""
    available_workers: int
    """Those that new work may have: given away less than the threshold, healthy, not reserved."""
    threads_per_core: int | None
    core_count: int | None
    hardware_info: dict[str, Any]
    conditions: list[ConditionOut]
    nfd_detected: bool
    nfd_labels: dict[str, str]
    detection_method: str
    """By which trace its hardware is known, such as `gpu-feature-discovery` or `capacity`."""
    kernel_info: dict[str, str]
    driver_info: dict[str, str]
    status_sync_at: InstantOut | None
    gpus: list[GpuOut]
    created_at: InstantOut
    """When it was first seen."""
    updated_at: InstantOut
    resource_version: int


class NodesOut(Body):
    """The nodes of a cluster, by name."""

    items: list[NodeOut]


class DrainIn(Body):
    """How long work gets to write a checkpoint or end before it is moved."""

    wait_s: Annotated[int, Field(strict=True, ge=0, le=86_400)] = 300
