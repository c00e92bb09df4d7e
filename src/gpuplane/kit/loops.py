"""Runs loops: each by period and by wake-up, one turn at a time, with back-off outside the turn.

A loop is a name, a period and `run_once`; it takes no input, is idempotent and may be run twice.
An error ends the turn, is counted and logged once with its traceback, and the next turn is the
retry.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from gpuplane.kit.clock import Clock

log = logging.getLogger("gpuplane.loops")

BACKOFF_FIRST_S = 0.5
BACKOFF_LAST_S = 30.0
PAUSE_FIRST_S = 0.02
PAUSE_LAST_S = 0.5
PAUSE_RATIO = 2.0
"""After a turn of more than 20 ms a loop rests twice as long as the turn took, half a second at
most: wake-ups that come faster are answered together, and no loop takes more than a third of the
interpreter from those who wait for an answer."""
STALLED_AFTER_PERIODS = 5
"""A loop that has not finished a turn for so many periods (at least 30 s) is reported stalled."""


class LoopBody(Protocol):
    """One loop of the product."""

    name: str
    period_s: float

    async def run_once(self) -> bool:
        """Do one turn; True asks for the next turn at once because more work is known."""
        ...


@runtime_checkable
class KeepsWork(LoopBody, Protocol):
    """A loop whose work outlasts its turns: it is ended with the loop, not by its turn's end."""

    async def stop(self) -> None:
        """End all work under way; nothing of it is left when this returns."""
        ...


@dataclass(slots=True)
class LoopState:
    """What `/ready` and `/api/v1/loops` show of a loop."""

    name: str
    period_s: float
    turns: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    last_started: int | None = None
    last_finished: int | None = None
    last_duration_s: float | None = None
    last_error: str | None = None
    running: bool = False
    extra: dict[str, object] = field(default_factory=dict)

    def is_stalled(self, now: int) -> bool:
        """Return whether no turn has ended for too long."""
        limit_ms = max(30_000, int(self.period_s * 1000 * STALLED_AFTER_PERIODS))
        since = self.last_finished if self.last_finished is not None else self.last_started
        return since is not None and now - since > limit_ms


class LoopRunner:
    """Owns the tasks of all loops in this process."""

    def __init__(self, clock: Clock) -> None:
        """Make a runner that tells time by the clock."""
        self._clock = clock
        self._bodies: dict[str, LoopBody] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.states: dict[str, LoopState] = {}

    def add(self, body: LoopBody) -> None:
        """Register a loop before `start`."""
        if body.name in self._bodies:
            raise ValueError(f"two loops are named {body.name!r}")
        self._bodies[body.name] = body
        self._wakes[body.name] = asyncio.Event()
        self.states[body.name] = LoopState(body.name, body.period_s)

    def wake(self, names: Iterable[str]) -> None:
        """Let the named loops run now; names of loops that other processes own are ignored."""
        for name in names:
            event = self._wakes.get(name)
            if event is not None:
                event.set()

    def start(self) -> None:
        """Start a task for each loop."""
        for name, body in self._bodies.items():
            self._tasks.append(asyncio.create_task(self._run(body), name=f"loop:{name}"))

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Cancel every loop at its next await, wait for it, and end what loops keep at work."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        self._tasks.clear()
        for body in self._bodies.values():
            if isinstance(body, KeepsWork):
                await _end(body)

    async def _run(self, body: LoopBody) -> None:
        wake = self._wakes[body.name]
        state = self.states[body.name]
        while True:
            wake.clear()
            again = await self.turn(body, state)
            if _is_being_cancelled():
                return  # its body kept that to itself
            if again:
                await asyncio.sleep(0)
                continue
            delay = body.period_s
            if state.consecutive_failures:
                backoff = BACKOFF_FIRST_S * 2 ** min(state.consecutive_failures - 1, 10)
                delay = min(backoff, BACKOFF_LAST_S) * random.uniform(0.8, 1.2)
                await asyncio.sleep(delay)
                continue
            last_s = state.last_duration_s or 0.0
            pause = min(last_s * PAUSE_RATIO, PAUSE_LAST_S)
            if last_s > PAUSE_FIRST_S:
                await asyncio.sleep(pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await wake.wait()

    async def turn(self, body: LoopBody, state: LoopState) -> bool:
        """Run one turn and record how it went."""
        state.running, state.last_started = True, self._clock.now_ms()
        started = self._clock.monotonic()
        try:
            again = await body.run_once()
            state.consecutive_failures = 0
            state.last_error = None
        except (Exception, asyncio.CancelledError) as error:
            # What a body waited for may have been cancelled; that alone must not end the loop.
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            state.failures += 1
            state.consecutive_failures += 1
            state.last_error = f"{type(error).__name__}: {error}"
            log.exception("loop %s failed", body.name)
            again = False
        finally:
            state.turns += 1
            state.running = False
            state.last_finished = self._clock.now_ms()
            state.last_duration_s = self._clock.monotonic() - started
        return again


async def _end(body: KeepsWork) -> None:
    """End what a loop keeps at work; one that fails at it keeps no other from its end."""
    try:
        await body.stop()
    except Exception:
        log.exception("what loop %s keeps at work was not ended", body.name)


def _is_being_cancelled() -> bool:
    """Return whether somebody asked this very task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
