"""Asking attempts to stop, and what becomes of a job when its attempt is over."""

from dataclasses import replace
from typing import Any

from gpuplane.core.ids import AttemptId
from gpuplane.core.lifecycle.jobs import HOLDING, TERMINAL, Condition, JobStatus, StopIntent
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobType
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.billing import service as billing
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.jobs.errors import JobChanged
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import AfterEnd, Attempt, Job, decide_after_end
from gpuplane.domains.jobs.rules.attempts import AttemptVerdict
from gpuplane.domains.jobs.rules.learning import describe_outcome
from gpuplane.domains.jobs.rules.uptime import is_down, mark_down
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.timing import next_due
from gpuplane.domains.placements import service as placements

STRENGTH = {
    StopIntent.REQUEUE: 0,
    StopIntent.PREEMPT: 1,
    StopIntent.PAUSE: 2,
    StopIntent.FAIL: 3,
    StopIntent.CANCEL: 4,
}
"""A later wish replaces an earlier one only if it is stronger: a cancel beats a preemption."""


def request_stop(
    session: WriteSession,
    job: Job,
    intent: StopIntent,
    word: Word | str,
    message: str,
    now: int,
    *,
    actor: str = "system",
    grace_s: int | None = None,
) -> bool:
    """Ask the current attempt of a job to stop; False when the job moved on meanwhile.

    The allocation and the meter stay until the attempt is seen to be over.

    Raises:
        JobChanged: If the attempt is not as it was read, though its job was held.
    """
    if job.status not in HOLDING or job.current_attempt_id is None:
        return False
    repository.hold_jobs(session, [job.id])
    attempt = attempts_repository.find_attempt(session, job.current_attempt_id)
    if attempt is None or attempt.state == "ended":
        return False
    if attempt.stop_intent is not None and STRENGTH[attempt.stop_intent] >= STRENGTH[intent]:
        return True
    grace = attempt.grace_s if grace_s is None else grace_s
    changes: dict[str, Any] = {
        "condition": str(Condition.STOPPING),
        "reason": str(word),
        "status_message": message,
    }
    if job.condition is not Condition.STOPPING:
        changes["condition_at"] = now
    if not repository.update_job(session, job, now, **changes, due_at=now + (grace + 60) * 1000):
        return False
    asked = attempts_repository.update_attempt(
        session,
        attempt,
        state="stopping",
        stop_intent=str(intent),
        stop_reason=str(word),
        stop_message=message,
        stop_deadline=now + grace * 1000,
        grace_s=grace,
    )
    if not asked:  # nothing may be stored then: the job would say what its attempt does not know
        raise JobChanged(f"{job.name} changed while it was being asked to stop.")
    placements.mark_idle(session, [attempt.id], now)
    events.record(
        session,
        job_event(
            job, "job.stopping", now, actor=actor, reason=str(word), message=message,
            data={"intent": str(intent), "grace_s": grace, "attempt": attempt.number},
        ),
    )  # fmt: skip
    session.wake("dispatcher")
    return True


def finish_attempt(
    session: WriteSession,
    job: Job,
    attempt: Attempt,
    verdict: AttemptVerdict,
    jitter_ratio: float,
    now: int,
) -> JobStatus:
    """Record that an attempt is over, give its devices back, and move the job on.

    Args:
        job: The job as read in this transaction.
        attempt: Its current attempt, not ended yet.
        verdict: How it ended.
        jitter_ratio: Chance from outside in [-1, 1], for the delay of a retry.
        now: The instant of the end.

    Returns:
        The job's new status.

    Raises:
        JobChanged: If the job or the attempt is not as it was read; nothing may be stored then.
    """
    after = decide_after_end(
        job, attempt.stop_intent, verdict.word, verdict.message, jitter_ratio, now
    )
    ended_at = max(now, attempt.started_at or attempt.admitted_at)  # the wall clock may step back
    ended = attempts_repository.update_attempt(
        session,
        attempt,
        state="ended",
        ended_at=ended_at,
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        exit_reason=verdict.word,
        exit_message=verdict.message,
    )
    placements.release(session, [AttemptId(attempt.id)], now)
    over = after.status in TERMINAL
    cost = _cost_until(session, job, now)
    changes: dict[str, Any] = {
        **after.columns(now),
        "current_attempt_id": None,
        "reason_counts": None,
        "actual_cost_micro": cost,
    }
    if over:
        changes["actual_end"] = ended_at
    if job.spec.job_type is JobType.SERVICE:
        changes["warned"] = mark_down(job.warned, after.due_at)
    if after.status is JobStatus.QUEUED:
        changes["queued_at"] = now
        was_moved = attempt.stop_intent == StopIntent.REQUEUE
        changes["in_line_since"] = job.line_age_at if was_moved else None
    if not over:  # what was expected of the attempt that is over says nothing of the next
        changes |= {"estimated_start": None, "estimated_end": None}
    if not (ended and repository.update_job(session, job, now, **changes)):
        raise JobChanged(f"{job.name} changed while the end of its attempt was being recorded.")
    moved = repository.find_job(session, job.id)
    if moved is not None and not over and (moved.due_at is None or is_down(moved)):
        repository.set_due(session, [job.id], next_due(moved, now) or now)
    # A cluster that tells whole seconds may date an end before the stop that brought it about.
    asked = job.condition_at if job.condition is Condition.STOPPING else None
    told = _ended_event(job, attempt, after, verdict, cost, now)
    events.record(session, replace(told, at=max(ended_at, asked or ended_at)))
    wake_followers(session, job, now)
    session.wake("scheduler", "monitor", "learner")
    if attempt.manager_id is not None:
        session.wake("dispatcher")
    return after.status


def _ended_event(
    job: Job, attempt: Attempt, after: AfterEnd, verdict: AttemptVerdict, cost: int | None, now: int
) -> NewEvent:
    return job_event(
        job,
        f"job.{after.status}",
        now,
        reason=after.reason,
        message=after.message,
        data={
            "attempt": attempt.number,
            "exit_code": verdict.exit_code,
            "signal": verdict.signal,
            "from_status": str(job.status),
            "intent": str(attempt.stop_intent or ""),
            "ran_ms": max(0, now - attempt.started_at) if attempt.started_at else 0,
            "cost_micro": cost,
            "currency": job.currency,
            **describe_outcome(job, attempt, after.reason),
        },
    )


def _cost_until(session: WriteSession, job: Job, now: int) -> int | None:
    cost = billing.actual_costs(session, [job.id], now)[job.id]
    return cost.known_micro(job.currency)


def wake_followers(
    session: WriteSession, job: Job, now: int, *, wakes_siblings: bool = True
) -> None:
    """Have the gates of jobs looked at that waited for this one: dependents and array siblings."""
    waiting: list[Any] = list(repository.list_dependents(session, job.id))
    if wakes_siblings and job.array_id is not None and job.array_limit is not None:
        waiting += repository.list_waiting_in_array(session, job.array_id, job.array_limit)
    repository.set_due(session, waiting, now)


def end_without_attempt(
    session: WriteSession,
    job: Job,
    status: JobStatus,
    word: Word | str,
    message: str,
    now: int,
    *,
    actor: str = "system",
    wakes_siblings: bool = True,
) -> bool:
    """End a job that holds nothing; False when it moved on meanwhile."""
    done = repository.update_job(
        session,
        job,
        now,
        status=str(status),
        condition="",
        condition_at=None,
        reason=str(word),
        status_message=message,
        due_at=None,
        actual_end=now,
        reason_counts=None,
    )
    if done:
        events.record(
            session,
            job_event(
                job, f"job.{status}", now, actor=actor, reason=str(word), message=message,
                data={"from_status": str(job.status)},
            ),
        )  # fmt: skip
        wake_followers(session, job, now, wakes_siblings=wakes_siblings)
        session.wake("monitor", "scheduler", "dispatcher")
    return done
