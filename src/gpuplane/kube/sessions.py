"""Requests to one API server: TLS, credentials, limits, and what answers mean as errors.

Retries only what the server asked to be retried (429 and 503 with Retry-After), within limits.
Follows no redirect, heeds no proxy of the environment, logs no body and no credential.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import msgspec

from gpuplane import __version__
from gpuplane.kit.clock import Clock, SystemClock
from gpuplane.kube.credentials import Connection
from gpuplane.kube.errors import KubeError, Unauthorized, Unreachable, Unreadable, error_of
from gpuplane.kube.tls import make_tls_context
from gpuplane.kube.watching import UNDECODABLE

DEFAULT_USER_AGENT = f"gpuplane/{__version__}"
Params = Mapping[str, str | int | bool | list[str] | None]
Query = list[tuple[str, str | int | float | bool | None]]


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client waits for and takes at most.

    Attributes:
        connect_s: To a connection with TLS.
        request_s: A whole request with its answer, waits for Retry-After included.
        stream_idle_s: A stream without a byte; bookmarks come about once a minute.
        retries: Repetitions that the server asked for.
        retry_longest_s: A Retry-After beyond this is told, not waited for.
        connections: At once, requests; those beyond wait.
        streams: At once, watches, logs and commands.
        body_bytes: An answer, unpacked. A page of 500 objects of 200 KiB.
        line_bytes: One event of a watch. etcd takes objects of 1.5 MiB.
        page_size: Objects of a list asked for at a time.
        list_objects: Of a list that is read whole. The largest cluster has 150,000 pods.
        list_bytes: Of such a list, unpacked.
    """

    connect_s: float = 5.0
    request_s: float = 30.0
    stream_idle_s: float = 90.0
    retries: int = 3
    retry_longest_s: float = 10.0
    connections: int = 32
    streams: int = 128
    body_bytes: int = 100 << 20
    line_bytes: int = 8 << 20
    page_size: int = 500
    list_objects: int = 200_000
    list_bytes: int = 1 << 30


class Session:
    """Connections to one API server, made when first needed."""

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str = DEFAULT_USER_AGENT,
        limits: ClientLimits | None = None,
        clock: Clock | None = None,
        packed: bool = True,
    ) -> None:
        """Make nothing yet."""
        self._encoding = "gzip" if packed else "identity"
        self.limits = limits or ClientLimits()
        self._connection = connection
        self._user_agent = user_agent
        self._clock = clock or SystemClock()
        self._tls: ssl.SSLContext | None = None
        self._requests: httpx2.AsyncClient | None = None
        self._streams: httpx2.AsyncClient | None = None
        self._token: str | None = connection.token
        self._token_stamp: tuple[int, int, int] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def close(self) -> None:
        """Close every connection; what is under way ends with Unreachable."""
        self._closed = True
        if self._ending:
            await asyncio.wait(self._ending)
        for client in (self._requests, self._streams):
            if client is not None:
                await client.aclose()
        self._requests = self._streams = None

    async def send(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout_s: float | None = None,
        retries: int | None = None,
    ) -> bytes:
        """Send a request and return the body of its answer.

        Args:
            method: Of HTTP.
            path: Below the server's address, from `/`.
            params: Of the query; None values are left out.
            body: What is sent as JSON, None for nothing.
            content_type: Of the body.
            accept: What may be answered.
            timeout_s: For all of it; the limits' where None.
            retries: How often the server's Retry-After is followed; the limits' where None.

        Raises:
            KubeError: What the cluster answered, or that it did not.
        """
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": accept, "Accept-Encoding": self._encoding}
        if content is not None:
            headers["Content-Type"] = content_type
        within_s = self.limits.request_s if timeout_s is None else timeout_s
        left = self.limits.retries if retries is None else retries
        try:
            async with asyncio.timeout(within_s) as limit:
                while True:
                    try:
                        return await self._once(method, path, params, content, headers)
                    except KubeError as error:
                        wait_s = getattr(error, "retry_after_s", None)
                        if left <= 0 or wait_s is None or error.status not in (429, 503):
                            raise
                        rest_s = (limit.when() or 0.0) - asyncio.get_running_loop().time()
                        if wait_s > min(self.limits.retry_longest_s, rest_s):
                            raise
                    left -= 1
                    await self._clock.sleep(wait_s)
        except TimeoutError:
            raise Unreachable(
                f"{self._connection.server} did not answer within {within_s:g} s.", "Timeout"
            ) from None

    async def _once(
        self,
        method: str,
        path: str,
        params: Params | None,
        content: bytes | None,
        headers: Mapping[str, str],
    ) -> bytes:
        """Send a request once, and again with a fresh token or connection where that helps."""
        client = self._request_client()
        try:
            request = self._build(client, method, path, params, content, headers)
        except (httpx2.InvalidURL, ValueError) as error:
            raise self._unreachable(error) from None
        for attempt in (0, 1):
            used = self._authorize(request)
            try:
                response = await self._begin(client, request)
                try:
                    data = await self._read(response)
                finally:
                    await response.aclose()
            except (httpx2.RemoteProtocolError, httpx2.ReadError) as error:
                # A connection that was kept open and that the server has closed meanwhile.
                if attempt == 0 and method == "GET":
                    continue
                raise self._unreachable(error) from None
            except (
                httpx2.HTTPError, httpx2.InvalidURL, OSError, RuntimeError, ValueError
            ) as error:  # fmt: skip
                raise self._unreachable(error) from None
            if response.status_code < 300:
                return data
            failure = _failure(response, data)
            if isinstance(failure, Unauthorized) and attempt == 0 and self._token_changed(used):
                continue
            raise failure
        raise AssertionError("the second attempt returns or raises")

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        idle_s: float | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """Open an answer that is read piece by piece, or a connection that is taken over.

        Raises:
            KubeError: As `send`, on entry; and when the stream breaks inside.
        """
        client = self._stream_client()
        sent = {"Accept": "application/json, */*", "Accept-Encoding": "identity"}
        within = httpx2.Timeout(
            self.limits.connect_s, read=self.limits.stream_idle_s if idle_s is None else idle_s
        )
        try:
            try:
                request = self._build(
                    client, method, path, params, None, sent | dict(headers or {})
                )
                request.extensions["timeout"] = within.as_dict()
                response = await self._open(client, request)
            except (httpx2.InvalidURL, ValueError) as error:  # not those of the block below
                raise self._unreachable(error) from None
            try:
                yield response
            finally:
                await response.aclose()
        except KubeError:
            raise
        except (httpx2.HTTPError, OSError, RuntimeError) as error:
            raise self._unreachable(error) from None

    async def _open(self, client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return its answer if it is one of success."""
        for attempt in (0, 1):
            used = self._authorize(request)
            try:
                async with asyncio.timeout(self.limits.request_s):
                    response = await self._begin(client, request)
            except TimeoutError:
                raise Unreachable(f"{self._connection.server} did not answer.", "Timeout") from None
            except httpx2.RemoteProtocolError:
                if attempt == 0:
                    continue
                raise
            if response.status_code < 300:
                return response
            try:
                failure = _failure(response, await self._read(response))
            finally:
                await response.aclose()
            if isinstance(failure, Unauthorized) and attempt == 0 and self._token_changed(used):
                continue
            raise failure
        raise AssertionError("the second attempt returns or raises")

    async def _begin(self, client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        """Send a request whose answer is not read yet, so that cancelling leaves no socket behind.

        A TLS handshake that is cancelled is never closed by the library below, so it is let finish
        first, for as long as a connection may take; everything else ends at once.
        """
        shaking = _Handshake()
        request.extensions["trace"] = shaking.note
        sending = asyncio.create_task(client.send(request, stream=True))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            # A task of its own: whoever is cancelled once more must not leave it half done.
            ending = asyncio.create_task(self._end(sending, shaking))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            await asyncio.shield(ending)
            raise

    async def _end(self, sending: asyncio.Task[httpx2.Response], shaking: "_Handshake") -> None:
        """End a request that nobody waits for any more, and close its answer if there is one."""
        await shaking.wait_over(self.limits.connect_s)
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled() and sending.exception() is None:
            await sending.result().aclose()

    def _build(
        self,
        client: httpx2.AsyncClient,
        method: str,
        path: str,
        params: Params | None,
        content: bytes | None,
        headers: Mapping[str, str],
    ) -> httpx2.Request:
        return client.build_request(
            method,
            self._url(path),
            params=_query(params) if params else None,
            content=content,
            headers=headers,
            extensions=self._extensions(),
        )

    def _url(self, path: str) -> str:
        return self._connection.server.rstrip("/") + path

    def _extensions(self) -> dict[str, Any]:
        name = self._connection.tls_server_name
        return {} if name is None else {"sni_hostname": name}

    def _authorize(self, request: httpx2.Request) -> str | None:
        token = self._current_token()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        return token

    def _current_token(self) -> str | None:
        """Return the token, read again when its file was replaced (bound tokens are, hourly)."""
        path = self._connection.token_file
        if path is None:
            return self._token
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
            if stamp != self._token_stamp:
                self._token = path.read_text(encoding="ascii").strip()
                self._token_stamp = stamp
        except (OSError, UnicodeDecodeError):
            if self._token is None:
                raise Unreachable(f"The token file {path} cannot be read.", "NoToken") from None
        return self._token

    def _token_changed(self, used: str | None) -> bool:
        self._token_stamp = None
        return self._connection.token_file is not None and self._current_token() != used

    async def _read(self, response: httpx2.Response) -> bytes:
        """Return a body, unpacked, if it is not too long."""
        parts, size = [], 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self.limits.body_bytes:
                raise Unreadable(
                    f"The answer is longer than {self.limits.body_bytes} bytes.",
                    response.status_code,
                )
            parts.append(part)
        return b"".join(parts)

    def _request_client(self) -> httpx2.AsyncClient:
        if self._requests is None:
            self._requests = self._make(self.limits.connections, self.limits.request_s)
        return self._requests

    def _stream_client(self) -> httpx2.AsyncClient:
        """Return the client of streams, apart: a hundred watches leave room for requests."""
        if self._streams is None:
            self._streams = self._make(self.limits.streams, self.limits.stream_idle_s)
        return self._streams

    def _make(self, connections: int, read_s: float) -> httpx2.AsyncClient:
        if self._closed:
            raise Unreachable("The client is closed.", "Closed")
        if self._tls is None:
            try:
                self._tls = make_tls_context(self._connection)
            except (ssl.SSLError, OSError) as error:
                raise Unreachable(f"The certificates cannot be used: {error}.", "Tls") from None
        return httpx2.AsyncClient(
            verify=self._tls,
            trust_env=False,
            follow_redirects=False,
            headers={"User-Agent": self._user_agent},
            timeout=httpx2.Timeout(self.limits.connect_s, read=read_s, write=read_s, pool=read_s),
            limits=httpx2.Limits(
                max_connections=connections,
                max_keepalive_connections=connections,
                keepalive_expiry=60.0,
            ),
        )

    def _unreachable(self, error: Exception) -> Unreachable:
        """Return what a failure of the connection means, in words without anything of a request."""
        server = self._connection.server
        text = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return Unreachable(
                f"{server} shows a certificate that is not trusted: {text}.",
                "CertificateNotTrusted",
            )
        if isinstance(error, httpx2.PoolTimeout):
            return Unreachable(f"Too many requests to {server} are under way.", "Busy")
        if isinstance(error, httpx2.TimeoutException):
            return Unreachable(f"{server} did not answer in time.", "Timeout")
        return Unreachable(f"{server} cannot be reached: {text}.")


class _Handshake:
    """Whether a request is just now agreeing on keys."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._over.set()

    async def note(self, event: str, _: Mapping[str, Any]) -> None:
        """Take an event of the library's trace, such as `connection.start_tls.started`."""
        if event.endswith("start_tls.started"):
            self._over.clear()
        elif ".start_tls." in event:
            self._over.set()

    async def wait_over(self, longest_s: float) -> None:
        """Return when it is over, or after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._over.wait()


def _query(params: Params) -> Query:
    found: Query = []
    for name, value in params.items():
        if value is None:
            continue
        for one in value if isinstance(value, list) else [value]:
            found.append((name, str(one).lower() if isinstance(one, bool) else str(one)))
    return found


def _failure(response: httpx2.Response, data: bytes) -> KubeError:
    """Return the error of an answer that is none of success."""
    status = response.status_code
    if status < 400:
        return Unreadable(f"The server answered {status}; redirects are not followed.", status)
    body: Any = None
    if response.headers.get("Content-Type", "").startswith("application/json"):
        try:
            body = msgspec.json.decode(data)
        except UNDECODABLE:
            body = None
    return error_of(status, body if isinstance(body, dict) else None, _retry_after(response))


def _retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or an instant."""
    text = response.headers.get("Retry-After", "").strip()
    if not text:
        return None
    if text.isdigit():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
        since = parsedate_to_datetime(response.headers.get("Date", ""))
        return max(0.0, (when - since).total_seconds())
    except (TypeError, ValueError):
        return None
