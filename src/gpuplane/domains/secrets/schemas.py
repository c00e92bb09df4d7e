"""API bodies of secrets; no answer has a value."""

from typing import Annotated
from uuid import UUID

from pydantic import Field, SecretStr

from gpuplane.kit.bodies import Body, InstantOut, Name

Value = Annotated[SecretStr, Field(min_length=1, max_length=65_536)]
"""Never shown by `repr`, logs or validation errors."""


class SecretIn(Body):
    """A secret to create; without a project it is the caller's."""

    name: Name
    value: Value
    project_id: UUID | None = None


class SecretValueIn(Body):
    """The new value of a secret."""

    value: Value


class SecretOut(Body):
    """One secret without its value."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    name: str
    value_version: int
    created_by: str
    created_at: InstantOut
    rotated_at: InstantOut


class RotationOut(Body):
    """A rotation of the sealing key."""

    key_id: str
    """The key that seals from now on; older ones stay for what they sealed."""
    rewrapped: int
    """Secrets that were sealed anew by it."""
