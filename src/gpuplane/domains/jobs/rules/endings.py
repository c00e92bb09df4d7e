"""What a job becomes when its attempt is over: done, another try, the breaker, or failed."""

from dataclasses import dataclass, replace
from typing import Any

from gpuplane.core.lifecycle.jobs import Condition, JobStatus, StopIntent
from gpuplane.core.reasons import Word
from gpuplane.domains.jobs.rules.values import Job

FINAL_WORDS = frozenset({str(Word.START_REFUSED)})
"""Failures that another try of the same job would meet again."""
BREAKER_FAILURES = 5
BREAKER_WINDOW_MS = 3_600_000
BREAKER_OPEN_MS = 3_600_000
BREAKER_DELAYS_S = (30, 60, 300, 900, 3600)
"""Spec scenario 13: delays of the first to fifth failure within the hour."""


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

    def columns(self, now: int) -> dict[str, Any]:
        """Return what of a job is stored of this, at an instant in ms."""
        return {
            "status": str(self.status),
            "condition": str(self.condition),
            "condition_at": now if self.condition is not Condition.NONE else None,
            "reason": self.reason,
            "status_message": self.message,
            "retry_count": self.retry_count,
            "failures_at": list(self.failures_at),
            "breaker_until": self.breaker_until,
            "due_at": self.due_at,
        }


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
    if word in FINAL_WORDS:
        said = f"{message} It is not tried again: that would change nothing."
        return AfterEnd(JobStatus.FAILED, Condition.NONE, word, said, None, job.retry_count,
                        job.failures_at, None)  # fmt: skip
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
