"""What people do to jobs: cancel, retry, suspend, resume, change the priority, preempt, report."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from gpuplane.core.lifecycle.jobs import (
    HOLDING,
    TERMINAL,
    Condition,
    JobStatus,
    StopIntent,
)
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import BudgetAction, JobType, Priority
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.errors import JobChanged, WrongStatus
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Job
from gpuplane.domains.jobs.rules.uptime import forget_look, keep_told, mark_pause
from gpuplane.domains.jobs.service.classes import require_class_of_queues
from gpuplane.domains.jobs.service.gating import look_at_gates
from gpuplane.domains.jobs.service.lookups import Lookups
from gpuplane.domains.jobs.service.observing import store_checkpoint
from gpuplane.domains.jobs.service.rights import (
    get_job,
    get_job_to_change,
    lock_job,
    require_change,
    require_class,
)
from gpuplane.domains.jobs.service.stopping import STRENGTH, end_without_attempt, request_stop
from gpuplane.domains.jobs.service.submitting import facts_of
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.timing import next_due
from gpuplane.domains.usage import service as usage
from gpuplane.kit.access import Permission, Principal

ARRAY_BATCH = 200
"""Jobs of an array that are cancelled by one unit of work: bounds how long it holds the writer."""
PROGRESS_EVENT_STEP = 0.1
"""Progress is told as an event each time it passes a tenth; the row has every report."""


def cancel(session: WriteSession, principal: Principal, job_id: UUID, now: int) -> Job:
    """Cancel a job; one that is cancelled already stays as it is.

    Raises:
        WrongStatus: If it has completed or failed.
    """
    job = get_job_to_change(session, principal, job_id)
    return _cancel(session, principal, job, now)


def cancel_in_array(
    session: WriteSession, principal: Principal, job_id: UUID, below: int | None, now: int
) -> int | None:
    """Cancel some jobs of an array that are not over; return where to go on, None at the end.

    From the last index down, so that those which wait go before those which run and none of them
    starts meanwhile.

    Args:
        session: Where to write.
        principal: The caller.
        job_id: Any job of the array.
        below: What the call before returned, None for the first.
        now: The instant.

    Raises:
        WrongStatus: If the job belongs to no array.
    """
    job = get_job_to_change(session, principal, job_id)
    if job.array_id is None:
        raise WrongStatus(f"{job.name} belongs to no array.", fix="Cancel it without `array`.")
    batch = repository.list_unfinished_in_array(session, job.array_id, below, ARRAY_BATCH)
    for each in batch:
        require_change(principal, each)
        if not _stop_for_good(session, principal, each, now, wakes_siblings=False):
            _moved(session, each, done=False)
    return batch[-1].array_index if len(batch) == ARRAY_BATCH else None


def _cancel(session: WriteSession, principal: Principal, job: Job, now: int) -> Job:
    if job.status is JobStatus.CANCELLED:
        return job
    if job.status in TERMINAL:
        raise WrongStatus(
            f"{job.name} is {job.status}; only a job that is not over can be cancelled.",
            fix="Nothing needs to be done.",
        )
    return _moved(session, job, done=_stop_for_good(session, principal, job, now))


def _stop_for_good(
    session: WriteSession, principal: Principal, job: Job, now: int, *, wakes_siblings: bool = True
) -> bool:
    message = f"{principal.name} cancelled it."
    if job.status in HOLDING:
        return request_stop(
            session, job, StopIntent.CANCEL, Word.CANCELLED, message, now, actor=principal.name
        )
    return end_without_attempt(
        session,
        job,
        JobStatus.CANCELLED,
        Word.CANCELLED,
        message,
        now,
        actor=principal.name,
        wakes_siblings=wakes_siblings,
    )  # fmt: skip - the call reads as one line of facts


def retry(session: WriteSession, principal: Principal, job_id: UUID, now: int) -> Job:
    """Try a failed or cancelled job again, with its retries and its breaker as new.

    Raises:
        WrongStatus: If it is neither failed nor cancelled.
    """
    job = get_job_to_change(session, principal, job_id)
    if job.status not in (JobStatus.FAILED, JobStatus.CANCELLED):
        raise WrongStatus(
            f"{job.name} is {job.status}; only a failed or cancelled job can be retried.",
            fix="Submit it again for another run."
            if job.status is JobStatus.COMPLETED
            else "Wait for its end, or cancel it first.",
        )
    _refuse_if_spent(job)
    spec = job.spec
    warned = [each for each in job.warned if each == "deadline" and _is_past(spec.deadline, now)]
    warned += keep_told(job.warned)
    if job.status is JobStatus.CANCELLED:
        warned = _with_pause(job, warned, job.actual_end, now)
    changes: dict[str, Any] = {
        "status": str(JobStatus.PENDING),
        "condition": "",
        "condition_at": None,
        "reason": "",
        "status_message": "",
        "reason_counts": None,
        "retry_count": 0,
        "failures_at": [],
        "breaker_until": None,
        "warned": warned,
        "actual_start": None,
        "estimated_start": None,
        "estimated_end": None,
        "actual_end": None,
        "progress_ratio": None,
        "due_at": now,
    }
    done = repository.update_job(session, job, now, **changes)
    moved = _moved(session, job, done=done)
    events.record(
        session,
        job_event(
            moved,
            "job.pending",
            now,
            actor=principal.name,
            message=f"{principal.name} asked for another try.",
            data={"from_status": str(job.status)},
        ),
    )  # fmt: skip - the event reads as one line of facts
    return look_at_gates(session, moved, now, actor=principal.name)


def suspend(
    session: WriteSession, principal: Principal, job_id: UUID, reason: str, now: int
) -> Job:
    """Hold a job back until it is resumed; a running one is stopped and keeps its checkpoints.

    Raises:
        WrongStatus: If it is over, or stopping for another reason already.
    """
    job = get_job_to_change(session, principal, job_id)
    if job.condition is Condition.PAUSED:
        return job
    if job.status in TERMINAL:
        raise WrongStatus(
            f"{job.name} is {job.status}; it cannot be suspended any more.",
            fix="Nothing needs to be done.",
        )
    message = f"{principal.name} suspended it." + (f" {reason}" if reason else "")
    if job.status in HOLDING:
        _refuse_if_ending(session, job)
        done = request_stop(
            session, job, StopIntent.PAUSE, Word.SUSPENDED, message, now, actor=principal.name
        )
        return _moved(session, job, done=done)
    status = JobStatus.PREEMPTED if job.status is JobStatus.PREEMPTED else JobStatus.PENDING
    paused = replace(job, status=status, condition=Condition.PAUSED, due_at=None)
    done = repository.update_job(
        session,
        job,
        now,
        status=str(status),
        condition=str(Condition.PAUSED),
        condition_at=now,
        reason=str(Word.PAUSED),
        status_message=message,
        reason_counts=None,
        due_at=next_due(paused, now),
    )
    events.record(
        session,
        job_event(
            job,
            "job.suspended",
            now,
            actor=principal.name,
            reason=str(Word.SUSPENDED),
            message=message,
            data={"from_status": str(job.status)},
        ),
    )  # fmt: skip - the event reads as one line of facts
    session.wake("dispatcher")
    return _moved(session, job, done=done)


def _with_pause(job: Job, warned: Sequence[str], since: int | None, now: int) -> list[str]:
    """Return a job's marks, a service's with the time in which nobody wanted it to run."""
    if job.spec.job_type is not JobType.SERVICE or since is None:
        return list(warned)
    return mark_pause(warned, since, now)


def _refuse_if_spent(job: Job) -> None:
    """Refuse to run a job again that its budget would stop at once."""
    limit, spent = job.spec.budget_limit_micro, job.actual_cost_micro or 0
    if limit is None or spent < limit or job.spec.budget_action is BudgetAction.WARN:
        return
    raise WrongStatus(
        f"{job.name} has spent its budget, so it would be stopped at once.",
        code="budget_spent",
        fix="Submit it again with a higher budget_limit.",
    )


def _refuse_if_ending(session: WriteSession, job: Job) -> None:
    if job.current_attempt_id is None:
        return
    attempt = attempts_repository.find_attempt(session, job.current_attempt_id)
    intent = None if attempt is None else attempt.stop_intent
    if intent is not None and STRENGTH[intent] > STRENGTH[StopIntent.PAUSE]:
        raise WrongStatus(
            f"{job.name} is being stopped for good; it cannot be suspended any more.",
            fix="Retry it once it is over.",
        )


def resume(session: WriteSession, principal: Principal, job_id: UUID, now: int) -> Job:
    """Let a suspended job stand in line again.

    Raises:
        WrongStatus: If it is not suspended, or its attempt has not ended yet.
    """
    job = get_job_to_change(session, principal, job_id)
    if job.condition is Condition.STOPPING:
        raise WrongStatus(
            f"{job.name} is still stopping.", fix="Resume it once its attempt is over."
        )
    if job.condition is not Condition.PAUSED:
        raise WrongStatus(
            f"{job.name} is {job.status} and not suspended.",
            fix="Retry it instead."
            if job.status in (JobStatus.FAILED, JobStatus.CANCELLED)
            else "Nothing needs to be done.",
        )
    _refuse_if_spent(job)
    done = repository.update_job(
        session,
        job,
        now,
        condition="",
        condition_at=None,
        reason="",
        status_message="",
        warned=_with_pause(job, job.warned, job.condition_at, now),
        due_at=now,
    )
    moved = _moved(session, job, done=done)
    events.record(
        session,
        job_event(
            moved, "job.resumed", now, actor=principal.name, message=f"{principal.name} resumed it."
        ),
    )
    return look_at_gates(session, moved, now, actor=principal.name)


def change_priority(
    session: WriteSession, principal: Principal, job_id: UUID, priority: Priority, now: int
) -> Job:
    """Give a job another priority class; what runs goes on.

    Raises:
        WrongStatus: If it is over.
        Forbidden: If the caller's role or the job's queue does not grant the class.
    """
    job = get_job_to_change(session, principal, job_id)
    require_class(principal, job.tenant_id, job.project_id, priority)
    if job.status in TERMINAL:
        raise WrongStatus(
            f"{job.name} is {job.status}; its priority means nothing any more.",
            fix="Submit it again with another priority.",
        )
    if job.spec.priority is priority:
        return job
    _require_class_of_queues(session, job, priority)
    spec = replace(job.spec, priority=priority)
    changed = replace(job, spec=spec, warned=tuple(forget_look(job.warned)))
    done = repository.update_job(
        session,
        job,
        now,
        spec=spec,
        priority=str(priority),
        warned=list(changed.warned),
        due_at=next_due(changed, now),
    )
    moved = _moved(session, job, done=done)
    cluster = None if moved.cluster_id is None else clusters.find_cluster(session, moved.cluster_id)
    usage.remember_jobs(session, [facts_of(moved, cluster)])
    events.record(
        session,
        job_event(
            moved,
            "job.priority_changed",
            now,
            actor=principal.name,
            message=f"{principal.name} changed its priority from {job.spec.priority} to "
            f"{priority}.",
            data={"from_priority": str(job.spec.priority)},
        ),
    )  # fmt: skip - the event reads as one line of facts
    session.wake("scheduler", "monitor")
    return moved


def _require_class_of_queues(session: ReadSession, job: Job, priority: Priority) -> None:
    lookups = Lookups(session)
    where = job.cluster_id or job.requested_cluster_id
    candidates = [
        each
        for each in lookups.usable_clusters(job.tenant_id)
        if (each.id == where if where is not None else not each.simulated)
    ]
    require_class_of_queues(lookups, job.tenant_id, job.spec, priority, candidates)


def preempt_by_hand(
    session: WriteSession,
    principal: Principal,
    job_id: UUID,
    reason: str,
    grace_s: int | None,
    now: int,
) -> Job:
    """Stop a running job as if a higher one needed its devices; it stands in line again.

    Raises:
        Forbidden: If the caller does not manage scheduling.
        WrongStatus: If it holds no devices.
    """
    job = lock_job(session, get_job(session, principal, job_id))
    principal.require(Permission.SCHEDULING_MANAGE, what="job")
    if job.status not in HOLDING:
        raise WrongStatus(
            f"{job.name} is {job.status} and holds no devices.", fix="Nothing needs to be done."
        )
    message = f"{principal.name} preempted it." + (f" {reason}" if reason else "")
    done = request_stop(
        session,
        job,
        StopIntent.PREEMPT,
        Word.PREEMPTED_BY_HAND,
        message,
        now,
        actor=principal.name,
        grace_s=grace_s,
    )  # fmt: skip - the call reads as one line of facts
    return _moved(session, job, done=done)


def report_progress(
    session: WriteSession,
    principal: Principal,
    job_id: UUID,
    progress: float,
    message: str,
    now: int,
) -> Job:
    """Take in how far a running job says it is.

    Raises:
        WrongStatus: If it does not run.
    """
    job = _get_running(session, principal, job_id)
    before = job.progress_ratio or 0.0
    repository.update_job(session, job, now, progress_ratio=progress)
    if message or int(before / PROGRESS_EVENT_STEP) != int(progress / PROGRESS_EVENT_STEP):
        events.record(
            session,
            job_event(
                job,
                "job.progressed",
                now,
                actor=principal.name,
                message=message,
                data={"progress": progress},
            ),
        )  # fmt: skip - the event reads as one line of facts
    return repository.find_job(session, job.id) or job


def report_checkpoint(
    session: WriteSession,
    principal: Principal,
    job_id: UUID,
    path: str,
    progress: float | None,
    now: int,
) -> Job:
    """Take in a checkpoint that a running job says it wrote.

    Raises:
        WrongStatus: If it does not run.
    """
    job = _get_running(session, principal, job_id)
    attempt = None
    if job.current_attempt_id is not None:
        attempt = attempts_repository.find_attempt(session, job.current_attempt_id)
    changes: dict[str, Any] = {"last_checkpoint": path, "last_checkpoint_at": now}
    if progress is not None:
        changes["progress_ratio"] = progress
    repository.update_job(session, job, now, **changes)
    store_checkpoint(session, job, attempt, path, now, [] if progress is None else [progress])
    return repository.find_job(session, job.id) or job


def _get_running(session: WriteSession, principal: Principal, job_id: UUID) -> Job:
    job = get_job_to_change(session, principal, job_id)
    if job.status not in HOLDING:
        raise WrongStatus(
            f"{job.name} is {job.status} and does not run, so it reports nothing.",
            fix="Report while it runs.",
        )
    return job


def _moved(session: WriteSession, job: Job, *, done: bool) -> Job:
    if not done:
        raise JobChanged(
            f"{job.name} moved on while the call was on its way.", fix="Read it and try again."
        )
    return repository.find_job(session, job.id) or job


def _is_past(instant: int | None, now: int) -> bool:
    return instant is not None and instant <= now
