"""How a change of a job is told: one shape of event for all of them."""

from typing import Any

from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.jobs.rules import Job


def job_event(
    job: Job,
    kind: str,
    now: int,
    *,
    actor: str = "system",
    reason: str = "",
    message: str = "",
    data: dict[str, Any] | None = None,
) -> NewEvent:
    """Return the event of a change of a job.

    Args:
        job: The job; its tenant and project decide who hears of it.
        kind: `job.<status>` or another word after `job.`.
        now: The instant of the change.
        actor: Who did it; `system` for loops.
        reason: A `Word` value, if there is one.
        message: The sentence for people.
        data: What a program may want beside that; never a secret.
    """
    return NewEvent(
        kind=kind,
        at=now,
        tenant_id=job.tenant_id,
        project_id=job.project_id,
        cluster_id=job.cluster_id,
        subject_kind="job",
        subject_id=str(job.id),
        actor=actor,
        reason=reason,
        message=message,
        data={
            "name": job.name,
            "job_type": str(job.spec.job_type),
            "priority": str(job.spec.priority),
            "source_type": job.source_type,
            **(data or {}),
        },
    )
