"""Fleet time: milliseconds of simulated life, which neither stop at a restart nor jump.

Owns the mapping between the machine's clocks and fleet time. While the process lives fleet time
follows the monotonic clock, so a step of the wall clock neither ends jobs nor holds them up;
over a restart it follows the wall clock. A step is recorded, so that instants told before it and
after it both agree with the clock that the control plane saw at the time.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from gpuplane.kit.clock import Clock

STEP_MS = 1000
"""Smaller differences between the two clocks are drift and wait until they add up."""


class FleetClock:
    """Tells fleet time and translates it to instants.

    Args:
        born_ms: Instant of fleet time 0.
        last_ms: Latest fleet time that was recorded; time never goes back behind it.
        steps: (fleet time, offset in ms of the wall clock from then on), in order.
        on_step: Told of each new step, to record it.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        speed: float,
        born_ms: int,
        last_ms: int,
        steps: Sequence[tuple[int, int]],
        on_step: Callable[[int, int], None],
    ) -> None:
        if speed <= 0:
            raise ValueError(f"the speed must be positive, got {speed}")
        self._clock = clock
        self._speed = speed
        self._born_ms = born_ms
        self._step_at = [at for at, _ in steps]
        self._offset = [offset for _, offset in steps]
        self._on_step = on_step
        offset = self._offset[-1] if self._offset else 0
        by_wall = round((clock.now_ms() - born_ms - offset) * speed)
        self._anchor_ms = max(by_wall, last_ms)
        self._anchor_s = clock.monotonic()

    def now(self) -> int:
        """Return the fleet time, and take note if the wall clock was stepped since."""
        at = self._anchor_ms + round(
            (self._clock.monotonic() - self._anchor_s) * 1000 * self._speed
        )
        offset = self._offset[-1] if self._offset else 0
        drift = self._clock.now_ms() - self._born_ms - round(at / self._speed) - offset
        if abs(drift) > STEP_MS:
            self._step_at.append(at)
            self._offset.append(offset + drift)
            self._on_step(at, offset + drift)
        return at

    def to_instant(self, at_ms: int) -> int:
        """Return the wall clock's milliseconds since the epoch at this fleet time."""
        instant = self._born_ms + round(at_ms / self._speed)
        # What was told at the very instant of a step was told before it.
        position = bisect_left(self._step_at, at_ms) - 1
        return instant + self._offset[position] if position >= 0 else instant

    def seconds_until(self, at_ms: int) -> float:
        """Return how many seconds of the clock pass until this fleet time; never negative."""
        return max(0.0, (at_ms - self.now()) / 1000 / self._speed)

    async def sleep_until(self, at_ms: int) -> None:
        """Return when it is this fleet time."""
        await self._clock.sleep(self.seconds_until(at_ms))
