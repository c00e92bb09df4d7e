"""HTTP of what is done to a job that exists: retry, suspend, resume, priority, preempt, reports."""

from uuid import UUID

from fastapi import APIRouter

from gpuplane.backends.capabilities import DecidesScale
from gpuplane.backends.interface import BackendError, ScalerDecides
from gpuplane.db.calls import CallDep
from gpuplane.domains.jobs import service
from gpuplane.domains.jobs.endpoints.parts import find_backend, ref_of
from gpuplane.domains.jobs.endpoints.shaping import job_body
from gpuplane.domains.jobs.errors import NotScalable
from gpuplane.domains.jobs.schemas import (
    CheckpointIn,
    JobOut,
    PreemptIn,
    PriorityIn,
    ProgressIn,
    ScaleIn,
    SuspendIn,
)
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.errors import Unavailable

router = APIRouter()


@router.post("/jobs/{job_id}/retry")
@requires(Permission.JOB_WRITE)
async def retry_job(call: CallDep, job_id: UUID) -> JobOut:
    """Try a failed or cancelled job again; its breaker is closed and its retries start anew."""
    return await call.write(
        "jobs.retry",
        lambda s: service.view_of(s, service.retry(s, call.principal, job_id, call.now), call.now),
        job_body,
    )


@router.post("/jobs/{job_id}/suspend")
@requires(Permission.JOB_WRITE)
async def suspend_job(call: CallDep, job_id: UUID, body: SuspendIn | None = None) -> JobOut:
    """Hold a job back until it is resumed; a running one is stopped."""
    reason = body.reason if body is not None else ""
    return await call.write(
        "jobs.suspend",
        lambda s: service.view_of(
            s, service.suspend(s, call.principal, job_id, reason, call.now), call.now
        ),
        job_body,
    )


@router.post("/jobs/{job_id}/resume")
@requires(Permission.JOB_WRITE)
async def resume_job(call: CallDep, job_id: UUID) -> JobOut:
    """Let a suspended job stand in line again."""
    return await call.write(
        "jobs.resume",
        lambda s: service.view_of(s, service.resume(s, call.principal, job_id, call.now), call.now),
        job_body,
    )


@router.put("/jobs/{job_id}/priority")
@requires(Permission.JOB_WRITE)
async def change_priority(call: CallDep, job_id: UUID, body: PriorityIn) -> JobOut:
    """Give a job another priority class."""
    return await call.write(
        "jobs.change_priority",
        lambda s: service.view_of(
            s,
            service.change_priority(s, call.principal, job_id, body.priority, call.now),
            call.now,
        ),
        job_body,
    )


@router.put("/jobs/{job_id}/scale")
@requires(Permission.JOB_WRITE)
async def scale_job(call: CallDep, job_id: UUID, body: ScaleIn) -> JobOut:
    """Give a running service another number of replicas, between its fewest and its most.

    Where an object of the cluster holds the number, it is asked first, and refuses where an
    autoscaler decides.
    """
    wanted = body.replicas
    found = await call.read(lambda s: service.get_scaling(s, call.principal, job_id, wanted))
    backend: object = find_backend(call, found.attempt)
    store = service.scale
    if isinstance(backend, DecidesScale):
        try:
            await backend.set_wanted(ref_of(found.attempt), wanted)
        except ScalerDecides as error:
            raise NotScalable(error.message, fix="Change its limits, or remove it.") from error
        except BackendError as error:
            raise Unavailable(
                f"Its cluster did not take that on: {error.message}",
                code="cluster_unavailable",
                fix="Try again in a moment.",
                retry_after_s=5,
            ) from error
        store = service.follow_scale
    return await call.write(
        "jobs.scale",
        lambda s: service.view_of(s, store(s, call.principal, job_id, wanted, call.now), call.now),
        job_body,
    )  # fmt: skip - the call reads as one line


@router.post("/jobs/{job_id}/preempt")
@requires(Permission.SCHEDULING_MANAGE)
async def preempt_job(call: CallDep, job_id: UUID, body: PreemptIn | None = None) -> JobOut:
    """Stop a running job as if a higher one needed its devices; it stands in line again."""
    asked = body or PreemptIn()
    return await call.write(
        "jobs.preempt_by_hand",
        lambda s: service.view_of(
            s,
            service.preempt_by_hand(
                s, call.principal, job_id, asked.reason, asked.grace_s, call.now
            ),
            call.now,
        ),
        job_body,
    )


@router.post("/jobs/{job_id}/progress")
@requires(Permission.JOB_WRITE)
async def report_progress(call: CallDep, job_id: UUID, body: ProgressIn) -> JobOut:
    """Take in how far a running job says it is."""
    return await call.write(
        "jobs.report_progress",
        lambda s: service.view_of(
            s,
            service.report_progress(
                s, call.principal, job_id, body.progress, body.message, call.now
            ),
            call.now,
        ),
        job_body,
    )


@router.post("/jobs/{job_id}/checkpoints")
@requires(Permission.JOB_WRITE)
async def report_checkpoint(call: CallDep, job_id: UUID, body: CheckpointIn) -> JobOut:
    """Take in a checkpoint that a running job says it wrote."""
    return await call.write(
        "jobs.report_checkpoint",
        lambda s: service.view_of(
            s,
            service.report_checkpoint(
                s, call.principal, job_id, body.path, body.progress, call.now
            ),
            call.now,
        ),
        job_body,
    )
