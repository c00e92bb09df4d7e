"""Use cases of events: record what happened, relay it in order, list it, follow it, prune it.

`record` belongs in the transaction of the change it tells of. Nothing here sends anything.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from gpuplane.core.ids import EventId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events.errors import CursorExpired
from gpuplane.domains.events.repository import outbox as repository
from gpuplane.domains.events.rules import Event, EventFilter
from gpuplane.kit.access import Permission, Principal, RowScope
from gpuplane.kit.ids import new_id
from gpuplane.kit.pagination import Page, PageRequest

SORT_NEWEST, SORT_OLDEST = repository.SORT_NEWEST, repository.SORT_OLDEST
SORT_TIME = repository.SORT_TIME
RELAY = "relay"
"""The name of the loop that gives events their positions."""
WEBHOOKS = "webhooks"
"""The name of the loop that carries events to webhooks."""
RELAY_BATCH = 5_000
PRUNE_BATCH = 1_000
MAX_MESSAGE_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class NewEvent:
    """Something that happened; `kind` is `noun.past`, such as `job.completed`."""

    kind: str
    at: int
    subject_kind: str
    subject_id: str | UUID
    tenant_id: UUID | None = None
    project_id: UUID | None = None
    cluster_id: UUID | None = None
    actor: str = "system"
    """The name of the user or loop that did it."""
    reason: str = ""
    message: str = ""
    data: dict[str, object] = field(default_factory=dict)
    audit: bool = False
    """True for reads worth a trace (logs, exec, refusals) and changes of rights."""
    id: EventId = field(default_factory=lambda: EventId(new_id()))


def record(session: WriteSession, event: NewEvent) -> None:
    """Append one event to the outbox in the caller's transaction."""
    record_many(session, (event,))


def record_many(session: WriteSession, events: Iterable[NewEvent]) -> None:
    """Append events in one batch; their order is the order of the stream."""
    rows = [
        {
            "id": event.id,
            "at": event.at,
            "kind": event.kind,
            "tenant_id": event.tenant_id,
            "project_id": event.project_id,
            "cluster_id": event.cluster_id,
            "subject_kind": event.subject_kind,
            "subject_id": str(event.subject_id),
            "actor": event.actor[:200],
            "reason": event.reason,
            "message": event.message[:MAX_MESSAGE_CHARS],
            "data": event.data,
            "audit": event.audit,
        }
        for event in events
    ]
    if rows:
        repository.store_events(session, rows)
        session.wake(RELAY)


def relay(session: WriteSession, limit: int = RELAY_BATCH) -> int:
    """Give stream positions to events that are committed and have none; return how many."""
    count = repository.apply_positions(session, limit)
    if count:
        session.wake(WEBHOOKS)
    return count


def has_unrelayed(session: ReadSession) -> bool:
    """Return whether events wait for their position."""
    return repository.has_unrelayed(session)


def last_position(session: ReadSession) -> int:
    """Return the newest position of the stream."""
    return repository.last_position(session)


def list_events(
    session: ReadSession,
    principal: Principal,
    wanted: EventFilter,
    page: PageRequest,
    sort: str = SORT_NEWEST,
) -> Page[Event]:
    """Return one page of the events the caller may see (`sort` is `-seq` or `seq`)."""
    return repository.list_events(
        session, principal.rows(Permission.EVENT_READ), wanted, page, sort
    )


def list_events_of(
    session: ReadSession, subject_kind: str, subject_id: str | UUID, page: PageRequest
) -> Page[Event]:
    """Return one page of a thing's events in order of time; the caller was let in to the thing.

    Those of one instant stand as they were committed. What is told late, such as a start seen after
    the control plane came back, stands where it happened.
    """
    wanted = EventFilter(subject_kind=subject_kind, subject_id=str(subject_id))
    everything = RowScope(everything=True)
    return repository.list_events(session, everything, wanted, page, SORT_TIME)


def walk_histories(
    session: ReadSession, subject_kind: str
) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Yield (subject, kind, data) of every event about a kind of thing, oldest first."""
    return repository.walk_histories(session, subject_kind)


def load_stream(
    session: ReadSession,
    principal: Principal,
    wanted: EventFilter,
    after: int,
    limit: int,
) -> tuple[tuple[Event, ...], int]:
    """Return the next events of the stream after a position, and the position read up to.

    Raises:
        CursorExpired: If events after that position were pruned, so that a gap would show, or the
            position is of another history (a database restored from a backup).
    """
    until = repository.last_position(session)
    if not repository.pruned_position(session) <= after <= until:
        raise CursorExpired(
            "The events after this position are not kept any more.",
            field="Last-Event-ID",
            fix="Read the current state from the lists, then follow the stream from now on.",
        )
    scope = principal.rows(Permission.EVENT_READ)
    found = repository.load_after(session, after, scope, wanted, limit)
    if len(found) == limit and found[-1].position is not None:
        until = found[-1].position
    return found, until


def load_relayed(
    session: ReadSession, after: int, kinds: tuple[str, ...], limit: int
) -> tuple[Event, ...]:
    """Return the next events of every tenant after a position, for loops of this process."""
    everything = RowScope(everything=True)
    return repository.load_after(session, after, everything, EventFilter(kinds=kinds), limit)


def prune(session: WriteSession, before: int, audited_before: int | None = None) -> int:
    """Forget a batch of old events; 0 means that none is left.

    Args:
        session: The transaction.
        before: Events that happened before this instant go.
        audited_before: The same for the audit trail, which is kept longer; `before` if absent.
    """
    kept = before if audited_before is None else audited_before
    return repository.prune(session, before, kept, PRUNE_BATCH)
