"""Calls to others: a client that is made when the first is made, and the way to an address.

What the client needs to check certificates takes two megabytes, and many control planes call
nobody.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence

import httpx2

from gpuplane.kit.targets import Target, address_refusal, parse_target, target_refusal


class TargetRefused(Exception):
    """What was to be sent may not go to where it points; the text says why."""


class NoAddress(OSError):
    """The name of a host has no address just now."""


class OutboundTransport(httpx2.AsyncBaseTransport):
    """Connections to others, kept open for the next call; none before the first."""

    def __init__(self) -> None:
        """Make nothing yet."""
        self._made: httpx2.AsyncHTTPTransport | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        if self._made is None:
            self._made = httpx2.AsyncHTTPTransport(trust_env=False)
        return await self._made.handle_async_request(request)

    async def aclose(self) -> None:
        """Close what was opened."""
        if self._made is not None:
            await self._made.aclose()


def make_client() -> httpx2.AsyncClient:
    """Return a client that follows no redirect and heeds no proxy of the environment."""
    return httpx2.AsyncClient(
        transport=OutboundTransport(), follow_redirects=False, trust_env=False
    )


async def send(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: bytes | None,
    allowed: Sequence[str],
) -> httpx2.Response:
    """Send a request to an address that was checked, whatever the name says later.

    Args:
        client: From `make_client`.
        method: Of HTTP.
        url: Where to; http or https.
        headers: Beside `Host`.
        content: The body.
        allowed: Hosts, `*.suffixes` and networks that may be called although they are inside.

    Returns:
        The answer, its body not read yet; the caller closes it.

    Raises:
        TargetRefused: If the address cannot be read or may not be called.
        NoAddress: If its host has none.
        httpx2.HTTPError: If the other side cannot be reached.
    """
    target = parse_target(url)
    if target is None:
        raise TargetRefused("The address cannot be read.")
    address = await _find_address(target, allowed)
    host = f"[{address}]" if ":" in address else address
    named = f"[{target.host}]" if ":" in target.host else target.host
    default = target.port == (443 if target.scheme == "https" else 80)
    request = client.build_request(
        method,
        f"{target.scheme}://{host}:{target.port}{target.path}",
        content=content,
        headers={**headers, "Host": named if default else f"{named}:{target.port}"},
        extensions={"sni_hostname": target.host},
    )
    return await client.send(request, stream=True)


async def _find_address(target: Target, allowed: Sequence[str]) -> str:
    """Return the first address of a host, if every one of its addresses may be called."""
    reason = target_refusal(target, allowed)
    if reason is not None:
        raise TargetRefused(f"Not sent: {reason}.")
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise NoAddress(f"{target.host} has no address.") from error
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        reason = address_refusal(target.host, address, allowed)
        if reason is not None:
            raise TargetRefused(f"Not sent: {reason}.")
    if not addresses:
        raise NoAddress(f"{target.host} has no address.")
    return addresses[0]
