"""Every query on events and their stream."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Select, and_, delete, false, insert, or_, select, text, update
from sqlalchemy.sql.elements import ColumnElement

from gpuplane.core.ids import ClusterId, EventId, ProjectId, TenantId
from gpuplane.db.pages import load_page
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.events.rules import Event, EventFilter, kind_prefix
from gpuplane.domains.events.tables import EventRow, StreamRow
from gpuplane.kit.access import RowScope
from gpuplane.kit.pagination import Page, PageRequest

events = table_of(EventRow)
stream = table_of(StreamRow)

SORT_NEWEST, SORT_OLDEST, SORT_TIME = "-seq", "seq", "at"
HISTORY_PAGE = 5_000
"""Rows read at once when every history is walked: a few MiB."""

_ASSIGN = text(
    "UPDATE events_events SET position = :base + numbered.rank FROM ("
    " SELECT seq, row_number() OVER (ORDER BY seq) AS rank FROM ("
    "  SELECT seq FROM events_events WHERE position IS NULL ORDER BY seq LIMIT :limit"
    " ) AS waiting) AS numbered WHERE events_events.seq = numbered.seq"
)
_FIRST = text(
    "INSERT INTO events_stream (id, last_position, pruned_position) VALUES (1, 0, 0)"
    " ON CONFLICT DO NOTHING"
)


def store_events(session: WriteSession, rows: Sequence[dict[str, Any]]) -> None:
    """Append events; they get their stream position later."""
    session.execute(insert(events), rows)


def has_unrelayed(session: ReadSession) -> bool:
    """Return whether a committed event waits for its position."""
    query = select(events.c.seq).where(events.c.position.is_(None)).limit(1)
    return session.scalar(query) is not None


def last_position(session: ReadSession) -> int:
    """Return the newest stream position, 0 before the first event."""
    return int(session.scalar(select(stream.c.last_position)) or 0)


def pruned_position(session: ReadSession) -> int:
    """Return up to which position events may have been pruned."""
    return int(session.scalar(select(stream.c.pruned_position)) or 0)


def apply_positions(session: WriteSession, limit: int) -> int:
    """Give the next positions to committed events that have none, and return how many.

    The counter row is locked first, so two relays give positions one after the other; only rows
    this transaction can see are numbered, so an event that commits later gets a later position.
    """
    query = select(stream.c.last_position)
    if session.dialect == "postgresql":
        query = query.with_for_update()
    base = session.scalar(query)
    if base is None:  # the very first time; another relay may be as far
        session.execute(_FIRST)
        base = session.scalar(query)
    count = int(
        getattr(session.sql.execute(_ASSIGN, {"base": base, "limit": limit}), "rowcount", 0)
    )
    if count:
        session.execute(update(stream).values(last_position=base + count))
    return count


def load_after(
    session: ReadSession,
    position: int,
    scope: RowScope,
    wanted: EventFilter,
    limit: int,
) -> tuple[Event, ...]:
    """Return the next events of the stream after a position that the scope and filter let pass."""
    query = _matching(wanted).where(events.c.position > position, visible(scope))
    rows = session.rows(query.order_by(events.c.position).limit(limit))
    return tuple(event_of(row) for row in rows)


def list_events(
    session: ReadSession,
    scope: RowScope,
    wanted: EventFilter,
    page: PageRequest,
    sort: str,
) -> Page[Event]:
    """Return one page of events.

    Args:
        session: Where to read.
        scope: What the caller may see.
        wanted: What the list is narrowed by.
        page: The page asked for; its cursor was decoded with the same sort.
        sort: By commit, newest or oldest first; or by the time at which they happened, for the few
            of one thing: no index has the order of time for all that a filter leaves.
    """
    query = _matching(wanted).where(visible(scope))
    keys = (events.c.at, events.c.seq) if sort == SORT_TIME else (events.c.seq,)
    return load_page(session, query, keys, page, event_of, sort=sort)


def walk_histories(
    session: ReadSession, subject_kind: str
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (subject, kind, data) of every event about a kind of thing, oldest first."""
    after = 0
    while True:
        query = (
            select(events.c.seq, events.c.subject_id, events.c.kind, events.c.data)
            .where(events.c.seq > after, events.c.subject_kind == subject_kind)
            .order_by(events.c.seq)
            .limit(HISTORY_PAGE)
        )
        rows = session.sql.execute(query).all()
        for seq, subject_id, kind, data in rows:
            yield subject_id, kind, data
            after = seq
        if len(rows) < HISTORY_PAGE:
            return


def prune(session: WriteSession, before: int, audited_before: int, limit: int) -> int:
    """Forget relayed events older than their instant, oldest first, and return how many."""
    old = or_(
        and_(events.c.audit.is_(False), events.c.at < before),
        and_(events.c.audit.is_(True), events.c.at < audited_before),
    )
    found = session.rows(
        select(events.c.seq, events.c.position)
        .where(old, events.c.at < max(before, audited_before), events.c.position.is_not(None))
        .order_by(events.c.at)
        .limit(limit)
    )
    if not found:
        return 0
    newest = max(row["position"] for row in found)
    session.execute(delete(events).where(events.c.seq.in_([row["seq"] for row in found])))
    session.execute(
        update(stream).where(stream.c.pruned_position < newest).values(pruned_position=newest)
    )
    return len(found)


def visible(scope: RowScope) -> ColumnElement[bool]:
    """Return the condition that keeps rows to what the caller may see."""
    if scope.everything:
        return events.c.seq.is_not(None)
    parts: list[ColumnElement[bool]] = []
    if scope.tenant_ids:
        parts.append(events.c.tenant_id.in_(_sorted(scope.tenant_ids)))
    if scope.project_ids:
        parts.append(events.c.project_id.in_(_sorted(scope.project_ids)))
    return or_(*parts) if parts else false()


def _sorted(ids: Iterable[Any]) -> list[Any]:
    return sorted(ids)


def _matching(wanted: EventFilter) -> Select[Any]:
    query: Select[Any] = select(events)
    if wanted.kinds:
        query = query.where(or_(*(_kind(pattern) for pattern in wanted.kinds)))
    for column, value in (
        (events.c.subject_kind, wanted.subject_kind),
        (events.c.subject_id, wanted.subject_id),
        (events.c.cluster_id, wanted.cluster_id),
        (events.c.tenant_id, wanted.tenant_id),
        (events.c.project_id, wanted.project_id),
        (events.c.audit, wanted.audit),
    ):
        if value is not None:
            query = query.where(column == value)
    if wanted.since is not None:
        query = query.where(events.c.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(events.c.at < wanted.until)
    return query


def _kind(pattern: str) -> ColumnElement[bool]:
    prefix = kind_prefix(pattern)
    if prefix is None:
        return events.c.kind == pattern
    return events.c.kind.startswith(prefix, autoescape=True)


def event_of(row: Any) -> Event:
    """Return a row of the table as an event."""
    return Event(
        seq=row["seq"],
        id=EventId(row["id"]),
        position=row["position"],
        at=row["at"],
        kind=row["kind"],
        tenant_id=None if row["tenant_id"] is None else TenantId(row["tenant_id"]),
        project_id=None if row["project_id"] is None else ProjectId(row["project_id"]),
        cluster_id=None if row["cluster_id"] is None else ClusterId(row["cluster_id"]),
        subject_kind=row["subject_kind"],
        subject_id=row["subject_id"],
        actor=row["actor"],
        reason=row["reason"],
        message=row["message"],
        data=row["data"],
        audit=row["audit"],
    )
