"""Pure facts about secrets."""

from dataclasses import dataclass

from gpuplane.core.ids import ProjectId, SecretId, TenantId

MAX_VALUE_BYTES = 64 * 1024
"""Longer than any key or certificate chain; a file belongs into an artifact."""


@dataclass(frozen=True, slots=True)
class Secret:
    """One secret as everybody may see it: without its value."""

    id: SecretId
    tenant_id: TenantId
    project_id: ProjectId
    name: str
    value_version: int
    created_by: str
    created_at: int
    rotated_at: int
    version: int


def context_of(secret_id: SecretId, value_version: int) -> str:
    """Return what a value is sealed for, so that no row can be swapped for another."""
    return f"secret/{secret_id}/{value_version}"
