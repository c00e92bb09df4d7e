"""The gates before the queue: pure judgement of whether a job may stand in line."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.reasons import Reason, Word
from gpuplane.core.workloads import DependencyCondition
from gpuplane.domains.jobs.rules.endings import BREAKER_FAILURES
from gpuplane.domains.jobs.rules.uptime import retry_instant
from gpuplane.domains.jobs.rules.values import DependencyState, Job


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a pending job may stand in line; if not, why and when to look again."""

    is_open: bool
    reason: Reason | None = None
    look_again_at: int | None = None
    is_hopeless: bool = False


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
    until = retry_instant(job) if job.condition is Condition.BACKING_OFF else None
    if until is not None and now < until:
        return GateVerdict(
            False,
            Reason(Word.BACKING_OFF, "It failed and will be tried again after a delay."),
            until,
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
