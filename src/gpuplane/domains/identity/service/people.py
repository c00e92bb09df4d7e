"""The life of users and the roles they hold; nobody hands out more than they hold."""

from dataclasses import replace

from gpuplane.core.ids import ProjectId, TenantId, UserId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.identity import repository, rules
from gpuplane.domains.identity.errors import (
    LastAdmin,
    MembershipNotFound,
    UserNotFound,
    WiderThanOwn,
    WrongProject,
)
from gpuplane.domains.identity.rules import (
    Membership,
    User,
)
from gpuplane.domains.identity.service.places import get_project, get_tenant
from gpuplane.domains.identity.service.telling import CHANGED, announce, stale
from gpuplane.kit.access import Grant, Permission, Principal, Role
from gpuplane.kit.ids import new_id
from gpuplane.kit.pagination import Page, PageRequest


def find_home(
    session: ReadSession,
    principal: Principal,
    tenant_id: TenantId | None,
    project_id: ProjectId | None,
) -> tuple[TenantId, ProjectId]:
    """Return the home meant by what was named of it: the rest follows from that, or is one's own.

    Raises:
        WrongProject: If only a tenant is named and it has no project `default`.
    """
    if project_id is not None:
        return tenant_id or get_project(session, principal, project_id).tenant_id, project_id
    if tenant_id is None or tenant_id == principal.tenant_id:
        return principal.tenant_id, principal.project_id
    tenant = get_tenant(session, principal, tenant_id)
    project = repository.find_project_named(session, tenant.id, rules.DEFAULT_NAME)
    if project is None:
        raise WrongProject(
            f"{tenant.name} has no project {rules.DEFAULT_NAME!r}.",
            field="project_id",
            fix="Name a project of the tenant.",
        )
    return tenant.id, project.id


def create_user(session: WriteSession, principal: Principal, user: User, now: int) -> User:
    """Create a user whose home is a project of a tenant the caller administers."""
    project = get_project(session, principal, user.project_id)
    if project.tenant_id != user.tenant_id:
        raise WrongProject(
            "The project does not lie in the tenant.",
            field="project_id",
            fix="Name a project of the tenant, or leave the tenant out.",
        )
    principal.require(Permission.MEMBER_MANAGE, user.tenant_id, what="tenant")
    repository.store_user(session, user)
    announce(session, "user.created", "user", user.id, principal.name, now, user.tenant_id)
    return user


def get_user(session: ReadSession, principal: Principal, user_id: UserId) -> User:
    """Return oneself, or a user who shares a tenant with the caller."""
    user = repository.find_user(session, user_id)
    if user is not None and user.id != principal.user_id:
        shared = principal.sees_tenant(user.tenant_id) or any(
            one.tenant_id is not None and principal.sees_tenant(one.tenant_id)
            for one in repository.memberships_of(session, user.id)
        )
        user = user if shared else None
    if user is None:
        raise UserNotFound("There is no user of that id.", fix="List the users.")
    return user


def list_users(session: ReadSession, principal: Principal, page: PageRequest) -> Page[User]:
    """Return one page of the users in the caller's tenants, by name."""
    return repository.list_users(session, principal.rows(Permission.MEMBER_READ), page)


def change_user(session: WriteSession, principal: Principal, changed: User, now: int) -> User:
    """Change a user; disabling one also shuts its tokens out."""
    user = get_user(session, principal, changed.id)
    require_rule_over(session, principal, user)
    if changed.disabled and not user.disabled:
        keep_an_admin(session, user, now)
    if not repository.change_user(session, user, changed, now):
        raise stale("user")
    session.wake(CHANGED)
    announce(session, "user.changed", "user", user.id, principal.name, now, user.tenant_id)
    return replace(changed, version=user.version + 1)


def delete_user(session: WriteSession, principal: Principal, user_id: UserId, now: int) -> None:
    """Delete a user with its tokens and roles; what it made stays with the project."""
    user = get_user(session, principal, user_id)
    require_rule_over(session, principal, user)
    keep_an_admin(session, user, now)
    repository.remove_user(session, user.id)
    session.wake(CHANGED)
    announce(session, "user.deleted", "user", user.id, principal.name, now, user.tenant_id)


def list_memberships(
    session: ReadSession,
    principal: Principal,
    tenant_id: TenantId,
    project_id: ProjectId | None,
    page: PageRequest,
) -> Page[Membership]:
    """Return one page of the roles held in a tenant, or in one of its projects."""
    get_tenant(session, principal, tenant_id)
    principal.require(Permission.MEMBER_READ, tenant_id, project_id, what="tenant")
    return repository.list_memberships(session, tenant_id, project_id, page)


def set_membership(
    session: WriteSession, principal: Principal, membership: Membership, now: int
) -> Membership:
    """Give a user a role in one place: never more than the caller holds there."""
    user = repository.find_user(session, membership.user_id)
    tenant_id, project_id = membership.tenant_id, membership.project_id
    if project_id is not None:
        project = get_project(session, principal, project_id)
        tenant_id = project.tenant_id
        membership = replace(membership, tenant_id=tenant_id)
    elif tenant_id is not None:
        get_tenant(session, principal, tenant_id)
    principal.require(Permission.MEMBER_MANAGE, tenant_id, project_id, what="tenant")
    if user is None:
        raise UserNotFound("There is no user of that id.", field="user_id", fix="List the users.")
    wanted = Grant(
        Role(membership.role),
        tenant_id,
        project_id,
        frozenset(Permission(word) for word in membership.extra),
    )
    for permission in Permission:
        if wanted.carries(permission) and not principal.may(permission, tenant_id, project_id):
            raise WiderThanOwn(
                f"The role carries {permission}, which you do not hold there.",
                fix="Give a narrower role, or ask an admin.",
            )
    if membership.place == "platform" and membership.role != Role.ADMIN:
        keep_an_admin(session, user, now)
    repository.store_membership(session, new_id(), membership)
    session.wake(CHANGED)
    announce(
        session,
        "membership.set",
        "user",
        user.id,
        principal.name,
        now,
        tenant_id,
        project_id,
        {"place": membership.place, "role": membership.role, "extra": list(membership.extra)},
    )
    return membership


def delete_membership(
    session: WriteSession,
    principal: Principal,
    user_id: UserId,
    tenant_id: TenantId | None,
    project_id: ProjectId | None,
    now: int,
) -> None:
    """Take a user's role in one place away."""
    if project_id is not None:
        tenant_id = get_project(session, principal, project_id).tenant_id
    elif tenant_id is not None:
        get_tenant(session, principal, tenant_id)
    principal.require(Permission.MEMBER_MANAGE, tenant_id, project_id, what="tenant")
    place = rules.place_of(tenant_id, project_id)
    user = repository.find_user(session, user_id)
    if user is None:
        raise UserNotFound("There is no user of that id.", fix="List the users.")
    if place == "platform":
        keep_an_admin(session, user, now)
    if not repository.remove_membership(session, user_id, place):
        raise MembershipNotFound("The user holds no role there.", fix="List the memberships.")
    session.wake(CHANGED)
    announce(
        session,
        "membership.removed",
        "user",
        user_id,
        principal.name,
        now,
        tenant_id,
        project_id,
        {"place": place},
    )


def keep_an_admin(session: ReadSession, user: User, now: int) -> None:
    """Refuse to take the platform from its last admin."""
    held = repository.memberships_of(session, user.id)
    is_admin = any(one.place == "platform" and one.role == Role.ADMIN for one in held)
    if is_admin and repository.count_platform_admins(session) <= 1:
        raise LastAdmin(
            "This is the last admin of the platform.", fix="Make another user admin first."
        )


def require_rule_over(session: ReadSession, principal: Principal, user: User) -> None:
    """Refuse unless the caller administers every place in which the user holds a role."""
    principal.require(Permission.MEMBER_MANAGE, user.tenant_id, what="user")
    for one in repository.memberships_of(session, user.id):
        if not principal.may(Permission.MEMBER_MANAGE, one.tenant_id, one.project_id):
            raise WiderThanOwn(
                "The user also holds roles where you are no admin.",
                fix="Ask an admin of the platform.",
            )
