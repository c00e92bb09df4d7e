"""Queries on admitted jobs that their cluster could not take on yet."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import update

from gpuplane.core.ids import JobId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.jobs.repository.attempts import CHUNK
from gpuplane.domains.jobs.repository.jobs import jobs


def note_delays(session: WriteSession, why: Mapping[JobId, str]) -> None:
    """Store why admitted jobs were not taken on, without counting a version."""
    for job_id, message in why.items():
        session.execute(
            update(jobs)
            .where(
                jobs.c.id == job_id,
                jobs.c.status == str(JobStatus.SCHEDULED),
                jobs.c.condition == str(Condition.STARTING),
            )
            .values(reason=str(Word.NOT_HANDED_OVER), status_message=message)
        )


def end_delays(session: WriteSession, job_ids: Sequence[UUID]) -> None:
    """Take the reason of a delay from these jobs; any other stays."""
    for start in range(0, len(job_ids), CHUNK):
        session.execute(
            update(jobs)
            .where(
                jobs.c.id.in_(job_ids[start : start + CHUNK]),
                jobs.c.status == str(JobStatus.SCHEDULED),
                jobs.c.reason == str(Word.NOT_HANDED_OVER),
            )
            .values(reason="", status_message="")
        )
