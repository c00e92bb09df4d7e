"""Small servers of asyncio for tests, which leave no socket behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gpuplane.kit.listeners import close_listener

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def accepting(serve: Serve, **more: Any) -> AsyncIterator[int]:
    """Serve on a free port of this machine, which is given, and end every talk afterwards."""
    talks: set[asyncio.Task[Any]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            await serve(reader, writer)
        finally:
            talks.discard(task)
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, **more)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await close_listener(server)
        await turn(3)  # what was accepted last becomes a talk
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await turn(3)  # what was closed is let go of


async def turn(times: int) -> None:
    """Let the loop look so many times at what is there already."""
    for _ in range(times):
        await asyncio.sleep(0)
