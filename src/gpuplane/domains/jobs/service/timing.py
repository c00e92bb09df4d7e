"""When a job must be looked at next: one instant per job, so that waiting costs nothing."""

from gpuplane.core.lifecycle.jobs import TERMINAL, Condition, JobStatus
from gpuplane.domains.jobs.rules import Job

DEADLINE_GRACE_MS = 30_000
"""Spec scenario 13, clock skew: a deadline is enforced this long after it."""
START_TIMEOUT_MS = 600_000
"""An admitted job that is not seen running within ten minutes has failed to start."""
BUDGET_LOOK_MS = 5_000
"""How often the spending of a running job with a budget is looked at."""
WAIT_TARGET_MS = {"critical": 300_000, "high": 1_800_000, "normal": 7_200_000}
"""Queue-wait targets of spec scenario 14 (p99)."""
RISK_RATIO = 0.8


def next_due(job: Job, now: int) -> int | None:
    """Return the next instant at which something may happen to the job by time alone."""
    if job.status in TERMINAL:
        return None
    instants: list[int] = []
    if job.due_at is not None and job.status in (JobStatus.PENDING, JobStatus.PREEMPTED):
        instants.append(job.due_at)
    spec = job.spec
    if spec.scheduled_start is not None and job.status is JobStatus.PENDING:
        instants.append(spec.scheduled_start)
    if spec.deadline is not None and "deadline" not in job.warned:
        instants.append(spec.deadline + DEADLINE_GRACE_MS)
    target = WAIT_TARGET_MS.get(str(spec.priority))
    if job.status is JobStatus.QUEUED and job.queued_at is not None and target is not None:
        if "queue_wait_risk" not in job.warned:
            instants.append(job.queued_at + int(target * RISK_RATIO))
        elif "queue_wait" not in job.warned:
            instants.append(job.queued_at + target)
    if job.status is JobStatus.SCHEDULED and job.admitted_at is not None:
        instants.append(job.admitted_at + START_TIMEOUT_MS)
    if job.status is JobStatus.RUNNING:
        if job.actual_start is not None and spec.max_duration_s is not None:
            instants.append(job.actual_start + spec.max_duration_s * 1000)
        if spec.budget_limit_micro is not None and "budget" not in job.warned:
            instants.append(now + BUDGET_LOOK_MS)
    if job.condition is Condition.STOPPING and job.condition_at is not None:
        instants.append(job.condition_at + (spec.execution.grace_s + 60) * 1000)
    return min(instants, default=None)
