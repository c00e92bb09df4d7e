"""Queries of the proof: every run with its steps, a batch at a time, and what belongs to none."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from sqlalchemy import exists, func, select

from gpuplane.core.runs.boards import MAX_SEQ, Run, Step, step_id
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.runs.repository.boards import STEP_COLUMNS, run_of, step_of
from gpuplane.domains.runs.tables import places, runs, steps

BATCH = 500
SHOWN = 20
_RUN_COLUMNS = tuple(runs.c[name] for name in Run.__slots__)
_OVER = ("completed", "failed", "skipped", "cancelled")


def walk_runs(session: ReadSession) -> Iterator[tuple[Run, dict[int, Step]]]:
    """Yield every run with its steps by number."""
    after: UUID | None = None
    while True:
        query: Any = select(*_RUN_COLUMNS).order_by(runs.c.id).limit(BATCH)
        if after is not None:
            query = query.where(runs.c.id > after)
        found = [run_of(row) for row in session.sql.execute(query)]
        if not found:
            return
        after = found[-1].id
        known: dict[UUID, dict[int, Step]] = {run.id: {} for run in found}
        low, high = step_id(found[0].id, 0), step_id(found[-1].id, MAX_SEQ)
        rows = select(*STEP_COLUMNS).where(steps.c.id >= low, steps.c.id <= high)
        for step in map(step_of, session.sql.execute(rows)):
            if step.run_id in known:
                known[step.run_id][step.seq] = step
        for run in found:
            yield run, known[run.id]


def orphans(session: ReadSession) -> list[UUID]:
    """Return some steps whose run is not there."""
    query = select(steps.c.id).where(~exists().where(runs.c.id == steps.c.run_id)).limit(SHOWN)
    return list(session.sql.execute(query).scalars())


def list_oversold(session: ReadSession) -> list[tuple[str, int, int]]:
    """Return (key, held, allowed) where more hold a place than the widest limit allows."""
    query = (
        select(places.c.key, func.count(), func.max(places.c.count))
        .where(places.c.held.is_(True))
        .group_by(places.c.project_id, places.c.kind, places.c.key)
        .having(func.count() > func.max(places.c.count))
    )
    return [(row[0], row[1], row[2]) for row in session.sql.execute(query)]


def list_idle_places(session: ReadSession) -> list[tuple[str, UUID]]:
    """Return some places that are held by what is over or not there."""
    open_step = exists().where(steps.c.id == places.c.holder_id, steps.c.status.not_in(_OVER))
    open_run = exists().where(
        runs.c.id == places.c.holder_id, runs.c.status.in_(("pending", "running"))
    )
    query = select(places.c.key, places.c.holder_id).where(~open_step, ~open_run).limit(SHOWN)
    return [(row[0], row[1]) for row in session.sql.execute(query)]
