"""Forgetting what is kept no longer: output of attempts, jobs that are over, unused uploads."""

from collections.abc import Sequence
from uuid import UUID

from gpuplane.core.ids import AttemptId, ClusterId, JobId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import workspaces
from gpuplane.domains.jobs.rules import Attempt


def list_to_forget(
    session: ReadSession, cluster_ids: Sequence[ClusterId], ended_before: int, limit: int
) -> list[Attempt]:
    """Return attempts whose output has been kept long enough."""
    return attempts_repository.list_unforgotten(session, cluster_ids, ended_before, limit)


def list_to_prune(
    session: ReadSession, ended_before: int, limit: int
) -> tuple[list[JobId], list[Attempt]]:
    """Return jobs that have been kept long enough, and attempts of theirs to forget first."""
    job_ids = repository.list_ended(session, ended_before, limit)
    return job_ids, attempts_repository.list_kept_of(session, job_ids)


def note_forgotten(session: WriteSession, attempt_ids: Sequence[AttemptId]) -> None:
    """Remember that backends keep nothing of these attempts any more."""
    attempts_repository.mark_forgotten(session, attempt_ids)


def prune_jobs(session: WriteSession, job_ids: Sequence[JobId]) -> None:
    """Forget jobs that are over; the ledger and the events keep their own lines."""
    repository.delete_jobs(session, job_ids)


def prune_decisions(session: WriteSession, before: int) -> int:
    """Forget the headers of old cycles and return how many."""
    return repository.prune_decisions(session, before)


def list_unused_workspaces(session: ReadSession, before: int, limit: int) -> list[tuple[str, UUID]]:
    """Return (digest, tenant) of working directories that nobody has used since an instant."""
    return workspaces.list_unused(session, before, limit)


def forget_workspace(session: WriteSession, digest: str, tenant_id: UUID) -> bool:
    """Forget an upload; True when its archive can be deleted."""
    return workspaces.delete_workspace(session, tenant_id, digest)
