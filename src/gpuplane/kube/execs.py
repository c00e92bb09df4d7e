"""Commands in containers over WebSocket, with their exit code.

Frames are of channels: the first byte says which (0 stdin, 1 stdout, 2 stderr, 3 the `Status` at
the end). `v5.channel.k8s.io` can also end stdin, by 255 and the channel.

Source:
    Kubernetes, apimachinery `util/remotecommand/constants.go`; KEP-4006.
"""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec
from httpcore2 import NetworkError
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Message, Ping
from wsproto.utilities import LocalProtocolError, ProtocolError

from gpuplane.kube.errors import BadRequest, Unreachable, Unreadable, error_of
from gpuplane.kube.sessions import Session
from gpuplane.kube.watching import UNDECODABLE

PROTOCOLS = ["v5.channel.k8s.io", "v4.channel.k8s.io"]
STDIN_PIECE_BYTES = 32 << 10
READ_BYTES = 64 << 10
OUTPUT_BYTES = 16 << 20
"""What is kept of stdout and of stderr each; beyond it the command is given up."""
MESSAGE_BYTES = OUTPUT_BYTES + (64 << 10)
"""The longest message, whatever number of frames it comes in: all of the output and its channel."""

_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = b"\x00", b"\x01", b"\x02", b"\x03", b"\xff"


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended and what it wrote."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(slots=True)
class _Output:
    """What has come so far."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    status: dict[str, Any] | None = None

    def take(self, frame: bytes) -> None:
        """Add a frame.

        Raises:
            Unreadable: If it is a status that cannot be read, or there is too much.
        """
        channel, text = frame[:1], frame[1:]
        if channel == _STATUS:
            try:
                self.status = msgspec.json.decode(text, type=dict[str, Any])
            except UNDECODABLE:
                raise Unreadable("The server told the command's end unreadably.") from None
        for known, kept in ((_STDOUT, self.stdout), (_STDERR, self.stderr)):
            if channel == known:
                kept += text
                if len(kept) > OUTPUT_BYTES:
                    raise Unreadable(f"The command wrote more than {OUTPUT_BYTES} bytes.")


async def run_command(
    session: Session,
    path: str,
    container: str | None,
    command: Sequence[str],
    stdin: bytes,
    *,
    timeout_s: float,
) -> ExecResult:
    """Run a command and return how it ended.

    Raises:
        Unreachable: If it has not ended in time, or the connection broke before it told.
        BadRequest: If stdin is to be sent to a server that cannot end it.
    """
    params = {
        "container": container,
        "command": list(command),
        "stdin": bool(stdin) or None,
        "stdout": True,
        "stderr": True,
    }
    output = _Output()
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.stream("GET", path, params=params, headers=_handshake()) as response,
        ):
            await _talk(response, stdin, output)
    except TimeoutError:
        raise Unreachable(f"The command has not ended within {timeout_s:g} s.", "Timeout") from None
    if output.status is None:
        raise Unreachable("The connection to the command broke before it told its end.")
    return ExecResult(_exit_code(output.status), bytes(output.stdout), bytes(output.stderr))


def _handshake() -> dict[str, str]:
    """Return the headers that ask for a WebSocket (RFC 6455, section 4.1)."""
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(secrets.token_bytes(16)).decode(),
        "Sec-WebSocket-Protocol": ", ".join(PROTOCOLS),
    }


class _Socket:
    """A WebSocket on a connection that the server has handed over."""

    def __init__(self, response: httpx2.Response) -> None:
        self.protocol = response.headers.get("Sec-WebSocket-Protocol", "")
        self._stream = response.extensions["network_stream"]
        self._frames = Connection(ConnectionType.CLIENT)

    async def send(self, data: bytes) -> None:
        await self._stream.write(self._frames.send(BytesMessage(data)))

    async def read(self) -> AsyncIterator[bytes]:
        """Yield messages until either side closes.

        Raises:
            Unreadable: If one is too long.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            data = await self._stream.read(READ_BYTES)
            self._frames.receive_data(data or None)
            for event in self._frames.events():
                if isinstance(event, Message):
                    part = event.data.encode() if isinstance(event.data, str) else event.data
                    if part:
                        parts.append(bytes(part))
                    size += len(part)
                    if size > MESSAGE_BYTES:
                        raise Unreadable(f"A message is longer than {MESSAGE_BYTES} bytes.")
                    if event.message_finished:
                        yield b"".join(parts)
                        parts, size = [], 0
                elif isinstance(event, Ping):
                    await self._stream.write(self._frames.send(event.response()))
                elif isinstance(event, CloseConnection):
                    return

    async def close(self) -> None:
        with suppress(LocalProtocolError, NetworkError, OSError):
            await self._stream.write(self._frames.send(CloseConnection(1000)))


async def _talk(response: httpx2.Response, stdin: bytes, output: _Output) -> None:
    """Send the input and take what comes until the status or the end of the connection."""
    if response.status_code != 101 or "network_stream" not in response.extensions:
        raise Unreadable("The server opened no WebSocket for the command.", response.status_code)
    socket = _Socket(response)
    if stdin and socket.protocol != PROTOCOLS[0]:
        raise BadRequest(400, "NoStdin", "This server cannot be told that the input has ended.")
    sending = asyncio.create_task(_send_input(socket, stdin))
    try:
        async for frame in socket.read():
            output.take(frame)
            if output.status is not None:
                break
    except (ProtocolError, NetworkError, OSError):
        return  # told by the status that has not come
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await socket.close()


async def _send_input(socket: _Socket, stdin: bytes) -> None:
    """Send all of the input beside the reading: a command may write before it has read it all."""
    if not stdin:
        return
    for begin in range(0, len(stdin), STDIN_PIECE_BYTES):
        await socket.send(_STDIN + stdin[begin : begin + STDIN_PIECE_BYTES])
    await socket.send(_CLOSE + _STDIN)


def _exit_code(status: dict[str, Any]) -> int:
    """Return the exit code that the status at the end tells.

    Raises:
        KubeError: If the command could not be run at all.
    """
    if status.get("status") == "Success":
        return 0
    if status.get("reason") == "NonZeroExitCode":
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode" and str(cause.get("message")).isdigit():
                return int(cause["message"])
    code = status.get("code")
    raise error_of(code if isinstance(code, int) and code >= 400 else 500, status)
