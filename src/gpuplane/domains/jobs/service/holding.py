"""What running jobs hold and whether they may be stopped for it, as reservations reckon with it."""

from gpuplane.core.fleet.columns import NEVER
from gpuplane.core.ids import ClusterId, GpuId
from gpuplane.core.scheduling.reservations import Hold
from gpuplane.core.workloads import Priority
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Job
from gpuplane.domains.placements import service as placements


def find_holds(session: ReadSession, cluster_id: ClusterId, model: str) -> list[Hold]:
    """Return what is held of a model outside reservations by work that nobody may stop."""
    holders = placements.holders_outside_reservations(session, cluster_id, model)
    jobs = repository.load_jobs(session, list({job for each in holders.values() for job in each}))
    holds = []
    for on_one in holders.values():
        fixed = [jobs[each] for each in on_one if each in jobs and not may_be_stopped(jobs[each])]
        if fixed:
            holds.append(Hold(1, max(_latest_end(job) for job in fixed), may_be_stopped=False))
    return holds


def list_fixed_devices(session: ReadSession) -> frozenset[GpuId]:
    """Return the GPUs whose work nobody may stop."""
    held = placements.held_by_jobs(session)
    jobs = repository.load_jobs(session, list(held))
    return frozenset(
        gpu_id
        for job_id, replicas in held.items()
        if job_id in jobs and not may_be_stopped(jobs[job_id])
        for replica in replicas
        for gpu_id in replica.gpu_ids
    )


def may_be_stopped(job: Job) -> bool:
    """Tell whether a job may be stopped when a reservation of its devices begins."""
    return job.spec.preemptible is not False and job.spec.priority is not Priority.CRITICAL


def _latest_end(job: Job) -> int:
    """Return when a job is ended by force at the latest, or `NEVER`."""
    began = job.actual_start or job.admitted_at
    if began is None or job.spec.max_duration_s is None:
        return NEVER
    return began + job.spec.max_duration_s * 1000
