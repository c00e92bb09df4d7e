"""The life of tenants and projects, and the clusters a project may use."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from uuid import UUID

from gpuplane.core.ids import ProjectId, TenantId, UserId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.identity import repository, rules
from gpuplane.domains.identity.errors import (
    ProjectNotFound,
    StillUsed,
    TenantNotFound,
)
from gpuplane.domains.identity.rules import (
    Affinity,
    AffinityKind,
    ClusterChoice,
    Project,
    Tenant,
    User,
)
from gpuplane.domains.identity.service.telling import CHANGED, announce, stale
from gpuplane.kit.access import Permission, Principal, RowScope
from gpuplane.kit.ids import new_id
from gpuplane.kit.pagination import Page, PageRequest

InUse = Callable[[ReadSession, TenantId, ProjectId | None], str | tuple[str, str] | None]
"""Asks another domain what still lies in a tenant or project: a sentence, one with its fix, or
None."""


def create_tenant(
    session: WriteSession,
    principal: Principal,
    tenant_id: TenantId,
    name: str,
    display_name: str,
    now: int,
) -> Tenant:
    """Create a tenant together with its project `default`."""
    principal.require(Permission.TENANT_MANAGE, what="tenant")
    tenant = Tenant(tenant_id, name, display_name, now, 1)
    repository.store_tenant(session, tenant)
    project = Project(ProjectId(new_id()), tenant.id, rules.DEFAULT_NAME, "", now, 1)
    repository.store_project(session, project)
    announce(session, "tenant.created", "tenant", tenant.id, principal.name, now, tenant.id)
    return tenant


def get_tenant(session: ReadSession, principal: Principal, tenant_id: TenantId) -> Tenant:
    """Return a tenant the caller sees."""
    tenant = repository.find_tenant(session, tenant_id)
    if tenant is None or not principal.sees_tenant(tenant_id):
        raise TenantNotFound("There is no tenant of that id.", fix="List the tenants.")
    return tenant


def list_tenants(session: ReadSession, principal: Principal, page: PageRequest) -> Page[Tenant]:
    """Return one page of the tenants the caller sees, by name."""
    return repository.list_tenants(session, principal.rows(Permission.MEMBER_READ), page)


def change_tenant(
    session: WriteSession, principal: Principal, tenant_id: TenantId, display_name: str, now: int
) -> Tenant:
    """Change what people call a tenant."""
    tenant = get_tenant(session, principal, tenant_id)
    principal.require(Permission.TENANT_MANAGE, what="tenant")
    if not repository.change_tenant(session, tenant, display_name, now):
        raise stale("tenant")
    announce(session, "tenant.changed", "tenant", tenant.id, principal.name, now, tenant.id)
    return replace(tenant, display_name=display_name, version=tenant.version + 1)


def delete_tenant(
    session: WriteSession,
    principal: Principal,
    tenant_id: TenantId,
    in_use: Sequence[InUse],
    now: int,
) -> None:
    """Delete a tenant in which nothing lies any more, with its empty default project."""
    get_tenant(session, principal, tenant_id)
    principal.require(Permission.TENANT_MANAGE, what="tenant")
    _refuse_if_used(session, tenant_id, None, in_use)
    default = repository.find_project_named(session, tenant_id, rules.DEFAULT_NAME)
    if default is not None:
        repository.remove_project(session, default.id)
    if repository.count_projects(session, tenant_id):
        raise StillUsed("The tenant still has projects.", fix="Delete its projects first.")
    repository.remove_tenant(session, tenant_id)
    session.wake(CHANGED)
    announce(session, "tenant.deleted", "tenant", tenant_id, principal.name, now, tenant_id)


def create_project(
    session: WriteSession, principal: Principal, project: Project, now: int
) -> Project:
    """Create a project in a tenant the caller administers."""
    get_tenant(session, principal, project.tenant_id)
    principal.require(Permission.MEMBER_MANAGE, project.tenant_id, what="tenant")
    repository.store_project(session, project)
    announce(
        session, "project.created", "project", project.id, principal.name, now, project.tenant_id
    )
    return project


def get_project(session: ReadSession, principal: Principal, project_id: ProjectId) -> Project:
    """Return a project the caller sees."""
    project = repository.find_project(session, project_id)
    if project is None or not principal.sees_tenant(project.tenant_id):
        raise ProjectNotFound("There is no project of that id.", fix="List the projects.")
    principal.require(Permission.MEMBER_READ, project.tenant_id, project.id, what="project")
    return project


def resolve_project(
    session: ReadSession,
    principal: Principal,
    key: UUID | str | None,
    permission: Permission,
) -> Project:
    """Return the project a call means, in which the caller holds the permission.

    Args:
        session: Where to read.
        principal: The caller.
        key: An id, a name in the caller's tenant, or None for the caller's own project.
        permission: What the caller wants to do there.
    """
    if isinstance(key, str):
        project = repository.find_project_named(session, principal.tenant_id, key)
    else:
        project = repository.find_project(session, ProjectId(key or principal.project_id))
    if project is None or not principal.sees_tenant(project.tenant_id):
        raise ProjectNotFound(
            "There is no project of that name or id.", field="project_id", fix="List the projects."
        )
    principal.require(permission, project.tenant_id, project.id, what="project")
    return project


def find_project_in(session: ReadSession, tenant_id: TenantId, name: str) -> Project | None:
    """Return a tenant's project by its name; the caller was checked by whoever asks."""
    return repository.find_project_named(session, tenant_id, name)


def find_tenant_by_name(session: ReadSession, name: str) -> Tenant | None:
    """Return a tenant by its name; the caller was checked by whoever asks."""
    return repository.find_tenant_named(session, name)


def name_tenants(session: ReadSession, limit: int) -> tuple[str, ...]:
    """Return the names of the first tenants; the caller was checked by whoever asks."""
    page = repository.list_tenants(session, RowScope(everything=True), PageRequest(limit))
    return tuple(each.name for each in page.items)


def find_user_by_name(session: ReadSession, name: str) -> User | None:
    """Return a user by name; the caller was checked by whoever asks."""
    return repository.find_user_named(session, name)


def tenants_by_ids(session: ReadSession, ids: Collection[TenantId]) -> dict[TenantId, Tenant]:
    """Return tenants by id in one query."""
    return repository.tenants_by_ids(session, ids)


def projects_by_ids(session: ReadSession, ids: Collection[ProjectId]) -> dict[ProjectId, Project]:
    """Return projects by id in one query."""
    return repository.projects_by_ids(session, ids)


def users_by_ids(session: ReadSession, ids: Collection[UserId]) -> dict[UserId, User]:
    """Return users by id in one query."""
    return repository.users_by_ids(session, ids)


def list_projects(
    session: ReadSession, principal: Principal, tenant_id: TenantId | None, page: PageRequest
) -> Page[Project]:
    """Return one page of the projects the caller sees, by name."""
    scope = principal.rows(Permission.MEMBER_READ)
    return repository.list_projects(session, scope, tenant_id, page)


def change_project(
    session: WriteSession, principal: Principal, project_id: ProjectId, display_name: str, now: int
) -> Project:
    """Change what people call a project."""
    project = get_project(session, principal, project_id)
    principal.require(Permission.MEMBER_MANAGE, project.tenant_id, project.id, what="project")
    if not repository.change_project(session, project, display_name, now):
        raise stale("project")
    announce(
        session, "project.changed", "project", project.id, principal.name, now, project.tenant_id
    )
    return replace(project, display_name=display_name, version=project.version + 1)


def delete_project(
    session: WriteSession,
    principal: Principal,
    project_id: ProjectId,
    in_use: Sequence[InUse],
    now: int,
) -> None:
    """Delete a project in which nothing lies any more."""
    project = get_project(session, principal, project_id)
    principal.require(Permission.MEMBER_MANAGE, project.tenant_id, what="project")
    _refuse_if_used(session, project.tenant_id, project.id, in_use)
    repository.remove_project(session, project.id)
    session.wake(CHANGED)
    announce(
        session, "project.deleted", "project", project.id, principal.name, now, project.tenant_id
    )


def _refuse_if_used(
    session: ReadSession,
    tenant_id: TenantId,
    project_id: ProjectId | None,
    in_use: Sequence[InUse],
) -> None:
    what = "tenant" if project_id is None else "project"
    for ask in in_use:
        found = ask(session, tenant_id, project_id)
        if isinstance(found, str):
            raise StillUsed(found, fix=f"End or move it, then delete the {what}.")
        if found is not None:
            raise StillUsed(found[0], fix=found[1])
    homes = repository.count_homes(session, tenant_id, project_id)
    if homes:
        raise StillUsed(
            f"{homes} users live in this {what}.", fix="Move or delete these users first."
        )


def set_affinities(
    session: WriteSession,
    principal: Principal,
    project_id: ProjectId,
    wanted: Sequence[Affinity],
    now: int,
) -> tuple[Affinity, ...]:
    """Replace how a project stands to clusters; only the platform decides that."""
    project = get_project(session, principal, project_id)
    principal.require(Permission.CLUSTER_MANAGE, what="project")
    repository.replace_affinities(session, project_id, wanted)
    data: dict[str, object] = {str(one.cluster_id): one.kind.value for one in wanted}
    announce(
        session,
        "project.affinities_changed",
        "project",
        project.id,
        principal.name,
        now,
        project.tenant_id,
        data=data,
    )
    session.wake("scheduler")
    return tuple(wanted)


def list_affinities(
    session: ReadSession, principal: Principal, project_id: ProjectId
) -> tuple[Affinity, ...]:
    """Return how a project stands to clusters."""
    get_project(session, principal, project_id)
    return repository.affinities_of(session, (project_id,))


def load_cluster_choices(
    session: ReadSession, project_ids: Collection[ProjectId] | None = None
) -> dict[ProjectId, ClusterChoice]:
    """Return the cluster choices of projects that state any; all of them unless ids are given."""
    kinds: dict[ProjectId, dict[AffinityKind, set[UUID]]] = {}
    for one in repository.affinities_of(session, project_ids):
        kinds.setdefault(one.project_id, {}).setdefault(one.kind, set()).add(one.cluster_id)
    return {
        project_id: ClusterChoice(
            **{kind.value: frozenset(found.get(kind, ())) for kind in AffinityKind}  # type: ignore[arg-type]  # the kinds are the fields
        )
        for project_id, found in kinds.items()
    }
