"""Time comes from outside: wall time in integer milliseconds, and a monotonic clock beside it."""

import asyncio
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol


class Clock(Protocol):
    """What a loop, a backend or an endpoint asks for the time."""

    def now_ms(self) -> int:
        """Return wall time as milliseconds since the epoch; it may step."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never run backwards; only differences mean something."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds of this clock."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Return the machine's wall time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return the machine's monotonic clock in seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(seconds)


def instant_to_text(instant_ms: int) -> str:
    """Return an instant as RFC 3339 in UTC with milliseconds, as the API shows it."""
    seconds, ms = divmod(instant_ms, 1000)
    return f"{_second_to_text(seconds)}.{ms:03d}Z"


@lru_cache(maxsize=1_024)
def _second_to_text(seconds: int) -> str:
    """Return a second without its zone; what is told together mostly lies within a few."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def instant_from_datetime(value: datetime) -> int:
    """Return an aware datetime as milliseconds since the epoch.

    Raises:
        ValueError: If the datetime names no zone.
    """
    if value.tzinfo is None:
        raise ValueError("the instant names no zone; write it with Z or an offset")
    delta = value - datetime(1970, 1, 1, tzinfo=UTC)
    return delta.days * 86_400_000 + delta.seconds * 1000 + delta.microseconds // 1000
