"""Which addresses the product may call for its users: none inside the operator's network.

One rule for webhooks and for what pipelines call, at the time they are saved and at each call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

MAX_URL_CHARS = 2_000
_HOST_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_:")
_NAT64 = ip_network("64:ff9b::/96")
"""Addresses whose last 32 bits a gateway calls over IPv4 (RFC 6052)."""


@dataclass(frozen=True, slots=True)
class Target:
    """An address to call, taken apart."""

    scheme: str
    host: str
    port: int
    path: str


def parse_target(url: str) -> Target | None:
    """Return the parts of an address that can be called, or None for what is none."""
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
    """Return why a target may not be called, as far as that is known without a look-up."""
    address = literal_address(target.host)
    return None if address is None else address_refusal(target.host, address, allowed)


def address_refusal(host: str, address: str, allowed: Sequence[str]) -> str | None:
    """Return why an address may not be called, or None.

    Args:
        host: The name in the URL.
        address: One address it resolves to.
        allowed: Hosts, `*.suffixes` and networks that the operator lets be called although they are
            inside.
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
