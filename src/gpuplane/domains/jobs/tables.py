"""Tables of jobs, attempts, replicas, dependencies and what jobs reported."""

from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from gpuplane.core.prediction.experience import Record
from gpuplane.core.workloads import JobSpec
from gpuplane.db.types import Base, Json, JsonOf


class JobRow(Base):
    """One job: what was asked (`spec`, immutable but for its priority) and where it stands.

    Columns beside the spec exist because a list filters by them or the scheduler reads them.
    """

    __tablename__ = "jobs_jobs"
    __table_args__ = (
        UniqueConstraint("tenant_id", "idempotency_key"),
        CheckConstraint(
            "status IN ('pending','queued','scheduled','running','completed','failed',"
            "'cancelled','preempted')",
            name="status_known",
        ),
        Index("ix_jobs_tenant_created", "tenant_id", "created_at", "id"),
        Index("ix_jobs_status_created", "status", "created_at", "id"),
        Index("ix_jobs_project_created", "project_id", "created_at", "id"),
        Index("ix_jobs_cluster_created", "cluster_id", "created_at", "id"),
        Index("ix_jobs_cluster_status", "cluster_id", "status", "created_at", "id"),
        Index("ix_jobs_tenant_status", "tenant_id", "status", "created_at", "id"),
        Index("ix_jobs_type_created", "job_type", "created_at", "id"),
        Index("ix_jobs_priority_created", "priority", "created_at", "id"),
        Index("ix_jobs_source", "source_id", "created_at", "id"),
        Index("ix_jobs_source_created", "source_type", "created_at", "id"),
        Index("ix_jobs_name", "name", "created_at", "id"),
        Index("ix_jobs_queue_created", "queue", "created_at", "id"),
        Index("ix_jobs_array", "array_id", "status", "array_index"),
        Index("ix_jobs_created", "created_at", "id"),
        Index("ix_jobs_user_created", "user_id", "created_at", "id"),
        Index("ix_jobs_model_created", "gpu_model", "created_at", "id"),
        Index("ix_jobs_cost_centre", "cost_centre", "created_at", "id"),
        Index("ix_jobs_classification", "data_classification", "created_at", "id"),
        Index(
            "ix_jobs_due",
            "due_at",
            sqlite_where=text("due_at IS NOT NULL"),
            postgresql_where=text("due_at IS NOT NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(253))
    tenant_id: Mapped[UUID]
    project_id: Mapped[UUID]
    user_id: Mapped[UUID]
    cluster_id: Mapped[UUID | None]
    """The cluster asked for, or chosen at admission."""
    requested_cluster_id: Mapped[UUID | None]
    source_type: Mapped[str] = mapped_column(String(20))
    source_id: Mapped[str | None] = mapped_column(String(200))
    job_type: Mapped[str] = mapped_column(String(20))
    deployment_type: Mapped[str] = mapped_column(String(20))
    priority: Mapped[str] = mapped_column(String(20))
    gpu_model: Mapped[str | None] = mapped_column(String(100))
    gpu_count: Mapped[int]
    cost_centre: Mapped[str] = mapped_column(String(100), default="")
    data_classification: Mapped[str] = mapped_column(String(50), default="")
    queue: Mapped[str] = mapped_column(String(200), default="")
    """`cluster/local queue` of the current or last admission; empty before."""
    spec: Mapped[JobSpec] = mapped_column(JsonOf(JobSpec))
    labels: Mapped[dict[str, str]] = mapped_column(Json)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    array_id: Mapped[UUID | None]
    array_index: Mapped[int | None]
    array_limit: Mapped[int | None]

    status: Mapped[str] = mapped_column(String(20))
    condition: Mapped[str] = mapped_column(String(20), default="")
    condition_at: Mapped[int | None]
    reason: Mapped[str] = mapped_column(String(50), default="")
    status_message: Mapped[str] = mapped_column(default="")
    reason_counts: Mapped[dict[str, int] | None] = mapped_column(Json)
    due_at: Mapped[int | None]
    """The next instant at which the monitor must look at this job (gate, deadline, time-out)."""
    retry_count: Mapped[int] = mapped_column(default=0)
    failures_at: Mapped[list[int]] = mapped_column(Json)
    """Instants of the failures of the last hour, for the breaker."""
    breaker_until: Mapped[int | None]
    promised_until: Mapped[int | None]
    """Until when it goes first: others were stopped to make room for it."""
    attempt_count: Mapped[int] = mapped_column(default=0)
    current_attempt_id: Mapped[UUID | None]
    warned: Mapped[list[str]] = mapped_column(Json)
    """Which once-only warnings were given (budget, deadline, queue-wait risk, …)."""

    estimated_start: Mapped[int | None]
    estimated_end: Mapped[int | None]
    actual_start: Mapped[int | None]
    actual_end: Mapped[int | None]
    queued_at: Mapped[int | None]
    in_line_since: Mapped[int | None]
    """Where that is before `queued_at`: it was preempted, or moved, since."""
    admitted_at: Mapped[int | None]
    estimated_cost_micro: Mapped[int | None]
    actual_cost_micro: Mapped[int | None]
    currency: Mapped[str] = mapped_column(String(3), default="USD")
    progress_ratio: Mapped[float | None]
    last_checkpoint: Mapped[str | None]
    last_checkpoint_at: Mapped[int | None]
    outputs: Mapped[dict[str, Any]] = mapped_column(Json)
    """Public outputs only; sensitive ones are sealed in jobs_outputs."""
    manifest: Mapped[dict[str, Any] | None] = mapped_column(Json)
    traceparent: Mapped[str | None] = mapped_column(String(100))
    created_at: Mapped[int]
    updated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)


class LabelRow(Base):
    """One label of a job: the index that lists by label read, in the order of lists."""

    __tablename__ = "jobs_labels"
    __table_args__ = (Index("ix_jobs_labels_job", "job_id"),)

    key: Mapped[str] = mapped_column(String(317), primary_key=True)
    value: Mapped[str] = mapped_column(String(63), primary_key=True)
    created_at: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(
        ForeignKey("jobs_jobs.id", ondelete="CASCADE"), primary_key=True
    )


class DependencyRow(Base):
    """One job that another comes after."""

    __tablename__ = "jobs_dependencies"

    job_id: Mapped[UUID] = mapped_column(
        ForeignKey("jobs_jobs.id", ondelete="CASCADE"), primary_key=True
    )
    after_id: Mapped[UUID] = mapped_column(primary_key=True, index=True)
    condition: Mapped[str] = mapped_column(String(20))


class AttemptRow(Base):
    """One try of a job; `epoch` fences it against its successors."""

    __tablename__ = "jobs_attempts"
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        CheckConstraint(
            "state IN ('admitted','starting','running','stopping','ended')", name="state_known"
        ),
        Index(
            "ix_jobs_attempts_one_open",
            "job_id",
            unique=True,
            sqlite_where=text("state <> 'ended'"),
            postgresql_where=text("state <> 'ended'"),
        ),
        Index("ix_jobs_attempts_state", "cluster_id", "state"),
        Index(
            "ix_jobs_attempts_scaled",
            "cluster_id",
            sqlite_where=text("scale_number <> scale_told"),
            postgresql_where=text("scale_number <> scale_told"),
        ),
        Index("ix_jobs_attempts_admitted", "cluster_id", "admitted_at", "id"),
        Index("ix_jobs_attempts_manager", "manager_id", "manager_told_at"),
        Index(
            "ix_jobs_attempts_unlearned",
            "state",
            "ended_at",
            "id",
            sqlite_where=text("learned_at IS NULL"),
            postgresql_where=text("learned_at IS NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs_jobs.id", ondelete="CASCADE"))
    number: Mapped[int]
    epoch: Mapped[int]
    cluster_id: Mapped[UUID]
    state: Mapped[str] = mapped_column(String(20))
    stop_intent: Mapped[str | None] = mapped_column(String(20))
    stop_reason: Mapped[str] = mapped_column(String(50), default="")
    stop_message: Mapped[str] = mapped_column(default="")
    stop_deadline: Mapped[int | None]
    evict_sent_at: Mapped[int | None]
    grace_s: Mapped[int]
    admitted_at: Mapped[int]
    ensured_at: Mapped[int | None]
    started_at: Mapped[int | None]
    ended_at: Mapped[int | None]
    exit_code: Mapped[int | None]
    signal: Mapped[int | None]
    exit_reason: Mapped[str] = mapped_column(String(50), default="")
    exit_message: Mapped[str] = mapped_column(default="")
    lost_gpu_ms: Mapped[int | None]
    """GPU-milliseconds of work thrown away by a preemption or failure since the checkpoint."""
    cluster_queue: Mapped[str] = mapped_column(String(200))
    local_queue: Mapped[str] = mapped_column(String(200))
    quota_usage: Mapped[list[list[Any]]] = mapped_column(Json)
    """[flavor, resource, amount] of what it counts against its queue while it holds devices."""
    replicas_wanted: Mapped[int | None]
    """How many replicas a service that scales is to have; None where their number is fixed."""
    wanted_at: Mapped[int | None]
    """Since when so many are wanted."""
    next_rank: Mapped[int] = mapped_column(default=0)
    """The rank of the next replica that is added: no rank is ever given twice."""
    scale_number: Mapped[int] = mapped_column(default=0)
    """Grows with each change of its replicas that its backend is to be told of."""
    scale_told: Mapped[int] = mapped_column(default=0)
    """The last such change that its backend has taken on."""
    growth_reason: Mapped[str] = mapped_column(String(50), default="")
    growth_message: Mapped[str] = mapped_column(default="")
    """Why the next wanted replica waits; empty when none does."""
    by_pod: Mapped[bool] = mapped_column(default=False)
    """Whether its cluster's Kueue admits each replica by itself: they come and go as it says."""
    explanation: Mapped[dict[str, Any] | None] = mapped_column(Json)
    forgotten: Mapped[bool] = mapped_column(default=False)
    learned_at: Mapped[int | None]
    """When it was learned from; an attempt teaches once."""
    manager_id: Mapped[UUID | None]
    """The cluster whose Kueue dispatched it to `cluster_id`; none where it was admitted there."""
    manager_told_at: Mapped[int | None]
    """When that manager was told that nothing of it may start any more."""
    version: Mapped[int] = mapped_column(default=1)


class OfferRow(Base):
    """A queued job handed to a cluster that admits by itself; it becomes an attempt when bound.

    While it is there the job is offered nowhere else: what was offered may start any moment.
    """

    __tablename__ = "jobs_offers"
    __table_args__ = (
        UniqueConstraint("job_id"),
        CheckConstraint("state IN ('offered','withdrawing')", name="offer_state_known"),
        Index("ix_jobs_offers_cluster", "cluster_id", "state"),
        Index("ix_jobs_offers_worker", "worker_id", "state"),
    )

    attempt_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs_jobs.id", ondelete="CASCADE"))
    number: Mapped[int]
    """The attempt's number and fencing epoch."""
    cluster_id: Mapped[UUID]
    local_queue: Mapped[str] = mapped_column(String(200))
    """`cluster/local queue`, as attempts have it."""
    cluster_queue: Mapped[str] = mapped_column(String(200))
    state: Mapped[str] = mapped_column(String(20))
    offered_at: Mapped[int]
    ensured_at: Mapped[int | None]
    admitted_at: Mapped[int | None]
    evict_sent_at: Mapped[int | None]
    usage: Mapped[list[list[Any]]] = mapped_column(Json)
    """[flavor, resource, amount] as the cluster admitted it."""
    explanation: Mapped[dict[str, Any] | None] = mapped_column(Json)
    reason: Mapped[str] = mapped_column(String(100), default="")
    message: Mapped[str] = mapped_column(default="")
    worker_id: Mapped[UUID | None]
    """The cluster that `cluster_id` dispatched it to, once it has."""
    taken_at: Mapped[int | None]
    """When the worker's backend kept a record of it: from then on it may start there."""
    worker_told_at: Mapped[int | None]
    """When the worker was asked to drop it."""


class ReplicaRow(Base):
    """One rank of an attempt and what was last seen of it."""

    __tablename__ = "jobs_replicas"
    __table_args__ = (
        UniqueConstraint("attempt_id", "rank"),
        Index("ix_jobs_replicas_node", "node_id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    attempt_id: Mapped[UUID] = mapped_column(ForeignKey("jobs_attempts.id", ondelete="CASCADE"))
    rank: Mapped[int]
    node_id: Mapped[UUID]
    node_name: Mapped[str] = mapped_column(String(253))
    gpu_ids: Mapped[list[str]] = mapped_column(Json)
    gpu_milli: Mapped[int]
    mig_device: Mapped[str | None] = mapped_column(String(200))
    phase: Mapped[str] = mapped_column(String(20))
    ready: Mapped[bool | None]
    started_at: Mapped[int | None]
    ended_at: Mapped[int | None]
    exit_code: Mapped[int | None]
    signal: Mapped[int | None]
    reason: Mapped[str] = mapped_column(String(50), default="")
    message: Mapped[str] = mapped_column(default="")
    url: Mapped[str | None]
    restart_count: Mapped[int] = mapped_column(default=0)
    gpu_memory_peak_mib: Mapped[int | None]
    gpu_utilization_permille: Mapped[int | None]
    quota_usage: Mapped[list[list[Any]] | None] = mapped_column(Json)
    """What it adds to its attempt's, for a service that scales; None for others."""
    leaving_at: Mapped[int | None]
    """When it was asked to stop because fewer are wanted."""


class CheckpointRow(Base):
    """One checkpoint a job reported."""

    __tablename__ = "jobs_checkpoints"
    __table_args__ = (Index("ix_jobs_checkpoints_job", "job_id", "at"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs_jobs.id", ondelete="CASCADE"))
    attempt_id: Mapped[UUID | None]
    at: Mapped[int]
    path: Mapped[str]
    progress_ratio: Mapped[float | None]


class SealedOutputRow(Base):
    """One sensitive output, sealed; masked wherever outputs are shown."""

    __tablename__ = "jobs_outputs"

    job_id: Mapped[UUID] = mapped_column(
        ForeignKey("jobs_jobs.id", ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(String(253), primary_key=True)
    sealed: Mapped[bytes]
    created_at: Mapped[int]


class WorkspaceRow(Base):
    """A working directory snapshotted by digest; the archive lies in the home folder."""

    __tablename__ = "jobs_workspaces"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(primary_key=True)
    size_bytes: Mapped[int]
    created_at: Mapped[int]
    last_used_at: Mapped[int]


class ExperienceRow(Base):
    """What is remembered of ended work that is alike on one rung; bounded in size.

    The name is a digest of what they have in common, so nobody is named here.
    """

    __tablename__ = "jobs_experience"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    rung: Mapped[str] = mapped_column(String(20))
    record: Mapped[Record] = mapped_column(JsonOf(Record))
    change: Mapped[int] = mapped_column(index=True)
    """The number of its last change: who keeps records in memory reads what is newer."""
    changed_at: Mapped[int] = mapped_column(index=True)


class DecisionRow(Base):
    """The header of one scheduling cycle that decided something."""

    __tablename__ = "jobs_decisions"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    at: Mapped[int] = mapped_column(index=True)
    generation: Mapped[int]
    seed: Mapped[int]
    placed: Mapped[int]
    waiting: Mapped[int]
    preempting: Mapped[int]
    stale: Mapped[int]
    duration_ms: Mapped[int]
