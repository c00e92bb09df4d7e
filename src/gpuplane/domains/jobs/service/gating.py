"""Opens the gates before the queue: what waited stands in line, or is told why it still waits."""

from dataclasses import replace
from typing import Any

from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Job, judge_gates
from gpuplane.domains.jobs.service.stopping import end_without_attempt
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.timing import next_due

ARRAY_LOOK_MS = 60_000
"""A job held back by its array's limit is looked at again after this, should a wake be missed."""


def look_at_gates(session: WriteSession, job: Job, now: int, *, actor: str = "system") -> Job:
    """Move a pending or preempted job into the queue if its gates are open; return it as it is.

    A job whose gate can never open is failed. Nothing is changed when nothing is new, except the
    instant of the next look.
    """
    if job.status not in (JobStatus.PENDING, JobStatus.PREEMPTED):
        return job
    dependencies = repository.list_dependencies(session, job.id)
    active = 0
    if job.array_id is not None and job.array_limit is not None:
        active = repository.count_active_in_array(session, job.array_id)
    verdict = judge_gates(job, dependencies, active, now)
    if verdict.is_open:
        return _enqueue(session, job, now, actor)
    reason = verdict.reason
    if verdict.is_hopeless and reason is not None:
        end_without_attempt(session, job, JobStatus.FAILED, reason.word, reason.sentence, now)
        return repository.find_job(session, job.id) or job
    look_again = verdict.look_again_at
    if look_again is None and reason is not None and reason.word is Word.ARRAY_LIMIT:
        look_again = now + ARRAY_LOOK_MS
    due = next_due(replace(job, due_at=look_again), now)
    if job.condition is Condition.PAUSED:  # who suspended it and why is told already
        repository.set_due(session, [job.id], due)
        return replace(job, due_at=due)
    said = (str(reason.word), reason.sentence) if reason is not None else ("", "")
    if (job.reason, job.status_message) == said or job.condition is Condition.BACKING_OFF:
        repository.set_due(session, [job.id], due)
        return replace(job, due_at=due)
    changes: dict[str, Any] = {"reason": said[0], "status_message": said[1], "due_at": due}
    repository.update_job(session, job, now, **changes)
    return repository.find_job(session, job.id) or job


def _enqueue(session: WriteSession, job: Job, now: int, actor: str) -> Job:
    queued = replace(
        job, status=JobStatus.QUEUED, condition=Condition.NONE, queued_at=now, due_at=None
    )
    done = repository.update_job(
        session,
        job,
        now,
        status=str(JobStatus.QUEUED),
        condition="",
        condition_at=None,
        reason="",
        status_message="",
        reason_counts=None,
        queued_at=now,
        in_line_since=job.line_age_at if job.status is JobStatus.PREEMPTED else None,
        due_at=next_due(queued, now),
    )
    if done:
        events.record(
            session,
            job_event(
                job,
                "job.queued",
                now,
                actor=actor,
                message=f"{job.name} stands in line.",
                data={"from_status": str(job.status)},
            ),
        )  # fmt: skip - the event reads as one line of facts
        session.wake("scheduler")
    return repository.find_job(session, job.id) or job
