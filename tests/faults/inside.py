"""A whole control plane inside the test's process, loops running, to break things under it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from gpuplane.entry.checking import find_faults
from gpuplane.entry.control import ControlPlane, build
from gpuplane.entry.environment import load_settings
from gpuplane.entry.home import Home
from gpuplane.kit.clock import Clock
from tests.waiting import wait_until_async

QUICK = {
    "GPUPLANE_LOOPS_SCHEDULER_S": "0.5",
    "GPUPLANE_LOOPS_DISPATCHER_S": "0.5",
    "GPUPLANE_LOOPS_OBSERVER_S": "0.5",
    "GPUPLANE_LOOPS_MONITOR_S": "0.2",
}
"""Loops look often, so that a test need not wait for the period after a fault."""


RUNNING: list[ControlPlane] = []
"""Those of this process that run now."""


@dataclass
class Inside:
    """A running control plane and a client that holds the admin's token."""

    control: ControlPlane
    client: httpx2.AsyncClient

    async def submit(self, name: str, **more: Any) -> httpx2.Response:
        """Submit a short simulated job and return the answer, whatever it is."""
        body = {"name": name, "cluster": "demo", "gpu_count": 1, **more}
        body.setdefault("spec", {"simulated": {"duration_s": 0.1}})
        return await self.client.post("/jobs", json=body)

    async def status_of(self, job_id: str) -> str:
        """Return a job's status; empty while its row is damaged and nobody set it aside."""
        answer = await self.client.get(f"/jobs/{job_id}")
        if answer.json().get("code") == "job_unreadable":
            return ""
        assert answer.status_code == 200, answer.text
        status: str = answer.json()["status"]
        return status

    async def wait_for(self, job_id: str, *statuses: str) -> str:
        """Wait until a job has one of these statuses."""

        async def there() -> str:
            status = await self.status_of(job_id)
            return status if status in statuses else ""

        return await wait_until_async(there, f"{job_id} is {statuses}", deadline_s=60)

    def faults(self) -> list[str]:
        """Return every broken promise on the rows now."""
        now = self.control.parts.clock.now_ms()
        return self.control.database.read_now(lambda s: find_faults(s, now))


@contextlib.asynccontextmanager
async def inside(
    folder: Path, database_url: str = "", clock: Clock | None = None
) -> AsyncIterator[Inside]:
    """Run a control plane for the length of the block; nothing of it may go on after its stop."""
    others = asyncio.all_tasks()
    home = Home(folder / "home")
    home.open()
    settings = load_settings(QUICK, home=home.path, port=0, database_url=database_url)
    control = build(settings, home, clock)
    RUNNING.append(control)
    try:
        await control.start()
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(control.app),
            base_url="http://gpuplane.test/api/v1",
            headers={"Authorization": f"Bearer {control.token}"},
            timeout=30,
        ) as client:
            yield Inside(control, client)
    finally:
        begun = _begun_since(others)
        await control.stop()
        home.close()
        RUNNING.remove(control)
    if RUNNING:
        return  # one task's coroutine does not tell which of them began it
    left = [task for task in begun if not task.done()]
    assert not left, f"what a stopped control plane left at work: {left}"


def _begun_since(others: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() - others if _is_ours(task)}


def _is_ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and "/gpuplane/" in code.co_filename
