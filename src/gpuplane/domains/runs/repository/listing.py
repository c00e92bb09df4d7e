"""Lists of runs and steps for people, and what is forgotten in the end."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, bindparam, delete, func, select, text

from gpuplane.core.lifecycle.runs import RunCondition, RunStatus, StepCondition, StepStatus
from gpuplane.core.runs.boards import MAX_SEQ, step_id
from gpuplane.core.runs.plans import Limit
from gpuplane.db.pages import load_page
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.runs.repository.boards import chunks, decode, read_spec
from gpuplane.domains.runs.rules import RunFilter, RunView, StepFilter, StepView
from gpuplane.domains.runs.tables import events, places, runs, steps
from gpuplane.kit.access import RowScope
from gpuplane.kit.ids import find_id
from gpuplane.kit.pagination import Page, PageRequest

SORT_RUNS = "-created_at"
SORT_STEPS = "seq"
_VIEW = tuple(RunView.__slots__)
IS_OPEN = text("runs_runs.status IN ('pending','running')")
"""Written out as the index of open runs has it: with parameters no database takes that index, and
walks every run there ever was."""
_COUNT = "SELECT count(*) FROM runs_runs {} WHERE status IN ('pending','running')"
_COUNT_OPEN, _COUNT_OPEN_SQLITE = (
    text(f"{_COUNT.format(hint)} AND project_id = :project_id").bindparams(
        bindparam("project_id", type_=runs.c.project_id.type)
    )
    for hint in ("", "INDEXED BY ix_runs_runs_open")  # SQLite takes another that fits as well
)
_OPEN = (RunStatus.PENDING.value, RunStatus.RUNNING.value)
_limits = msgspec.json.Decoder(tuple[Limit, ...])
_numbers = msgspec.json.Decoder(tuple[int, ...])


def find_run(session: ReadSession, run_id: UUID) -> RunView | None:
    """Return a run, or None."""
    row = session.row(select(runs).where(runs.c.id == run_id))
    return None if row is None else _run_view(row)


def find_by_dedup(session: ReadSession, project_id: UUID, dedup_id: str) -> RunView | None:
    """Return the run of a project that has a deduplication id, or None."""
    row = session.row(
        select(runs).where(runs.c.project_id == project_id, runs.c.dedup_id == dedup_id)
    )
    return None if row is None else _run_view(row)


def list_runs(
    session: ReadSession, scope: RowScope, wanted: RunFilter, page: PageRequest
) -> Page[RunView]:
    """Return one page of the runs in scope, newest first."""
    query: Select[Any] = select(runs)
    if not scope.everything:
        query = query.where(
            runs.c.tenant_id.in_(sorted(scope.tenant_ids))
            | runs.c.project_id.in_(sorted(scope.project_ids))
        )
    for name in ("kind", "source_id", "project_id", "trigger"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(runs.c[name] == value)
    if wanted.statuses:
        query = query.where(runs.c.status.in_(wanted.statuses))
    if wanted.created_since is not None:
        query = query.where(runs.c.created_at >= wanted.created_since)
    if wanted.created_until is not None:
        query = query.where(runs.c.created_at < wanted.created_until)
    return load_page(
        session, query, (runs.c.created_at, runs.c.id), page, _run_view, sort=SORT_RUNS
    )


def list_steps(
    session: ReadSession, run_id: UUID, wanted: StepFilter, page: PageRequest
) -> Page[StepView]:
    """Return one page of a run's steps in their order."""
    query: Select[Any] = select(steps).where(
        steps.c.id >= step_id(run_id, 0),
        steps.c.id <= step_id(run_id, MAX_SEQ),
        steps.c.run_id == run_id,
    )
    if wanted.statuses:
        query = query.where(steps.c.status.in_(wanted.statuses))
    if wanted.parent is not None:
        query = query.where(steps.c.parent == wanted.parent)
    return load_page(session, query, (steps.c.seq,), page, _step_view, sort=SORT_STEPS)


def find_step(session: ReadSession, run_id: UUID, wanted: str) -> StepView | None:
    """Return a step of a run by id or key, or None."""
    query = select(steps).where(steps.c.run_id == run_id)
    key = find_id(wanted)
    if key is not None:
        query = query.where(steps.c.id == key)
    else:
        low, high = step_id(run_id, 0), step_id(run_id, MAX_SEQ)
        query = query.where(steps.c.id >= low, steps.c.id <= high, steps.c.key == wanted)
    row = session.row(query)
    return None if row is None else _step_view(row)


def count_open(session: ReadSession, project_id: UUID) -> int:
    """Return how many runs of a project are not over."""
    query = _COUNT_OPEN_SQLITE if session.dialect == "sqlite" else _COUNT_OPEN
    return int(session.sql.execute(query, {"project_id": project_id}).scalar() or 0)


def count_open_of(session: ReadSession, source_id: UUID) -> int:
    """Return how many runs of a source are not over."""
    query = select(func.count()).select_from(runs).where(IS_OPEN, runs.c.source_id == source_id)
    return int(session.scalar(query) or 0)


def lock_open(session: WriteSession, project_id: UUID) -> None:
    """Let nobody else who asks for this lock start runs of a project until the transaction ends."""
    session.sql.execute(
        select(func.pg_advisory_xact_lock(func.hashtextextended(str(project_id), 2)))
    )


def count_by_status(session: ReadSession) -> dict[tuple[str, str], int]:
    """Return how many open runs there are by kind and status."""
    query = (
        select(runs.c.kind, runs.c.status, func.count())
        .where(IS_OPEN)
        .group_by(runs.c.kind, runs.c.status)
    )
    return {(row[0], row[1]): row[2] for row in session.sql.execute(query)}


def list_ended(session: ReadSession, before: int, limit: int) -> list[UUID]:
    """Return runs that ended before an instant, the oldest first."""
    query = (
        select(runs.c.id)
        .where(runs.c.ended_at < before, runs.c.status.not_in(_OPEN))
        .order_by(runs.c.ended_at)
        .limit(limit)
    )
    return list(session.sql.execute(query).scalars())


def delete_runs(session: WriteSession, run_ids: Sequence[UUID]) -> None:
    """Forget runs with everything that is theirs."""
    for run_id in run_ids:
        session.execute(
            delete(steps).where(
                steps.c.id >= step_id(run_id, 0),
                steps.c.id <= step_id(run_id, MAX_SEQ),
                steps.c.run_id == run_id,
            )
        )
    for chunk in chunks(list(run_ids)):
        session.execute(delete(events).where(events.c.run_id.in_(chunk)))
        session.execute(delete(places).where(places.c.run_id.in_(chunk)))
        session.execute(delete(runs).where(runs.c.id.in_(chunk)))


def _run_view(row: Any) -> RunView:
    values = {name: row[name] for name in _VIEW}
    values["status"] = RunStatus(values["status"])
    values["condition"] = RunCondition(values["condition"])
    values["params"], values["context"] = decode(values["params"]), decode(values["context"])
    values["limits"] = _limits.decode(values["limits"])
    return RunView(**values)


def _step_view(row: Any) -> StepView:
    spec = read_spec(row["spec"], row["key"])
    return StepView(
        id=row["id"],
        run_id=row["run_id"],
        seq=row["seq"],
        parent=row["parent"],
        undo_of=row["undo_of"],
        key=row["key"],
        name=spec.name or row["key"],
        handler=row["handler"],
        needs=_numbers.decode(row["needs"]),
        status=StepStatus(row["status"]),
        condition=StepCondition(row["condition"]),
        attempt=row["attempt"],
        attempts=spec.retry.attempts,
        generation=row["generation"],
        due_at=row["due_at"],
        wait_key=row["wait_key"],
        wait_until=row["wait_until"],
        limited_by=row["limited_by"],
        error=row["error"],
        message=row["message"],
        cache_note=row["cache_note"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        input=spec.input,
        output=decode(row["output"]),
    )
