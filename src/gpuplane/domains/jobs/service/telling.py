"""How a change of a job is told: one shape of event for all of them."""

from typing import Any

from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.jobs.rules import Attempt, Job, Replica


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


def grown_event(
    job: Job, attempt: Attempt, added: Replica, at: int, *, actor: str, message: str
) -> NewEvent:
    """Return the event of a service that has one replica more.

    Args:
        job: The service.
        attempt: As it was before.
        added: The replica.
        at: Since when it has it.
        actor: Who gave it.
        message: A sentence that names job, replica and node.
    """
    data = {
        "attempt": attempt.number,
        "rank": added.rank,
        "nodes": [added.node_name],
        "gpu_ids": list(added.gpu_ids),
        "wanted": attempt.replicas_wanted,
        "wait_ms": max(0, at - (attempt.wanted_at or at)),
    }
    return job_event(job, "job.grown", at, actor=actor, message=message, data=data)
