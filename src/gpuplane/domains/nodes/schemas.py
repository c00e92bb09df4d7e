"""API bodies of nodes and GPUs."""

from typing import Annotated
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
    mig_enabled: bool
    mig_instances: list[str]
    """`profile@first memory slice` of each instance."""


class TaintOut(Body):
    """A Kubernetes taint."""

    key: str
    value: str
    effect: str


class NodeOut(Body):
    """One node: what was last seen of it, and the operator's marks."""

    id: UUID
    cluster_id: UUID
    name: str
    ready: bool
    present: bool
    message: str
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
    gpus: list[GpuOut]
    updated_at: InstantOut
    resource_version: int


class NodesOut(Body):
    """The nodes of a cluster, by name."""

    items: list[NodeOut]


class DrainIn(Body):
    """How long work gets to write a checkpoint or end before it is moved."""

    wait_s: Annotated[int, Field(strict=True, ge=0, le=86_400)] = 300
