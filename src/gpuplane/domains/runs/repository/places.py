"""Queries on places under keys, and on outputs kept for equal input."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import delete, func, insert, select, update

from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.runs.repository.boards import chunks
from gpuplane.domains.runs.tables import cache, places


@dataclass(frozen=True, slots=True, order=True)
class PlaceKey:
    """What places are counted under: steps and runs are counted apart."""

    project_id: UUID
    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class Place:
    """One holder of a place, or one who waits for it."""

    holder_id: UUID
    run_id: UUID
    count: int
    held: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """An output that was kept for equal input."""

    key: str
    handler: str
    step_key: str
    salt_hash: str
    input_hash: str
    output: str | None
    run_id: UUID
    at: int
    expires_at: int


def lock_places(session: WriteSession, keys: Iterable[PlaceKey]) -> None:
    """Hold the locks of keys until the transaction ends, in one order."""
    if session.dialect != "postgresql":
        return
    for key in sorted(set(keys)):
        text = f"{key.project_id}/{key.kind}/{key.key}"
        session.sql.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(text, 1))))


def load_places(session: ReadSession, key: PlaceKey) -> list[Place]:
    """Return who holds and who waits, in the order in which they came."""
    query = (
        select(places.c.holder_id, places.c.run_id, places.c.count, places.c.held)
        .where(
            places.c.project_id == key.project_id,
            places.c.kind == key.kind,
            places.c.key == key.key,
        )
        .order_by(places.c.holder_id)
    )
    return [Place(*row) for row in session.sql.execute(query)]


def insert_place(session: WriteSession, key: PlaceKey, place: Place) -> None:
    """Write a holder, or one who waits."""
    session.execute(
        insert(places).values(
            project_id=key.project_id,
            kind=key.kind,
            key=key.key,
            holder_id=place.holder_id,
            run_id=place.run_id,
            count=place.count,
            held=place.held,
        )
    )


def hold_place(session: WriteSession, key: PlaceKey, holder_id: UUID) -> None:
    """Let one who waited hold its place."""
    session.execute(
        update(places)
        .where(
            places.c.project_id == key.project_id,
            places.c.kind == key.kind,
            places.c.key == key.key,
            places.c.holder_id == holder_id,
        )
        .values(held=True)
    )


def delete_places(session: WriteSession, holder_ids: Sequence[UUID]) -> None:
    """Give back the places of these holders."""
    for chunk in chunks(holder_ids):
        session.execute(delete(places).where(places.c.holder_id.in_(chunk)))


def keys_of(session: ReadSession, holder_ids: Sequence[UUID]) -> list[PlaceKey]:
    """Return under which keys these hold or wait."""
    found: list[PlaceKey] = []
    for chunk in chunks(holder_ids):
        query = select(places.c.project_id, places.c.kind, places.c.key).where(
            places.c.holder_id.in_(chunk)
        )
        found += [PlaceKey(*row) for row in session.sql.execute(query)]
    return sorted(set(found))


def list_waited_for(session: ReadSession, limit: int) -> list[PlaceKey]:
    """Return keys that somebody waits for."""
    query = (
        select(places.c.project_id, places.c.kind, places.c.key)
        .where(places.c.held.is_(False))
        .distinct()
        .limit(limit)
    )
    return [PlaceKey(*row) for row in session.sql.execute(query)]


def delete_places_of_runs(session: WriteSession, run_ids: Sequence[UUID]) -> None:
    """Give back every place of runs that are over, of their steps too."""
    for chunk in chunks(run_ids):
        session.execute(delete(places).where(places.c.run_id.in_(chunk)))


# -- outputs to reuse --------------------------------------------------------------------------


def find_output(session: ReadSession, project_id: UUID, key: str) -> Kept | None:
    """Return the output kept under a key of a project, too old or not."""
    row = session.row(select(cache).where(cache.c.project_id == project_id, cache.c.key == key))
    return None if row is None else _kept(row)


def find_last_output(
    session: ReadSession, project_id: UUID, handler: str, step_key: str
) -> Kept | None:
    """Return the newest output that a step of this key left, for saying what differs."""
    row = session.row(
        select(cache)
        .where(
            cache.c.project_id == project_id,
            cache.c.handler == handler,
            cache.c.step_key == step_key,
        )
        .order_by(cache.c.at.desc())
        .limit(1)
    )
    return None if row is None else _kept(row)


def store_output(session: WriteSession, project_id: UUID, kept: Kept) -> None:
    """Keep an output in place of an older one."""
    session.execute(delete(cache).where(cache.c.project_id == project_id, cache.c.key == kept.key))
    session.execute(
        insert(cache).values(
            project_id=project_id,
            key=kept.key,
            handler=kept.handler,
            step_key=kept.step_key,
            salt_hash=kept.salt_hash,
            input_hash=kept.input_hash,
            output=kept.output,
            run_id=kept.run_id,
            at=kept.at,
            expires_at=kept.expires_at,
        )
    )


def prune_outputs(session: WriteSession, now: int) -> int:
    """Forget outputs that are too old."""
    return session.execute(delete(cache).where(cache.c.expires_at < now))


def _kept(row: object) -> Kept:
    names = Kept.__slots__
    return Kept(**{name: row[name] for name in names})  # type: ignore[index]  # a row mapping
