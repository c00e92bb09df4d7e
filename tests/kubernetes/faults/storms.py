"""A door before an API server that lets everything through, or answers everything with 429."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

from gpuplane.kube.connections import Connection
from gpuplane.kube.kubeconfigs import write_kubeconfig
from tests.certificates import Authority

REFUSAL = json.dumps(
    {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "too many requests, please try again later.",
        "reason": "TooManyRequests",
        "details": {"retryAfterSeconds": 1},
        "code": 429,
    }
).encode()
"""What an API server says whose queues are full (API Priority and Fairness)."""
HEAD = b"\r\n".join(
    [
        b"HTTP/1.1 429 Too Many Requests",
        b"Retry-After: 1",
        b"Content-Type: application/json",
        f"Content-Length: {len(REFUSAL)}".encode(),
        b"Connection: close\r\n\r\n",
    ]
)


@dataclass
class Door:
    """The door: its kubeconfig, whether a storm goes on, and how many it refused so far."""

    behind: Connection
    kubeconfig: str = ""
    refused: int = 0
    _stormy: bool = False
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _served: set[asyncio.Task[None]] = field(default_factory=set)

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection beside the others."""
        task = asyncio.ensure_future(self.pass_on(reader, writer))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def close(self) -> None:
        """End every connection."""
        self.begin()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    def begin(self) -> None:
        """Refuse everything from now on, watches that stand included."""
        self._stormy = True
        for writer in self._open:
            writer.close()

    def end(self) -> None:
        """Let everything through again."""
        self._stormy = False

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._open.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                if self._stormy:
                    self.refused += 1
                    writer.write(HEAD + REFUSAL)
                    await writer.drain()
                    return
                address = urlsplit(self.behind.server)
                context = ssl.create_default_context(cadata=self.behind.ca_pem)
                far_reader, far_writer = await asyncio.open_connection(
                    address.hostname, address.port, ssl=context
                )
                self._open.add(far_writer)
                far_writer.write(head)
                await asyncio.gather(_pour(reader, far_writer), _pour(far_reader, writer))
        finally:
            self._open.discard(writer)
            writer.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand on what comes until it ends, then end the other side as well."""
    try:
        while text := await reader.read(1 << 16):
            writer.write(text)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def door_before(behind: Connection) -> AsyncIterator[Door]:
    """Put a door before an API server for the length of the block."""
    authority = Authority(datetime.now(UTC))
    pair = authority.sign("door", hosts=("127.0.0.1",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        context.load_cert_chain(file.name)
    door = Door(behind)
    server = await asyncio.start_server(door.take, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    near = replace(behind, server=f"https://127.0.0.1:{port}", ca_pem=authority.certificate)
    door.kubeconfig = write_kubeconfig(near)
    try:
        yield door
    finally:
        server.close()
        await door.close()
