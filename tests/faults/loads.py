"""A mixed load: every kind of work that writes, each acknowledged answer remembered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.planes import Died, Plane
from tests.waiting import wait_until_async

OVER = frozenset({"completed", "failed", "cancelled"})
SETTLE_S = 90.0


@dataclass
class Load:
    """What was asked of one home over all its lives, and what was acknowledged.

    Args:
        starts: A file to which every local job appends a line when its process starts.
    """

    starts: Path
    wanted: dict[str, dict[str, Any]] = field(default_factory=dict)
    acknowledged: dict[str, str] = field(default_factory=dict)
    expected: dict[str, frozenset[str]] = field(default_factory=dict)
    rounds: int = 0

    async def run(self, plane: Plane) -> None:
        """Send one round of everything; returns early when the plane dies."""
        self.rounds += 1
        r = f"r{self.rounds}"
        tasks = [
            self._submit(plane, f"{r}-sim{n}", simulated(0.2), "completed") for n in range(3)
        ]
        tasks += [
            self._submit(plane, f"{r}-local{n}", self._local(f"{r}-local{n}"), "completed")
            for n in range(3)
        ]
        await asyncio.gather(*tasks, return_exceptions=False)

    async def _submit(self, plane: Plane, name: str, body: dict[str, Any], *ends: str) -> str:
        """Submit one job under its own key; its id, or empty when the plane died."""
        self.wanted[name] = body = {"name": name, **body}
        self.expected[name] = frozenset(ends)
        return await self._send(plane, name)

    async def _send(self, plane: Plane, name: str) -> str:
        try:
            answer = await plane.ask("POST", "/jobs", self.wanted[name], key=name)
        except Died:
            return ""
        assert answer.status_code == 201, f"{name}: {answer.status_code} {answer.text}"
        found: str = answer.json()["id"]
        before = self.acknowledged.setdefault(name, found)
        assert before == found, f"{name} was made twice: {before} and {found}"
        return found

    async def send_again(self, plane: Plane) -> None:
        """Repeat every submit under its key, as a client does that heard no answer."""
        for name in self.wanted:
            assert await self._send(plane, name), f"the plane died again at {name}"

    async def settle(self, plane: Plane) -> list[dict[str, Any]]:
        """Wait until every job is over and return them all."""

        async def all_over() -> bool:
            return not await unfinished(plane)

        await wait_until_async(all_over, "every job is over", deadline_s=SETTLE_S, interval_s=0.1)
        return await list_jobs(plane)

    def _local(self, name: str) -> dict[str, Any]:
        """Return a job on this machine that says when it starts."""
        return {
            "cluster": "local",
            "cpu_cores": 0.05,
            "memory_gb": 0.1,
            "max_retries": 0,
            "spec": {
                "command": [
                    "/bin/sh", "-c", f"echo {name} $GPUPLANE_ATTEMPT >> '{self.starts}'",
                ]
            },
            "resources": {"ephemeral_storage_gb": 0.1},
        }  # fmt: skip

    def faults(self, jobs: Sequence[dict[str, Any]]) -> list[str]:
        """Return what is wrong with how everything ended."""
        found: list[str] = []
        by_name = Counter(job["name"] for job in jobs)
        by_id = {job["id"]: job for job in jobs}
        for name, job_id in self.acknowledged.items():
            if job_id not in by_id:
                found.append(f"{name} was acknowledged as {job_id} and is lost")
                continue
            status = by_id[job_id]["status"].lower()
            if status not in self.expected[name]:
                found.append(f"{name} ended {status}, not {set(self.expected[name])}")
        found += [f"{name} exists {n} times" for name, n in by_name.items() if n != 1]
        lines = self.starts.read_text().splitlines() if self.starts.exists() else []
        found += [f"started {n} times: {line}" for line, n in Counter(lines).items() if n != 1]
        started = {line.split()[0] for line in lines}
        found += [
            f"{name} completed and never started"
            for name, body in self.wanted.items()
            if body["cluster"] == "local"
            and by_id.get(self.acknowledged.get(name, ""), {}).get("status", "") == "completed"
            and name not in started
        ]
        return found


def simulated(duration_s: float, exit_code: int = 0, **more: Any) -> dict[str, Any]:
    """Return a job on the simulated cluster."""
    return {
        "cluster": "demo",
        "gpu_count": 1,
        "spec": {"simulated": {"duration_s": duration_s, "exit_code": exit_code}},
        **more,
    }


async def list_jobs(plane: Plane) -> list[dict[str, Any]]:
    """Return every job there is."""
    jobs: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await get(plane, "/jobs?limit=500" + (f"&cursor={cursor}" if cursor else ""))
        jobs += page["items"]
        cursor = page.get("next_cursor")
        if not cursor:
            return jobs


async def unfinished(plane: Plane) -> list[dict[str, Any]]:
    """Return every job that is not over."""
    words = "&".join(f"status={word}" for word in ("pending queued scheduled running preempted".split()))
    page = await get(plane, f"/jobs?limit=50&{words}")
    return list(page["items"])


async def get(plane: Plane, path: str) -> Any:
    """Return the body of a read."""
    answer: httpx2.Response = await plane.ask("GET", path)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
    return answer.json()
