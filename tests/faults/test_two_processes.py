"""Two control planes on one home: the second is refused and harms nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.faults.loads import simulated
from tests.faults.planes import Plane


async def test_a_second_control_plane_on_a_home_is_refused_while_the_first_goes_on(
    tmp_path: Path,
) -> None:
    first, second = Plane(tmp_path / "home"), Plane(tmp_path / "home")
    try:
        await first.start()
        address = (first.home / "address").read_text()
        second.process = await asyncio.to_thread(second.spawn)
        assert await second.wait_for_death() == 1
        assert "already runs on" in (first.home / "printed").read_text()
        assert (first.home / "address").read_text() == address
        answer = await first.ask("POST", "/jobs", {"name": "after", **simulated(0.0)})
        assert answer.status_code == 201
    finally:
        await second.kill()
        await first.stop()


async def test_a_home_is_free_again_after_its_control_plane_was_killed(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "home")
    try:
        await plane.start()
        await plane.kill()
        await plane.start()
        assert (await plane.ask("GET", "/jobs")).status_code == 200
    finally:
        await plane.stop()
