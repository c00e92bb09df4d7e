"""Pure decisions about people and rights: where a membership lies, what a token may hold."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.ids import ClusterId, ProjectId, TenantId, TokenId, UserId

DEFAULT_NAME = "default"
ADMIN_NAME = "admin"


class AffinityKind(StrEnum):
    """How a project stands to a cluster."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant."""

    id: TenantId
    name: str
    display_name: str
    created_at: int
    version: int


@dataclass(frozen=True, slots=True)
class Project:
    """One project of a tenant."""

    id: ProjectId
    tenant_id: TenantId
    name: str
    display_name: str
    created_at: int
    version: int


@dataclass(frozen=True, slots=True)
class User:
    """One person or program."""

    id: UserId
    name: str
    email: str | None
    display_name: str
    tenant_id: TenantId
    project_id: ProjectId
    disabled: bool
    created_at: int
    version: int


@dataclass(frozen=True, slots=True)
class Membership:
    """One role of a user in one place."""

    user_id: UserId
    tenant_id: TenantId | None
    project_id: ProjectId | None
    role: str
    extra: tuple[str, ...]
    created_at: int

    @property
    def place(self) -> str:
        """Return the place as one word, unique among a user's memberships."""
        return place_of(self.tenant_id, self.project_id)


@dataclass(frozen=True, slots=True)
class Token:
    """One token as lists show it: never the token itself."""

    id: TokenId
    user_id: UserId
    name: str
    hint: str
    scopes: tuple[str, ...] | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None

    def is_valid(self, now: int) -> bool:
        """Return whether the token opens anything at this instant."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class Affinity:
    """How a project stands to one cluster."""

    project_id: ProjectId
    cluster_id: ClusterId
    kind: AffinityKind


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """What a project's affinities leave of the clusters, as the scheduler reads it."""

    required: frozenset[ClusterId] = frozenset()
    preferred: frozenset[ClusterId] = frozenset()
    excluded: frozenset[ClusterId] = frozenset()

    def allows(self, cluster_id: ClusterId) -> bool:
        """Return whether the project may use a cluster at all."""
        if cluster_id in self.excluded:
            return False
        return not self.required or cluster_id in self.required


def place_of(tenant_id: TenantId | None, project_id: ProjectId | None) -> str:
    """Return where a membership lies as one word."""
    if tenant_id is None:
        return "platform"
    return f"tenant/{tenant_id}" if project_id is None else f"project/{project_id}"


def narrowed_scopes(
    asked: Collection[str] | None, held: Collection[str] | None
) -> tuple[str, ...] | None:
    """Return the scopes of a token made by a caller: never wider than the caller's own token."""
    if held is None:
        return None if asked is None else tuple(sorted(asked))
    return tuple(sorted(held if asked is None else set(asked) & set(held)))


def missing_scopes(asked: Collection[str] | None, held: Collection[str] | None) -> list[str]:
    """Return the scopes asked for that the caller's own token does not hold."""
    if asked is None or held is None:
        return []
    return sorted(set(asked) - set(held))
