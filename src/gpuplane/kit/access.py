"""Who is behind a call and what they may do. Declares; `api` enforces; services ask about rows.

A principal holds roles on tenants and projects; a role grants permissions; a token's scopes can
only narrow them. Rows of another tenant are not found rather than forbidden.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from gpuplane.core.ids import ProjectId, TenantId, TokenId, UserId
from gpuplane.kit.errors import Forbidden, NotFound

F = TypeVar("F", bound=Callable[..., object])


class Role(StrEnum):
    """What a member may be, widest first."""

    ADMIN = "admin"
    OPERATOR = "operator"
    MEMBER = "member"
    VIEWER = "viewer"


class Permission(StrEnum):
    """One right; endpoints name exactly one. The values are also token scopes."""

    PUBLIC = "public"
    """Nobody needs to be known: health, version."""
    KNOWN = "known"
    """Every caller with a valid token."""
    JOB_READ = "job:read"
    JOB_WRITE = "job:write"
    JOB_MANAGE = "job:manage"
    JOB_EXEC = "job:exec"
    RUN_READ = "run:read"
    RUN_WRITE = "run:write"
    PIPELINE_READ = "pipeline:read"
    PIPELINE_WRITE = "pipeline:write"
    SECRET_READ = "secret:read"
    SECRET_WRITE = "secret:write"
    CLUSTER_READ = "cluster:read"
    CLUSTER_MANAGE = "cluster:manage"
    NODE_MANAGE = "node:manage"
    QUOTA_READ = "quota:read"
    QUOTA_MANAGE = "quota:manage"
    CAPACITY_RESERVE = "capacity:reserve"
    SCHEDULING_MANAGE = "scheduling:manage"
    USAGE_READ = "usage:read"
    PRICE_READ = "price:read"
    PRICE_MANAGE = "price:manage"
    EVENT_READ = "event:read"
    WEBHOOK_MANAGE = "webhook:manage"
    MEMBER_READ = "member:read"
    MEMBER_MANAGE = "member:manage"
    TENANT_MANAGE = "tenant:manage"
    TOKEN_MANAGE = "token:manage"


ALWAYS = frozenset({Permission.PUBLIC, Permission.KNOWN})
"""What needs no role; the first not even a caller."""

_VIEWER = frozenset(
    {
        *ALWAYS,
        Permission.JOB_READ,
        Permission.RUN_READ,
        Permission.PIPELINE_READ,
        Permission.CLUSTER_READ,
        Permission.QUOTA_READ,
        Permission.USAGE_READ,
        Permission.PRICE_READ,
        Permission.EVENT_READ,
        Permission.MEMBER_READ,
        Permission.TOKEN_MANAGE,
    }
)
_MEMBER = _VIEWER | {
    Permission.JOB_WRITE,
    Permission.JOB_EXEC,
    Permission.RUN_WRITE,
    Permission.PIPELINE_WRITE,
    Permission.SECRET_READ,
    Permission.SECRET_WRITE,
}
_OPERATOR = _MEMBER | {
    Permission.JOB_MANAGE,
    Permission.CLUSTER_MANAGE,
    Permission.NODE_MANAGE,
    Permission.QUOTA_MANAGE,
    Permission.CAPACITY_RESERVE,
    Permission.SCHEDULING_MANAGE,
    Permission.WEBHOOK_MANAGE,
}
_ADMIN = frozenset(Permission)

ROLE_PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.ADMIN: _ADMIN,
    Role.OPERATOR: frozenset(_OPERATOR),
    Role.MEMBER: frozenset(_MEMBER),
    Role.VIEWER: _VIEWER,
}

PLATFORM_PERMISSIONS = frozenset(
    {
        Permission.CLUSTER_MANAGE,
        Permission.NODE_MANAGE,
        Permission.QUOTA_MANAGE,
        Permission.SCHEDULING_MANAGE,
        Permission.PRICE_MANAGE,
        Permission.TENANT_MANAGE,
    }
)
"""Rights over things that belong to no tenant: only a platform-wide role grants them."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One role held: on the whole platform (no tenant), on a tenant, or on one project."""

    role: Role
    tenant_id: TenantId | None = None
    project_id: ProjectId | None = None
    extra: frozenset[Permission] = field(default_factory=frozenset)
    """Single permissions held beside the role in the same place, such as `job:manage`."""

    def carries(self, permission: Permission) -> bool:
        """Return whether this grant holds a permission in the place it is for."""
        if self.tenant_id is not None and permission in PLATFORM_PERMISSIONS:
            return False
        return permission in ROLE_PERMISSIONS[self.role] or permission in self.extra

    def covers(self, tenant_id: TenantId | None, project_id: ProjectId | None) -> bool:
        """Return whether a thing of this tenant and project lies in the place it is for."""
        if self.tenant_id is None:
            return True
        return self.tenant_id == tenant_id and self.project_id in (None, project_id)


@dataclass(frozen=True, slots=True)
class RowScope:
    """Which rows a list may show: all, those of whole tenants, and those of single projects."""

    everything: bool = False
    tenant_ids: frozenset[TenantId] = frozenset()
    project_ids: frozenset[ProjectId] = frozenset()


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, with every grant; `scopes` None means the token is not narrowed."""

    user_id: UserId
    name: str
    tenant_id: TenantId
    project_id: ProjectId
    """The tenant and project meant when a call names none."""
    grants: tuple[Grant, ...]
    token_id: TokenId | None = None
    scopes: frozenset[Permission] | None = None

    @property
    def is_platform(self) -> bool:
        """Return whether a grant spans every tenant."""
        return any(grant.tenant_id is None for grant in self.grants)

    def may(
        self,
        permission: Permission,
        tenant_id: TenantId | None = None,
        project_id: ProjectId | None = None,
    ) -> bool:
        """Return whether the permission is held on the platform, a tenant or a project.

        Args:
            permission: The right asked for.
            tenant_id: The tenant of the thing; None for things of the platform.
            project_id: The project of the thing, if it lies in one.
        """
        if permission in ALWAYS:
            return True
        if self.scopes is not None and permission not in self.scopes:
            return False
        return any(
            grant.carries(permission) and grant.covers(tenant_id, project_id)
            for grant in self.grants
        )

    def may_anywhere(self, permission: Permission) -> bool:
        """Return whether any grant carries the permission (the check before a row is known)."""
        if permission in ALWAYS:
            return True
        if self.scopes is not None and permission not in self.scopes:
            return False
        return any(grant.carries(permission) for grant in self.grants)

    def rows(self, permission: Permission) -> "RowScope":
        """Return in which tenants and projects rows may be listed with this permission."""
        if self.scopes is not None and permission not in self.scopes:
            return RowScope()
        grants = [grant for grant in self.grants if grant.carries(permission)]
        return RowScope(
            everything=any(grant.tenant_id is None for grant in grants),
            tenant_ids=frozenset(
                grant.tenant_id
                for grant in grants
                if grant.tenant_id is not None and grant.project_id is None
            ),
            project_ids=frozenset(
                grant.project_id for grant in grants if grant.project_id is not None
            ),
        )

    def sees_tenant(self, tenant_id: TenantId) -> bool:
        """Return whether rows of this tenant exist for the caller at all."""
        return any(grant.tenant_id in (None, tenant_id) for grant in self.grants)

    def require(
        self,
        permission: Permission,
        tenant_id: TenantId | None = None,
        project_id: ProjectId | None = None,
        *,
        what: str = "this",
    ) -> None:
        """Raise unless the permission is held.

        Raises:
            NotFound: If the thing lies in a tenant the caller does not see.
            Forbidden: If it is seen and the right is missing.
        """
        if tenant_id is not None and not self.sees_tenant(tenant_id):
            raise NotFound(f"There is no {what} of that id.", fix="Check the id and the tenant.")
        if not self.may(permission, tenant_id, project_id):
            raise Forbidden(
                f"{self.name} may not do this: the right {permission} is missing.",
                fix=f"Ask an admin for a role or a token with {permission}.",
                extra={"permission": str(permission)},
            )


def requires(permission: Permission) -> Callable[[F], F]:
    """Mark an endpoint with the right it needs; the app refuses endpoints without a mark."""

    def mark(function: F) -> F:
        function.__gpuplane_permission__ = permission  # type: ignore[attr-defined]  # the mark
        return function

    return mark


def permission_of(function: object) -> Permission | None:
    """Return the mark that `requires` left on an endpoint."""
    return getattr(function, "__gpuplane_permission__", None)


def counts_as_submit(function: F) -> F:
    """Mark an endpoint whose calls are counted by the per-tenant limit on submits."""
    function.__gpuplane_submit__ = True  # type: ignore[attr-defined]  # the mark
    return function


def is_submit(function: object) -> bool:
    """Return whether `counts_as_submit` marked an endpoint."""
    return getattr(function, "__gpuplane_submit__", False)


def rate_limited(limit: str) -> Callable[[F], F]:
    """Mark an endpoint whose calls are counted by a named limit, per user."""

    def mark(function: F) -> F:
        function.__gpuplane_rate__ = limit  # type: ignore[attr-defined]  # the mark
        return function

    return mark


def rate_limit_of(function: object) -> str | None:
    """Return the name of the limit that `rate_limited` left on an endpoint."""
    return getattr(function, "__gpuplane_rate__", None)


def accepts_form(*names: str) -> Callable[[F], F]:
    """Mark an endpoint that takes a multipart form of these parts as well as JSON."""

    def mark(function: F) -> F:
        function.__gpuplane_form__ = frozenset(names)  # type: ignore[attr-defined]  # the mark
        return function

    return mark


def form_parts(function: object) -> frozenset[str]:
    """Return the names of parts that `accepts_form` left on an endpoint, none without it."""
    return getattr(function, "__gpuplane_form__", frozenset())


def accepts_upload(max_bytes: int) -> Callable[[F], F]:
    """Mark an endpoint that reads a stream of bytes instead of a JSON body.

    Args:
        max_bytes: The longest stream it takes; more is answered with 413.
    """

    def mark(function: F) -> F:
        function.__gpuplane_upload__ = max_bytes  # type: ignore[attr-defined]  # the mark
        return function

    return mark


def upload_limit(function: object) -> int | None:
    """Return the limit that `accepts_upload` left on an endpoint, in bytes."""
    return getattr(function, "__gpuplane_upload__", None)
