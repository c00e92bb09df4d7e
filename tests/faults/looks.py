"""Looks at a plane's jobs once for all scripts that wait, instead of once for each.

Dozens of scripts wait at a time, and what a plane computes to show one job is most of its work
while they do. Nothing of an answer is kept: who asks is told what was so after the question.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from tests.faults.planes import Plane

POLL_S = 0.2
UNFINISHED = "&".join(
    f"status={word}" for word in ("pending", "queued", "scheduled", "running", "preempted")
)
PAGE = 500


class Looks:
    """The scripts of one load that wait to hear of their jobs."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[dict[str, Any]]] = []
        self._looking: asyncio.Task[None] | None = None

    async def job(self, plane: Plane, job_id: str) -> dict[str, Any]:
        """Return a job as it is after a little while.

        Raises:
            Died: If the plane is gone.
        """
        heard: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(heard)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(plane))
        unfinished = await heard
        if job_id in unfinished:
            return dict(unfinished[job_id])
        return dict(await get(plane, f"/jobs/{job_id}"))

    async def _look(self, plane: Plane) -> None:
        while self._waiting:
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=POLL_S)
            waiting, self._waiting = self._waiting, []
            try:
                page = await get(plane, f"/jobs?limit={PAGE}&{UNFINISHED}")
            except Exception as error:  # noqa: BLE001  # each who waits is to hear of it
                for heard in waiting:
                    if not heard.done():
                        heard.set_exception(error)
                continue
            found = {job["id"]: job for job in page["items"]}
            for heard in waiting:
                if not heard.done():
                    heard.set_result(found)


async def get(plane: Plane, path: str) -> Any:
    """Return the body of a read."""
    answer: httpx2.Response = await plane.ask("GET", path)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
    return answer.json()
