"""A database is lost while a service and a chart run under Kueue: both are found and go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.db.database import Database
from gpuplane.domains.jobs.service import Rebuilt
from gpuplane.entry.environment import load_settings
from gpuplane.entry.home import Home
from gpuplane.entry.rebuilding import rebuild_from
from gpuplane.kit.sealing import SealingKeys
from rig.binaries import Binaries
from tests.faults.inside import QUICK, Inside, inside
from tests.kubernetes.kueue.alone import CHART, SERVICE, Alone, alone_of, asked, is_whole
from tests.kubernetes.rigged import RunningCluster, rig_of_ones_own
from tests.waiting import wait_until_async


@pytest.fixture(scope="module")
def rig(rig_binaries: Binaries) -> Iterator[RunningCluster]:
    """A cluster of this module's own: what is rebuilt takes all that runs there."""
    with rig_of_ones_own(rig_binaries) as (own,):
        yield own


@pytest.fixture
async def alone(
    rig: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Alone]:
    """A cluster under names of its own, and a control plane that installs charts."""
    async with alone_of(rig, tmp_path / "charts") as made:
        for key, value in made.settings.items():
            monkeypatch.setitem(QUICK, key, value)
        yield made


async def until(it: Inside, job_id: str, count: int) -> dict[str, Any]:
    """Return the attempt of a job once so many replicas of it run."""

    async def runs() -> bool:
        return is_whole((await it.client.get(f"/jobs/{job_id}")).json(), count)

    try:
        await wait_until_async(runs, f"{count} replicas run", deadline_s=90, interval_s=0.2)
    except AssertionError as error:
        job = (await it.client.get(f"/jobs/{job_id}")).json()
        raise AssertionError(f"{error}: {job}") from error
    job = await asked(it, "GET", f"/jobs/{job_id}")
    attempts = (await asked(it, "GET", f"/jobs/{job_id}/attempts"))["items"]
    return dict(next(each for each in attempts if each["number"] == job["attempt_count"]))


def places(attempt: dict[str, Any]) -> set[tuple[Any, ...]]:
    """Return rank, node and GPUs of each replica, and the queues that they count against."""
    queues = (attempt["queue"], attempt["cluster_queue"])
    return {(each["rank"], each["node"], *each["gpu_ids"], *queues) for each in attempt["replicas"]}


async def cancel(it: Inside, job_id: str) -> None:
    """Cancel a job and wait for its end."""
    assert (await it.client.delete(f"/jobs/{job_id}")).is_success
    assert await it.wait_for(job_id, "cancelled", "failed") == "cancelled"


async def rebuilt(folder: Path, name: str) -> Rebuilt:
    """Take what a cluster runs into the database of a home."""
    home = Home(folder / "home")
    database = Database(load_settings(QUICK, home=home.path, port=0).sql_url)
    try:
        return await asyncio.to_thread(rebuild_from, database, SealingKeys(home.keys), name)
    finally:
        database.close()


async def test_a_service_and_a_chart_go_on_in_a_new_database_and_grow_and_wait_as_before(
    alone: Alone, tmp_path: Path
) -> None:
    more = {**SERVICE, "replicas": {"count": 3, "min": 1, "max": 4}}
    async with inside(tmp_path / "lost") as it:
        tenant = await alone.register(it)
        await alone.open_queue(it, 4)
        bodies = [alone.body("shop", tenant, **CHART), alone.body("web", tenant, **more)]
        jobs = []
        for body in bodies:
            jobs.append(str((await asked(it, "POST", "/jobs", body))["id"]))
            await until(it, jobs[-1], 2)
        waits = await asked(it, "POST", "/jobs", alone.body("late", tenant, **CHART))
        assert await it.wait_for(waits["id"], "queued") == "queued"

        async def stands_in_line() -> bool:
            found = await asked(it, "GET", f"/jobs/{waits['id']}")
            return "quota" in found["status_message"]

        await wait_until_async(stands_in_line, "another chart waits for quota", deadline_s=60)
        before = [await until(it, each, 2) for each in jobs]
    new = tmp_path / "new"
    async with inside(new) as it:
        await alone.register(it)
    told = await rebuilt(new, alone.prefix)
    assert {"shop", "web", "late"} <= set(told.restored)
    async with inside(new) as it:
        after = [await until(it, each, 2) for each in jobs]
        assert [each["id"] for each in after] == [each["id"] for each in before]
        assert [places(each) for each in after] == [places(each) for each in before]
        assert (await asked(it, "GET", f"/jobs/{waits['id']}"))["status"] == "queued"
        assert it.faults() == []
        await cancel(it, jobs[0])
        grown = await until(it, jobs[1], 3)
        assert places(grown) > places(before[1]), "those that ran run on, under their ranks"
        await cancel(it, jobs[1])
        await until(it, waits["id"], 2)
        assert it.faults() == []
        await cancel(it, waits["id"])

        async def is_gone() -> bool:
            return await alone.left() == []

        await wait_until_async(is_gone, "nothing is left of them", deadline_s=90, interval_s=0.3)
        assert it.faults() == []
