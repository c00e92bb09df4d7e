"""What is to be looked at, once each, now or later.

Owns the order and the times. A key that is being looked at is not given out again before that
look has ended; what is added meanwhile is looked at after it.
"""

import asyncio
import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

from gpuplane.kit.clock import Clock

K = TypeVar("K", bound=Hashable)


class Worklist(Generic[K]):
    """Keys that wait for a look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: dict[K, None] = {}
        self._ready: dict[K, None] = {}
        self._busy: set[K] = set()
        self._again: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._first) + len(self._ready)

    def add(self, key: K) -> None:
        """Have a key looked at as soon as somebody is free."""
        self._due.pop(key, None)
        if key in self._busy:
            self._again.add(key)
        elif key not in self._first:
            self._ready[key] = None
            self._changed.set()

    def add_first(self, key: K) -> None:
        """Have a key looked at before all that `add` was told of: somebody waits for an answer."""
        if key not in self._busy:
            self._due.pop(key, None)
            self._ready.pop(key, None)
            self._first[key] = None
            self._changed.set()
        else:
            self._again.add(key)

    def add_later(self, key: K, delay_s: float) -> None:
        """Have a key looked at after so many seconds, or sooner where that is known already."""
        due = self._clock.monotonic() + delay_s
        if self._due.get(key, due) < due:
            return
        self._due[key] = due
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, key))
        self._changed.set()

    async def take(self) -> K:
        """Return the next key; it is busy until `done`."""
        while True:
            self._wake_due()
            waiting = self._first or self._ready
            if waiting:
                key = next(iter(waiting))
                del waiting[key]
                self._busy.add(key)
                return key
            self._changed.clear()
            wait_s = self._heap[0][0] - self._clock.monotonic() if self._heap else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """Say that a key was looked at."""
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _wake_due(self) -> None:
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add(key)
