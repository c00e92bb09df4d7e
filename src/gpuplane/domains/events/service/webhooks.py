"""Use cases of webhooks: kept by tenants and operators, filled from the stream, and their log."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from gpuplane.core.ids import WebhookId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events.errors import TooManyWebhooks, WebhookNotFound, WebhookRefused
from gpuplane.domains.events.repository import outbox
from gpuplane.domains.events.repository import webhooks as repository
from gpuplane.domains.events.rules import (
    Delivery,
    DeliveryResult,
    DueDelivery,
    Event,
    EventFilter,
    Webhook,
    webhook_wants,
)
from gpuplane.domains.events.service.outbox import NewEvent, record
from gpuplane.kit.access import Permission, Principal, RowScope
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.pagination import Page, PageRequest
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.targets import parse_target, target_refusal

PLAN_BATCH = 1_000
"""Stream positions turned into deliveries in one turn."""
PENDING_LIMIT = 10_000
"""Deliveries that may wait for one webhook; above it the stream itself is its queue."""
PRUNE_BATCH = 5_000
CLAIM_MS = 60_000
"""A delivery whose sender died is tried again after this; longer than any try takes."""


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """What webhooks may do; a setting each."""

    allowed_hosts: tuple[str, ...] = ()
    """Hosts, `*.suffixes` and networks inside that webhooks may reach all the same."""
    tries: int = 12
    """Tries of one delivery: with back-off about eight hours."""
    disable_after: int = 50
    """Failed tries in a row, over all deliveries, after which a webhook is disabled."""
    per_tenant: int = 50
    """Webhooks a tenant may have."""
    timeout_s: float = 10.0
    """How long one try may take."""


def create_webhook(
    session: WriteSession,
    principal: Principal,
    webhook: Webhook,
    sealed_secret: bytes,
    policy: WebhookPolicy,
    now: int,
) -> Webhook:
    """Store a webhook that starts with the next event of the stream."""
    if webhook.tenant_id is None:
        principal.require(Permission.CLUSTER_MANAGE, what="cluster")
    else:
        principal.require(Permission.WEBHOOK_MANAGE, webhook.tenant_id, what="tenant")
    _check_url(webhook.url, policy)
    if repository.count_webhooks(session, webhook.tenant_id) >= policy.per_tenant:
        raise TooManyWebhooks(
            f"A tenant may have {policy.per_tenant} webhooks.", fix="Delete one first."
        )
    webhook = replace(webhook, position=outbox.last_position(session))
    repository.store_webhook(session, webhook, sealed_secret)
    _announce(session, "webhook.created", webhook, principal.name, now)
    return webhook


def get_webhook(
    session: ReadSession,
    principal: Principal,
    webhook_id: WebhookId,
    cluster_id: UUID | None = None,
) -> Webhook:
    """Return a webhook the caller manages (of this cluster, if one is named)."""
    webhook = repository.find_webhook(session, webhook_id)
    missing = WebhookNotFound("There is no webhook of that id.", fix="List the webhooks.")
    if webhook is None or (cluster_id is not None and webhook.cluster_id != cluster_id):
        raise missing
    if webhook.tenant_id is not None:
        principal.require(Permission.WEBHOOK_MANAGE, webhook.tenant_id, what="webhook")
    elif not principal.may(Permission.CLUSTER_MANAGE):
        raise missing
    return webhook


def list_webhooks(
    session: ReadSession, principal: Principal, cluster_id: UUID | None, page: PageRequest
) -> Page[Webhook]:
    """Return one page of the webhooks the caller manages."""
    scope = principal.rows(Permission.WEBHOOK_MANAGE)
    return repository.list_webhooks(session, scope, cluster_id, page)


def change_webhook(
    session: WriteSession,
    principal: Principal,
    webhook_id: WebhookId,
    url: str | None,
    kinds: Sequence[str] | None,
    state: str | None,
    policy: WebhookPolicy,
    now: int,
) -> Webhook:
    """Change where a webhook goes or what it wants; activating it starts with the next event."""
    webhook = get_webhook(session, principal, webhook_id)
    if url is not None:
        _check_url(url, policy)
        webhook = replace(webhook, url=url)
    if kinds is not None:
        webhook = replace(webhook, kinds=tuple(kinds))
    if state == "active" and webhook.state != "active":
        position = outbox.last_position(session)
        webhook = replace(
            webhook, state="active", state_reason="", failures_in_a_row=0, position=position
        )
    elif state == "disabled" and webhook.state != "disabled":
        webhook = replace(webhook, state="disabled", state_reason="Disabled by a person.")
        repository.fail_pending(session, webhook.id, "The webhook was disabled.", now)
    values = {
        "url": webhook.url,
        "kinds": list(webhook.kinds),
        "state": webhook.state,
        "state_reason": webhook.state_reason,
        "failures_in_a_row": webhook.failures_in_a_row,
        "position": webhook.position,
    }
    repository.set_webhook(session, webhook.id, values, now)
    _announce(session, "webhook.changed", webhook, principal.name, now)
    return webhook


def delete_webhook(
    session: WriteSession,
    principal: Principal,
    webhook_id: WebhookId,
    now: int,
    cluster_id: UUID | None = None,
) -> None:
    """Delete a webhook with its delivery log."""
    webhook = get_webhook(session, principal, webhook_id, cluster_id)
    repository.remove_webhook(session, webhook.id)
    _announce(session, "webhook.deleted", webhook, principal.name, now)


def list_deliveries(
    session: ReadSession, principal: Principal, webhook_id: WebhookId, page: PageRequest
) -> Page[Delivery]:
    """Return one page of a webhook's delivery log, newest first."""
    get_webhook(session, principal, webhook_id)
    return repository.list_deliveries(session, webhook_id, page)


def has_webhook_work(session: ReadSession, now: int) -> bool:
    """Return whether a webhook is behind the stream or a delivery is due."""
    return repository.has_work(session, outbox.last_position(session), now)


def plan_deliveries(session: WriteSession, now: int) -> bool:
    """Turn the next part of the stream into deliveries; return whether more is known."""
    last = outbox.last_position(session)
    pending = repository.pending_counts(session)
    behind = [
        webhook
        for webhook in repository.lock_active(session)
        if webhook.position < last and pending.get(webhook.id, 0) < PENDING_LIMIT
    ]
    if not behind:
        return False
    start = min(webhook.position for webhook in behind)
    everything = RowScope(everything=True)
    events = outbox.load_after(session, start, everything, EventFilter(), PLAN_BATCH)
    until = last
    if len(events) == PLAN_BATCH:
        until = events[-1].position or last
    found = [
        (webhook.id, event)
        for webhook in behind
        for event in events
        if (event.position or 0) > webhook.position and webhook_wants(webhook, event)
    ]
    repository.store_deliveries(session, found, now)
    moved = [webhook.id for webhook in behind if webhook.position < until]
    repository.set_positions(session, moved, until)
    return until < last


def claim_due(session: WriteSession, now: int, limit: int) -> tuple[DueDelivery, ...]:
    """Return deliveries to send now; nobody else gets them for a minute."""
    return repository.claim_due(session, now, now + CLAIM_MS, limit)


def store_results(
    session: WriteSession, results: Collection[DeliveryResult], policy: WebhookPolicy, now: int
) -> None:
    """Note how tries went, and disable a webhook that only fails."""
    known = repository.webhooks_by_ids(session, {result.webhook_id for result in results})
    failures = {webhook.id: webhook.failures_in_a_row for webhook in known.values()}
    for result in sorted(results, key=lambda one: one.delivery_id):
        repository.store_result(session, result, now)
        if result.webhook_id in failures:
            before = failures[result.webhook_id]
            failures[result.webhook_id] = before + 1 if result.error else 0
    for webhook_id, count in sorted(failures.items()):
        webhook = known[webhook_id]
        values: dict[str, object] = {"failures_in_a_row": count}
        if count >= policy.disable_after and webhook.state == "active":
            reason = f"{count} tries in a row failed."
            values |= {"state": "disabled", "state_reason": reason}
            repository.fail_pending(session, webhook_id, "The webhook was disabled.", now)
            _announce(session, "webhook.disabled", webhook, "system", now, reason)
        if count != webhook.failures_in_a_row or "state" in values:
            repository.set_webhook(session, webhook_id, values, now)


def prune_deliveries(session: WriteSession, before: int) -> int:
    """Forget a batch of finished deliveries older than an instant; 0 means none is left."""
    return repository.prune_deliveries(session, before, PRUNE_BATCH)


def rewrap_webhooks(session: WriteSession, sealing: SealingKeys) -> int:
    """Seal the secrets of all webhooks by the current key and return how many changed."""
    count = 0
    for webhook_id, sealed in repository.sealed_secrets(session):
        fresh = sealing.rewrap(sealed, secret_context(webhook_id))
        if fresh != sealed:
            repository.store_rewrapped(session, webhook_id, fresh)
            count += 1
    return count


def payload_of(event: Event) -> dict[str, object]:
    """Return an event as webhooks and streams carry it."""
    return {
        "id": str(event.id),
        "position": event.position,
        "at": instant_to_text(event.at),
        "kind": event.kind,
        "tenant_id": None if event.tenant_id is None else str(event.tenant_id),
        "project_id": None if event.project_id is None else str(event.project_id),
        "cluster_id": None if event.cluster_id is None else str(event.cluster_id),
        "subject_kind": event.subject_kind,
        "subject_id": event.subject_id,
        "actor": event.actor,
        "reason": event.reason,
        "message": event.message,
        "data": event.data,
        "audit": event.audit,
    }


def secret_context(webhook_id: WebhookId) -> str:
    """Return the context a webhook's secret is sealed in."""
    return f"webhook/{webhook_id}"


def _check_url(url: str, policy: WebhookPolicy) -> None:
    """Refuse addresses that no name look-up is needed to refuse; the sender checks the rest."""
    target = parse_target(url)
    if target is None:
        raise WebhookRefused(
            "This is no address a webhook can have.",
            field="url",
            fix="Write http:// or https://, a host and a path, without user or password.",
        )
    reason = target_refusal(target, policy.allowed_hosts)
    if reason is not None:
        raise WebhookRefused(
            f"Webhooks may not go there: {reason}.",
            field="url",
            fix="Use a public address, or ask the operator to allow this host for webhooks.",
        )


def _announce(
    session: WriteSession, kind: str, webhook: Webhook, actor: str, now: int, message: str = ""
) -> None:
    record(
        session,
        NewEvent(
            kind=kind,
            at=now,
            subject_kind="webhook",
            subject_id=webhook.id,
            tenant_id=webhook.tenant_id,
            cluster_id=webhook.cluster_id,
            actor=actor,
            message=message,
            audit=True,
        ),
    )
