"""Kill -9 at the writes of dispatching: what is dispatched runs once, or is taken back from both.

One job of each kind goes through as many lives of the control plane as there are points.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs import service as jobs
from gpuplane.kube.kinds import JOB, POD
from tests.faults.inside import QUICK, inside
from tests.faults.planes import Died, Plane
from tests.faults.proofs import faults_of
from tests.kubernetes.kueue.hubs import Hub, hub_of
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async


def sides(*units: str) -> tuple[str, ...]:
    """Return both sides of the commit of each unit, or of the word to a backend."""
    return tuple(f"{unit}:{side}" for unit in units for side in ("before", "after"))


HANDING = (
    *sides("jobs.offer"),
    "offers.ensure:before",
    "kubernetes.ensure.accepted",
    "kubernetes.ensure.made",
    "kubernetes.ensure.started",
    "kubernetes.ensure.released",
    "offers.ensure:after",
    *sides("jobs.note_offers_ensured", "jobs.note_admission", "jobs.note_dispatched"),
    "offers.ensure:before",
    "kubernetes.take.accepted",
    "kubernetes.take.made",
    "offers.ensure:after",
    *sides("jobs.note_offers_taken", "jobs.settle_offers", "jobs.take_in"),
)
"""From its place in line to its run: on the manager, then on the worker."""
ENDING = sides("jobs.take_in", "jobs.note_managers_told")
STOPPING = (
    sides("releases.evict", "jobs.note_managers_told", "jobs.take_in"),
    sides("dispatcher.evict", "jobs.note_evict_sent"),
)
"""What its manager is told, and what its worker: at the same time."""
TAKING_BACK = (
    sides("jobs.withdraw_void_offers", "offers.evict", "jobs.settle_offers"),
    sides("jobs.note_offers_evicted"),
    sides("jobs.note_workers_told"),
)
WHOLE = os.environ.get("GPUPLANE_WALK") == "whole"
"""Every point; else some of one kind, chosen anew in each run: a life takes some seconds."""
SOME = 3
NOWHERE = {"node_selector": {"rig.gpuplane.io/kind": "nowhere"}}
TERMINAL = ("cancelled", "failed", "completed")


@dataclass
class Lives:
    """One home that is killed again and again, and where it was."""

    plane: Plane
    hub: Hub
    chance: random.Random
    deaths: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    async def walk(self, points: Sequence[str], job: str, goals: Sequence[str]) -> None:
        """Die at some of these points, in their order, on a job's way to one of the goals."""
        count = len(points) if WHOLE else min(SOME, len(points))
        chosen = sorted(self.chance.sample(range(len(points)), count))
        for point in (points[each] for each in chosen):
            await self.plane.start(**QUICK, GPUPLANE_FAILPOINTS=point)
            with contextlib.suppress(Died):
                await self.until(job, goals)
            (self.deaths if self.plane.is_over() else self.missed).append(point)
            print(point, "died" if self.plane.is_over() else "passed by", flush=True)
            await self.plane.kill()
            assert broken(self.plane) == [], point
        await self.plane.start(**QUICK)
        await self.until(job, goals)

    async def until(self, job: str, goals: Sequence[str]) -> None:
        """Wait until a job is in one of these states and, if it is over, all were told."""

        async def there() -> bool:
            if self.plane.is_over():
                raise Died
            found = await self.job(job)
            if found["status"] not in goals:
                assert found["status"] not in TERMINAL, found
                return False
            return goals == ("running",) or await self.is_done(job)

        await wait_until_async(there, f"{job} is {goals}", deadline_s=90, interval_s=0.2)

    async def is_done(self, job: str) -> bool:
        """Return whether nothing of a job that is over goes on anywhere."""
        labels = {"gpuplane.io/job-id": job}
        for client in (self.hub.manager, self.hub.worker):
            pods = await client.list(POD, self.hub.space, labels)
            if any(each["status"].get("phase") in ("Pending", "Running") for each in pods):
                return False
        there = await self.hub.worker.list(JOB, self.hub.space, labels)
        return not there and not list_untold(self.plane)

    async def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return the answer to a request that must succeed."""
        answer = await self.plane.ask(method, path, body)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def job(self, job_id: str) -> dict[str, Any]:
        """Return a job as the API shows it."""
        return await self.ask("GET", f"/jobs/{job_id}")

    async def submit(self, name: str, tenant: str, text: str, **more: Any) -> str:
        """Submit a job that is not looked at before its walk, and return its id."""
        await self.plane.start(GPUPLANE_LOOPS_SCHEDULER_S="3600")
        body = {**self.hub.body(name, text), "tenant_id": tenant, **more}
        made = await self.ask("POST", "/jobs", body)
        await self.plane.kill()
        return str(made["id"])

    async def cancel(self, job: str) -> None:
        """Cancel a job and die at once: nobody was told of it."""
        await self.plane.stop()
        await self.plane.start(GPUPLANE_FAILPOINTS="jobs.cancel:after")
        with contextlib.suppress(Died):
            await self.plane.ask("DELETE", f"/jobs/{job}")
        await self.plane.wait_for_death()


async def run_to_its_end(lives: Lives, tenant: str, folder: Path) -> None:
    """Kill while a job is handed over, taken and ended: it runs once, and its end is known."""
    ran, go = folder / "ran", folder / "go"
    text = f"echo once >> {ran}; until [ -e {go} ]; do sleep 0.2; done; exit 7"
    job = await lives.submit("once", tenant, text)
    await lives.walk(HANDING, job, ("running",))
    go.touch()
    await lives.plane.kill()
    await lives.walk(ENDING, job, TERMINAL)
    found = await lives.job(job)
    assert (found["status"], found["exit_code"]) == ("failed", 7), found
    assert ran.read_text() == "once\n"
    assert len((await lives.ask("GET", f"/jobs/{job}/attempts"))["items"]) == 1
    await lives.plane.stop()


async def stop(lives: Lives, tenant: str, points: Sequence[str]) -> None:
    """Kill while a job that runs is cancelled: nothing of it is left on either cluster."""
    job = await lives.submit("stopped", tenant, "sleep 900")
    await lives.plane.start(**QUICK)
    await lives.until(job, ("running",))
    await lives.cancel(job)
    await lives.walk(points, job, TERMINAL)
    assert (await lives.job(job))["status"] == "cancelled"
    await lives.plane.stop()


async def take_back(lives: Lives, tenant: str, points: Sequence[str]) -> None:
    """Kill while a job is taken back that its worker holds and no node has room for."""
    job = await lives.submit("nowhere", tenant, "sleep 900", placement=NOWHERE)

    async def waits() -> bool:
        pods = await lives.hub.worker.list(POD, lives.hub.space, {"gpuplane.io/job-id": job})
        return bool(pods)

    await lives.plane.start(**QUICK)
    await wait_until_async(waits, "its pod waits on the worker", deadline_s=90, interval_s=0.2)
    await lives.cancel(job)
    await lives.walk(points, job, TERMINAL)
    assert (await lives.job(job))["status"] == "cancelled"
    await lives.plane.stop()


@pytest.fixture
async def hub(rig: RunningCluster, second_rig: RunningCluster) -> AsyncIterator[Hub]:
    """A manager and its worker under names of their own."""
    async with hub_of(rig, second_rig) as made:
        yield made


@pytest.mark.timeout(3000 if WHOLE else 299, func_only=True)
async def test_what_is_dispatched_runs_once_or_is_taken_back_whatever_is_killed(
    hub: Hub, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    async with inside(tmp_path) as it:
        tenant = await hub.join(it, 2)
    lives = Lives(Plane(tmp_path / "home"), hub, random.Random(seed))
    ways: list[Callable[[], Awaitable[None]]] = [
        lambda: run_to_its_end(lives, tenant, tmp_path),
        *(partial(stop, lives, tenant, points) for points in STOPPING),
        *(partial(take_back, lives, tenant, points) for points in TAKING_BACK),
    ]
    try:
        for way in ways if WHOLE else [lives.chance.choice(ways)]:
            await way()
    finally:
        await lives.plane.kill()
    assert broken(lives.plane) == [], f"seed {seed}"
    print(f"seed {seed}: died {len(lives.deaths)} times; passed by: {lives.missed}")
    assert lives.deaths, f"seed {seed}: {lives.missed}"


def list_untold(plane: Plane) -> list[object]:
    """Return what the rows of a plane say is still to be told to a cluster."""
    database = Database(f"sqlite:///{plane.home / 'gpuplane.db'}")
    try:
        offers = database.read_now(jobs.list_offers)
        managers = {each.id for each in database.read_now(clusters.list_clusters)}
        ended = database.read_now(lambda s: jobs.list_to_release(s, sorted(managers), 100))
        return [*offers, *ended]
    finally:
        database.close()


def broken(plane: Plane) -> list[str]:
    """Return every broken promise of a dead plane's rows."""
    return [*faults_of(plane.home)]
