"""Working copies: rows of runs and steps in, as they were; what changed out, in batches.

Whoever changes a run holds the lock of its row until the transaction ends, so that a run is
changed by one transaction at a time; on SQLite there is one writer anyway.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, delete, insert, select

from gpuplane.core.lifecycle.runs import (
    RunCondition,
    RunStatus,
    StepCondition,
    StepStatus,
)
from gpuplane.core.runs.boards import MAX_SEQ, UNREADABLE, Board, Run, Step, step_id
from gpuplane.core.runs.plans import OnFailure, RunPlan, StepPlan
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.runs.tables import runs, steps

CHUNK = 1_000
"""Values in one IN list: one plan for most batches, and well under what databases take."""

_RUN = tuple(Run.__slots__)
_STEP = tuple(Step.__slots__)
_SPEC_AT, _NEEDS_AT, _FOLLOWERS_AT = (_STEP.index(one) for one in ("spec", "needs", "followers"))
_FIXED = frozenset(
    "id run_id seq parent undo_of key handler spec needs followers".split()
)  # fmt: skip
_MOVING = tuple(name for name in _STEP if name not in _FIXED)
_RUN_FIXED = frozenset(
    "id tenant_id project_id kind name source_id created_by on_failure created_at".split()
)
_RUN_MOVING = tuple(name for name in _RUN if name not in _RUN_FIXED)

_RUN_STATUS = {str(each): each for each in RunStatus}
_RUN_CONDITION = {str(each): each for each in RunCondition}
_STATUS = {str(each): each for each in StepStatus}
_CONDITION = {str(each): each for each in StepCondition}

_spec_decoder = msgspec.json.Decoder(StepPlan)
_numbers = msgspec.json.Decoder(tuple[int, ...])
_encoder = msgspec.json.Encoder()

_RUNS_BY_ID = select(*(runs.c[name] for name in _RUN)).where(
    runs.c.id.in_(bindparam("ids", expanding=True))
)
_STEPS = select(*(steps.c[name] for name in _STEP))
_STEPS_BY_ID = _STEPS.where(steps.c.id.in_(bindparam("ids", expanding=True)))
_STEPS_OF = _STEPS.where(
    steps.c.id >= bindparam("low", type_=steps.c.id.type),
    steps.c.id <= bindparam("high", type_=steps.c.id.type),
)


def _named(names: Iterable[str], mark: str) -> str:
    return ", ".join(f'"{name}"{mark}' for name in names)


def _marks(count: int) -> str:
    return ", ".join("?" for _ in range(count))


_STORE_STEP = f"UPDATE runs_steps SET {_named(_MOVING, ' = ?')} WHERE id = ?"
_STORE_RUN = f"UPDATE runs_runs SET {_named(_RUN_MOVING, ' = ?')} WHERE id = ?"
_STORE_OUTPUT = "UPDATE runs_steps SET output = ? WHERE id = ?"
_INSERTED = (*_STEP, "output")
_INSERT_STEP = f"INSERT INTO runs_steps ({_named(_INSERTED, '')}) VALUES ({_marks(len(_INSERTED))})"
_moving = attrgetter(*_MOVING)
_run_moving = attrgetter(*_RUN_MOVING)
_ids_and_places = attrgetter("seq", "parent", "undo_of", "key", "handler")


def encode(value: Any) -> str:
    """Return a value as JSON text."""
    return _encoder.encode(value).decode()


def decode(text: str | None) -> Any:
    """Return what JSON text holds; None for none."""
    return None if text is None else msgspec.json.decode(text)


def chunks(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Yield parts that fit one statement."""
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def lock_runs(session: ReadSession, ids: Iterable[UUID]) -> dict[UUID, Run]:
    """Return runs, locked until the transaction ends, in one order: nobody waits in a circle."""
    return _load_runs(session, sorted(set(ids)), skip=False)


def lock_free_runs(session: ReadSession, ids: Iterable[UUID]) -> dict[UUID, Run]:
    """Return those of the runs that nobody else is changing just now, locked."""
    return _load_runs(session, sorted(set(ids)), skip=True)


def _load_runs(session: ReadSession, ids: Sequence[UUID], *, skip: bool) -> dict[UUID, Run]:
    found: dict[UUID, Run] = {}
    query = _RUNS_BY_ID
    if session.dialect == "postgresql":
        query = query.order_by(runs.c.id).with_for_update(skip_locked=skip)
    for chunk in chunks(ids):
        for row in session.sql.execute(query, {"ids": chunk}):
            found[row[0]] = run_of(row)
    return found


def load_steps(session: ReadSession, ids: Iterable[UUID]) -> list[Step]:
    """Return steps by id, in no order."""
    found: list[Step] = []
    for chunk in chunks(list(ids)):
        found += map(step_of, session.sql.execute(_STEPS_BY_ID, {"ids": chunk}))
    return found


def load_all_steps(session: ReadSession, run_id: UUID) -> dict[int, Step]:
    """Return every step of a run by number."""
    low, high = step_id(run_id, 0), step_id(run_id, MAX_SEQ)
    rows = session.sql.execute(_STEPS_OF, {"low": low, "high": high})
    found = (step_of(row) for row in rows)
    return {step.seq: step for step in found if step.run_id == run_id}


def run_of(row: Sequence[Any]) -> Run:
    """Return a run from the columns of its fields, in their order."""
    run = Run(*tuple(row))
    run.status, run.condition = _RUN_STATUS[run.status], _RUN_CONDITION[run.condition]
    run.on_failure = OnFailure(run.on_failure)
    return run


def step_of(row: Sequence[Any]) -> Step:
    """Return a step from the columns of its fields, in their order."""
    step = Step(*tuple(row))
    step.spec = read_spec(row[_SPEC_AT], step.key)
    step.needs = _read_numbers(row[_NEEDS_AT])
    step.followers = _read_numbers(row[_FOLLOWERS_AT])
    step.status, step.condition = _STATUS[step.status], _CONDITION[step.condition]
    return step


def read_spec(text: str, key: str) -> StepPlan:
    """Return what was planned of a step; without a handler where nobody can read it any more.

    A damaged row fails its own step when that is claimed, and keeps no other from being read.
    """
    try:
        return _spec_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return StepPlan(key=key, handler=UNREADABLE)


def _read_numbers(text: str) -> tuple[int, ...]:
    try:
        return _numbers.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return ()


STEP_COLUMNS = tuple(steps.c[name] for name in _STEP)


def insert_runs(
    session: WriteSession, added: Sequence[tuple[Run, RunPlan]], forked_from: UUID | None = None
) -> None:
    """Write new runs."""
    rows = [
        {name: getattr(run, name) for name in _RUN}
        | {
            "status": run.status.value,
            "condition": run.condition.value,
            "on_failure": run.on_failure.value,
            "source_version": plan.source_version,
            "trigger": plan.trigger,
            "dedup_id": plan.dedup_id,
            "params": encode(plan.params),
            "context": encode(plan.context),
            "limits": encode(plan.limits),
            "traceparent": plan.traceparent,
            "forked_from": forked_from,
        }
        for run, plan in added
    ]
    if rows:
        session.sql.execute(insert(runs), rows)


def insert_steps(
    session: WriteSession, added: Iterable[Step], outputs: Mapping[int, str] | None = None
) -> None:
    """Write new steps, with outputs by number where they were taken over."""
    known = outputs or {}
    as_id = _id_writer(session)
    rows = [
        (
            as_id(step.id),
            as_id(step.run_id),
            *_ids_and_places(step),
            encode(step.spec),
            encode(step.needs),
            encode(step.followers),
            *_moving(step),
            known.get(step.seq),
        )
        for step in added
    ]
    _execute_many(session, _INSERT_STEP, rows)


def store_boards(session: WriteSession, boards: Iterable[Board]) -> None:
    """Write what changed on boards, in one batch for all of them."""
    as_id = _id_writer(session)
    changed: list[tuple[Any, ...]] = []
    outputs: list[tuple[Any, ...]] = []
    moved: list[tuple[Any, ...]] = []
    added: list[Step] = []
    for board in boards:
        new = {step.seq for step in board.added}
        for seq in board.changed:
            if seq not in new and seq in board.steps:
                step = board.steps[seq]
                changed.append((*_moving(step), as_id(step.id)))
        for seq, output in board.outputs.items():
            outputs.append((output, as_id(board.steps[seq].id)))
        if board.run_changed:
            moved.append((*_run_moving(board.run), as_id(board.run.id)))
        for seq in board.dropped:
            _delete_below(session, board.run.id, seq, {step.id for step in board.added})
        added += board.added
    insert_steps(session, added)
    _execute_many(session, _STORE_STEP, changed)
    _execute_many(session, _STORE_OUTPUT, outputs)
    _execute_many(session, _STORE_RUN, moved)


def _execute_many(session: WriteSession, statement: str, rows: list[tuple[Any, ...]]) -> None:
    """Run a statement for every row by the driver itself.

    Thirty columns of each step are written several times: what the query builder does for each
    parameter costs more than the database does.
    """
    if not rows:
        return
    if session.dialect == "postgresql":
        statement = statement.replace("?", "%s")
    session.sql.exec_driver_sql(statement, rows)


def _id_writer(session: WriteSession) -> Callable[[UUID], Any]:
    """Return what makes of an id what the driver stores."""
    return attrgetter("hex") if session.dialect == "sqlite" else _same


def _same(value: UUID) -> UUID:
    return value


def _delete_below(session: WriteSession, run_id: UUID, seq: int, new: set[UUID]) -> None:
    """Delete what a step expanded into, at any depth."""
    ahead = [seq]
    while ahead:
        query = select(steps.c.seq, steps.c.id).where(
            steps.c.run_id == run_id, steps.c.parent.in_(ahead), steps.c.parent > 0
        )
        found = [row for row in session.sql.execute(query) if row[1] not in new]
        ahead = [row[0] for row in found]
        for chunk in chunks([row[1] for row in found]):
            session.execute(delete(steps).where(steps.c.id.in_(chunk)))
