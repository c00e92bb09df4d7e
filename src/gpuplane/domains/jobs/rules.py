"""A job as a value, and the pure rules of this noun: gates, retries, breaker, next due instant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.workloads import DependencyCondition, JobSpec, JobType

BREAKER_FAILURES = 5
BREAKER_WINDOW_MS = 3_600_000
BREAKER_OPEN_MS = 3_600_000
BREAKER_DELAYS_S = (30, 60, 300, 900, 3600)
"""Spec scenario 13: delays of the first to fifth failure within the hour."""


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

    @property
    def job_type(self) -> JobType:
        """Return the type asked for."""
        return self.spec.job_type


@dataclass(frozen=True, slots=True)
class Replica:
    """One rank of an attempt and what was last seen of it."""

    id: ReplicaId
    attempt_id: AttemptId
    rank: int
    node_id: NodeId
    node_name: str
    gpu_ids: tuple[str, ...]
    gpu_milli: int
    mig_device: str | None
    phase: str
    ready: bool | None
    started_at: int | None
    ended_at: int | None
    exit_code: int | None
    signal: int | None
    reason: str
    message: str
    url: str | None
    restart_count: int


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
    explanation: dict[str, Any] | None
    forgotten: bool
    version: int
    replicas: tuple[Replica, ...] = ()


@dataclass(frozen=True, slots=True)
class DependencyState:
    """A job waited for, and where it stands now; status None when it was pruned."""

    job_id: JobId
    condition: DependencyCondition
    status: JobStatus | None


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a pending job may stand in line; if not, why and when to look again."""

    is_open: bool
    reason: Reason | None = None
    look_again_at: int | None = None
    is_hopeless: bool = False


@dataclass(frozen=True, slots=True)
class AfterEnd:
    """What a job becomes when its attempt is over."""

    status: JobStatus
    condition: Condition
    reason: str
    message: str
    due_at: int | None
    retry_count: int
    failures_at: tuple[int, ...]
    breaker_until: int | None


def judge_gates(
    job: Job, dependencies: Sequence[DependencyState], siblings_active: int, now: int
) -> GateVerdict:
    """Return whether every gate before the queue is open.

    Args:
        job: A job in PENDING or PREEMPTED.
        dependencies: Where the jobs named in `after` stand.
        siblings_active: Jobs of the same array that are queued, admitted or running.
        now: The instant.
    """
    if job.condition is Condition.PAUSED:
        return GateVerdict(False, Reason(Word.PAUSED, "The job is suspended.", "Resume it."))
    if job.breaker_until is not None and now < job.breaker_until:
        return GateVerdict(
            False,
            Reason(
                Word.BREAKER_OPEN,
                f"It failed {BREAKER_FAILURES} times within an hour, so it is not tried again "
                "by itself.",
                "Find the cause in its log, then retry it by hand.",
            ),
        )
    if job.condition is Condition.BACKING_OFF and job.due_at is not None and now < job.due_at:
        return GateVerdict(
            False,
            Reason(Word.BACKING_OFF, "It failed and will be tried again after a delay."),
            job.due_at,
        )
    start = job.spec.scheduled_start
    if start is not None and now < start:
        return GateVerdict(
            False, Reason(Word.SCHEDULED_START, "Its scheduled start has not come yet."), start
        )
    waiting = _judge_dependencies(dependencies)
    if waiting is not None:
        return waiting
    if job.array_limit is not None and siblings_active >= job.array_limit:
        return GateVerdict(
            False,
            Reason(
                Word.ARRAY_LIMIT,
                f"{siblings_active} jobs of its array are active; the limit is {job.array_limit}.",
            ),
        )
    return GateVerdict(True)


def _judge_dependencies(dependencies: Sequence[DependencyState]) -> GateVerdict | None:
    open_ones = 0
    for each in dependencies:
        if each.status is JobStatus.COMPLETED:
            continue
        over = each.status in (JobStatus.FAILED, JobStatus.CANCELLED, None)
        if over and each.condition is DependencyCondition.FINISHED:
            continue
        if over:
            became = each.status or "pruned"
            return GateVerdict(
                False,
                Reason(
                    Word.DEPENDENCY_FAILED,
                    f"Job {each.job_id}, which must complete first, is {became}.",
                    "Retry that job, then this one; or submit this one without `after`.",
                ),
                is_hopeless=True,
            )
        open_ones += 1
    if open_ones:
        noun = "job" if open_ones == 1 else "jobs"
        return GateVerdict(
            False, Reason(Word.DEPENDENCY, f"It comes after {open_ones} {noun} not yet over.")
        )
    return None


def decide_after_failure(
    job: Job, word: str, message: str, jitter_ratio: float, now: int
) -> AfterEnd:
    """Return what a job becomes when an attempt failed: another try, the breaker, or failed.

    Args:
        job: The job whose attempt is over.
        word: Why, as a `Word` value.
        message: The sentence for people.
        jitter_ratio: Chance from outside in [-1, 1], scaled by the job's jitter.
        now: The instant.
    """
    recent = (*(at for at in job.failures_at if now - at < BREAKER_WINDOW_MS), now)
    policy = job.spec.retry
    if len(recent) >= BREAKER_FAILURES:
        until = now + BREAKER_OPEN_MS
        said = f"{message} It failed {len(recent)} times within an hour: not tried again by itself."
        return AfterEnd(JobStatus.FAILED, Condition.NONE, word, said, None, job.retry_count,
                        recent[-BREAKER_FAILURES:], until)  # fmt: skip
    if job.retry_count >= policy.max_retries:
        return AfterEnd(JobStatus.FAILED, Condition.NONE, word, message, None, job.retry_count,
                        recent, None)  # fmt: skip
    delay_s = compute_retry_delay_s(job, len(recent), jitter_ratio)
    said = f"{message} Next try in {delay_s:g} s ({job.retry_count + 1} of {policy.max_retries})."
    return AfterEnd(JobStatus.PENDING, Condition.BACKING_OFF, word, said,
                    now + int(delay_s * 1000), job.retry_count + 1, recent, None)  # fmt: skip


def compute_retry_delay_s(job: Job, recent_failures: int, jitter_ratio: float) -> float:
    """Return the delay before the next try, in seconds.

    The policy's own delay doubles with each failure up to its maximum; with the default delay
    the steps are those of spec scenario 13 (30 s, 1 m, 5 m, 15 m, 1 h).
    """
    policy = job.spec.retry
    step = max(recent_failures, 1) - 1
    if policy.delay_s == BREAKER_DELAYS_S[0]:
        delay = float(BREAKER_DELAYS_S[min(step, len(BREAKER_DELAYS_S) - 1)])
    else:
        delay = float(policy.delay_s) * 2 ** min(step, 20)
    delay = min(delay, float(policy.max_delay_s))
    return max(0.0, round(delay * (1 + policy.jitter_ratio * jitter_ratio), 3))


def decide_after_end(
    job: Job,
    intent: StopIntent | None,
    word: str,
    message: str,
    jitter_ratio: float,
    now: int,
) -> AfterEnd:
    """Return what a job becomes when its attempt is over, by why it was stopped.

    Args:
        job: The job.
        intent: Why it was being stopped, or None when it ended by itself.
        word: `Completed`, or why it failed or was stopped.
        message: The sentence for people.
        jitter_ratio: Chance from outside in [-1, 1].
        now: The instant.
    """
    same = AfterEnd(job.status, job.condition, word, message, None, job.retry_count,
                    job.failures_at, job.breaker_until)  # fmt: skip
    if word == Word.COMPLETED and intent in (None, StopIntent.FAIL):
        return replace(same, status=JobStatus.COMPLETED, condition=Condition.NONE)
    if intent is StopIntent.CANCEL:
        return replace(same, status=JobStatus.CANCELLED, condition=Condition.NONE)
    if intent is StopIntent.PAUSE:
        return replace(same, status=JobStatus.PENDING, condition=Condition.PAUSED)
    if intent is StopIntent.REQUEUE:
        return replace(same, status=JobStatus.QUEUED, condition=Condition.NONE)
    if intent is StopIntent.PREEMPT:
        if job.spec.retry.on_preemption:
            return replace(same, status=JobStatus.PREEMPTED, condition=Condition.NONE, due_at=now)
        failed = f"{message} Its retry policy says not to run again after preemption."
        return replace(same, status=JobStatus.FAILED, condition=Condition.NONE, message=failed)
    return decide_after_failure(job, word, message, jitter_ratio, now)


def mask_outputs(outputs: Mapping[str, Any], sealed: Sequence[str]) -> dict[str, Any]:
    """Return outputs as anybody may see them: sealed ones are named and masked."""
    return {**outputs, **dict.fromkeys(sealed, "********")}


SENSITIVE_MARKS = ("key", "token", "secret", "password", "passwd", "credential")


def is_sensitive_output(name: str) -> bool:
    """Return whether an output's name says that its value is a secret."""
    lowered = name.lower()
    return any(mark in lowered for mark in SENSITIVE_MARKS)
