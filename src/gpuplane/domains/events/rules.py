"""Pure decisions about events: who sees one, which webhook wants it, when to try again."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit
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


# -- where webhooks may go ----------------------------------------------------------------------

MAX_URL_CHARS = 2_000
_HOST_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_:")
_NAT64 = ip_network("64:ff9b::/96")
"""Addresses whose last 32 bits a gateway calls over IPv4 (RFC 6052)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A webhook's address, taken apart."""

    scheme: str
    host: str
    port: int
    path: str


def parse_target(url: str) -> Target | None:
    """Return the parts of an address that a webhook can have, or None if it cannot."""
    if len(url) > MAX_URL_CHARS or not url.isascii() or any(c <= " " for c in url):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        return None
    if not set(parts.hostname) <= _HOST_CHARS:
        return None  # a percent sign hides a host from whoever compares names
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, parts.hostname.rstrip("."), port, path)


def literal_address(host: str) -> str | None:
    """Return the address that a host stands for without asking a name server, else None.

    Besides dotted numbers that is whatever the C library's inet_aton reads as one: one to four
    numbers, each decimal, octal (`0177`) or hexadecimal (`0x7f`), the last filling the rest.
    A host that looks like that and is no address is returned as it is.

    Source:
        POSIX.1-2017, inet_addr; RFC 6761 section 6.3 for `localhost`.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    if ":" in host:
        return host
    parts = host.split(".")
    numbers = [_number(part) for part in parts]
    if any(number is None for number in numbers):
        return None
    *first, last = [number or 0 for number in numbers]
    if len(first) > 3 or any(number > 255 for number in first) or last >= 256 ** (4 - len(first)):
        return host
    value = last + sum(number << 8 * (3 - place) for place, number in enumerate(first))
    return str(IPv4Address(value))


def _number(text: str) -> int | None:
    """Return a number as inet_aton writes it, None for anything else."""
    try:
        if text[:2].lower() == "0x":
            return int(text[2:] or "0", 16)
        if not text.isdigit():
            return None
        return int(text, 8 if text.startswith("0") else 10)
    except ValueError:
        return None


def target_refusal(target: Target, allowed: Sequence[str]) -> str | None:
    """Return why a webhook may not go to a target, as far as that is known without a look-up."""
    address = literal_address(target.host)
    return None if address is None else address_refusal(target.host, address, allowed)


def address_refusal(host: str, address: str, allowed: Sequence[str]) -> str | None:
    """Return why a webhook may not be sent to an address, or None.

    Args:
        host: The name in the webhook's URL.
        address: One address it resolves to.
        allowed: Hosts, `*.suffixes` and networks that the operator lets webhooks reach although
            they are inside.
    """
    try:
        number = ip_address(address)
    except ValueError:
        return f"{address!r} is no address"
    if isinstance(number, IPv6Address):
        number = _carried(number) or number
    for one in allowed:
        if one == host or (one.startswith("*.") and host.endswith(one[1:])):
            return None
        try:
            if number in ip_network(one, strict=False):
                return None
        except ValueError:  # a host name, compared above
            continue
    if not number.is_global or number.is_multicast:
        return f"{host} is {number}, an address inside a private network"
    return None


def _carried(number: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 one only wraps, where there is one."""
    if number.ipv4_mapped is not None:
        return number.ipv4_mapped
    if number.sixtofour is not None:
        return number.sixtofour
    if number in _NAT64:
        return IPv4Address(int(number) & 0xFFFF_FFFF)
    return None
