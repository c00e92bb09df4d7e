"""Queries of the proof: every run with its steps, a batch at a time, and what belongs to none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, exists, func, select

from gpuplane.core.runs.boards import MAX_SEQ, Run, Step, step_id
from gpuplane.core.runs.plans import Limit, StepPlan
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.runs.repository.boards import STEP_COLUMNS, run_of, step_of
from gpuplane.domains.runs.tables import cache, events, places, runs, steps

BATCH = 500
SHOWN = 20
_RUN_COLUMNS = tuple(runs.c[name] for name in Run.__slots__)
_any = msgspec.json.Decoder()
_object = msgspec.json.Decoder(dict[str, Any])
_numbers = msgspec.json.Decoder(tuple[int, ...])
_RUN_TEXTS = {
    runs.c.params: _object,
    runs.c.context: _object,
    runs.c.limits: msgspec.json.Decoder(tuple[Limit, ...]),
}
_STEP_TEXTS = {
    steps.c.spec: msgspec.json.Decoder(StepPlan),
    steps.c.needs: _numbers,
    steps.c.followers: _numbers,
    steps.c.state: _any,
    steps.c.event: _any,
    steps.c.output: _any,
}
_OVER = ("completed", "failed", "skipped", "cancelled")


@dataclass(frozen=True, slots=True)
class Family:
    """One run with its steps by number, and each column of theirs that cannot be read."""

    run: Run
    steps: dict[int, Step]
    damage: list[str]


def walk_runs(session: ReadSession) -> Iterator[Family | str]:
    """Yield every run with its steps, or a sentence for a row that is none."""
    after: UUID | None = None
    while True:
        query: Any = select(*_RUN_COLUMNS, *_RUN_TEXTS).order_by(runs.c.id).limit(BATCH)
        if after is not None:
            query = query.where(runs.c.id > after)
        rows = session.sql.execute(query).all()
        if not rows:
            return
        low, high = step_id(rows[0].id, 0), step_id(rows[-1].id, MAX_SEQ)
        after = rows[-1].id
        known: dict[UUID, Family] = {}
        for row in rows:
            try:
                run = run_of(row[: len(_RUN_COLUMNS)])
            except (KeyError, ValueError) as error:
                yield f"Run {row.id} cannot be read: {error} is unknown."
                continue
            known[run.id] = Family(run, {}, _damage(row, _RUN_TEXTS, ""))
        query = select(*STEP_COLUMNS, steps.c.output)
        for row in session.sql.execute(query.where(steps.c.id >= low, steps.c.id <= high)):
            family = known.get(row.run_id)
            if family is None:
                continue
            about = f"its step {row.key} "
            family.damage.extend(_damage(row, _STEP_TEXTS, about))
            try:
                family.steps[row.seq] = step_of(row[: len(STEP_COLUMNS)])
            except (KeyError, ValueError) as error:
                family.damage.append(f"{about}cannot be read: {error} is unknown")
        yield from known.values()


def list_unreadable(session: ReadSession) -> list[tuple[str, Any]]:
    """Return (what, id) of kept events and outputs whose JSON is damaged."""
    found: list[tuple[str, Any]] = []
    queries = (
        ("event", select(events.c.id, events.c.payload)),
        ("kept output", select(cache.c.key, cache.c.output)),
    )
    for what, query in queries:
        for row in session.sql.execute(query.execution_options(yield_per=BATCH)):
            if not _is_json(row[1], _any):
                found.append((what, row[0]))
    return found


def _damage(row: Row[Any], columns: Mapping[Any, Any], about: str) -> list[str]:
    named = row._mapping
    return [
        f"{about}has {name} that cannot be read"
        for column, decoder in columns.items()
        if not _is_json(named[name := column.key], decoder)
    ]


def _is_json(text: str | None, decoder: Any) -> bool:
    try:
        if text is not None:
            decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


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
