"""Reading runs and steps: for people with their rights, for other domains without."""

from collections.abc import Sequence
from uuid import UUID

from gpuplane.core.ids import ProjectId, TenantId
from gpuplane.core.runs.boards import MAX_SEQ, step_id
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.runs.errors import RunNotFound, StepNotFound
from gpuplane.domains.runs.repository import claims, listing, places
from gpuplane.domains.runs.repository.boards import decode
from gpuplane.domains.runs.rules import RunFilter, RunHead, RunView, StepFilter, StepView
from gpuplane.kit.access import Permission, Principal, RowScope
from gpuplane.kit.pagination import Page, PageRequest

SORT_RUNS, SORT_STEPS = listing.SORT_RUNS, listing.SORT_STEPS


def find_run(session: ReadSession, run_id: UUID) -> RunView | None:
    """Return a run, or None."""
    return listing.find_run(session, run_id)


def find_run_by_dedup(session: ReadSession, project_id: UUID, dedup_id: str) -> RunView | None:
    """Return the run of a project that has a deduplication id, or None."""
    return listing.find_by_dedup(session, project_id, dedup_id)


def get_run(
    session: ReadSession,
    run_id: UUID,
    principal: Principal | None = None,
    permission: Permission = Permission.RUN_READ,
) -> RunView:
    """Return a run (that the caller may see or change, if one is named).

    Raises:
        RunNotFound: If there is none, or it is not the caller's to see.
        Forbidden: If it is seen and the right is missing.
    """
    run = listing.find_run(session, run_id)
    if run is None or (
        principal is not None and not principal.sees_tenant(TenantId(run.tenant_id))
    ):
        raise RunNotFound("There is no run of that id.", fix="List the runs.")
    if principal is not None:
        principal.require(
            permission, TenantId(run.tenant_id), ProjectId(run.project_id), what="run"
        )
    return run


def list_runs(
    session: ReadSession, principal: Principal | None, wanted: RunFilter, page: PageRequest
) -> Page[RunView]:
    """Return one page of the runs that the caller may see, newest first; of all without one."""
    everything = RowScope(everything=True)
    scope = everything if principal is None else principal.rows(Permission.RUN_READ)
    return listing.list_runs(session, scope, wanted, page)


def list_steps(
    session: ReadSession, run_id: UUID, wanted: StepFilter, page: PageRequest
) -> Page[StepView]:
    """Return one page of a run's steps in their order; the caller was let in to the run."""
    return listing.list_steps(session, run_id, wanted, page)


def get_step(session: ReadSession, run_id: UUID, wanted: str) -> StepView:
    """Return a step of a run by its id or key.

    Raises:
        StepNotFound: If the run has none of that name.
    """
    step = listing.find_step(session, run_id, wanted)
    if step is None:
        raise StepNotFound("The run has no such step.", fix="List the steps of the run.")
    return step


def count_open_runs_of(session: ReadSession, source_id: UUID) -> int:
    """Return how many runs of a source are not over."""
    return listing.count_open_of(session, source_id)


def count_open_runs(session: ReadSession) -> dict[tuple[str, str], int]:
    """Return how many open runs there are by kind and status."""
    return listing.count_by_status(session)


def load_heads(session: ReadSession, run_ids: Sequence[UUID]) -> dict[UUID, RunHead]:
    """Return what every call of these runs' handlers is told."""
    return claims.load_heads(session, run_ids)


def load_graph(
    session: ReadSession, run_id: UUID
) -> list[tuple[int, int, int, tuple[int, ...], str]]:
    """Return (seq, parent, undo_of, needs, key) of every step of a run."""
    return claims.load_graph(session, step_id(run_id, 0), step_id(run_id, MAX_SEQ))


def load_outputs(
    session: ReadSession, run_id: UUID, seqs: Sequence[int]
) -> dict[int, tuple[str, str | None]]:
    """Return (key, output as JSON text) of steps by number."""
    return claims.load_outputs(session, [step_id(run_id, seq) for seq in seqs])


def load_children(
    session: ReadSession, run_id: UUID, parent: int
) -> list[tuple[str, str, object, str]]:
    """Return (key, status, output, message) of a step's children in order."""
    found = claims.list_children(session, run_id, parent)
    return [(key, status, decode(output), message) for key, status, output, message in found]


def find_output(
    session: ReadSession, project_id: UUID, key: str, handler: str, step_key: str
) -> tuple["places.Kept | None", "places.Kept | None"]:
    """Return the output kept for equal input, and the newest that this step left otherwise."""
    found = places.find_output(session, project_id, key)
    if found is not None:
        return found, None
    return None, places.find_last_output(session, project_id, handler, step_key)
