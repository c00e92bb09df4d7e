"""Queries on what is remembered of ended work, and on which attempts were learned from."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from gpuplane.core.ids import AttemptId, JobId
from gpuplane.core.prediction.experience import NOTHING, Key, Record
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.jobs.repository.attempts import attempts
from gpuplane.domains.jobs.tables import ExperienceRow

experience = table_of(ExperienceRow)

CHUNK = 500


def has_unlearned(session: ReadSession) -> bool:
    """Return whether an attempt is over that nothing was learned from yet."""
    query = select(attempts.c.id).where(attempts.c.learned_at.is_(None), _is_over()).limit(1)
    return session.row(query) is not None


def claim_unlearned(session: WriteSession, limit: int, now: int) -> list[AttemptId]:
    """Mark attempts that are over as learned from, oldest end first, and return them.

    The mark and what is learned commit together, so an attempt counts once, whatever is killed.
    """
    query = (
        select(attempts.c.id)
        .where(attempts.c.learned_at.is_(None), _is_over())
        .order_by(attempts.c.ended_at, attempts.c.id)
        .limit(limit)
    )
    ids = [row["id"] for row in session.rows(query)]
    if not ids:
        return []
    claimed = session.rows(
        update(attempts)
        .where(attempts.c.id.in_(ids), attempts.c.learned_at.is_(None))
        .values(learned_at=now)
        .returning(attempts.c.id)
    )
    taken = {row["id"] for row in claimed}
    return [AttemptId(each) for each in ids if each in taken]


def list_runs_of(
    session: ReadSession, job_ids: Sequence[JobId]
) -> dict[JobId, list[tuple[int, int, int]]]:
    """Return (number, from, until) of every ended attempt that ran, first to last, by job."""
    found: dict[JobId, list[tuple[int, int, int]]] = {}
    for start in range(0, len(job_ids), CHUNK):
        query = (
            select(attempts.c.job_id, attempts.c.number, attempts.c.started_at, attempts.c.ended_at)
            .where(
                attempts.c.job_id.in_(job_ids[start : start + CHUNK]),
                attempts.c.started_at.is_not(None),
                attempts.c.ended_at.is_not(None),
            )
            .order_by(attempts.c.job_id, attempts.c.number)
        )
        for row in session.rows(query):
            run = (row["number"], row["started_at"], row["ended_at"])
            found.setdefault(row["job_id"], []).append(run)
    return found


def load_records(session: ReadSession, names: Collection[str]) -> dict[str, Record]:
    """Return records by key name; those of which nothing is known are empty."""
    ordered = sorted(names)
    found = dict.fromkeys(ordered, NOTHING)
    for start in range(0, len(ordered), CHUNK):
        query = select(experience.c.name, experience.c.record).where(
            experience.c.name.in_(ordered[start : start + CHUNK])
        )
        for row in session.rows(query):
            found[row["name"]] = _readable(row["record"])
    return found


def latest_change(session: ReadSession) -> int:
    """Return the number of the newest change, 0 before the first."""
    return int(session.scalar(select(func.max(experience.c.change))) or 0)


def list_changed(session: ReadSession, after: int) -> frozenset[str]:
    """Return the key names of records that changed after a change."""
    query = select(experience.c.name).where(experience.c.change > after)
    return frozenset(row["name"] for row in session.rows(query))


def store_records(session: WriteSession, records: Mapping[Key, Record], now: int) -> None:
    """Store records as one change, those that are new and those that are known."""
    ordered = sorted(records, key=lambda key: key.name)
    known = set(_lock(session, [key.name for key in ordered]))
    change = latest_change(session) + 1
    fresh: list[dict[str, Any]] = []
    moved: list[dict[str, Any]] = []
    for key in ordered:
        values = {"record": records[key], "change": change, "changed_at": now}
        if key.name in known:
            moved.append({"row_key": key.name, **{f"new_{k}": v for k, v in values.items()}})
        else:
            fresh.append({"name": key.name, "rung": key.rung.value, **values})
    session.execute(insert(experience), fresh)
    session.execute(
        update(experience)
        .where(experience.c.name == bindparam("row_key"))
        .values({name: bindparam(f"new_{name}") for name in ("record", "change", "changed_at")}),
        moved,
    )


def has_old(session: ReadSession, before: int) -> bool:
    """Return whether a record has not changed since an instant."""
    query = select(experience.c.name).where(experience.c.changed_at < before).limit(1)
    return session.row(query) is not None


def delete_old(session: WriteSession, before: int) -> int:
    """Forget records that have not changed since an instant and return how many."""
    return session.execute(delete(experience).where(experience.c.changed_at < before))


def _lock(session: WriteSession, names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for start in range(0, len(names), CHUNK):
        query = (
            select(experience.c.name)
            .where(experience.c.name.in_(names[start : start + CHUNK]))
            .order_by(experience.c.name)
        )
        if session.dialect == "postgresql":
            query = query.with_for_update()
        found += [row["name"] for row in session.rows(query)]
    return found


def _is_over() -> Any:
    return attempts.c.state == "ended"


def _readable(stored: object) -> Record:
    """Return a record; one that cannot be read teaches nothing and is written anew."""
    return stored if isinstance(stored, Record) else NOTHING
