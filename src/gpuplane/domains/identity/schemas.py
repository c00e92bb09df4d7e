"""API bodies of tenants, projects, users, tokens, memberships and affinities."""

import re
from typing import Annotated
from uuid import UUID

from pydantic import AfterValidator, Field, WithJsonSchema

from gpuplane.kit.access import Permission, Role
from gpuplane.kit.bodies import (
    Body,
    Flag,
    InstantIn,
    InstantOut,
    Name,
    SecretBody,
    Text,
    refusal,
)

_EMAIL = re.compile(r"[^@\s]{1,64}@[A-Za-z0-9.-]{1,189}")


def _check_email(value: str) -> str:
    if not _EMAIL.fullmatch(value) or not value.isprintable():
        raise refusal("This is no e-mail address.", "For example ada@example.com.")
    return value.lower()


Email = Annotated[
    str,
    AfterValidator(_check_email),
    WithJsonSchema({"type": "string", "format": "email", "maxLength": 254}),
]


class TenantIn(Body):
    """A tenant to create."""

    name: Name
    display_name: Text = ""


class DisplayNameIn(Body):
    """What people call it from now on."""

    display_name: Text


class TenantOut(Body):
    """One tenant."""

    id: UUID
    name: str
    display_name: str
    created_at: InstantOut


class ProjectIn(Body):
    """A project to create; without a tenant it is the caller's."""

    name: Name
    tenant_id: UUID | None = None
    display_name: Text = ""


class ProjectOut(Body):
    """One project."""

    id: UUID
    tenant_id: UUID
    name: str
    display_name: str
    created_at: InstantOut


class UserIn(Body):
    """A user to create; the project is where its calls go when they name none."""

    name: Name
    email: Email | None = None
    display_name: Text = ""
    tenant_id: UUID | None = None
    project_id: UUID | None = None


class UserChangeIn(Body):
    """What to change of a user; what is absent stays."""

    email: Email | None = None
    display_name: Text | None = None
    disabled: Flag | None = None


class UserOut(Body):
    """One user."""

    id: UUID
    name: str
    email: str | None
    display_name: str
    tenant_id: UUID
    project_id: UUID
    disabled: bool
    created_at: InstantOut


class MembershipIn(Body):
    """A role in a project, in a tenant, or (with neither) on the whole platform."""

    user_id: UUID
    role: Role
    tenant_id: UUID | None = None
    project_id: UUID | None = None
    extra: list[Permission] = Field(default_factory=list, max_length=len(Permission))
    """Single permissions beside the role, such as `job:manage`."""


class MembershipOut(Body):
    """One role of a user in one place."""

    user_id: UUID
    role: Role
    tenant_id: UUID | None
    project_id: UUID | None
    extra: list[str]
    created_at: InstantOut


class TokenIn(Body):
    """A token to create, for oneself unless a user is named."""

    name: Name
    user_id: UUID | None = None
    scopes: Annotated[list[Permission], Field(max_length=len(Permission))] | None = None
    """The only permissions the token carries; absent means all of the user's."""
    expires_at: InstantIn | None = None


class TokenOut(Body):
    """One token as lists show it."""

    id: UUID
    user_id: UUID
    name: str
    hint: str
    """Its first characters."""
    scopes: list[str] | None
    created_at: InstantOut
    expires_at: InstantOut | None
    revoked_at: InstantOut | None
    last_used_at: InstantOut | None


class TokenCreatedOut(SecretBody):
    """The token itself, shown this once."""

    id: UUID
    token: str
    name: str
    scopes: list[str] | None
    expires_at: InstantOut | None


class AffinitiesIn(Body):
    """How a project stands to clusters; whatever is not named is neutral."""

    required: list[UUID] = Field(default_factory=list, max_length=1_000)
    """If any is named, the project may use these clusters only."""
    preferred: list[UUID] = Field(default_factory=list, max_length=1_000)
    excluded: list[UUID] = Field(default_factory=list, max_length=1_000)


class AffinitiesOut(Body):
    """How a project stands to clusters."""

    project_id: UUID
    required: list[UUID]
    preferred: list[UUID]
    excluded: list[UUID]
