"""Finds who is calling: by token, by login, and the defaults of a first start."""

from collections.abc import Iterable

from gpuplane.core.ids import ProjectId, TenantId, TokenId, UserId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.identity import repository, rules
from gpuplane.domains.identity.repository import Caller
from gpuplane.domains.identity.rules import (
    Membership,
    Project,
    Tenant,
    Token,
    User,
)
from gpuplane.domains.identity.service.telling import CHANGED, announce
from gpuplane.kit.access import Grant, Permission, Principal, Role
from gpuplane.kit.ids import new_id


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
        announce(session, "user.linked", "user", user.id, user.name, now, data={"issuer": issuer})
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
        announce(session, "tenant.created", "tenant", tenant.id, "system", now, tenant.id)
    project = repository.find_project_named(session, tenant.id, rules.DEFAULT_NAME)
    if project is None:
        project = Project(
            ProjectId(new_id()), tenant.id, rules.DEFAULT_NAME, "Default project", now, 1
        )
        repository.store_project(session, project)
        announce(session, "project.created", "project", project.id, "system", now, tenant.id)
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
        announce(session, "user.created", "user", user.id, "system", now, tenant.id)
    if repository.find_caller(session, token_hash) is None:
        token = Token(
            TokenId(new_id()), user.id, "first-start", hint[:12], None, now, None, None, None
        )
        repository.store_token(session, token, token_hash)
        session.wake(CHANGED)
    return principal_of(Caller(user, repository.memberships_of(session, user.id), None))


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
    announce(session, "user.created", "user", user.id, user.name, now, user.tenant_id)
    return user
