"""Clients that come early or late: who reads an address is answered, who was accepted is closed."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from pathlib import Path

import pytest

from gpuplane.entry.home import Home
from gpuplane.entry.server import open_doors
from gpuplane.extender.http import Response, Server
from gpuplane.kit.listeners import close_listener
from tests.accepting import accepting, turn


def has_ended(client: socket.socket) -> bool:
    """Return whether the other side has closed; one that has not is an error after a while."""
    client.settimeout(20)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:  # it was not accepted yet
        return True


@pytest.mark.parametrize("turns", range(6))
async def test_the_extenders_connections_are_closed_whenever_the_listener_is(turns: int) -> None:
    server = Server(lambda request: Response(200, b""))
    loop = asyncio.get_running_loop()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        listener = await loop.create_server(server.connect, "127.0.0.1", 0)
        with socket.create_connection(listener.sockets[0].getsockname()) as client:
            await turn(turns)
            await close_listener(listener)
            server.close()
            await turn(3)
            assert has_ended(client)
        gc.collect()
    assert [str(each.message) for each in caught] == []


@pytest.mark.parametrize("turns", range(6))
async def test_the_tests_servers_leave_no_connection_behind(turns: int) -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with accepting(listen) as port:
            client = socket.create_connection(("127.0.0.1", port))
            await turn(turns)
        with client:
            assert has_ended(client)
        gc.collect()
    assert [str(each.message) for each in caught] == []


class WatchedHome(Home):
    """A home whose address somebody waits for, to connect the moment it is there."""

    clients: list[socket.socket]

    def write_address(self, url: str) -> None:
        super().write_address(url)
        host, port = self.address_file.read_text().strip().removeprefix("http://").split(":")
        self.clients = [socket.create_connection((host, int(port)), timeout=20)]


def test_whoever_reads_the_address_of_a_control_plane_is_not_refused(tmp_path: Path) -> None:
    home = WatchedHome(tmp_path)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        open_doors(home, [bound], f"http://127.0.0.1:{bound.getsockname()[1]}")
        accepted, _ = bound.accept()
        with accepted, home.clients[0] as client:
            assert accepted.getpeername() == client.getsockname()
