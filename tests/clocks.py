"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

NOON_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z, a day without a change of the zone


class FakeClock:
    """`kit.clock.Clock` for tests: sleepers wake in order when `advance` reaches them."""

    def __init__(self, now_ms: int = NOON_MS) -> None:
        self._base_ms = now_ms
        self._elapsed_ms = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        return self._base_ms + round(self._elapsed_ms)

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due_ms = self._elapsed_ms + max(0.0, seconds * 1000)
        heapq.heappush(self._sleepers, (due_ms, next(self._order), future))
        await future

    def step(self, ms: int) -> None:
        """Step the wall clock alone, as an administrator or NTP does."""
        self._base_ms += ms

    async def advance(self, seconds: float) -> None:
        """Let time pass; every sleeper wakes at its own moment and runs until it waits again."""
        end_ms = self._elapsed_ms + seconds * 1000
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end_ms:
            due_ms, _, future = heapq.heappop(self._sleepers)
            self._elapsed_ms = max(self._elapsed_ms, due_ms)
            if not future.done():
                future.set_result(None)
                await _settle()
        self._elapsed_ms = end_ms
        await _settle()


async def _settle() -> None:
    """Let every task run that can, as far as it gets without the clock."""
    for _ in range(20):
        await asyncio.sleep(0)
