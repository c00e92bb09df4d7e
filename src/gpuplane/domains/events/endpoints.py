"""HTTP of events: lists, the stream (SSE), webhooks and their delivery log."""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Protocol
from uuid import UUID

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import StreamingResponse

from gpuplane.core.ids import ClusterId, TenantId, WebhookId
from gpuplane.db import ReadSession
from gpuplane.db.calls import Call, CallDep
from gpuplane.domains.events import service
from gpuplane.domains.events.errors import CursorExpired, TooManyStreams
from gpuplane.domains.events.schemas import (
    ClusterWebhookIn,
    DeliveryOut,
    EventOut,
    Kind,
    WebhookChangeIn,
    WebhookCreatedOut,
    WebhookIn,
    WebhookOut,
)
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Cursor, Done, InstantIn, Limit, PageOut, page_request
from gpuplane.kit.errors import InvalidInput, NotFound, ProductError
from gpuplane.kit.feeds import Feed
from gpuplane.kit.ids import new_id
from gpuplane.kit.pagination import DEFAULT_LIMIT

router = APIRouter(tags=["events"])

STREAM_BATCH = 200
"""Events read at once for one reader."""
HEARTBEAT_S = 15.0
"""A silent stream says that it lives this often, and asks whether the token still holds."""
RECONNECT_MS = 2_000
EVENT_STREAM = "text/event-stream"
MAX_POSITION = 2**62
SECRET_BYTES = 32


class HasId(Protocol):
    """A thing that was found."""

    @property
    def id(self) -> ClusterId:
        """Return its id."""
        ...


FindCluster = Callable[[ReadSession, str], HasId | None]
"""Finds a cluster by id or name; offered by the composition root as the port `find_cluster`."""
ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]

Kinds = Annotated[
    list[Kind] | None,
    Query(max_length=50, description="Kinds, or prefixes ending in '*' or '.'."),
]
Word = Annotated[str | None, Query(max_length=120)]
LastEventId = Annotated[str | None, Header(max_length=40)]
Order = Annotated[
    str,
    Query(pattern="^-?seq$", description="As they were committed: `-seq` (newest first) or `seq`."),
]


# -- events -----------------------------------------------------------------------------------


@router.get(
    "/events",
    response_model=PageOut[EventOut],
    responses={200: {"content": {EVENT_STREAM: {}}}},
)
@requires(Permission.EVENT_READ)
async def list_events(
    call: CallDep,
    request: Request,
    kind: Kinds = None,
    subject_kind: Word = None,
    subject_id: Word = None,
    job_id: UUID | None = None,
    cluster_id: UUID | None = None,
    tenant_id: UUID | None = None,
    project_id: UUID | None = None,
    since: InstantIn | None = None,
    until: InstantIn | None = None,
    sort: Order = service.SORT_NEWEST,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    last_event_id: LastEventId = None,
    *,
    audit: bool | None = None,
) -> PageOut[EventOut] | StreamingResponse:
    """List what happened; with `Accept: text/event-stream` follow it as it happens.

    Pages and the stream go by the order in which events were committed, so that a reader who goes
    on from a cursor or a position misses none; `at` says when each happened, which may be earlier.
    """
    wanted = service.EventFilter(
        kinds=tuple(kind or ()),
        subject_kind="job" if job_id is not None else subject_kind,
        subject_id=str(job_id) if job_id is not None else subject_id,
        cluster_id=cluster_id,
        tenant_id=tenant_id,
        project_id=project_id,
        since=since,
        until=until,
        audit=audit,
    )
    if EVENT_STREAM in request.headers.get("accept", ""):
        return await _open_stream(call, wanted, last_event_id)
    page = page_request(limit, cursor, sort=sort)
    found = await call.read(lambda s: service.list_events(s, call.principal, wanted, page, sort))
    return PageOut.of(found, _event_out)


@router.get(
    "/events/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {EVENT_STREAM: {}}}},
)
@requires(Permission.EVENT_READ)
async def follow_events(
    call: CallDep,
    kind: Kinds = None,
    subject_kind: Word = None,
    subject_id: Word = None,
    job_id: UUID | None = None,
    cluster_id: UUID | None = None,
    tenant_id: UUID | None = None,
    project_id: UUID | None = None,
    after: Annotated[int | None, Query(ge=0, lt=MAX_POSITION)] = None,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Follow events as they happen, from `Last-Event-ID` or `after`, else from now on."""
    wanted = service.EventFilter(
        kinds=tuple(kind or ()),
        subject_kind="job" if job_id is not None else subject_kind,
        subject_id=str(job_id) if job_id is not None else subject_id,
        cluster_id=cluster_id,
        tenant_id=tenant_id,
        project_id=project_id,
    )
    resumed = last_event_id if last_event_id is not None or after is None else str(after)
    return await _open_stream(call, wanted, resumed)


# -- webhooks ---------------------------------------------------------------------------------


@router.post("/webhooks", status_code=201)
@requires(Permission.WEBHOOK_MANAGE)
async def create_webhook(call: CallDep, body: WebhookIn) -> WebhookCreatedOut:
    """Create a webhook for the events of a tenant, and show its signing secret this once."""
    tenant_id = TenantId(body.tenant_id or call.principal.tenant_id)
    webhook = _webhook(call, body.url, body.kinds, tenant_id, None, body.subject_id)
    return await _create(call, webhook)


@router.get("/webhooks")
@requires(Permission.WEBHOOK_MANAGE)
async def list_webhooks(
    call: CallDep, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> PageOut[WebhookOut]:
    """List the webhooks the caller manages, oldest first."""
    page = page_request(limit, cursor, sort=service.SORT_ID)
    found = await call.read(lambda s: service.list_webhooks(s, call.principal, None, page))
    return PageOut.of(found, _webhook_out)


@router.get("/webhooks/{webhook_id}")
@requires(Permission.WEBHOOK_MANAGE)
async def get_webhook(call: CallDep, webhook_id: WebhookId) -> WebhookOut:
    """Return one webhook."""
    return _webhook_out(
        await call.read(lambda s: service.get_webhook(s, call.principal, webhook_id))
    )


@router.patch("/webhooks/{webhook_id}")
@requires(Permission.WEBHOOK_MANAGE)
async def change_webhook(call: CallDep, webhook_id: WebhookId, body: WebhookChangeIn) -> WebhookOut:
    """Change a webhook; `state: active` starts a disabled one again."""
    policy = call.port("webhook_policy", service.WebhookPolicy)
    return await call.write(
        "events.change_webhook",
        lambda s: service.change_webhook(
            s, call.principal, webhook_id, body.url, body.kinds, body.state, policy, call.now
        ),
        _webhook_out,
    )


@router.delete("/webhooks/{webhook_id}")
@requires(Permission.WEBHOOK_MANAGE)
async def delete_webhook(call: CallDep, webhook_id: WebhookId) -> Done:
    """Delete a webhook and its delivery log."""
    return await call.write(
        "events.delete_webhook",
        lambda s: service.delete_webhook(s, call.principal, webhook_id, call.now),
        lambda _: Done(),
    )


@router.get("/webhooks/{webhook_id}/deliveries")
@requires(Permission.WEBHOOK_MANAGE)
async def list_deliveries(
    call: CallDep, webhook_id: WebhookId, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> PageOut[DeliveryOut]:
    """List what was sent to a webhook and how it went, newest first."""
    page = page_request(limit, cursor, sort="-id")
    found = await call.read(lambda s: service.list_deliveries(s, call.principal, webhook_id, page))
    return PageOut.of(found, _delivery_out)


@router.post("/clusters/{cluster_id}/webhooks", status_code=201)
@requires(Permission.WEBHOOK_MANAGE)
async def create_cluster_webhook(
    call: CallDep, cluster_id: ClusterKey, body: ClusterWebhookIn
) -> WebhookCreatedOut:
    """Create a webhook for a cluster's events: all of them, or those of the caller's tenant."""
    cluster = await _cluster(call, cluster_id)
    runs_clusters = call.principal.may(Permission.CLUSTER_MANAGE)
    tenant_id = None if runs_clusters else call.principal.tenant_id
    webhook = _webhook(call, body.url, body.kinds, tenant_id, cluster, None)
    return await _create(call, webhook)


@router.get("/clusters/{cluster_id}/webhooks")
@requires(Permission.WEBHOOK_MANAGE)
async def list_cluster_webhooks(
    call: CallDep, cluster_id: ClusterKey, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> PageOut[WebhookOut]:
    """List the webhooks of a cluster that the caller manages."""
    cluster = await _cluster(call, cluster_id)
    page = page_request(limit, cursor, sort=service.SORT_ID)
    found = await call.read(lambda s: service.list_webhooks(s, call.principal, cluster, page))
    return PageOut.of(found, _webhook_out)


@router.delete("/clusters/{cluster_id}/webhooks/{webhook_id}")
@requires(Permission.WEBHOOK_MANAGE)
async def delete_cluster_webhook(
    call: CallDep, cluster_id: ClusterKey, webhook_id: WebhookId
) -> Done:
    """Delete a webhook of a cluster."""
    cluster = await _cluster(call, cluster_id)
    return await call.write(
        "events.delete_webhook",
        lambda s: service.delete_webhook(s, call.principal, webhook_id, call.now, cluster),
        lambda _: Done(),
    )


# -- the stream -------------------------------------------------------------------------------


async def _open_stream(
    call: Call, wanted: service.EventFilter, last_event_id: str | None
) -> StreamingResponse:
    """Return the stream; what refuses it is answered before its first byte."""
    feed = call.port("event_feed", Feed)
    if feed.readers >= feed.max_readers or feed.is_closed:
        raise TooManyStreams(
            f"{feed.max_readers} readers follow the stream already.",
            fix="Try again later, or read the list.",
            retry_after_s=10,
        )
    position = _position(last_event_id)
    if position is None:
        position = await call.read(service.last_position)
    else:
        start = position
        await call.read(lambda s: service.load_stream(s, call.principal, wanted, start, 1))
    return StreamingResponse(
        _stream(call, feed, wanted, position),
        media_type=EVENT_STREAM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(
    call: Call, feed: Feed, wanted: service.EventFilter, position: int
) -> AsyncIterator[bytes]:
    with feed.reading() as let_in:
        if not let_in:
            return
        yield f"retry: {RECONNECT_MS}\nid: {position}\n\n".encode()
        quiet_since = call.clock.monotonic()
        while not feed.is_closed:
            news = feed.next_news()
            after = position
            try:
                events, position = await call.read(
                    lambda s, after=after: service.load_stream(  # type: ignore[misc]  # bound now
                        s, call.principal, wanted, after, STREAM_BATCH
                    )
                )
                if events:
                    yield b"".join(_frame(event) for event in events)
                    quiet_since = call.clock.monotonic()
                elif call.clock.monotonic() - quiet_since >= HEARTBEAT_S:
                    await call.recheck()
                    yield f": still here\nid: {position}\n\n".encode()
                    quiet_since = call.clock.monotonic()
            except CursorExpired as error:  # pruned faster than this reader reads
                yield _closing("expired", error)
                return
            except ProductError as error:
                yield _closing("closed", error)
                return
            if len(events) < STREAM_BATCH:
                left = HEARTBEAT_S - (call.clock.monotonic() - quiet_since)
                await feed.wait(news, max(0.05, left))


def _frame(event: service.Event) -> bytes:
    data = json.dumps(service.payload_of(event), separators=(",", ":"))
    return f"id: {event.position}\nevent: {event.kind}\ndata: {data}\n\n".encode()


def _closing(word: str, error: ProductError) -> bytes:
    data = json.dumps({"code": error.code, "detail": error.detail, "fix": error.fix})
    return f"event: stream.{word}\ndata: {data}\n\n".encode()


def _position(last_event_id: str | None) -> int | None:
    if last_event_id is None:
        return None
    if not (last_event_id.isascii() and last_event_id.isdigit()):
        raise _bad_position()
    position = int(last_event_id)
    if position >= MAX_POSITION:
        raise _bad_position()
    return position


def _bad_position() -> InvalidInput:
    return InvalidInput(
        "Last-Event-ID is no position of this stream.",
        code="invalid_cursor",
        field="Last-Event-ID",
        fix="Send the `id` of the last event received, or leave it out.",
    )


# -- shapes -----------------------------------------------------------------------------------


async def _cluster(call: Call, key: str) -> ClusterId:
    """Return the id of a cluster; only the composition root knows who knows clusters."""
    find: FindCluster = call.ports["find_cluster"]
    found = await call.read(lambda s: find(s, key))
    if found is None:
        raise NotFound(
            "There is no cluster of that name or id.",
            code="cluster_not_found",
            fix="List the clusters.",
        )
    return found.id


def _webhook(
    call: Call,
    url: str,
    kinds: Sequence[str],
    tenant_id: TenantId | None,
    cluster_id: ClusterId | None,
    subject_id: str | None,
) -> service.Webhook:
    return service.Webhook(
        id=WebhookId(new_id()),
        tenant_id=tenant_id,
        cluster_id=cluster_id,
        subject_id=subject_id,
        url=url,
        kinds=tuple(kinds),
        state="active",
        state_reason="",
        failures_in_a_row=0,
        position=0,
        created_by=call.principal.name,
        created_at=call.now,
    )


async def _create(call: Call, webhook: service.Webhook) -> WebhookCreatedOut:
    policy = call.port("webhook_policy", service.WebhookPolicy)
    secret = "gpwh_" + secrets.token_urlsafe(SECRET_BYTES)
    sealed = await call.seal(secret.encode(), service.secret_context(webhook.id))
    return await call.write(
        "events.create_webhook",
        lambda s: service.create_webhook(s, call.principal, webhook, sealed, policy, call.now),
        lambda made: WebhookCreatedOut(webhook=_webhook_out(made), secret=secret),
        201,
    )


def _event_out(event: service.Event) -> EventOut:
    return EventOut(
        id=event.id,
        position=event.position,
        at=event.at,
        kind=event.kind,
        tenant_id=event.tenant_id,
        project_id=event.project_id,
        cluster_id=event.cluster_id,
        subject_kind=event.subject_kind,
        subject_id=event.subject_id,
        actor=event.actor,
        reason=event.reason,
        message=event.message,
        data=event.data,
        audit=event.audit,
    )


def _webhook_out(webhook: service.Webhook) -> WebhookOut:
    return WebhookOut(
        id=webhook.id,
        tenant_id=webhook.tenant_id,
        cluster_id=webhook.cluster_id,
        subject_id=webhook.subject_id,
        url=webhook.url,
        kinds=list(webhook.kinds),
        state=webhook.state,
        state_reason=webhook.state_reason,
        failures_in_a_row=webhook.failures_in_a_row,
        position=webhook.position,
        created_by=webhook.created_by,
        created_at=webhook.created_at,
    )


def _delivery_out(one: service.Delivery) -> DeliveryOut:
    return DeliveryOut(
        id=one.id,
        webhook_id=one.webhook_id,
        event_position=one.event_position,
        event_kind=one.event_kind,
        state=one.state,
        tries=one.tries,
        next_at=one.next_at if one.state == "pending" else None,
        last_status=one.last_status,
        last_error=one.last_error,
        created_at=one.created_at,
        finished_at=one.finished_at,
    )
