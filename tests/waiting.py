"""Waiting in tests: ask again until it holds or the deadline passes.

Prefer the event itself (a future, a condition, the end of a process); this is for what can
only be asked, such as another process's files or an HTTP answer.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 20.0  # generous on purpose: it bounds a failure, never a success
INTERVAL_S = 0.01


def wait_until(
    condition: Callable[[], T],
    what: str,
    *,
    deadline_s: float = DEADLINE_S,
    interval_s: float = INTERVAL_S,
) -> T:
    """Return the first truthy answer of `condition`; fail with `what` after the deadline."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not (answer := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"after {deadline_s:g} s still not so: {what} (last: {answer!r})")
        pause.wait(interval_s)
    return answer


async def wait_until_async(
    condition: Callable[[], T | Awaitable[T]],
    what: str,
    *,
    deadline_s: float = DEADLINE_S,
    interval_s: float = INTERVAL_S,
) -> T:
    """Like `wait_until` for a condition that may be a coroutine function; yields to the loop."""
    end = time.monotonic() + deadline_s
    while True:
        asked = condition()
        answer: T = await asked if inspect.isawaitable(asked) else asked  # type: ignore[assignment]  # isawaitable narrows no TypeVar
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"after {deadline_s:g} s still not so: {what} (last: {answer!r})")
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=interval_s)
