"""The client for calls to others: made when the first call is made.

What it needs to check certificates takes two megabytes, and many control planes call nobody.
"""

import httpx2


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
