"""A small HTTPS server that answers as a test says: for what a real API server does seldom.

Real sockets, real TLS, one event loop with the test. A test gives a function from a request to a
`Reply`, or to a `Stream` that it feeds piece by piece and can cut off.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import hashlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpuplane.kit.listeners import close_listener
from gpuplane.kube.credentials import Connection
from tests.accepting import turn
from tests.certificates import Authority, Pair


@dataclass
class Request:
    """What came in."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    peer: str | None = None

    def param(self, name: str) -> str | None:
        return next(iter(self.query.get(name, ())), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """A whole answer."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class Cut(Exception):
    """Ends a connection in the middle."""


class Stream:
    """An answer that the test feeds: lines of a watch, or pieces of a log."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes | Cut | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    def send(self, data: bytes) -> None:
        self._pieces.put_nowait(data)

    def event(self, word: str, obj: dict[str, Any]) -> None:
        self.send(json.dumps({"type": word, "object": obj}).encode() + b"\n")

    def end(self) -> None:
        self._pieces.put_nowait(None)

    def cut(self) -> None:
        self._pieces.put_nowait(Cut())

    async def pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, Cut):
                raise piece
            yield piece


class Socket:
    """The server's end of a WebSocket, as far as commands need one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes, code: int = 2, *, is_last: bool = True) -> None:
        """Send a frame; code 0 goes on with a message whose frames so far were not its last."""
        head = bytes([(0x80 if is_last else 0) | code])
        if len(data) < 126:
            head += bytes([len(data)])
        elif len(data) < 1 << 16:
            head += bytes([126]) + len(data).to_bytes(2, "big")
        else:
            head += bytes([127]) + len(data).to_bytes(8, "big")
        self._writer.write(head + data)
        await self._writer.drain()

    async def receive(self) -> tuple[int, bytes]:
        """Return the next frame: its code and what it carries, unmasked."""
        first, second = await self._reader.readexactly(2)
        length = second & 0x7F
        if length == 126:
            length = int.from_bytes(await self._reader.readexactly(2), "big")
        elif length == 127:
            length = int.from_bytes(await self._reader.readexactly(8), "big")
        mask = await self._reader.readexactly(4)
        data = await self._reader.readexactly(length)
        return first & 0x0F, bytes(one ^ mask[at % 4] for at, one in enumerate(data))


@dataclass
class Upgrade:
    """An answer that takes the connection over for a WebSocket."""

    talk: Callable[[Socket], Awaitable[None]]
    protocol: str = "v5.channel.k8s.io"


Answer = Reply | Stream | Upgrade
Handler = Callable[[Request], Answer | Awaitable[Answer]]


class ScriptedServer:
    """The server, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = Authority(datetime.datetime.now(datetime.UTC))
        self.handler: Handler = lambda request: Reply(404, {"reason": "NotFound"})
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, *, pair: Pair | None = None) -> None:
        pair = pair or self.authority.sign("server", hosts=("127.0.0.1", "localhost"))
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cadata=self.authority.certificate
        )
        file = self._folder / "server.pem"
        file.write_text(pair.certificate + pair.key, encoding="ascii")
        context.load_cert_chain(file)
        context.verify_mode = ssl.CERT_OPTIONAL
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=context, limit=1 << 20
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection; `start` opens the same port again."""
        if self._server is not None:
            await close_listener(self._server)
            await turn(3)  # what was accepted last is among the connections now
            self.drop_connections()
            await self._server.wait_closed()
            self._server = None
            await turn(3)

    def drop_connections(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def open_connections(self) -> int:
        return sum(not writer.is_closing() for writer in self._writers)

    def connection(self, **more: Any) -> Connection:
        found: dict[str, Any] = {
            "server": f"https://127.0.0.1:{self.port}",
            "ca_pem": self.authority.certificate,
            "token": "the-token",
        }
        return Connection(**(found | more))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while (request := await self._read(reader, writer)) is not None:
                self.requests.append(request)
                answer = self.handler(request)
                if isinstance(answer, Awaitable):
                    answer = await answer
                if not await self._answer(answer, request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, Cut):
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Request | None:
        head = await reader.readline()
        if not head:
            return None
        method, target, _ = head.decode().split()
        headers: dict[str, str] = {}
        while line := (await reader.readline()).decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        parts = urlsplit(target)
        certificate = writer.get_extra_info("peercert") or {}
        names = [value for part in certificate.get("subject", ()) for _, value in part]
        return Request(
            method, parts.path, parse_qs(parts.query), headers, body, names[0] if names else None
        )

    async def _answer(
        self,
        answer: Answer,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Write an answer; return whether the connection may be used again."""
        if isinstance(answer, Upgrade):
            key = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                + f"Sec-WebSocket-Accept: {accept}\r\n".encode()
                + f"Sec-WebSocket-Protocol: {answer.protocol}\r\n\r\n".encode()
            )
            await answer.talk(Socket(reader, writer))
            return False
        if isinstance(answer, Stream):
            return await self._pour(answer, reader, writer)
        data = answer.data()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        lines = [f"HTTP/1.1 {answer.status} X"]
        lines += [f"{name}: {value}" for name, value in (headers | answer.headers).items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await writer.drain()
        return True

    async def _pour(
        self, stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        gone = asyncio.create_task(reader.read(1))
        pouring = asyncio.create_task(self._pieces(stream, writer))
        try:
            await asyncio.wait([gone, pouring], return_when=asyncio.FIRST_COMPLETED)
            if pouring.done():
                pouring.result()
        finally:
            stream.closed.set()
            for task in (gone, pouring):
                task.cancel()
            with contextlib.suppress(Exception):
                await asyncio.gather(gone, pouring, return_exceptions=True)
        return False

    async def _pieces(self, stream: Stream, writer: asyncio.StreamWriter) -> None:
        async for piece in stream.pieces():
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
