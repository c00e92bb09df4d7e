"""Who may see a job and who may change it: its project reads, its owner and managers change.

A job's rights follow its source: the owner is whoever submitted it or the pipeline that made it.
"""

from uuid import UUID

from gpuplane.core.ids import ProjectId, TenantId
from gpuplane.core.workloads import Priority
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.jobs.errors import JobNotFound
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.rules import Job
from gpuplane.kit.access import Permission, Principal
from gpuplane.kit.errors import Forbidden


def get_job(session: ReadSession, principal: Principal, job_id: UUID) -> Job:
    """Return a job the caller may read.

    Raises:
        JobNotFound: If there is none of that id in a tenant the caller sees.
        Forbidden: If it lies in another project.
    """
    job = repository.find_job(session, job_id)
    if job is None or not principal.sees_tenant(job.tenant_id):
        raise JobNotFound(f"There is no job {job_id}.", fix="List the jobs to see their ids.")
    principal.require(Permission.JOB_READ, job.tenant_id, job.project_id, what="job")
    return job


def get_job_to_change(session: WriteSession, principal: Principal, job_id: UUID) -> Job:
    """Return a job the caller may change: its own, or any of a project it manages.

    Nobody else changes it before the commit: a person's word must not lose against a loop that
    wrote in the same moment.

    Raises:
        JobNotFound: If there is none of that id in a tenant the caller sees.
        Forbidden: If it is somebody else's.
    """
    job = lock_job(session, get_job(session, principal, job_id))
    require_change(principal, job)
    return job


def lock_job(session: WriteSession, job: Job) -> Job:
    """Return a job as it is now, and keep others from changing it until the commit."""
    if session.dialect != "postgresql":
        return job  # there is one writer
    return repository.lock_jobs(session, [job.id]).get(job.id, job)


def require_change(principal: Principal, job: Job, needed: Permission | None = None) -> None:
    """Raise unless the caller owns the job and may write, or manages jobs of its project.

    Args:
        principal: The caller.
        job: The job, which the caller may read.
        needed: A right that is needed besides, such as `job:exec`.
    """
    if needed is not None:
        principal.require(needed, job.tenant_id, job.project_id, what="job")
    if may_change(principal, job):
        return
    raise Forbidden(
        f"{principal.name} may not change {job.name}: it is somebody else's job.",
        fix=f"Ask its owner, or an admin for the right {Permission.JOB_MANAGE}.",
        extra={"permission": str(Permission.JOB_MANAGE)},
    )


def may_change(principal: Principal, job: Job) -> bool:
    """Return whether the caller may change a job that it may read."""
    if job.user_id == principal.user_id and principal.may(
        Permission.JOB_WRITE, job.tenant_id, job.project_id
    ):
        return True
    return principal.may(Permission.JOB_MANAGE, job.tenant_id, job.project_id)


def require_class(
    principal: Principal, tenant_id: TenantId, project_id: ProjectId, priority: Priority
) -> None:
    """Raise unless the caller may use a priority class; CRITICAL, which nobody evicts, is granted.

    Raises:
        Forbidden: If it is CRITICAL and the caller does not manage jobs of the project.
    """
    if priority is not Priority.CRITICAL:
        return
    if not principal.may(Permission.JOB_MANAGE, tenant_id, project_id):
        raise Forbidden(
            f"{principal.name} may use the priority classes up to high, not critical.",
            code="priority_not_granted",
            field="priority",
            fix=f"Use high, or ask an admin for the right {Permission.JOB_MANAGE}.",
            extra={"permission": str(Permission.JOB_MANAGE)},
        )
