"""Pure decisions about events: who sees one, which webhook wants it, when to try again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId, EventId, ProjectId, TenantId, WebhookId

RETRY_FIRST_MS = 5_000
RETRY_LAST_MS = 3_600_000
JITTER_RATIO = 0.2


@dataclass(frozen=True, slots=True)
class Event:
    """One stored event."""

    seq: int
    id: EventId
    position: int | None
    at: int
    kind: str
    tenant_id: TenantId | None
    project_id: ProjectId | None
    cluster_id: ClusterId | None
    subject_kind: str
    subject_id: str
    actor: str
    reason: str
    message: str
    data: dict[str, Any]
    audit: bool


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are asked for; None and empty mean any."""

    kinds: tuple[str, ...] = ()
    """A kind, or a prefix of kinds ending in a dot or `*`."""
    subject_kind: str | None = None
    subject_id: str | None = None
    cluster_id: UUID | None = None
    tenant_id: UUID | None = None
    project_id: UUID | None = None
    since: int | None = None
    until: int | None = None
    audit: bool | None = None


@dataclass(frozen=True, slots=True)
class Webhook:
    """One stored webhook without its secret."""

    id: WebhookId
    tenant_id: TenantId | None
    cluster_id: ClusterId | None
    subject_id: str | None
    url: str
    kinds: tuple[str, ...]
    state: str
    state_reason: str
    failures_in_a_row: int
    position: int
    created_by: str
    created_at: int


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """One delivery to send now."""

    id: int
    webhook_id: WebhookId
    tries: int
    url: str
    sealed_secret: bytes
    event: Event


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """How one try went; `error` is empty when the receiver took it."""

    delivery_id: int
    webhook_id: WebhookId
    status: int | None
    error: str
    next_at: int | None
    """When to try again; None when this was the last try or it worked."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery as the log shows it."""

    id: int
    webhook_id: WebhookId
    event_position: int
    event_kind: str
    state: str
    tries: int
    next_at: int
    last_status: int | None
    last_error: str
    created_at: int
    finished_at: int | None


def kind_prefix(pattern: str) -> str | None:
    """Return the prefix a pattern stands for, or None when it is one exact kind."""
    if pattern.endswith("*"):
        return pattern[:-1]
    return pattern if pattern.endswith(".") else None


def wants(kinds: Sequence[str], kind: str) -> bool:
    """Return whether one of the patterns names the kind; no patterns mean every kind."""
    if not kinds:
        return True
    for pattern in kinds:
        prefix = kind_prefix(pattern)
        if kind == pattern or (prefix is not None and kind.startswith(prefix)):
            return True
    return False


def webhook_wants(webhook: Webhook, event: Event) -> bool:
    """Return whether an event goes to a webhook; a tenant's never gets another tenant's."""
    if webhook.tenant_id is not None and event.tenant_id != webhook.tenant_id:
        return False
    if webhook.cluster_id is not None and event.cluster_id != webhook.cluster_id:
        return False
    if webhook.subject_id is not None and event.subject_id != webhook.subject_id:
        return False
    return wants(webhook.kinds, event.kind)


def compute_next_try(now: int, tries: int, chance: float) -> int:
    """Return when a failed delivery is tried again: doubling, bounded, with jitter.

    Args:
        now: The instant of the failure in milliseconds.
        tries: How many tries have failed, at least 1.
        chance: A number in [0, 1) that spreads the retries of many deliveries.
    """
    delay = min(RETRY_FIRST_MS * 2 ** min(tries - 1, 20), RETRY_LAST_MS)
    return now + int(delay * (1 - JITTER_RATIO + 2 * JITTER_RATIO * chance))
