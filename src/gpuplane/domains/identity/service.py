"""Use cases of identity: who is calling, and the life of tenants, projects, users and rights.

Every verb that changes rights is an audited event and forgets cached callers (`identity`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from gpuplane.core.ids import ProjectId, TenantId, TokenId, UserId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events.service import NewEvent, record
from gpuplane.domains.identity import repository, rules
from gpuplane.domains.identity.errors import (
    LastAdmin,
    MembershipNotFound,
    ProjectNotFound,
    StaleVersion,
    StillUsed,
    TenantNotFound,
    TokenNotFound,
    UserNotFound,
    WiderThanOwn,
    WrongProject,
)
from gpuplane.domains.identity.repository import Caller
from gpuplane.domains.identity.rules import (
    Affinity,
    AffinityKind,
    ClusterChoice,
    Membership,
    Project,
    Tenant,
    Token,
    User,
)
from gpuplane.kit.access import Grant, Permission, Principal, Role
from gpuplane.kit.ids import new_id
from gpuplane.kit.pagination import Page, PageRequest

__all__ = [
    "SORT_ID",
    "SORT_NAME",
    "Affinity",
    "AffinityKind",
    "Caller",
    "ClusterChoice",
    "Membership",
    "Project",
    "Tenant",
    "Token",
    "User",
]

SORT_NAME, SORT_ID = repository.SORT_NAME, repository.SORT_ID
CHANGED = "identity"
"""Woken by every change of rights: whoever caches callers forgets them."""

InUse = Callable[[ReadSession, TenantId, ProjectId | None], str | None]
"""Asks another domain what still runs in a tenant or project: a sentence, or None."""


# -- who is calling ---------------------------------------------------------------------------


def find_caller(session: ReadSession, token_hash: str, now: int) -> Caller | None:
    """Return who a valid token belongs to, or None."""
    caller = repository.find_caller(session, token_hash)
    if caller is None or caller.user.disabled:
        return None
    return caller if caller.token is not None and caller.token.is_valid(now) else None


def find_login(session: ReadSession, issuer: str, subject: str) -> Caller | None:
    """Return the enabled user an identity provider knows by this subject, or None."""
    user_id = repository.find_login(session, issuer, subject)
    user = None if user_id is None else repository.find_user(session, user_id)
    if user is None or user.disabled:
        return None
    return Caller(user, repository.memberships_of(session, user.id), None)


def has_login(session: ReadSession, issuer: str, subject: str) -> bool:
    """Return whether this subject is linked to a user, enabled or not."""
    return repository.find_login(session, issuer, subject) is not None


def ensure_login(
    session: WriteSession,
    issuer: str,
    subject: str,
    name: str,
    email: str | None,
    home: tuple[TenantId, ProjectId] | None,
    now: int,
) -> Caller | None:
    """Link a subject to the user of its verified e-mail address, or make one if a home is given.

    Args:
        session: The transaction.
        issuer: The identity provider.
        subject: Its `sub` for the person.
        name: The name a new user gets, made unique if taken.
        email: The verified address, or None when the provider does not vouch for it.
        home: Tenant and project of new users; None makes no users.
        now: The current instant.
    """
    known = repository.find_login(session, issuer, subject)
    user = None if known is None else repository.find_user(session, known)
    if known is None:
        user = None if email is None else repository.find_user_by_email(session, email)
        if user is None and home is not None:
            user = _new_login_user(session, name, email, home, now)
        if user is None:
            return None
        repository.store_login(session, issuer, subject, user.id, now)
        _announce(session, "user.linked", "user", user.id, user.name, now, data={"issuer": issuer})
    if user is None or user.disabled:
        return None
    return Caller(user, repository.memberships_of(session, user.id), None)


def principal_of(caller: Caller, more: Iterable[Grant] = ()) -> Principal:
    """Return the principal of a caller, with grants that its identity provider vouches for."""
    grants = [
        Grant(
            Role(one.role),
            one.tenant_id,
            one.project_id,
            frozenset(Permission(word) for word in one.extra),
        )
        for one in caller.memberships
    ]
    scopes = None
    if caller.token is not None and caller.token.scopes is not None:
        scopes = frozenset(Permission(word) for word in caller.token.scopes)
    return Principal(
        user_id=caller.user.id,
        name=caller.user.name,
        tenant_id=caller.user.tenant_id,
        project_id=caller.user.project_id,
        grants=(*grants, *more),
        token_id=None if caller.token is None else caller.token.id,
        scopes=scopes,
    )


def touch_token(session: WriteSession, token_id: TokenId, now: int) -> None:
    """Note that a token was used; called at most once an hour for each."""
    repository.set_token(session, token_id, {"last_used_at": now})


def ensure_defaults(
    session: WriteSession, now: int, token_hash: str, hint: str = "gp_"
) -> Principal:
    """Make what a first start needs and is not there: tenant, project, admin and its token.

    Args:
        session: The transaction.
        now: The current instant.
        token_hash: The SHA-256 of the admin token in hexadecimal.
        hint: The first characters of that token.
    """
    tenant = repository.find_tenant_named(session, rules.DEFAULT_NAME)
    if tenant is None:
        tenant = Tenant(TenantId(new_id()), rules.DEFAULT_NAME, "Default tenant", now, 1)
        repository.store_tenant(session, tenant)
        _announce(session, "tenant.created", "tenant", tenant.id, "system", now, tenant.id)
    project = repository.find_project_named(session, tenant.id, rules.DEFAULT_NAME)
    if project is None:
        project = Project(
            ProjectId(new_id()), tenant.id, rules.DEFAULT_NAME, "Default project", now, 1
        )
        repository.store_project(session, project)
        _announce(session, "project.created", "project", project.id, "system", now, tenant.id)
    user = repository.find_user_named(session, rules.ADMIN_NAME)
    if user is None:
        user = User(
            UserId(new_id()),
            rules.ADMIN_NAME,
            None,
            "Administrator",
            tenant.id,
            project.id,
            False,
            now,
            1,
        )
        repository.store_user(session, user)
        admin = Membership(user.id, None, None, Role.ADMIN.value, (), now)
        repository.store_membership(session, new_id(), admin)
        _announce(session, "user.created", "user", user.id, "system", now, tenant.id)
    if repository.find_caller(session, token_hash) is None:
        token = Token(
            TokenId(new_id()), user.id, "first-start", hint[:12], None, now, None, None, None
        )
        repository.store_token(session, token, token_hash)
        session.wake(CHANGED)
    return principal_of(Caller(user, repository.memberships_of(session, user.id), None))


# -- tenants and projects ---------------------------------------------------------------------


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
    _announce(session, "tenant.created", "tenant", tenant.id, principal.name, now, tenant.id)
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
        raise _stale("tenant")
    _announce(session, "tenant.changed", "tenant", tenant.id, principal.name, now, tenant.id)
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
    _announce(session, "tenant.deleted", "tenant", tenant_id, principal.name, now, tenant_id)


def create_project(
    session: WriteSession, principal: Principal, project: Project, now: int
) -> Project:
    """Create a project in a tenant the caller administers."""
    get_tenant(session, principal, project.tenant_id)
    principal.require(Permission.MEMBER_MANAGE, project.tenant_id, what="tenant")
    repository.store_project(session, project)
    _announce(
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


def find_project_in(session: ReadSession, tenant_id: TenantId, name: str) -> Project | None:
    """Return a tenant's project by its name; the caller was checked by whoever asks."""
    return repository.find_project_named(session, tenant_id, name)


def find_tenant_by_name(session: ReadSession, name: str) -> Tenant | None:
    """Return a tenant by its name; the caller was checked by whoever asks."""
    return repository.find_tenant_named(session, name)


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
        raise _stale("project")
    _announce(
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
    _announce(
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
        sentence = ask(session, tenant_id, project_id)
        if sentence is not None:
            raise StillUsed(sentence, fix=f"End or move it, then delete the {what}.")
    homes = repository.count_homes(session, tenant_id, project_id)
    if homes:
        raise StillUsed(
            f"{homes} users live in this {what}.", fix="Move or delete these users first."
        )


# -- affinities -------------------------------------------------------------------------------


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
    _announce(
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


# -- users and memberships --------------------------------------------------------------------


def create_user(session: WriteSession, principal: Principal, user: User, now: int) -> User:
    """Create a user whose home is a project of a tenant the caller administers."""
    project = get_project(session, principal, user.project_id)
    if project.tenant_id != user.tenant_id:
        raise WrongProject("The project does not lie in the tenant.", field="project_id")
    principal.require(Permission.MEMBER_MANAGE, user.tenant_id, what="tenant")
    repository.store_user(session, user)
    _announce(session, "user.created", "user", user.id, principal.name, now, user.tenant_id)
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
    _require_rule_over(session, principal, user)
    if changed.disabled and not user.disabled:
        _keep_an_admin(session, user, now)
    if not repository.change_user(session, user, changed, now):
        raise _stale("user")
    session.wake(CHANGED)
    _announce(session, "user.changed", "user", user.id, principal.name, now, user.tenant_id)
    return replace(changed, version=user.version + 1)


def delete_user(session: WriteSession, principal: Principal, user_id: UserId, now: int) -> None:
    """Delete a user with its tokens and roles; what it made stays with the project."""
    user = get_user(session, principal, user_id)
    _require_rule_over(session, principal, user)
    _keep_an_admin(session, user, now)
    repository.remove_user(session, user.id)
    session.wake(CHANGED)
    _announce(session, "user.deleted", "user", user.id, principal.name, now, user.tenant_id)


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
        _keep_an_admin(session, user, now)
    repository.store_membership(session, new_id(), membership)
    session.wake(CHANGED)
    _announce(
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
        _keep_an_admin(session, user, now)
    if not repository.remove_membership(session, user_id, place):
        raise MembershipNotFound("The user holds no role there.", fix="List the memberships.")
    session.wake(CHANGED)
    _announce(
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


def _keep_an_admin(session: ReadSession, user: User, now: int) -> None:
    """Refuse to take the platform from its last admin."""
    held = repository.memberships_of(session, user.id)
    is_admin = any(one.place == "platform" and one.role == Role.ADMIN for one in held)
    if is_admin and repository.count_platform_admins(session) <= 1:
        raise LastAdmin(
            "This is the last admin of the platform.", fix="Make another user admin first."
        )


def _require_rule_over(session: ReadSession, principal: Principal, user: User) -> None:
    """Refuse unless the caller administers every place in which the user holds a role."""
    principal.require(Permission.MEMBER_MANAGE, user.tenant_id, what="user")
    for one in repository.memberships_of(session, user.id):
        if not principal.may(Permission.MEMBER_MANAGE, one.tenant_id, one.project_id):
            raise WiderThanOwn(
                "The user also holds roles where you are no admin.",
                fix="Ask an admin of the platform.",
            )


# -- tokens -----------------------------------------------------------------------------------


def create_token(
    session: WriteSession, principal: Principal, token: Token, token_hash: str, now: int
) -> Token:
    """Store a token for oneself, or for a user whose every role the caller administers."""
    user = get_user(session, principal, token.user_id)
    if user.id != principal.user_id:
        _require_rule_over(session, principal, user)
    missing = rules.missing_scopes(token.scopes, principal.scopes)
    if missing:
        raise WiderThanOwn(
            f"Your own token does not hold {', '.join(missing)}.",
            field="scopes",
            fix="Ask for fewer scopes, or use a wider token.",
        )
    token = replace(token, scopes=rules.narrowed_scopes(token.scopes, principal.scopes))
    repository.store_token(session, token, token_hash)
    data: dict[str, object] = {"token_id": str(token.id), "name": token.name}
    _announce(
        session, "token.created", "user", user.id, principal.name, now, user.tenant_id, data=data
    )
    return token


def list_tokens(
    session: ReadSession, principal: Principal, user_id: UserId, page: PageRequest
) -> Page[Token]:
    """Return one page of a user's tokens, oldest first."""
    user = get_user(session, principal, user_id)
    if user.id != principal.user_id:
        _require_rule_over(session, principal, user)
    return repository.list_tokens(session, user_id, page)


def revoke_token(session: WriteSession, principal: Principal, token_id: TokenId, now: int) -> Token:
    """Shut a token out; it stays listed. Doing it again changes nothing."""
    token = repository.find_token(session, token_id)
    if token is None:
        raise TokenNotFound("There is no token of that id.", fix="List the tokens.")
    if token.user_id != principal.user_id:
        user = repository.find_user(session, token.user_id)
        if user is None or not principal.sees_tenant(user.tenant_id):
            raise TokenNotFound("There is no token of that id.", fix="List the tokens.")
        _require_rule_over(session, principal, user)
    if token.revoked_at is None:
        repository.set_token(session, token.id, {"revoked_at": now})
        token = replace(token, revoked_at=now)
        session.wake(CHANGED)
        data: dict[str, object] = {"token_id": str(token.id), "name": token.name}
        _announce(session, "token.revoked", "user", token.user_id, principal.name, now, data=data)
    return token


# -- shared -----------------------------------------------------------------------------------


def _new_login_user(
    session: WriteSession,
    name: str,
    email: str | None,
    home: tuple[TenantId, ProjectId],
    now: int,
) -> User:
    user_id = UserId(new_id())
    if repository.find_user_named(session, name) is not None:
        name = f"{name[:50]}-{user_id.hex[-12:]}"
    user = User(user_id, name, email, "", *home, False, now, 1)
    repository.store_user(session, user)
    _announce(session, "user.created", "user", user.id, user.name, now, user.tenant_id)
    return user


def _stale(what: str) -> StaleVersion:
    return StaleVersion(f"The {what} has just been changed by somebody else.", fix="Try again.")


def _announce(
    session: WriteSession,
    kind: str,
    subject_kind: str,
    subject_id: UUID,
    actor: str,
    now: int,
    tenant_id: TenantId | None = None,
    project_id: ProjectId | None = None,
    data: dict[str, object] | None = None,
) -> None:
    record(
        session,
        NewEvent(
            kind=kind,
            at=now,
            subject_kind=subject_kind,
            subject_id=subject_id,
            tenant_id=tenant_id,
            project_id=project_id,
            actor=actor,
            data=data or {},
            audit=True,
        ),
    )
