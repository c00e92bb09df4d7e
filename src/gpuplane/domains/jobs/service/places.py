"""In which project a job is submitted, and which cluster a name means."""

from uuid import UUID

from gpuplane.core.ids import ClusterId, ProjectId, TenantId
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.identity import service as identity
from gpuplane.domains.identity.service import Project
from gpuplane.domains.jobs.errors import BadJob
from gpuplane.domains.jobs.service.lookups import Lookups
from gpuplane.kit.access import Permission, Principal
from gpuplane.kit.ids import find_id


def choose_project(
    lookups: Lookups,
    principal: Principal,
    tenant_id: TenantId | None,
    project_id: ProjectId | None,
    name: str | None,
) -> Project:
    """Return the project a job is submitted in: the one named, or the caller's own.

    Raises:
        BadJob: If there is no such project, or two are named.
        Forbidden: If the caller may not submit there.
    """
    if name is not None and project_id is not None:
        raise BadJob(
            "Both project and project_id are given.", field="project_id", fix="Give one of them."
        )
    if name is not None:
        found = _by_name(lookups, tenant_id or principal.tenant_id, name)
    else:
        wanted = project_id
        if wanted is None and tenant_id not in (None, principal.tenant_id):
            found = identity.find_project_in(
                lookups.session, TenantId(tenant_id or UUID(int=0)), "default"
            )
        else:
            found = lookups.find_project(wanted or principal.project_id)
    is_hidden = found is not None and not principal.sees_tenant(found.tenant_id)
    is_elsewhere = found is not None and tenant_id not in (None, found.tenant_id)
    if found is None or is_hidden or is_elsewhere:
        field = "project" if name is not None else "project_id"
        raise BadJob(
            "There is no such project in the tenant.",
            field=field if project_id or name else "tenant_id",
            fix="List the projects to see their names and ids.",
        )
    principal.require(Permission.JOB_WRITE, found.tenant_id, found.id, what="project")
    return found


def _by_name(lookups: Lookups, tenant_id: TenantId, name: str) -> Project | None:
    key = find_id(name)
    if key is None:
        return identity.find_project_in(lookups.session, tenant_id, name)
    return lookups.find_project(ProjectId(key))


def get_cluster_id(session: ReadSession, key: str) -> ClusterId:
    """Return the id of a cluster by its name or id.

    Raises:
        ClusterNotFound: If there is none, naming those that there are.
    """
    return clusters.get_cluster(session, key).id
