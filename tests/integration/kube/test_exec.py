"""Commands in containers: channels, exit codes, input, and connections that break."""

from __future__ import annotations

import asyncio
import json

import pytest

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import BadRequest, NotThere, ServerTrouble, Unreachable, Unreadable
from gpuplane.kube.execs import MESSAGE_BYTES, OUTPUT_BYTES, ExecResult
from tests.integration.kube.scripted import Reply, ScriptedServer, Socket, Upgrade

SUCCESS = b'\x03{"status":"Success"}'


def failure(code: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    status = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    return b"\x03" + json.dumps(status).encode()


async def run(client: KubeClient, stdin: bytes = b"", timeout_s: float = 20.0) -> ExecResult:
    return await client.exec("a", "ml", "main", ["sh", "-c", "x y"], stdin, timeout_s)


async def test_what_it_writes_and_its_exit_code_come_back(
    server: ScriptedServer, client: KubeClient
) -> None:
    async def talk(socket: Socket) -> None:
        for frame in (b"\x01one\n", b"\x02bad\n", b"\x01two\n", b"\x01", failure(7)):
            await socket.send(frame)
        await socket.receive()

    server.handler = lambda request: Upgrade(talk)
    assert await run(client) == ExecResult(7, b"one\ntwo\n", b"bad\n")
    request = server.requests[0]
    assert request.path == "/api/v1/namespaces/ml/pods/a/exec"
    assert request.query["command"] == ["sh", "-c", "x y"]
    assert (request.param("container"), request.param("stdin")) == ("main", None)
    assert request.headers["authorization"] == "Bearer the-token"
    assert "v4.channel.k8s.io" in request.headers["sec-websocket-protocol"]


async def test_input_is_sent_whole_and_ended_while_output_comes(
    server: ScriptedServer, client: KubeClient
) -> None:
    data = bytes(range(256)) * 2_000

    async def talk(socket: Socket) -> None:
        taken = b""
        while True:
            _, frame = await socket.receive()
            if frame == b"\xff\x00":
                break
            assert frame[:1] == b"\x00"
            taken += frame[1:]
            await socket.send(b"\x01" + frame[1:])
        await socket.send(SUCCESS if taken == data else failure(1))
        await socket.receive()

    server.handler = lambda request: Upgrade(talk)
    assert await run(client, data) == ExecResult(0, data, b"")


async def test_the_older_protocol_serves_without_input(
    server: ScriptedServer, client: KubeClient
) -> None:
    async def talk(socket: Socket) -> None:
        await socket.send(b"\x01x")
        await socket.send(SUCCESS)
        await socket.receive()

    server.handler = lambda request: Upgrade(talk, "v4.channel.k8s.io")
    assert await run(client) == ExecResult(0, b"x", b"")
    with pytest.raises(BadRequest, match="input has ended"):
        await run(client, b"data")


async def test_pings_are_answered(server: ScriptedServer, client: KubeClient) -> None:
    async def talk(socket: Socket) -> None:
        await socket.send(b"are you there", code=9)
        code, data = await socket.receive()
        await socket.send(b"\x01" + bytes([code]) + data)
        await socket.send(SUCCESS)
        await socket.receive()

    server.handler = lambda request: Upgrade(talk)
    assert (await run(client)).stdout == b"\x0aare you there"


async def test_a_command_that_does_not_end_is_given_up(
    server: ScriptedServer, client: KubeClient
) -> None:
    closed = asyncio.Event()

    async def talk(socket: Socket) -> None:
        await socket.send(b"\x01begun")
        try:
            await socket.receive()
        finally:
            closed.set()

    server.handler = lambda request: Upgrade(talk)
    with pytest.raises(Unreachable) as caught:
        await run(client, timeout_s=0.2)
    assert caught.value.reason == "Timeout"
    await asyncio.wait_for(closed.wait(), 20)
    assert closed.is_set()


async def test_a_connection_that_breaks_before_the_end_is_told(
    server: ScriptedServer, client: KubeClient
) -> None:
    async def talk(socket: Socket) -> None:
        await socket.send(b"\x01half")
        server.drop_connections()

    async def close(socket: Socket) -> None:
        await socket.send(b"\x03\xe8", code=8)
        await socket.receive()

    for way in (talk, close):
        server.handler = lambda request, way=way: Upgrade(way)
        with pytest.raises(Unreachable, match="broke before"):
            await run(client)


async def test_frames_that_are_none_are_told(server: ScriptedServer, client: KubeClient) -> None:
    async def talk(socket: Socket) -> None:
        await socket.send(b"\x03no json")
        await socket.receive()

    async def garbage(socket: Socket) -> None:
        await socket.send(b"x", code=0xF)
        await socket.receive()

    server.handler = lambda request: Upgrade(talk)
    with pytest.raises(Unreadable):
        await run(client)
    server.handler = lambda request: Upgrade(garbage)
    with pytest.raises(Unreachable):
        await run(client)


async def test_a_message_may_come_in_frames_but_not_without_end(
    server: ScriptedServer, client: KubeClient
) -> None:
    piece = b"x" * (1 << 20)
    sent = 0

    async def talk(socket: Socket) -> None:
        await socket.send(b"\x01", is_last=False)
        for _ in range(OUTPUT_BYTES // len(piece)):
            await socket.send(piece, code=0, is_last=False)
        await socket.send(b"", code=0)
        await socket.send(SUCCESS)
        await socket.receive()

    async def endless(socket: Socket) -> None:
        nonlocal sent
        await socket.send(b"\x01", is_last=False)
        while True:
            await socket.send(piece, code=0, is_last=False)
            sent += len(piece)

    server.handler = lambda request: Upgrade(talk)
    assert len((await run(client)).stdout) == OUTPUT_BYTES
    server.handler = lambda request: Upgrade(endless)
    with pytest.raises(Unreadable, match=f"longer than {MESSAGE_BYTES}"):
        await run(client)
    assert sent < 2 * MESSAGE_BYTES


async def test_a_command_that_could_not_be_started_is_told_with_its_reason(
    server: ScriptedServer, client: KubeClient
) -> None:
    async def talk(socket: Socket) -> None:
        status = {"status": "Failure", "reason": "InternalError", "message": "no such program"}
        await socket.send(b"\x03" + json.dumps(status | {"code": 500}).encode())
        await socket.receive()

    server.handler = lambda request: Upgrade(talk)
    with pytest.raises(ServerTrouble, match="no such program"):
        await run(client)


async def test_a_refusal_before_the_connection_is_taken_over_has_its_words(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.handler = lambda request: Reply(404, {"reason": "NotFound", "message": "no pod a"})
    with pytest.raises(NotThere, match="no pod a"):
        await run(client)
    server.handler = lambda request: Reply(200, {})
    with pytest.raises(Unreadable, match="no WebSocket"):
        await run(client)
