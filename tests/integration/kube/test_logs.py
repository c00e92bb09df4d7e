"""Logs of containers, read and followed."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Unreachable
from tests.integration.kube.scripted import Reply, ScriptedServer, Stream


async def test_logs_are_read_and_followed_as_they_come(
    server: ScriptedServer, client: KubeClient
) -> None:
    stream = Stream()
    server.handler = lambda request: (
        stream if request.param("follow") else Reply(body=b"one\ntwo\n")
    )
    assert await client.read_log("a", "ml", "main", tail_lines=2) == b"one\ntwo\n"
    since = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
    following = client.follow_log("a", "ml", since=since)
    stream.send(b"three\n")
    assert await anext(following) == b"three\n"
    stream.send(b"fo")
    assert await anext(following) == b"fo"
    stream.end()
    assert [piece async for piece in following] == []
    assert server.requests[1].param("sinceTime") == "2026-03-01T12:00:00Z"


async def test_a_log_that_is_cut_off_is_told(server: ScriptedServer, client: KubeClient) -> None:
    stream = Stream()
    server.handler = lambda request: stream
    stream.send(b"one\n")
    stream.cut()
    with pytest.raises(Unreachable):
        [piece async for piece in client.follow_log("a", "ml")]


async def test_a_log_that_nobody_follows_any_more_is_closed(
    server: ScriptedServer, client: KubeClient
) -> None:
    stream = Stream()
    server.handler = lambda request: stream
    stream.send(b"one\n")
    following = client.follow_log("a", "ml")
    assert await anext(following) == b"one\n"
    await following.aclose()
    await asyncio.wait_for(stream.closed.wait(), 10)
    assert stream.closed.is_set()
