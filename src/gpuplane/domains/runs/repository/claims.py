"""Queries of the workers: what is due, whose lease ran out, who waits for a place or an event."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, delete, func, insert, select, update

from gpuplane.core.lifecycle.runs import RunCondition, StepCondition, StepStatus
from gpuplane.core.runs.boards import Step
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.runs.repository.boards import (
    STEP_COLUMNS,
    chunks,
    decode,
    encode,
    step_of,
)
from gpuplane.domains.runs.rules import RunHead
from gpuplane.domains.runs.tables import events, runs, steps, workers

_DUE = (
    select(steps.c.id, steps.c.run_id)
    .where(
        steps.c.due_at <= bindparam("now"),
        steps.c.handler.in_(bindparam("handlers", expanding=True)),
    )
    .order_by(steps.c.due_at, steps.c.id)
    .limit(bindparam("limit"))
)
_NEXT_DUE = (
    select(steps.c.due_at)
    .where(steps.c.due_at.is_not(None), steps.c.handler.in_(bindparam("handlers", expanding=True)))
    .order_by(steps.c.due_at)
    .limit(1)
)
_EXPIRED = (
    select(runs.c.id)
    .where(runs.c.expires_at <= bindparam("now"))
    .order_by(runs.c.expires_at)
    .limit(bindparam("limit"))
)
_NEXT_EXPIRY = (
    select(runs.c.expires_at)
    .where(runs.c.expires_at.is_not(None))
    .order_by(runs.c.expires_at)
    .limit(1)
)
_HEADS = select(runs.c.id, runs.c.params, runs.c.context, runs.c.traceparent).where(
    runs.c.id.in_(bindparam("ids", expanding=True))
)


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that runs steps."""

    owner: str
    handlers: tuple[str, ...]
    expires_at: int


def list_due(
    session: ReadSession,
    handlers: Collection[str],
    now: int,
    limit: int,
    without: Collection[UUID] = (),
) -> list[tuple[UUID, UUID]]:
    """Return (step, run) of what is due and these handlers do, the longest due first.

    Args:
        session: Where to read.
        handlers: What the worker knows.
        now: The instant.
        limit: Rows at most.
        without: Runs that are passed over.
    """
    query = _DUE
    if without:
        query = query.where(steps.c.run_id.not_in(list(without)))
    found = session.sql.execute(query, {"now": now, "handlers": list(handlers), "limit": limit})
    return [(row[0], row[1]) for row in found]


def next_due(session: ReadSession, handlers: Collection[str]) -> int | None:
    """Return when the next step that these handlers do is due."""
    due: int | None = session.sql.execute(_NEXT_DUE, {"handlers": list(handlers)}).scalar()
    return due


def list_expired(session: ReadSession, now: int, limit: int) -> list[UUID]:
    """Return runs whose time is over."""
    return list(session.sql.execute(_EXPIRED, {"now": now, "limit": limit}).scalars())


def next_expiry(session: ReadSession) -> int | None:
    """Return when the next run's time is over."""
    at: int | None = session.sql.execute(_NEXT_EXPIRY).scalar()
    return at


def load_heads(session: ReadSession, ids: Iterable[UUID]) -> dict[UUID, RunHead]:
    """Return what calls of these runs are told."""
    found = {}
    for chunk in chunks(list(ids)):
        for row in session.sql.execute(_HEADS, {"ids": chunk}):
            try:
                found[row[0]] = RunHead(decode(row[1]), decode(row[2]), row[3])
            except (msgspec.MsgspecError, UnicodeError):
                found[row[0]] = RunHead({}, {}, None, is_readable=False)
    return found


def load_outputs(session: ReadSession, ids: Iterable[UUID]) -> dict[int, tuple[str, str | None]]:
    """Return (key, output text) by number of these steps of one run, as far as they are over."""
    found = {}
    for chunk in chunks(list(ids)):
        query = select(steps.c.seq, steps.c.key, steps.c.output).where(steps.c.id.in_(chunk))
        for row in session.sql.execute(query):
            found[row[0]] = (row[1], row[2])
    return found


_numbers = msgspec.json.Decoder(tuple[int, ...])


def load_graph(
    session: ReadSession, low: UUID, high: UUID
) -> list[tuple[int, int, int, tuple[int, ...], str]]:
    """Return (seq, parent, undo_of, needs, key) of every step between two ids."""
    query = select(steps.c.seq, steps.c.parent, steps.c.undo_of, steps.c.needs, steps.c.key).where(
        steps.c.id >= low, steps.c.id <= high
    )
    return [
        (row[0], row[1], row[2], _numbers.decode(row[3]), row[4])
        for row in session.sql.execute(query)
    ]


def list_children(
    session: ReadSession, run_id: UUID, parent: int
) -> list[tuple[str, str, str | None, str]]:
    """Return (key, status, output text, message) of a step's children, in order."""
    query = (
        select(steps.c.key, steps.c.status, steps.c.output, steps.c.message)
        .where(steps.c.run_id == run_id, steps.c.parent == parent, steps.c.parent > 0)
        .order_by(steps.c.seq)
    )
    return [(row[0], row[1], row[2], row[3]) for row in session.sql.execute(query)]


def list_limited(
    session: ReadSession, run_id: UUID, by: str, parent: int | None, limit: int
) -> list[Step]:
    """Return steps of a run that wait for a place of the run or under a parent, in order."""
    query = (
        select(*STEP_COLUMNS)
        .where(
            steps.c.run_id == run_id,
            steps.c.condition == StepCondition.LIMITED.value,
            steps.c.limited_by == by,
        )
        .order_by(steps.c.parent, steps.c.seq)
        .limit(limit)
    )
    if parent is not None:
        query = query.where(steps.c.parent == parent)
    return [step_of(row) for row in session.sql.execute(query)]


def make_due(session: WriteSession, ids: Sequence[UUID], now: int) -> int:
    """Let steps that wait for a place under a key be looked at."""
    count = 0
    for chunk in chunks(ids):
        count += session.execute(
            update(steps)
            .where(steps.c.id.in_(chunk), steps.c.condition == StepCondition.LIMITED.value)
            .values(due_at=now)
        )
    return count


def release_held(session: WriteSession, run_id: UUID, low: UUID, high: UUID) -> None:
    """Let steps that stood still with their run be due when they were."""
    session.execute(
        update(steps)
        .where(
            steps.c.id >= low,
            steps.c.id <= high,
            steps.c.run_id == run_id,
            steps.c.held_at.is_not(None),
        )
        .values(due_at=steps.c.held_at, held_at=None)
    )


# -- workers -----------------------------------------------------------------------------------


def list_workers(session: ReadSession) -> list[Worker]:
    """Return every worker that has a lease, over or not."""
    return [
        Worker(row["owner"], tuple(decode(row["handlers"])), row["expires_at"])
        for row in session.rows(select(workers))
    ]


def insert_worker(session: WriteSession, worker: Worker) -> None:
    """Write a new worker."""
    session.execute(
        insert(workers).values(
            owner=worker.owner,
            handlers=encode(worker.handlers),
            expires_at=worker.expires_at,
        )
    )


def renew_worker(session: WriteSession, owner: str, expires_at: int) -> bool:
    """Prolong a worker's lease; False when it was taken away."""
    changed = session.execute(
        update(workers).where(workers.c.owner == owner).values(expires_at=expires_at)
    )
    return changed == 1


def delete_workers(session: WriteSession, owners: Sequence[str]) -> None:
    """Forget workers that are gone."""
    session.execute(delete(workers).where(workers.c.owner.in_(list(owners))))


def take_over(session: WriteSession, gone: Sequence[str], now: int) -> int:
    """Let steps of workers that are gone be run by others; return how many."""
    return session.execute(
        update(steps)
        .where(steps.c.owner.in_(list(gone)))
        .values(status=StepStatus.PENDING.value, condition="", owner=None, due_at=now)
    )


def give_back(
    session: WriteSession, owner: str, claims: Sequence[tuple[UUID, int]], now: int
) -> int:
    """Let claimed steps of a worker that never came to run them be claimed again."""
    count = 0
    for step, epoch in claims:
        count += session.execute(
            update(steps)
            .where(steps.c.id == step, steps.c.owner == owner, steps.c.epoch == epoch)
            .values(status=StepStatus.PENDING.value, condition="", owner=None, due_at=now)
        )
    return count


def list_owners(session: ReadSession) -> list[str]:
    """Return every owner of a step that is being run."""
    query = select(steps.c.owner).where(steps.c.owner.is_not(None)).distinct()
    return [row[0] for row in session.sql.execute(query)]


def list_owned(session: ReadSession, owner: str) -> dict[UUID, int]:
    """Return the epoch of every step that a worker runs."""
    query = select(steps.c.id, steps.c.epoch).where(steps.c.owner == owner)
    return {row[0]: row[1] for row in session.sql.execute(query)}


def list_unknown(
    session: ReadSession, known: Collection[str], now: int, limit: int
) -> list[tuple[UUID, UUID]]:
    """Return (step, run) of what is due and no living worker knows how to do."""
    query = (
        select(steps.c.id, steps.c.run_id)
        .where(steps.c.due_at <= now, steps.c.handler.not_in(sorted(known)))
        .order_by(steps.c.due_at, steps.c.id)
        .limit(limit)
    )
    return [(row[0], row[1]) for row in session.sql.execute(query)]


def unpark(session: WriteSession, handlers: Collection[str], now: int) -> int:
    """Let steps go on that waited for one of these handlers."""
    return session.execute(
        update(steps)
        .where(
            steps.c.condition == StepCondition.PARKED.value,
            steps.c.handler.in_(sorted(handlers)),
        )
        .values(condition="", due_at=now, error="", message="")
    )


# -- events ------------------------------------------------------------------------------------


def lock_keys(session: WriteSession, keys: Iterable[str]) -> None:
    """Hold the locks of keys until the transaction ends; there is one writer on SQLite."""
    if session.dialect != "postgresql":
        return
    for key in sorted(set(keys)):
        session.sql.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(key, 0))))


def insert_event(
    session: WriteSession, event_id: UUID, key: str, run_id: UUID | None, payload: str, now: int
) -> None:
    """Keep an event until somebody awaits it."""
    session.execute(
        insert(events).values(id=event_id, key=key, run_id=run_id, payload=payload, at=now)
    )


def give_event(session: WriteSession, key: str, payload: str, now: int) -> int:
    """Give an event to everybody who awaits it and was given none; return how many."""
    return session.execute(
        update(steps)
        .where(
            steps.c.wait_key == key,
            steps.c.status == StepStatus.PENDING.value,
            steps.c.event.is_(None),
        )
        .values(due_at=now, event=payload)
    )


def find_kept(session: ReadSession, keys: Collection[str]) -> dict[str, tuple[UUID, str]]:
    """Return the oldest kept event of each key that has one."""
    found: dict[str, tuple[UUID, str]] = {}
    for chunk in chunks(sorted(set(keys))):
        query = (
            select(events.c.key, events.c.id, events.c.payload)
            .where(events.c.key.in_(chunk))
            .order_by(events.c.key, events.c.id)
        )
        for row in session.sql.execute(query):
            found.setdefault(row[0], (row[1], row[2]))
    return found


def count_kept(session: ReadSession, run_id: UUID) -> int:
    """Return how many events are kept for a run."""
    query = select(func.count()).select_from(events).where(events.c.run_id == run_id)
    return int(session.scalar(query) or 0)


def delete_events(session: WriteSession, ids: Sequence[UUID]) -> None:
    """Forget kept events."""
    for chunk in chunks(ids):
        session.execute(delete(events).where(events.c.id.in_(chunk)))


def delete_events_of(session: WriteSession, run_ids: Sequence[UUID]) -> None:
    """Forget what was kept for runs that are over."""
    for chunk in chunks(run_ids):
        session.execute(delete(events).where(events.c.run_id.in_(chunk)))


def prune_events(session: WriteSession, before: int) -> int:
    """Forget kept events that name no run and that nobody awaited for long."""
    return session.execute(delete(events).where(events.c.run_id.is_(None), events.c.at < before))


def set_condition(session: WriteSession, run_id: UUID, condition: RunCondition) -> None:
    """Store what goes on inside a run's status."""
    session.execute(update(runs).where(runs.c.id == run_id).values(condition=condition.value))


def list_awaiting_runs(session: ReadSession, key: str) -> list[UUID]:
    """Return the runs of which a step awaits an event."""
    query = select(steps.c.run_id).where(steps.c.wait_key == key).distinct()
    return list(session.sql.execute(query).scalars())
