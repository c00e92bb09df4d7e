"""Waiting in tests: ask again until it holds or the deadline passes.

Prefer the event itself (a future, a condition, the end of a process); this is for what can
only be asked, such as another process's files or an HTTP answer.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 20.0  # generous on purpose: it bounds a failure, never a success
INTERVAL_S = 0.01


class Patience:
    """How long something may still take: so many seconds on a machine that has time for it.

    Where others wait for the processors too, it is as much more as they are; a deadline bounds a
    failure, and a full machine is none.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._factor = 1.0

    @property
    def is_over(self) -> bool:
        """Whether it took longer than is likely on a machine as full as it was meanwhile."""
        self._factor = max(self._factor, os.getloadavg()[0] / (os.cpu_count() or 1))
        return time.monotonic() > self._began + self.seconds * self._factor


def wait_until(
    condition: Callable[[], T],
    what: str,
    *,
    deadline_s: float = DEADLINE_S,
    interval_s: float = INTERVAL_S,
) -> T:
    """Return the first truthy answer of `condition`; fail with `what` after the deadline."""
    patience = Patience(deadline_s)
    pause = threading.Event()
    while not (answer := condition()):
        if patience.is_over:
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
    patience = Patience(deadline_s)
    while True:
        asked = condition()
        answer: T = await asked if inspect.isawaitable(asked) else asked  # type: ignore[assignment]  # isawaitable narrows no TypeVar
        if answer:
            return answer
        if patience.is_over:
            raise AssertionError(f"after {deadline_s:g} s still not so: {what} (last: {answer!r})")
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=interval_s)
