"""Forgetting runs that were kept long enough, and what they left behind."""

from collections.abc import Sequence
from uuid import UUID

from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.runs.repository import claims, listing, places
from gpuplane.domains.runs.service.working import EVENT_KEPT_MS


def list_to_prune(session: ReadSession, ended_before: int, limit: int) -> list[UUID]:
    """Return runs that have been kept long enough."""
    return listing.list_ended(session, ended_before, limit)


def prune_runs(session: WriteSession, run_ids: Sequence[UUID]) -> None:
    """Forget runs that are over, with their steps and outputs."""
    listing.delete_runs(session, run_ids)


def prune_leftovers(session: WriteSession, now: int) -> int:
    """Forget reusable outputs that are too old and events that nobody came for."""
    return places.prune_outputs(session, now) + claims.prune_events(session, now - EVENT_KEPT_MS)
