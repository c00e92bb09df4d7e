"""Setting damaged jobs aside: one row that cannot be read stops no loop and waits for nobody."""

from collections.abc import Sequence
from uuid import UUID

from gpuplane.core.lifecycle.jobs import HOLDING, TERMINAL, JobStatus, StopIntent
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.repository import damage as damages
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.service.stopping import end_without_attempt, request_stop
from gpuplane.domains.jobs.service.telling import job_event


def set_damaged_aside(session: WriteSession, job_ids: Sequence[UUID], now: int) -> int:
    """Fail those of these jobs whose specification cannot be read, with an alarm; return how many.

    A job that runs is stopped first, and fails when its attempt is over. What stood in the place
    of the specification is kept in the job's manifest.
    """
    found = damages.list_damaged(session, job_ids)
    for damage in found:
        damages.replace_damaged(session, damage)
        job = repository.find_job(session, damage.job_id)
        if job is None:
            continue
        message = f"Its stored specification cannot be read, so it was set aside: {damage.error}."
        if job.status in HOLDING:
            request_stop(session, job, StopIntent.FAIL, Word.UNREADABLE, message, now)
        elif job.status not in TERMINAL:
            end_without_attempt(session, job, JobStatus.FAILED, Word.UNREADABLE, message, now)
        events.record(
            session,
            job_event(
                job, "alarm.job_set_aside", now, reason=str(Word.UNREADABLE), message=message
            ),
        )
    return len(found)
