"""Every query on webhooks and deliveries."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, delete, exists, func, insert, or_, select, update

from gpuplane.core.ids import ClusterId, TenantId, WebhookId
from gpuplane.db.pages import load_page
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.events.repository.outbox import event_of, events
from gpuplane.domains.events.rules import (
    Delivery,
    DeliveryResult,
    DueDelivery,
    Event,
    Webhook,
)
from gpuplane.domains.events.tables import DeliveryRow, WebhookRow
from gpuplane.kit.access import RowScope
from gpuplane.kit.pagination import Page, PageRequest

webhooks = table_of(WebhookRow)
deliveries = table_of(DeliveryRow)

SORT_ID, SORT_NEWEST = "id", "-id"


def store_webhook(session: WriteSession, webhook: Webhook, sealed_secret: bytes) -> None:
    """Insert a webhook with its sealed secret."""
    session.execute(
        insert(webhooks).values(
            id=webhook.id,
            tenant_id=webhook.tenant_id,
            cluster_id=webhook.cluster_id,
            subject_id=webhook.subject_id,
            url=webhook.url,
            kinds=list(webhook.kinds),
            secret=sealed_secret,
            state=webhook.state,
            state_reason=webhook.state_reason,
            failures_in_a_row=webhook.failures_in_a_row,
            position=webhook.position,
            created_by=webhook.created_by,
            created_at=webhook.created_at,
            updated_at=webhook.created_at,
            version=1,
        )
    )


def set_webhook(
    session: WriteSession, webhook_id: WebhookId, values: dict[str, Any], now: int
) -> None:
    """Change columns of a webhook."""
    session.execute(
        update(webhooks)
        .where(webhooks.c.id == webhook_id)
        .values(**values, updated_at=now, version=webhooks.c.version + 1)
    )


def remove_webhook(session: WriteSession, webhook_id: WebhookId) -> None:
    """Delete a webhook with its deliveries."""
    session.execute(delete(webhooks).where(webhooks.c.id == webhook_id))


def find_webhook(session: ReadSession, webhook_id: WebhookId) -> Webhook | None:
    """Return a webhook, or None."""
    row = session.row(select(webhooks).where(webhooks.c.id == webhook_id))
    return None if row is None else _webhook(row)


def list_webhooks(
    session: ReadSession, scope: RowScope, cluster_id: UUID | None, page: PageRequest
) -> Page[Webhook]:
    """Return one page of webhooks of the tenants in scope, oldest first."""
    query: Select[Any] = select(webhooks)
    if not scope.everything:
        query = query.where(webhooks.c.tenant_id.in_(sorted(scope.tenant_ids)))
    if cluster_id is not None:
        query = query.where(webhooks.c.cluster_id == cluster_id)
    return load_page(session, query, (webhooks.c.id,), page, _webhook, sort=SORT_ID)


def count_webhooks(session: ReadSession, tenant_id: TenantId | None) -> int:
    """Return how many webhooks a tenant has, or the platform itself."""
    query = select(func.count()).select_from(webhooks).where(webhooks.c.tenant_id == tenant_id)
    return int(session.scalar(query) or 0)


def lock_active(session: WriteSession) -> tuple[Webhook, ...]:
    """Return every webhook that takes events; a second planner waits until this one is done."""
    query = select(webhooks).where(webhooks.c.state == "active").order_by(webhooks.c.id)
    if session.dialect == "postgresql":
        query = query.with_for_update()
    return tuple(_webhook(row) for row in session.rows(query))


def webhooks_by_ids(session: ReadSession, ids: Collection[WebhookId]) -> dict[WebhookId, Webhook]:
    """Return webhooks by id."""
    rows = session.rows(select(webhooks).where(webhooks.c.id.in_(sorted(ids))))
    return {WebhookId(row["id"]): _webhook(row) for row in rows}


def sealed_secrets(session: ReadSession) -> tuple[tuple[WebhookId, bytes], ...]:
    """Return the sealed secret of every webhook, for rewrapping."""
    found = session.rows(select(webhooks.c.id, webhooks.c.secret).order_by(webhooks.c.id))
    return tuple((WebhookId(row["id"]), row["secret"]) for row in found)


def store_rewrapped(session: WriteSession, webhook_id: WebhookId, sealed: bytes) -> None:
    """Replace the seal of an unchanged secret."""
    session.execute(update(webhooks).where(webhooks.c.id == webhook_id).values(secret=sealed))


def has_work(session: ReadSession, last_position: int, now: int) -> bool:
    """Return whether a webhook is behind the stream or a delivery is due."""
    behind = exists().where(webhooks.c.state == "active", webhooks.c.position < last_position)
    due = exists().where(deliveries.c.state == "pending", deliveries.c.next_at <= now)
    return bool(session.scalar(select(or_(behind, due))))


def pending_counts(session: ReadSession) -> dict[WebhookId, int]:
    """Return how many deliveries wait for each webhook."""
    rows = session.rows(
        select(deliveries.c.webhook_id, func.count().label("count"))
        .where(deliveries.c.state == "pending")
        .group_by(deliveries.c.webhook_id)
    )
    return {WebhookId(row["webhook_id"]): int(row["count"]) for row in rows}


def store_deliveries(
    session: WriteSession, found: Sequence[tuple[WebhookId, Event]], now: int
) -> None:
    """Insert a delivery for each pair of webhook and event."""
    session.execute(
        insert(deliveries),
        [
            {
                "webhook_id": webhook_id,
                "event_position": event.position,
                "event_kind": event.kind,
                "state": "pending",
                "tries": 0,
                "next_at": now,
                "last_error": "",
                "created_at": now,
            }
            for webhook_id, event in found
        ],
    )


def set_positions(session: WriteSession, ids: Collection[WebhookId], position: int) -> None:
    """Note up to which position these webhooks have their deliveries."""
    session.execute(
        update(webhooks).where(webhooks.c.id.in_(sorted(ids))).values(position=position)
    )


def claim_due(
    session: WriteSession, now: int, claimed_until: int, limit: int
) -> tuple[DueDelivery, ...]:
    """Return deliveries due now and put their next try off, should this process die meanwhile."""
    query = (
        select(deliveries.c.id)
        .where(deliveries.c.state == "pending", deliveries.c.next_at <= now)
        .order_by(deliveries.c.next_at, deliveries.c.id)
        .limit(limit)
    )
    if session.dialect == "postgresql":
        query = query.with_for_update(skip_locked=True)
    ids = [row["id"] for row in session.rows(query)]
    if not ids:
        return ()
    session.execute(
        update(deliveries).where(deliveries.c.id.in_(ids)).values(next_at=claimed_until)
    )
    joined = deliveries.join(webhooks, webhooks.c.id == deliveries.c.webhook_id).outerjoin(
        events, events.c.position == deliveries.c.event_position
    )
    rows = session.rows(
        select(
            events,
            deliveries.c.id.label("delivery_id"),
            deliveries.c.webhook_id,
            deliveries.c.tries,
            webhooks.c.url,
            webhooks.c.secret,
        )
        .select_from(joined)
        .where(deliveries.c.id.in_(ids))
        .order_by(deliveries.c.id)
    )
    gone = [row["delivery_id"] for row in rows if row["seq"] is None]
    if gone:
        session.execute(
            update(deliveries)
            .where(deliveries.c.id.in_(gone))
            .values(state="failed", last_error="The event is not kept any more.", finished_at=now)
        )
    return tuple(
        DueDelivery(
            id=row["delivery_id"],
            webhook_id=WebhookId(row["webhook_id"]),
            tries=row["tries"],
            url=row["url"],
            sealed_secret=row["secret"],
            event=event_of(row),
        )
        for row in rows
        if row["seq"] is not None
    )


def store_result(session: WriteSession, result: DeliveryResult, now: int) -> None:
    """Note how one try went."""
    values: dict[str, Any] = {
        "tries": deliveries.c.tries + 1,
        "last_status": result.status,
        "last_error": result.error,
    }
    if result.error and result.next_at is not None:
        values["next_at"] = result.next_at
    else:
        values |= {"state": "failed" if result.error else "delivered", "finished_at": now}
    session.execute(
        update(deliveries)
        .where(deliveries.c.id == result.delivery_id, deliveries.c.state == "pending")
        .values(**values)
    )


def fail_pending(session: WriteSession, webhook_id: WebhookId, error: str, now: int) -> None:
    """Give up on every delivery that waits for a webhook."""
    session.execute(
        update(deliveries)
        .where(deliveries.c.webhook_id == webhook_id, deliveries.c.state == "pending")
        .values(state="failed", last_error=error, finished_at=now)
    )


def list_deliveries(
    session: ReadSession, webhook_id: WebhookId, page: PageRequest
) -> Page[Delivery]:
    """Return one page of a webhook's deliveries, newest first."""
    query: Select[Any] = select(deliveries).where(deliveries.c.webhook_id == webhook_id)
    return load_page(session, query, (deliveries.c.id,), page, _delivery, sort=SORT_NEWEST)


def prune_deliveries(session: WriteSession, before: int, limit: int) -> int:
    """Forget finished deliveries older than an instant and return how many."""
    old = (
        select(deliveries.c.id)
        .where(deliveries.c.state != "pending", deliveries.c.created_at < before)
        .order_by(deliveries.c.id)
        .limit(limit)
    )
    return session.execute(delete(deliveries).where(deliveries.c.id.in_(old)))


def _webhook(row: Any) -> Webhook:
    return Webhook(
        id=WebhookId(row["id"]),
        tenant_id=None if row["tenant_id"] is None else TenantId(row["tenant_id"]),
        cluster_id=None if row["cluster_id"] is None else ClusterId(row["cluster_id"]),
        subject_id=row["subject_id"],
        url=row["url"],
        kinds=tuple(row["kinds"]),
        state=row["state"],
        state_reason=row["state_reason"],
        failures_in_a_row=row["failures_in_a_row"],
        position=row["position"],
        created_by=row["created_by"],
        created_at=row["created_at"],
    )


def _delivery(row: Any) -> Delivery:
    return Delivery(
        id=row["id"],
        webhook_id=WebhookId(row["webhook_id"]),
        event_position=row["event_position"],
        event_kind=row["event_kind"],
        state=row["state"],
        tries=row["tries"],
        next_at=row["next_at"],
        last_status=row["last_status"],
        last_error=row["last_error"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
    )
