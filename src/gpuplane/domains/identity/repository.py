"""Every query on tenants, projects, users, tokens, memberships and affinities."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Select, Table, delete, exists, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from gpuplane.core.ids import ClusterId, ProjectId, TenantId, TokenId, UserId
from gpuplane.db.pages import load_page
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.identity.errors import NameTaken
from gpuplane.domains.identity.rules import (
    Affinity,
    AffinityKind,
    Membership,
    Project,
    Tenant,
    Token,
    User,
)
from gpuplane.domains.identity.tables import (
    AffinityRow,
    LoginRow,
    MembershipRow,
    ProjectRow,
    TenantRow,
    TokenRow,
    UserRow,
)
from gpuplane.kit.access import RowScope
from gpuplane.kit.pagination import Page, PageRequest

tenants = table_of(TenantRow)
projects = table_of(ProjectRow)
users = table_of(UserRow)
logins = table_of(LoginRow)
memberships = table_of(MembershipRow)
tokens = table_of(TokenRow)
affinities = table_of(AffinityRow)

SORT_NAME, SORT_ID = "name", "id"


@dataclass(frozen=True, slots=True)
class Caller:
    """A user with every membership, and the token it came with."""

    user: User
    memberships: tuple[Membership, ...]
    token: Token | None


def store_tenant(session: WriteSession, tenant: Tenant) -> None:
    """Insert a tenant; NameTaken if the name is."""
    values = {
        "id": tenant.id,
        "name": tenant.name,
        "display_name": tenant.display_name,
        "created_at": tenant.created_at,
        "updated_at": tenant.created_at,
        "version": tenant.version,
    }
    _store(session, tenants, values, "tenant")


def store_project(session: WriteSession, project: Project) -> None:
    """Insert a project; NameTaken if the tenant has one of that name."""
    values = {
        "id": project.id,
        "tenant_id": project.tenant_id,
        "name": project.name,
        "display_name": project.display_name,
        "created_at": project.created_at,
        "updated_at": project.created_at,
        "version": project.version,
    }
    _store(session, projects, values, "project")


def store_user(session: WriteSession, user: User) -> None:
    """Insert a user; NameTaken if name or e-mail address is."""
    values = {
        "id": user.id,
        "name": user.name,
        "email": user.email,
        "display_name": user.display_name,
        "tenant_id": user.tenant_id,
        "project_id": user.project_id,
        "disabled": user.disabled,
        "created_at": user.created_at,
        "updated_at": user.created_at,
        "version": user.version,
    }
    _store(session, users, values, "user")


def store_login(
    session: WriteSession, issuer: str, subject: str, user_id: UserId, now: int
) -> None:
    """Remember by which subject an identity provider knows a user."""
    session.execute(
        insert(logins).values(issuer=issuer, subject=subject, user_id=user_id, created_at=now)
    )


def store_token(session: WriteSession, token: Token, token_hash: str) -> None:
    """Insert a token by its hash."""
    session.execute(
        insert(tokens).values(
            id=token.id,
            user_id=token.user_id,
            name=token.name,
            hash=token_hash,
            hint=token.hint,
            scopes=None if token.scopes is None else list(token.scopes),
            created_at=token.created_at,
            expires_at=token.expires_at,
            revoked_at=token.revoked_at,
            last_used_at=token.last_used_at,
        )
    )


def store_membership(session: WriteSession, row_id: UUID, membership: Membership) -> None:
    """Set the role a user holds in one place, replacing the one held before."""
    remove_membership(session, membership.user_id, membership.place)
    session.execute(
        insert(memberships).values(
            id=row_id,
            user_id=membership.user_id,
            tenant_id=membership.tenant_id,
            project_id=membership.project_id,
            place=membership.place,
            role=membership.role,
            extra=list(membership.extra),
            created_at=membership.created_at,
        )
    )


def change_tenant(session: WriteSession, tenant: Tenant, display_name: str, now: int) -> bool:
    """Change a tenant if it is still of the version read; return whether it was."""
    values = {"display_name": display_name, "updated_at": now}
    return _change(session, tenants, tenant.id, tenant.version, values)


def change_project(session: WriteSession, project: Project, display_name: str, now: int) -> bool:
    """Change a project if it is still of the version read; return whether it was."""
    values = {"display_name": display_name, "updated_at": now}
    return _change(session, projects, project.id, project.version, values)


def change_user(session: WriteSession, user: User, changed: User, now: int) -> bool:
    """Change a user if it is still of the version read; return whether it was."""
    values = {
        "email": changed.email,
        "display_name": changed.display_name,
        "disabled": changed.disabled,
        "tenant_id": changed.tenant_id,
        "project_id": changed.project_id,
        "updated_at": now,
    }
    try:
        return _change(session, users, user.id, user.version, values)
    except IntegrityError as error:
        raise _taken("user", "email") from error


def _store(session: WriteSession, table: Table, values: dict[str, Any], what: str) -> None:
    try:
        session.execute(insert(table).values(**values))
    except IntegrityError as error:
        raise _taken(what, "name") from error


def _change(
    session: WriteSession, table: Table, row_id: UUID, version: int, values: dict[str, Any]
) -> bool:
    changed = session.execute(
        update(table)
        .where(table.c.id == row_id, table.c.version == version)
        .values(**values, version=version + 1)
    )
    return changed == 1


def _taken(what: str, field: str) -> NameTaken:
    return NameTaken(
        f"There is a {what} of that name or address already.", field=field, fix="Choose another."
    )


def find_tenant(session: ReadSession, tenant_id: TenantId) -> Tenant | None:
    """Return a tenant, or None."""
    row = session.row(select(tenants).where(tenants.c.id == tenant_id))
    return None if row is None else _tenant(row)


def find_tenant_named(session: ReadSession, name: str) -> Tenant | None:
    """Return the tenant of that name, or None."""
    row = session.row(select(tenants).where(tenants.c.name == name))
    return None if row is None else _tenant(row)


def tenants_by_ids(session: ReadSession, ids: Collection[TenantId]) -> dict[TenantId, Tenant]:
    """Return tenants by id."""
    rows = session.rows(select(tenants).where(tenants.c.id.in_(sorted(ids))))
    return {TenantId(row["id"]): _tenant(row) for row in rows}


def list_tenants(session: ReadSession, scope: RowScope, page: PageRequest) -> Page[Tenant]:
    """Return one page of the tenants in scope, by name."""
    query: Select[Any] = select(tenants)
    if not scope.everything:
        mine = select(projects.c.tenant_id).where(projects.c.id.in_(sorted(scope.project_ids)))
        query = query.where(or_(tenants.c.id.in_(sorted(scope.tenant_ids)), tenants.c.id.in_(mine)))
    return load_page(session, query, (tenants.c.name, tenants.c.id), page, _tenant, sort=SORT_NAME)


def find_project(session: ReadSession, project_id: ProjectId) -> Project | None:
    """Return a project, or None."""
    row = session.row(select(projects).where(projects.c.id == project_id))
    return None if row is None else _project(row)


def find_project_named(session: ReadSession, tenant_id: TenantId, name: str) -> Project | None:
    """Return a tenant's project of that name, or None."""
    row = session.row(
        select(projects).where(projects.c.tenant_id == tenant_id, projects.c.name == name)
    )
    return None if row is None else _project(row)


def projects_by_ids(session: ReadSession, ids: Collection[ProjectId]) -> dict[ProjectId, Project]:
    """Return projects by id."""
    rows = session.rows(select(projects).where(projects.c.id.in_(sorted(ids))))
    return {ProjectId(row["id"]): _project(row) for row in rows}


def list_projects(
    session: ReadSession, scope: RowScope, tenant_id: TenantId | None, page: PageRequest
) -> Page[Project]:
    """Return one page of the projects in scope, by name."""
    query: Select[Any] = select(projects)
    if not scope.everything:
        query = query.where(
            or_(
                projects.c.tenant_id.in_(sorted(scope.tenant_ids)),
                projects.c.id.in_(sorted(scope.project_ids)),
            )
        )
    if tenant_id is not None:
        query = query.where(projects.c.tenant_id == tenant_id)
    keys = (projects.c.name, projects.c.id)
    return load_page(session, query, keys, page, _project, sort=SORT_NAME)


def find_user(session: ReadSession, user_id: UserId) -> User | None:
    """Return a user, or None."""
    row = session.row(select(users).where(users.c.id == user_id))
    return None if row is None else _user(row)


def find_user_named(session: ReadSession, name: str) -> User | None:
    """Return the user of that name, or None."""
    row = session.row(select(users).where(users.c.name == name))
    return None if row is None else _user(row)


def find_user_by_email(session: ReadSession, email: str) -> User | None:
    """Return the user of that address, or None."""
    row = session.row(select(users).where(users.c.email == email))
    return None if row is None else _user(row)


def users_by_ids(session: ReadSession, ids: Collection[UserId]) -> dict[UserId, User]:
    """Return users by id."""
    rows = session.rows(select(users).where(users.c.id.in_(sorted(ids))))
    return {UserId(row["id"]): _user(row) for row in rows}


def list_users(session: ReadSession, scope: RowScope, page: PageRequest) -> Page[User]:
    """Return users who live in, or are members of, a tenant or project in scope."""
    query: Select[Any] = select(users)
    if not scope.everything:
        inside = or_(
            memberships.c.tenant_id.in_(sorted(scope.tenant_ids)),
            memberships.c.project_id.in_(sorted(scope.project_ids)),
        )
        query = query.where(
            or_(
                users.c.tenant_id.in_(sorted(scope.tenant_ids)),
                exists().where(memberships.c.user_id == users.c.id, inside),
            )
        )
    return load_page(session, query, (users.c.name, users.c.id), page, _user, sort=SORT_NAME)


def find_login(session: ReadSession, issuer: str, subject: str) -> UserId | None:
    """Return which user a subject of an issuer is, or None."""
    found = session.scalar(
        select(logins.c.user_id).where(logins.c.issuer == issuer, logins.c.subject == subject)
    )
    return None if found is None else UserId(found)


def memberships_of(session: ReadSession, user_id: UserId) -> tuple[Membership, ...]:
    """Return every role of a user."""
    rows = session.rows(
        select(memberships).where(memberships.c.user_id == user_id).order_by(memberships.c.place)
    )
    return tuple(_membership(row) for row in rows)


def list_memberships(
    session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None, page: PageRequest
) -> Page[Membership]:
    """Return the memberships of a tenant with its projects, or of one project."""
    if project_id is not None:
        query: Select[Any] = select(memberships).where(memberships.c.project_id == project_id)
    else:
        query = select(memberships).where(memberships.c.tenant_id == tenant_id)
    return load_page(session, query, (memberships.c.id,), page, _membership, sort=SORT_ID)


def remove_membership(session: WriteSession, user_id: UserId, place: str) -> bool:
    """Take a role away; return whether it was held."""
    removed = session.execute(
        delete(memberships).where(memberships.c.user_id == user_id, memberships.c.place == place)
    )
    return removed == 1


def count_platform_admins(session: ReadSession) -> int:
    """Return how many enabled users administer the platform."""
    query = (
        select(func.count())
        .select_from(memberships.join(users, users.c.id == memberships.c.user_id))
        .where(
            memberships.c.place == "platform",
            memberships.c.role == "admin",
            users.c.disabled.is_(False),
        )
    )
    return int(session.scalar(query) or 0)


def find_caller(session: ReadSession, token_hash: str) -> Caller | None:
    """Return who a token belongs to, with every membership."""
    row = session.row(select(tokens).where(tokens.c.hash == token_hash))
    if row is None:
        return None
    token = _token(row)
    user = find_user(session, token.user_id)
    return None if user is None else Caller(user, memberships_of(session, user.id), token)


def find_token(session: ReadSession, token_id: TokenId) -> Token | None:
    """Return a token, or None."""
    row = session.row(select(tokens).where(tokens.c.id == token_id))
    return None if row is None else _token(row)


def list_tokens(session: ReadSession, user_id: UserId, page: PageRequest) -> Page[Token]:
    """Return one page of a user's tokens, oldest first."""
    query: Select[Any] = select(tokens).where(tokens.c.user_id == user_id)
    return load_page(session, query, (tokens.c.id,), page, _token, sort=SORT_ID)


def set_token(session: WriteSession, token_id: TokenId, values: dict[str, Any]) -> None:
    """Change columns of a token."""
    session.execute(update(tokens).where(tokens.c.id == token_id).values(**values))


def affinities_of(
    session: ReadSession, project_ids: Collection[ProjectId] | None
) -> tuple[Affinity, ...]:
    """Return the affinities of some projects, or of all."""
    query = select(affinities).order_by(affinities.c.project_id, affinities.c.cluster_id)
    if project_ids is not None:
        query = query.where(affinities.c.project_id.in_(sorted(project_ids)))
    return tuple(
        Affinity(
            ProjectId(row["project_id"]), ClusterId(row["cluster_id"]), AffinityKind(row["kind"])
        )
        for row in session.rows(query)
    )


def replace_affinities(
    session: WriteSession, project_id: ProjectId, wanted: Sequence[Affinity]
) -> None:
    """Replace all affinities of a project."""
    session.execute(delete(affinities).where(affinities.c.project_id == project_id))
    session.execute(
        insert(affinities),
        [
            {"project_id": one.project_id, "cluster_id": one.cluster_id, "kind": one.kind.value}
            for one in wanted
        ],
    )


def count_projects(session: ReadSession, tenant_id: TenantId) -> int:
    """Return how many projects a tenant has."""
    return _count(session, projects, projects.c.tenant_id == tenant_id)


def count_homes(session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None) -> int:
    """Return how many users live in a tenant, or in one project."""
    if project_id is None:
        return _count(session, users, users.c.tenant_id == tenant_id)
    return _count(session, users, users.c.project_id == project_id)


def remove_tenant(session: WriteSession, tenant_id: TenantId) -> None:
    """Delete a tenant without projects, with the roles held on it."""
    session.execute(delete(memberships).where(memberships.c.tenant_id == tenant_id))
    session.execute(delete(tenants).where(tenants.c.id == tenant_id))


def remove_project(session: WriteSession, project_id: ProjectId) -> None:
    """Delete a project, with the roles held on it."""
    session.execute(delete(memberships).where(memberships.c.project_id == project_id))
    session.execute(delete(projects).where(projects.c.id == project_id))


def remove_user(session: WriteSession, user_id: UserId) -> None:
    """Delete a user with its tokens, logins and memberships."""
    session.execute(delete(users).where(users.c.id == user_id))


def _count(session: ReadSession, table: Table, where: ColumnElement[bool]) -> int:
    return int(session.scalar(select(func.count()).select_from(table).where(where)) or 0)


def _tenant(row: Any) -> Tenant:
    return Tenant(
        TenantId(row["id"]), row["name"], row["display_name"], row["created_at"], row["version"]
    )


def _project(row: Any) -> Project:
    return Project(
        ProjectId(row["id"]),
        TenantId(row["tenant_id"]),
        row["name"],
        row["display_name"],
        row["created_at"],
        row["version"],
    )


def _user(row: Any) -> User:
    return User(
        UserId(row["id"]),
        row["name"],
        row["email"],
        row["display_name"],
        TenantId(row["tenant_id"]),
        ProjectId(row["project_id"]),
        row["disabled"],
        row["created_at"],
        row["version"],
    )


def _membership(row: Any) -> Membership:
    return Membership(
        UserId(row["user_id"]),
        None if row["tenant_id"] is None else TenantId(row["tenant_id"]),
        None if row["project_id"] is None else ProjectId(row["project_id"]),
        row["role"],
        tuple(row["extra"]),
        row["created_at"],
    )


def _token(row: Any) -> Token:
    scopes = row["scopes"]
    return Token(
        TokenId(row["id"]),
        UserId(row["user_id"]),
        row["name"],
        row["hint"],
        None if scopes is None else tuple(scopes),
        row["created_at"],
        row["expires_at"],
        row["revoked_at"],
        row["last_used_at"],
    )
