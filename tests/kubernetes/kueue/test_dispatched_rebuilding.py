"""A database is lost while dispatched work runs: it is found, and booked once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.db.database import Database
from gpuplane.entry.environment import load_settings
from gpuplane.entry.home import Home
from gpuplane.entry.rebuilding import rebuild_from
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.kinds import JOB, POD
from rig.binaries import Binaries
from tests.faults.inside import QUICK, Inside, inside
from tests.kubernetes.kueue.dispatching import IN_TURN
from tests.kubernetes.kueue.hubs import Hub, asked, hub_of
from tests.kubernetes.rigged import RunningCluster, rig_of_ones_own
from tests.waiting import wait_until_async

pytestmark = IN_TURN


@pytest.fixture(scope="module")
def pair(rig_binaries: Binaries) -> Iterator[list[RunningCluster]]:
    """Two clusters of this module's own: what is rebuilt takes all that runs there."""
    with rig_of_ones_own(rig_binaries, workers=1) as own:
        yield own


@pytest.fixture
async def hub(pair: list[RunningCluster]) -> AsyncIterator[Hub]:
    """A manager and its worker under names of their own."""
    async with hub_of(*pair) as made:
        yield made


async def until_running(it: Inside, hub: Hub, job_id: str) -> dict[str, Any]:
    """Return the one attempt of a job once it runs on the worker."""

    async def runs() -> bool:
        job = (await it.client.get(f"/jobs/{job_id}")).json()
        return job.get("status") == "running" and job["cluster_id"] == hub.cluster_ids[-1]

    await wait_until_async(runs, "it runs on the worker", deadline_s=90, interval_s=0.2)
    [attempt] = (await asked(it, "GET", f"/jobs/{job_id}/attempts"))["items"]
    return dict(attempt)


async def in_use(it: Inside, cluster: str) -> int:
    """Return how many GPUs of a cluster are booked."""
    found = await asked(it, "GET", f"/clusters/{cluster}/capacity")
    return sum(each["in_use"] for each in found["models"])


async def test_dispatched_work_is_booked_once_in_a_new_database_and_can_be_cancelled(
    hub: Hub, tmp_path: Path
) -> None:
    async with inside(tmp_path / "lost") as it:
        tenant = await hub.join(it, 2)
        body = {**hub.body("kept", "exec sleep 900"), "tenant_id": tenant}
        job_id = (await asked(it, "POST", "/jobs", **body))["id"]
        before = await until_running(it, hub, job_id)
    new = tmp_path / "new"
    async with inside(new) as it:
        await hub.register(it)
    home = Home(new / "home")
    database = Database(load_settings(QUICK, home=home.path, port=0).sql_url)
    try:
        keys = SealingKeys(home.keys)
        told = [await asyncio.to_thread(rebuild_from, database, keys, name) for name in hub.names]
    finally:
        database.close()
    # Others may run there too; the worker leaves it to the manager to tell.
    assert ["kept" in each.restored for each in told] == [True, False]
    async with inside(new) as it:
        after = await until_running(it, hub, job_id)
        assert after["id"] == before["id"]
        held = [[(r["node"], r["gpu_ids"]) for r in e["replicas"]] for e in (before, after)]
        assert held[0] == held[1]
        assert [await in_use(it, name) for name in hub.names] == [0, 1]
    async with inside(new) as it:  # what was found stays found
        await until_running(it, hub, job_id)
        assert (await it.client.delete(f"/jobs/{job_id}")).is_success
        assert await it.wait_for(job_id, "cancelled", "failed", "completed") == "cancelled"

        async def is_gone() -> bool:
            left = [
                *await hub.manager.list(JOB, hub.space),
                *await hub.worker.list(JOB, hub.space),
                *await hub.worker.list(POD, hub.space),
            ]
            return not left

        await wait_until_async(is_gone, "nothing is left of it", deadline_s=90, interval_s=0.3)
        assert [*it.faults()] == []
