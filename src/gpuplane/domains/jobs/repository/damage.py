"""Queries on jobs whose specification cannot be read."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Text, cast, select, type_coerce, update

from gpuplane.core.ids import JobId
from gpuplane.core.workloads import DeploymentType, JobSpec, JobType, Priority, RetryPolicy
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import Unreadable
from gpuplane.domains.jobs.repository.jobs import jobs


@dataclass(frozen=True, slots=True)
class Damage:
    """A job whose specification cannot be read, as far as its other columns tell."""

    job_id: JobId
    error: str
    text: str
    """What stands in the place of the specification."""
    left: JobSpec
    """What the other columns still say of it; it asks for nothing and runs nothing."""


def list_damaged(session: ReadSession, job_ids: Sequence[UUID]) -> list[Damage]:
    """Return those of these jobs that are damaged."""
    text = type_coerce(cast(jobs.c.spec, Text), Text).label("text")
    query = select(
        jobs.c.id, jobs.c.name, jobs.c.job_type, jobs.c.deployment_type, jobs.c.priority,
        jobs.c.spec, text,
    ).where(jobs.c.id.in_(job_ids))  # fmt: skip
    return [
        Damage(
            row["id"],
            row["spec"].error,
            row["text"],
            JobSpec(
                row["name"],
                JobType(row["job_type"]),
                DeploymentType(row["deployment_type"]),
                priority=Priority(row["priority"]),
                retry=RetryPolicy(max_retries=0),
            ),
        )
        for row in session.rows(query)
        if isinstance(row["spec"], Unreadable)
    ]


def replace_damaged(session: WriteSession, damage: Damage) -> None:
    """Put what is left of a specification in its place; what was there goes to the manifest."""
    session.execute(
        update(jobs)
        .where(jobs.c.id == damage.job_id)
        .values(
            spec=damage.left,
            manifest={"damaged_specification": damage.text},
            version=jobs.c.version + 1,
        )
    )
