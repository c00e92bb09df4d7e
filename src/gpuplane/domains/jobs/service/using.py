"""Says what still runs in a tenant or project that somebody wants to delete."""

from gpuplane.core.ids import ProjectId, TenantId
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.jobs.repository import jobs as repository


def find_use(session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None) -> str | None:
    """Return a sentence about the jobs that are not over there, or None when there are none."""
    count = repository.count_unfinished(session, tenant_id, project_id)
    if not count:
        return None
    where = "tenant" if project_id is None else "project"
    jobs = "1 job that is" if count == 1 else f"{count} jobs that are"
    return f"The {where} still has {jobs} not over."
