"""A small HTTP/1.1 server: httptools over asyncio, one handler, bounded in every direction.

Owns connections and their limits; knows no paths. kube-scheduler keeps a connection and sends one
request after the other, under the same head but for the body's length: such a head is parsed once.
Answering a request costs no task unless the handler needs to wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import NamedTuple, cast

import httptools

MAX_HEADER_BYTES = 32_768
MAX_CONNECTIONS = 512
"""kube-scheduler opens one per call in flight; each replica of it asks one question at a time."""
IDLE_S = 120.0
"""Go's client keeps an idle connection for 90 s; it is the one that closes first."""
READ_S = 20.0
"""How long a request may take to arrive, from its first byte to its last."""
MAX_HELD_BYTES = 256 << 20
"""Of the bodies of all connections: four of the longest, for each kube-scheduler sends one."""
MAX_HEADS = 64
"""Heads remembered with what was read in them: a few for each kind of caller."""
MAX_HEAD_BYTES = 2_048
"""Longer heads are parsed each time."""
_LENGTH = b"\r\nContent-Length: "
_END = b"\r\n\r\n"


class Request(NamedTuple):
    """One request with its whole body."""

    method: bytes
    path: bytes
    body: bytes


class Head(NamedTuple):
    """What httptools read in a head."""

    method: bytes
    path: bytes
    keeps: bool


class Cut(NamedTuple):
    """A request that came in one piece.

    Args:
        key: The head without the number of bytes of the body.
        body_at: Where the body begins; it goes on to the end.
    """

    key: bytes
    body_at: int


class Response(NamedTuple):
    """One answer."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"


Handler = Callable[[Request], Response | Awaitable[Response]]

_PHRASES = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


@lru_cache(maxsize=64)
def _head_of(status: int, content_type: bytes, keeps: bool) -> bytes:  # noqa: FBT001 - a key
    """Return the head of an answer up to the number of its bytes."""
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\n%bContent-Length: " % (
        status,
        _PHRASES.get(status, b""),
        content_type,
        b"" if keeps else b"Connection: close\r\n",
    )


class Limits(NamedTuple):
    """What one server takes.

    Args:
        max_body_bytes: Longest body: whole nodes are about 10 KB each.
        max_connections: Connections at once; more are closed at once.
        max_held_bytes: Bodies of all connections together, or the longest if that is more.
    """

    max_body_bytes: int = 64 << 20
    max_connections: int = MAX_CONNECTIONS
    idle_s: float = IDLE_S
    read_s: float = READ_S
    max_held_bytes: int = MAX_HELD_BYTES


def cut(data: bytes) -> Cut | None:
    """Return the parts of what is one request from begin to end, None for anything else.

    Heads that are equal but for the digits of their Content-Length are parsed alike.
    """
    end = data.find(_END, 0, MAX_HEAD_BYTES)
    at = data.find(_LENGTH, 0, end) if end > 0 else -1
    if at < 0:
        return None
    stop = data.find(b"\r\n", at + len(_LENGTH), end + 2)
    digits = data[at + len(_LENGTH) : stop]
    body_at = end + len(_END)
    # No longer than the longest number that no parser rounds, and no sign, blank or underscore.
    if not digits.isdigit() or len(digits) > 15 or body_at + int(digits) != len(data):
        return None
    return Cut(data[:at] + data[stop:end], body_at)


class Server:
    """All connections of one listener.

    Attributes:
        heads: By what is left of a request's head without the length of its body.
        held_bytes: Of the bodies that arrive, or whose answer takes time.
    """

    def __init__(self, handler: Handler, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self.handler = handler
        self.limits = limits
        self.connections: set[Connection] = set()
        self.heads: dict[bytes, Head] = {}
        self.is_closed = False
        self.held_bytes = 0
        self.max_held_bytes = max(limits.max_held_bytes, limits.max_body_bytes)

    def connect(self) -> "Connection":
        """Return the protocol of a new connection, for `loop.create_server`."""
        return Connection(self)

    def remember(self, key: bytes, head: Head) -> None:
        """Keep what was read in a head."""
        if len(self.heads) >= MAX_HEADS:
            del self.heads[next(iter(self.heads))]
        self.heads[key] = head

    def close(self) -> None:
        """Close every connection, and those that come later; what is being answered is lost."""
        self.is_closed = True
        for connection in list(self.connections):
            connection.close()


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._parts: list[bytes] = []
        self._size = 0
        self._held_bytes = 0
        self._header_bytes = 0
        self._is_over = False
        self._is_between = True
        self._cut: Cut | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Request, bool]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = self._look_at = 0.0

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many, or the server has ended."""
        # uvloop's transports are transports, but no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        server = self._server
        if server.is_closed or len(server.connections) >= server.limits.max_connections:
            self.close()
            return
        self._server.connections.add(self)
        self._wait(self._server.limits.idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._server.connections.discard(self)
        self._let_go(self._held_bytes)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Read on; whatever cannot be read ends the connection with a 400."""
        if self._is_over:
            return
        whole = cut(data) if self._is_between else None
        if whole is not None:
            head = self._server.heads.get(whole.key)
            if head is not None and len(data) - whole.body_at <= self._server.limits.max_body_bytes:
                body = data[whole.body_at :]
                self._take(Request(head.method, head.path, body), keeps=head.keeps)
                return
        self._cut = whole
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, b"this server speaks HTTP/1.1 only")
        except httptools.HttpParserError:
            self._refuse(400, b"not HTTP/1.1")

    def pause_writing(self) -> None:
        """Read no more while the other side does not."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        if self._transport is not None and self._task is None:
            self._transport.resume_reading()

    # What httptools calls.

    def on_message_begin(self) -> None:
        """Begin a request: its time runs from here, in however many pieces it comes."""
        self._is_between = False
        self._wait(self._server.limits.read_s)
        self._path = b""
        self._parts = []
        self._size = self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Keep the path."""
        self._path += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Refuse a request by its length before its body comes."""
        self._count_header(len(name) + len(value))
        if name.lower() == b"content-length" and value.isdigit():
            if int(value[:18]) > self._server.limits.max_body_bytes:
                self._refuse(413, b"the body is too long")
        elif name.lower() in (b"expect", b"upgrade"):
            self._cut = None  # what asks for more than an answer is parsed each time
            if name.lower() == b"expect" and self._transport is not None and not self._is_over:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, b"the header is too long")

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._size += len(body)
        if self._size > self._server.limits.max_body_bytes:
            self._refuse(413, b"the body is too long")
        elif self._server.held_bytes + len(body) > self._server.max_held_bytes:
            self._refuse(503, b"too many long requests arrive at once")
        elif not self._is_over:
            self._hold(len(body))
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Answer."""
        if self._is_over:
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._let_go(len(body))
        self._is_between = True
        request = Request(self._parser.get_method(), self._path.partition(b"?")[0], body)
        keeps = self._parser.should_keep_alive()
        if self._cut is not None:
            self._server.remember(self._cut.key, Head(request.method, request.path, keeps))
            self._cut = None
        self._take(request, keeps=keeps)

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._server.held_bytes += size

    def _let_go(self, size: int) -> None:
        self._hold(-size)

    # Answering.

    def _take(self, request: Request, *, keeps: bool) -> None:
        """Answer a request, after those before it."""
        if self._task is not None:
            self._waiting.append((request, keeps))
            return
        self._answer(request, keeps=keeps)

    def _answer(self, request: Request, *, keeps: bool) -> None:
        found = self._server.handler(request)
        is_head = request.method == b"HEAD"
        if isinstance(found, Response):
            self._write(found, keeps=keeps, is_head=is_head)
            return
        if self._transport is not None:
            # One after the other: what comes meanwhile waits in the socket.
            self._transport.pause_reading()
        size = len(request.body)
        self._hold(size)
        self._task = asyncio.ensure_future(self._finish(found, size, keeps=keeps, is_head=is_head))

    async def _finish(
        self, found: Awaitable[Response], size: int, *, keeps: bool, is_head: bool
    ) -> None:
        response = await found
        self._task = None
        self._let_go(size)
        self._write(response, keeps=keeps, is_head=is_head)
        while self._waiting and self._task is None and self._transport is not None:
            request, keeps = self._waiting.pop(0)
            self._answer(request, keeps=keeps)
        if self._task is None and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _write(self, response: Response, *, keeps: bool, is_head: bool = False) -> None:
        transport = self._transport
        if transport is None:
            return
        before = _head_of(response.status, response.content_type, keeps)
        head = b"%b%d\r\n\r\n" % (before, len(response.body))
        # Two pieces, because a copy of a long answer costs more than the call.
        transport.writelines((head, b"" if is_head else response.body))
        if keeps:
            limits = self._server.limits
            self._wait(limits.idle_s if self._is_between else limits.read_s)
        else:
            self._is_over = True
            self.close()

    def _refuse(self, status: int, reason: bytes) -> None:
        if not self._is_over:
            self._is_over = True
            self._let_go(sum(map(len, self._parts)))
            self._parts = []
            self._write(Response(status, b'{"Error":"%b"}' % reason), keeps=False)

    def close(self) -> None:
        """Close the connection once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    # Time.

    def _wait(self, seconds: float) -> None:
        """Move the deadline; one timer a connection looks whether it passed, never later.

        It is made anew only for a deadline before its look: an answer, which moves it on, costs no
        timer.
        """
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._deadline < self._look_at:
            if self._timer is not None:
                self._timer.cancel()
            self._look_in(seconds)

    def _look_in(self, seconds: float) -> None:
        self._look_at = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        left = self._deadline - self._loop.time()
        if self._task is not None:
            left = max(left, self._server.limits.read_s)
        if left > 0:
            self._look_in(left)
            return
        self._timer = None
        if self._transport is not None:
            self._transport.abort()  # whoever does not read what was written keeps no place
