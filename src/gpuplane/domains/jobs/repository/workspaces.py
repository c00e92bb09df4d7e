"""Queries on uploaded working directories; the archives lie in a folder, named by digest."""

from uuid import UUID

from sqlalchemy import delete, insert, select, update

from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.jobs.tables import WorkspaceRow

workspaces = table_of(WorkspaceRow)


def has_workspace(session: ReadSession, tenant_id: UUID, digest: str) -> bool:
    """Return whether a tenant uploaded a working directory of this digest."""
    query = select(workspaces.c.digest).where(
        workspaces.c.tenant_id == tenant_id, workspaces.c.digest == digest
    )
    return session.scalar(query) is not None


def store_workspace(
    session: WriteSession, tenant_id: UUID, digest: str, size_bytes: int, now: int
) -> bool:
    """Remember an upload; False when the tenant has it already."""
    if has_workspace(session, tenant_id, digest):
        touch_workspace(session, tenant_id, digest, now)
        return False
    session.execute(
        insert(workspaces).values(
            digest=digest,
            tenant_id=tenant_id,
            size_bytes=size_bytes,
            created_at=now,
            last_used_at=now,
        )
    )
    return True


def touch_workspace(session: WriteSession, tenant_id: UUID, digest: str, now: int) -> None:
    """Remember that a working directory was used."""
    session.execute(
        update(workspaces)
        .where(workspaces.c.tenant_id == tenant_id, workspaces.c.digest == digest)
        .values(last_used_at=now)
    )


def list_unused(session: ReadSession, before: int, limit: int) -> list[tuple[str, UUID]]:
    """Return (digest, tenant) of working directories not used since an instant."""
    query = (
        select(workspaces.c.digest, workspaces.c.tenant_id)
        .where(workspaces.c.last_used_at < before)
        .limit(limit)
    )
    return [(row["digest"], row["tenant_id"]) for row in session.rows(query)]


def delete_workspace(session: WriteSession, tenant_id: UUID, digest: str) -> bool:
    """Forget an upload; True when no other tenant has it, so that the archive can go."""
    session.execute(
        delete(workspaces).where(workspaces.c.tenant_id == tenant_id, workspaces.c.digest == digest)
    )
    left = session.scalar(select(workspaces.c.digest).where(workspaces.c.digest == digest))
    return left is None
