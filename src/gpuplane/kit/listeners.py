"""Closes listening sockets of asyncio without losing a connection that was just accepted."""

import asyncio


async def close_listener(server: asyncio.Server) -> None:
    """Accept nothing more; what was accepted before gets its protocol, which may close it.

    asyncio accepts in one turn of its loop and hands the connection over in the next. Where the
    listener is closed between the two the handing over fails in silence, and nobody closes the
    socket any more. uvloop accepts and hands over in one.

    Source: CPython 3.11, asyncio/selector_events.py, `_accept_connection2`, and
    asyncio/base_events.py, `Server._attach`.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
    server.close()
