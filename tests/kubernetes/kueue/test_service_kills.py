"""Kill -9 at the writes of services and charts that Kueue admits: none is lost, none runs twice.

One job goes through as many lives of the control plane as there are points on its way.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.kubernetes import names
from gpuplane.kube.kinds import POD
from tests.faults.inside import inside
from tests.faults.planes import Died, Plane
from tests.faults.proofs import faults_of
from tests.kubernetes.kueue.alone import CHART, SERVICE, Alone, alone_of, is_whole
from tests.kubernetes.kueue.test_dispatch_kills import sides
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

WHOLE = os.environ.get("GPUPLANE_WALK") == "whole"
"""Every point; else some of one kind, chosen anew in each run: a life takes some seconds."""
SOME = 2
STARTING = (
    "offers.ensure:before",
    "offers.ensure:after",
    "kubernetes.rank.recorded",
    *sides("jobs.settle_offers", "jobs.take_in"),
)
"""Of a service, until its first pods have their ranks."""
MOVING = (
    *sides("jobs.drain_node"),
    "dispatcher.scale:before",
    "kubernetes.scale.told",
    "kubernetes.scale.sent_away",
    "dispatcher.scale:after",
    *sides("jobs.note_scale_told", "jobs.take_in"),
)
"""From the drain of the node of a replica to the one that comes in its place."""
INSTALLING = (
    "kubernetes.release.accepted",
    "kubernetes.release.started",
    *sides("jobs.note_offers_ensured", "jobs.note_admission"),
    "kubernetes.release.installed",
    *sides("jobs.settle_offers"),
)
"""Of a chart: a Job stands in line for it, and then it is installed."""
ENDING = sides("dispatcher.evict", "jobs.note_evict_sent", "jobs.take_in")
Goal = Callable[[dict[str, Any]], Awaitable[bool]]


@dataclass
class Lives:
    """One home that is killed again and again, and where it was."""

    plane: Plane
    alone: Alone
    chance: random.Random
    job: str = ""
    deaths: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    async def walk(self, points: Sequence[str], goal: Goal) -> None:
        """Die at some of these points, in their order, on the way of the job to its goal."""
        count = len(points) if WHOLE else min(SOME, len(points))
        chosen = sorted(self.chance.sample(range(len(points)), count))
        for point in (points[each] for each in chosen):
            await self.plane.start(**self.alone.settings, GPUPLANE_FAILPOINTS=point)
            with contextlib.suppress(Died):
                await self.until(goal)
            (self.deaths if self.plane.is_over() else self.missed).append(point)
            print(point, "died" if self.plane.is_over() else "passed by", flush=True)
            await self.plane.kill()
            assert faults_of(self.plane.home) == [], point
        await self.plane.start(**self.alone.settings)
        await self.until(goal)

    async def until(self, goal: Goal) -> None:
        """Wait until the job is where it is to be."""

        async def there() -> bool:
            if self.plane.is_over():
                raise Died
            found = await self.ask("GET", f"/jobs/{self.job}")
            assert found["status"] != "failed", found
            return await goal(found)

        await wait_until_async(there, f"{self.job} is there", deadline_s=90, interval_s=0.2)

    async def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return the answer to a request that must succeed."""
        answer = await self.plane.ask(method, path, body)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def submit(self, name: str, tenant: str, **more: Any) -> None:
        """Submit the job, which nothing looks at before its walk."""
        later = {**self.alone.settings, "GPUPLANE_LOOPS_SCHEDULER_S": "3600"}
        await self.plane.start(**later)
        made = await self.ask("POST", "/jobs", self.alone.body(name, tenant, **more))
        self.job = str(made["id"])
        await self.plane.kill()

    async def runs_once(self, found: dict[str, Any]) -> bool:
        """Return whether two replicas run, and on the cluster those two pods and no other."""
        return is_whole(found, 2) and await self.pods() == ranks_of(found)

    async def pods(self) -> list[int | None]:
        """Return the ranks of the pods that were let go and are not going."""
        found = await self.alone.client.list(POD, self.alone.space, {names.JOB_ID: self.job})
        bound = [
            each
            for each in found
            if each["spec"].get("nodeName") and not each["metadata"].get("deletionTimestamp")
        ]
        told = [each["metadata"]["labels"].get(names.RANK) for each in bound]
        return sorted(None if each is None else int(each) for each in told)

    async def is_gone(self, found: dict[str, Any]) -> bool:
        """Return whether the job was cancelled, and nothing of it is there."""
        return found["status"] == "cancelled" and await self.alone.left() == []

    async def end(self) -> None:
        """Cancel the job and die at its end."""
        await self.plane.stop()
        await self.plane.start(GPUPLANE_FAILPOINTS="jobs.cancel:after")
        with contextlib.suppress(Died):
            await self.plane.ask("DELETE", f"/jobs/{self.job}")
        await self.plane.wait_for_death()
        await self.walk(ENDING, self.is_gone)


def ranks_of(found: dict[str, Any]) -> list[int]:
    """Return the ranks of a job's replicas."""
    return sorted(each["rank"] for each in found["current_attempt"]["replicas"])


async def serve_and_move(lives: Lives, tenant: str) -> None:
    """Kill while a service starts, and while a drain moves one of its replicas."""
    await lives.submit("web", tenant, **SERVICE)
    await lives.walk(STARTING, lives.runs_once)
    found = await lives.ask("GET", f"/jobs/{lives.job}")
    node = found["current_attempt"]["replicas"][0]["node"]
    [other] = [each for each in lives.alone.nodes if each != node]
    base = f"/clusters/{lives.alone.prefix}/nodes"
    await lives.ask("POST", f"{base}/{node}/drain", {"wait_s": 0})
    await lives.plane.kill()

    async def has_moved(found: dict[str, Any]) -> bool:
        held = {each["node"] for each in (found["current_attempt"] or {"replicas": ()})["replicas"]}
        return held == {other} and await lives.runs_once(found)

    await lives.walk(MOVING, has_moved)
    found = await lives.ask("GET", f"/jobs/{lives.job}")
    assert found["attempt_count"] == 1, "it served all the time"
    await lives.ask("POST", f"{base}/{node}/uncordon")
    await lives.end()


async def install(lives: Lives, tenant: str) -> None:
    """Kill while a chart is handed over, admitted, installed and taken off."""
    await lives.submit("shop", tenant, **CHART)
    await lives.walk(INSTALLING, lives.runs_once)
    assert (await lives.ask("GET", f"/jobs/{lives.job}"))["attempt_count"] == 1
    await lives.end()


@pytest.fixture
async def alone(rig: RunningCluster, tmp_path: Path) -> AsyncIterator[Alone]:
    """A cluster under names of its own."""
    async with alone_of(rig, tmp_path / "charts") as made:
        yield made


@pytest.mark.timeout(3000 if WHOLE else 299, func_only=True)
async def test_what_kueue_admits_pod_by_pod_or_whole_runs_once_whatever_is_killed(
    alone: Alone, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    async with inside(tmp_path) as it:
        tenant = await alone.register(it)
        await alone.open_queue(it, 2)
    lives = Lives(Plane(tmp_path / "home"), alone, random.Random(seed))
    ways = [serve_and_move, install]
    try:
        for way in ways if WHOLE else [lives.chance.choice(ways)]:
            await way(lives, tenant)
            await lives.plane.stop()
    finally:
        await lives.plane.kill()
    assert faults_of(lives.plane.home) == [], f"seed {seed}"
    print(f"seed {seed}: died {len(lives.deaths)} times; passed by: {lives.missed}")
    assert lives.deaths, f"seed {seed}: {lives.missed}"
