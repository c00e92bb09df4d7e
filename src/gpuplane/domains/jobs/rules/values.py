"""Jobs, attempts and replicas as values: the columns of their rows."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuplane.core.ids import (
    AttemptId,
    ClusterId,
    JobId,
    NodeId,
    ProjectId,
    ReplicaId,
    TenantId,
    UserId,
)
from gpuplane.core.lifecycle.jobs import Condition, JobStatus, StopIntent
from gpuplane.core.workloads import DependencyCondition, JobSpec, JobType


@dataclass(frozen=True, slots=True)
class Job:
    """One job as stored; the columns of its row."""

    id: JobId
    name: str
    tenant_id: TenantId
    project_id: ProjectId
    user_id: UserId
    cluster_id: ClusterId | None
    requested_cluster_id: ClusterId | None
    source_type: str
    source_id: str | None
    queue: str
    spec: JobSpec
    labels: dict[str, str]
    idempotency_key: str | None
    array_id: UUID | None
    array_index: int | None
    array_limit: int | None
    status: JobStatus
    condition: Condition
    condition_at: int | None
    reason: str
    status_message: str
    reason_counts: dict[str, int] | None
    due_at: int | None
    retry_count: int
    failures_at: tuple[int, ...]
    breaker_until: int | None
    promised_until: int | None
    attempt_count: int
    current_attempt_id: AttemptId | None
    warned: tuple[str, ...]
    estimated_start: int | None
    estimated_end: int | None
    actual_start: int | None
    actual_end: int | None
    queued_at: int | None
    admitted_at: int | None
    estimated_cost_micro: int | None
    actual_cost_micro: int | None
    currency: str
    progress_ratio: float | None
    last_checkpoint: str | None
    last_checkpoint_at: int | None
    outputs: dict[str, Any]
    manifest: dict[str, Any] | None
    traceparent: str | None
    created_at: int
    updated_at: int
    version: int
    in_line_since: int | None = None
    """Since when it counts as waiting where it was preempted, or moved, after it was queued."""

    @property
    def line_age_at(self) -> int:
        """Return since when it stands in line, through whatever took it off its devices."""
        return self.in_line_since or self.queued_at or self.created_at

    @property
    def job_type(self) -> JobType:
        """Return the type asked for."""
        return self.spec.job_type


@dataclass(frozen=True, slots=True)
class Replica:
    """One rank of an attempt and what was last seen of it: nothing, unless said."""

    id: ReplicaId
    attempt_id: AttemptId
    rank: int
    node_id: NodeId
    node_name: str
    gpu_ids: tuple[str, ...]
    gpu_milli: int
    mig_device: str | None
    phase: str = "pending"
    ready: bool | None = None
    started_at: int | None = None
    ended_at: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    message: str = ""
    url: str | None = None
    restart_count: int = 0
    gpu_memory_peak_mib: int | None = None
    """Peak memory of its fullest GPU as far as it was measured."""
    gpu_utilization_permille: int | None = None
    """Mean utilisation of its GPUs as far as it was measured, in thousandths."""
    quota_usage: tuple[tuple[str, str, int], ...] | None = None
    """What it adds to its attempt's, where their number changes."""
    leaving_at: int | None = None
    """When it was asked to stop because fewer are wanted."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a job."""

    id: AttemptId
    job_id: JobId
    number: int
    epoch: int
    cluster_id: ClusterId
    state: str
    stop_intent: StopIntent | None
    stop_reason: str
    stop_message: str
    stop_deadline: int | None
    evict_sent_at: int | None
    grace_s: int
    admitted_at: int
    ensured_at: int | None
    started_at: int | None
    ended_at: int | None
    exit_code: int | None
    signal: int | None
    exit_reason: str
    exit_message: str
    lost_gpu_ms: int | None
    cluster_queue: str
    local_queue: str
    quota_usage: tuple[tuple[str, str, int], ...]
    explanation: dict[str, Any] | None
    forgotten: bool
    version: int
    replicas_wanted: int | None = None
    """How many replicas a service that scales is to have; None where their number is fixed."""
    wanted_at: int | None = None
    next_rank: int = 0
    """The rank of the next replica that is added: no rank is ever given twice."""
    scale_number: int = 0
    scale_told: int = 0
    growth_reason: str = ""
    growth_message: str = ""
    """Why the next wanted replica waits; empty when none does."""
    replicas: tuple[Replica, ...] = ()
    manager_id: ClusterId | None = None
    """The cluster whose Kueue dispatched it to its own."""
    manager_told_at: int | None = None
    by_pod: bool = False
    """Whether its cluster's Kueue admits each replica by itself: they come and go as it says."""


@dataclass(frozen=True, slots=True)
class DependencyState:
    """A job waited for, and where it stands now; status None when it was pruned."""

    job_id: JobId
    condition: DependencyCondition
    status: JobStatus | None
