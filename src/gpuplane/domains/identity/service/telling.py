"""Says what changed: an audited event, and a refusal of stale changes."""

from uuid import UUID

from gpuplane.core.ids import ProjectId, TenantId
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events.service import NewEvent, record
from gpuplane.domains.identity.errors import StaleVersion

CHANGED = "identity"
"""Woken by every change of rights: whoever caches callers forgets them."""


def stale(what: str) -> StaleVersion:
    """Return the refusal of a change decided on a version that is gone."""
    return StaleVersion(f"The {what} has just been changed by somebody else.", fix="Try again.")


def announce(
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
    """Record an audited event of identity in the caller's transaction."""
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
