"""API bodies of clusters, their maintenance windows, grants and preemption policy."""

from typing import Annotated
from uuid import UUID

from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from gpuplane.kit.bodies import Body, Flag, InstantIn, InstantOut, Text, refusal

Seconds = Annotated[int, Field(strict=True, ge=0, le=86_400)]
Ratio = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]


class GpuShapeOut(Body):
    """GPUs of one model: the most on one node, and all of the cluster."""

    gpu_type: str
    most_per_node: int
    total: int


class ClusterOut(Body):
    """One cluster."""

    id: UUID
    name: str
    kind: str
    simulated: bool
    """True when no command is ever executed there."""
    state: str
    state_reason: str
    labels: dict[str, str]
    notes: list[str]
    """What it promises and does not, in sentences."""
    frozen: bool
    frozen_reason: str
    is_open_to_all: bool
    gpus: list[GpuShapeOut]
    not_available_since: InstantOut | None
    created_at: InstantOut
    updated_at: InstantOut
    resource_version: int


class ClustersOut(Body):
    """The clusters the caller may use, by name."""

    items: list[ClusterOut]


class FreezeIn(Body):
    """Why nothing new may start."""

    reason: Text = ""


class PreemptionPolicyIn(Body):
    """What of the preemption policy changes; what is left out stays."""

    enabled: Flag | None = None
    min_runtime_before_preemption_s: Seconds | None = None
    max_preemptions_per_hour: Annotated[int, Field(strict=True, ge=0, le=10_000)] | None = None
    grace_period_s: Annotated[int, Field(strict=True, ge=0, le=3_600)] | None = None
    high_cost_progress_ratio: Ratio | None = None
    low_cost_checkpoint_age_s: Seconds | None = None


class PreemptionPolicyOut(Body):
    """The preemption policy in force."""

    enabled: bool
    min_runtime_before_preemption_s: int
    max_preemptions_per_hour: int
    grace_period_s: int
    high_cost_progress_ratio: float
    low_cost_checkpoint_age_s: int


class WindowIn(Body):
    """A maintenance window to announce, of the cluster or of one node."""

    start: InstantIn
    end: InstantIn
    reason: Text
    node: Annotated[str, Field(min_length=1, max_length=253)] | None = None

    @field_validator("end")
    @classmethod
    def _check_order(cls, value: int, info: ValidationInfo) -> int:
        start = info.data.get("start")
        if start is not None and value <= start:
            raise refusal("The window ends before it begins.", "Give an end after the start.")
        return value


class WindowOut(Body):
    """An announced maintenance window."""

    id: UUID
    cluster_id: UUID
    node: str | None
    start: InstantOut
    end: InstantOut
    reason: str
    announced_at: InstantOut
    announced_by: str
    has_begun: bool


class WindowsOut(Body):
    """Windows that are not over, earliest first."""

    items: list[WindowOut]


class GrantIn(Body):
    """The tenant that may use a cluster."""

    tenant_id: UUID


class DedicationIn(Body):
    """The only tenant that may use a cluster, or null for everyone again."""

    tenant_id: UUID | None


class GrantsOut(Body):
    """The tenants a cluster that is not open to all was granted to."""

    tenant_ids: list[UUID]
