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
    JOB_READ = "job:read"
    JOB_WRITE = "job:write"
    JOB_MANAGE = "job:manage"
    JOB_EXEC = "job:exec"
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


_VIEWER = frozenset(
    {
        Permission.PUBLIC,
        Permission.JOB_READ,
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
    extra: frozenset[Permission] = field(default_factory=frozenset)
    """Single permissions granted beside a role, such as `job:manage`."""

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
        if permission is Permission.PUBLIC:
            return True
        if self.scopes is not None and permission not in self.scopes:
            return False
        for grant in self.grants:
            if grant.tenant_id is not None:
                if permission in PLATFORM_PERMISSIONS or grant.tenant_id != tenant_id:
                    continue
                if grant.project_id is not None and grant.project_id != project_id:
                    continue
            if permission in ROLE_PERMISSIONS[grant.role] or permission in self.extra:
                return True
        return False

    def may_anywhere(self, permission: Permission) -> bool:
        """Return whether any grant carries the permission (the check before a row is known)."""
        if permission is Permission.PUBLIC:
            return True
        if self.scopes is not None and permission not in self.scopes:
            return False
        return any(
            permission in ROLE_PERMISSIONS[grant.role] or permission in self.extra
            for grant in self.grants
            if grant.tenant_id is None or permission not in PLATFORM_PERMISSIONS
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
