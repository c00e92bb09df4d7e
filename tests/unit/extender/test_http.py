"""The HTTP server: what it answers, what it refuses, what it never does."""

import asyncio
from typing import Any

import pytest

from gpuplane.extender.http import (
    IDLE_S,
    MAX_HEADS,
    READ_S,
    Connection,
    Limits,
    Request,
    Response,
    Server,
)
from tests.unit.extender.wires import Wire


class Passing:
    """Time that passes on the event loop as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop, self.passed_s = asyncio.get_running_loop(), 0.0
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now + self.passed_s)

    async def __call__(self, seconds: float) -> None:
        """Let so much pass, and what was due then happen."""
        self.passed_s += seconds
        for _ in range(4):
            await asyncio.sleep(0)


@pytest.fixture
async def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    return Passing(monkeypatch)


def echo(request: Request) -> Response:
    return Response(200, request.method + b" " + request.path + b" " + request.body)


def connect(server: Server) -> tuple[Connection, Wire]:
    connection, wire = server.connect(), Wire()
    connection.connection_made(wire)
    return connection, wire


def post(body: bytes, path: bytes = b"/filter") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body)


async def test_a_request_is_answered_and_the_connection_kept() -> None:
    connection, wire = connect(Server(echo))
    connection.data_received(post(b"one", b"/filter?timeout=5s"))
    connection.data_received(post(b"two"))
    assert wire.sent.count(b"HTTP/1.1 200 OK") == 2
    assert wire.sent.endswith(b"POST /filter two")
    assert b"POST /filter one" in wire.sent
    assert not wire.is_closed


async def test_a_request_may_come_byte_by_byte() -> None:
    connection, wire = connect(Server(echo))
    for byte in post(b"slow"):
        connection.data_received(bytes([byte]))
    assert wire.sent.endswith(b"POST /filter slow")


async def test_a_chunked_body_is_put_together() -> None:
    connection, wire = connect(Server(echo))
    connection.data_received(
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    assert wire.sent.endswith(b"POST / abcde")


async def test_a_body_that_says_it_is_too_long_is_refused_before_it_comes() -> None:
    connection, wire = connect(Server(echo, Limits(max_body_bytes=10)))
    connection.data_received(b"POST /filter HTTP/1.1\r\nContent-Length: 11\r\n\r\n")
    assert wire.sent.startswith(b"HTTP/1.1 413 ")
    assert wire.is_closed


async def test_a_body_that_turns_out_too_long_is_refused() -> None:
    connection, wire = connect(Server(echo, Limits(max_body_bytes=4)))
    connection.data_received(
        b"POST /filter HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
    )
    assert wire.sent.startswith(b"HTTP/1.1 413 ")
    assert wire.sent.count(b"HTTP/1.1") == 1


async def test_a_header_without_end_is_refused() -> None:
    connection, wire = connect(Server(echo))
    connection.data_received(b"GET / HTTP/1.1\r\n")
    for index in range(400):
        connection.data_received(b"X-%d: %b\r\n" % (index, b"y" * 100))
    assert wire.sent.startswith(b"HTTP/1.1 431 ")
    assert wire.is_closed


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 64],
)
async def test_what_is_no_http_gets_a_400(data: bytes) -> None:
    connection, wire = connect(Server(echo))
    connection.data_received(data)
    connection.data_received(data)
    assert wire.sent.startswith(b"HTTP/1.1 400 ")
    assert wire.sent.count(b"Content-Length") == 1
    assert wire.is_closed


async def test_http_1_0_gets_its_answer_and_is_closed() -> None:
    connection, wire = connect(Server(echo))
    connection.data_received(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert wire.sent.endswith(b"GET /healthz ")
    assert b"Connection: close" in wire.sent
    assert wire.is_closed


async def test_answers_that_take_time_keep_their_order() -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def slow(request: Request) -> Response:
        await gate
        return echo(request)

    def handle(request: Request) -> Any:
        return slow(request) if request.path == b"/bind" else echo(request)

    connection, wire = connect(Server(handle))
    connection.data_received(post(b"first", b"/bind") + post(b"second"))
    assert wire.sent == b""
    assert wire.is_paused
    gate.set_result(None)
    for _ in range(4):
        await asyncio.sleep(0)
    assert wire.sent.index(b"/bind first") < wire.sent.index(b"/filter second")
    assert not wire.is_paused


async def test_a_request_that_drips_is_closed_when_its_time_is_over(passing: Passing) -> None:
    connection, wire = connect(Server(echo))
    for byte in post(b"a body of which one byte comes a second"):
        assert not wire.is_closed
        connection.data_received(bytes([byte]))
        await passing(1.0)
        if wire.is_closed:
            break
    assert passing.passed_s == READ_S


async def test_each_request_of_a_kept_connection_has_its_own_time(passing: Passing) -> None:
    connection, wire = connect(Server(echo))
    request = post(b"slow")
    for _ in range(5):
        connection.data_received(request[:30])
        await passing(READ_S - 1)
        connection.data_received(request[30:])
    assert wire.sent.count(b"POST /filter slow") == 5
    assert not wire.is_closed
    await passing(IDLE_S - 1)
    assert not wire.is_closed
    await passing(1)
    assert wire.is_closed


async def test_a_request_behind_one_that_took_time_has_no_more_time_than_others(
    passing: Passing,
) -> None:
    async def slow(request: Request) -> Response:
        return echo(request)

    connection, wire = connect(Server(slow))
    connection.data_received(post(b"first") + post(b"second")[:-1])
    await passing(0)
    assert wire.sent.endswith(b"POST /filter first")
    assert not wire.is_closed
    await passing(READ_S)
    assert wire.is_closed


async def test_a_head_has_the_length_of_a_get_and_no_body() -> None:
    async def slow(request: Request) -> Response:
        return Response(200, b"ok\n")

    def handle(request: Request) -> Any:
        return slow(request) if request.path == b"/slow" else Response(200, b"ok\n")

    connection, wire = connect(Server(handle))
    connection.data_received(
        b"HEAD / HTTP/1.1\r\n\r\nHEAD /slow HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\n\r\n"
    )
    for _ in range(4):
        await asyncio.sleep(0)
    answers = wire.sent.split(b"\r\n\r\n")
    assert len(answers) == 4
    assert answers[-1] == b""
    assert all(each.endswith(b"Content-Length: 3") for each in answers[:-1])
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert wire.sent.endswith(b"Content-Length: 3\r\n\r\nok\n")


async def test_bodies_of_all_connections_together_are_bounded() -> None:
    server = Server(echo, Limits(max_body_bytes=10, max_held_bytes=15))
    whole = post(b"ten bytes!")
    first, first_wire = connect(server)
    first.data_received(whole[:-1])
    second, second_wire = connect(server)
    second.data_received(whole[:-1])
    assert second_wire.sent.startswith(b"HTTP/1.1 503 ")
    assert second_wire.is_closed
    assert server.held_bytes == 9
    first.data_received(whole[-1:])
    assert first_wire.sent.endswith(b"POST /filter ten bytes!")
    third, third_wire = connect(server)
    third.data_received(whole[:-1])
    assert third_wire.sent == b""
    third.connection_lost(None)
    assert server.held_bytes == 0


async def test_a_body_whose_answer_takes_time_counts_until_it_is_answered() -> None:
    gate = asyncio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return echo(request)

    server = Server(slow)
    connection, wire = connect(server)
    lost, _ = connect(server)
    for each in (connection, lost):
        each.data_received(post(b"ten bytes!", b"/bind"))
    assert server.held_bytes == 20
    await asyncio.sleep(0)
    lost.connection_lost(None)
    assert server.held_bytes == 10
    gate.set()
    for _ in range(4):
        await asyncio.sleep(0)
    assert wire.sent.endswith(b"POST /bind ten bytes!")
    assert server.held_bytes == 0


async def test_too_many_connections_are_closed_at_once() -> None:
    server = Server(echo, Limits(max_connections=1))
    _, first = connect(server)
    _, second = connect(server)
    assert (first.is_closed, second.is_closed) == (False, True)
    server.close()
    assert first.is_closed


async def test_a_head_is_parsed_once_whatever_length_it_tells() -> None:
    server = Server(echo)
    connection, wire = connect(server)
    for body in (b"one", b"three", b"a longer one"):
        connection.data_received(post(body))
        assert wire.sent.endswith(b"POST /filter " + body)
    assert len(server.heads) == 1
    another, other_wire = connect(server)
    another.data_received(post(b"two"))
    assert other_wire.sent.endswith(b"POST /filter two")


async def test_a_remembered_head_lets_no_longer_body_in() -> None:
    connection, wire = connect(Server(echo, Limits(max_body_bytes=10)))
    connection.data_received(post(b"short"))
    connection.data_received(post(b"far too long a body"))
    assert b"HTTP/1.1 413 " in wire.sent
    assert wire.is_closed


async def test_no_more_heads_are_remembered_than_are_allowed() -> None:
    server = Server(echo)
    connection, _ = connect(server)
    for number in range(MAX_HEADS + 5):
        connection.data_received(post(b"x", b"/filter-%d" % number))
    assert len(server.heads) == MAX_HEADS
