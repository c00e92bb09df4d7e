"""A wall clock that steps an hour forward or back: nothing is lost and the ledger still tiles."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuplane.kit.clock import SystemClock
from tests.faults.inside import inside

HOUR_MS = 3_600_000
STEPS = {
    "forward": [HOUR_MS],
    "back": [-HOUR_MS],
    "forward and back": [HOUR_MS, -HOUR_MS],
    "back twice": [-HOUR_MS, -HOUR_MS],
}


class SteppedClock(SystemClock):
    """The machine's clock, whose wall an administrator sets; what is monotonic goes on."""

    def __init__(self) -> None:
        self.off_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.off_ms


@pytest.mark.parametrize("name", STEPS)
async def test_jobs_end_and_the_ledger_tiles_when_the_clock_steps(
    name: str, tmp_path: Path
) -> None:
    clock = SteppedClock()
    async with inside(tmp_path, clock=clock) as plane:
        spec = {"simulated": {"duration_s": 3_600.0}, "grace_s": 0}
        running = (await plane.submit("runs", spec=spec)).json()["id"]
        await plane.wait_for(running, "running")
        for number, step in enumerate(STEPS[name]):
            clock.off_ms += step
            after = (await plane.submit(f"after-{number}")).json()["id"]
            assert await plane.wait_for(after, "completed", "failed") == "completed"
            assert plane.faults() == []
        if await plane.status_of(running) == "running":
            await plane.client.delete(f"/jobs/{running}")
        ended = await plane.wait_for(running, "completed", "cancelled", "failed")
        assert ended in ("completed", "cancelled")
        assert plane.faults() == []
        shown = (await plane.client.get(f"/jobs/{running}")).json()
        assert shown["actual_end"] >= shown["actual_start"]


async def test_a_deadline_is_kept_by_the_server_s_clock_and_only_once_it_is_past(
    tmp_path: Path,
) -> None:
    clock = SteppedClock()
    async with inside(tmp_path, clock=clock) as plane:
        at = (clock.now_ms() + HOUR_MS // 2) // 1000
        deadline = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        far = {"gpu_type": "nvidia-h100-80gb", "gpu_count": 8, "replicas": {"count": 9}}
        answer = await plane.submit("due", deadline=deadline, deadline_action="cancel", **far)
        assert answer.status_code == 201, answer.text
        job = answer.json()["id"]
        await plane.wait_for(job, "queued")
        clock.off_ms -= HOUR_MS
        later = (await plane.submit("between")).json()["id"]
        await plane.wait_for(later, "completed")
        assert await plane.status_of(job) == "queued"
        clock.off_ms += 2 * HOUR_MS
        await plane.submit("wakes")
        assert await plane.wait_for(job, "cancelled", "failed")
        assert plane.faults() == []
