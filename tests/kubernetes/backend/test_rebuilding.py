"""A database is lost with all that was in it: what runs goes on and is kept account of again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.kubernetes import names
from gpuplane.db.database import Database
from gpuplane.domains.jobs.service import Rebuilt
from gpuplane.entry.environment import load_settings
from gpuplane.entry.home import Home
from gpuplane.entry.rebuilding import rebuild_from
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import HORIZONTAL_POD_AUTOSCALER
from rig.binaries import Binaries
from tests.faults.inside import QUICK, Inside, inside
from tests.kubernetes.backend.test_scaling import BODY, NAMESPACE, Service, held_gpus
from tests.kubernetes.clusters.worlds import registered
from tests.kubernetes.rigged import RunningCluster, rig_of_ones_own
from tests.waiting import wait_until_async

PROCESSES = {"rig.gpuplane.io/kind": "process"}


@pytest.fixture(scope="module")
def rig(rig_binaries: Binaries) -> Iterator[RunningCluster]:
    """A cluster of this module's own: what is rebuilt takes all that runs there."""
    with rig_of_ones_own(rig_binaries) as (own,):
        yield own


async def submit(it: Inside, command: str) -> str:
    """Submit a job with a GPU of the rig's process nodes and return its id."""
    body = {
        "name": "kept",
        "cluster": "east",
        "deployment_type": "docker",
        "gpu_count": 1,
        "memory_gb": 1,
        "placement": {"node_selector": PROCESSES},
        "spec": {"image": "busybox", "command": ["sh", "-c", command]},
    }
    answer = await it.client.post("/jobs", json=body)
    assert answer.is_success, answer.text
    found: str = answer.json()["id"]
    return found


async def until_running(it: Inside, job_id: str) -> dict[str, Any]:
    """Return a job once it runs."""

    async def runs() -> dict[str, Any] | None:
        job: dict[str, Any] = (await it.client.get(f"/jobs/{job_id}")).json()
        return job if job.get("status") == "running" else None

    found: dict[str, Any] | None = await wait_until_async(
        runs, "the job runs", deadline_s=60, interval_s=0.2
    )
    assert found is not None
    return found


async def attempt_of(it: Inside, job_id: str) -> dict[str, Any]:
    """Return the one attempt of a job."""
    [found] = (await it.client.get(f"/jobs/{job_id}/attempts")).json()["items"]
    return dict(found)


async def rebuild_twice(folder: Path) -> tuple[Rebuilt, Rebuilt]:
    """Take what the cluster runs into the database of a home, and again."""
    home = Home(folder / "home")
    database = Database(load_settings(QUICK, home=home.path, port=0).sql_url)
    try:
        keys = SealingKeys(home.keys)
        done = await asyncio.to_thread(rebuild_from, database, keys, "east")
        return done, await asyncio.to_thread(rebuild_from, database, keys, "east")
    finally:
        database.close()


async def grown_service(it: Inside, client: KubeClient) -> Service:
    """Return a service of ranks 0 and 2 that nothing of the cluster scales: 1 was given back."""
    body = {**BODY, "name": "rb-web", "spec": {**BODY["spec"], "port": 18_378}}
    answer = await it.client.post("/jobs", json=body)
    assert answer.status_code == 201, answer.text
    service = Service(it, client, answer.json()["id"])
    await service.until_has(1)
    ours = {names.JOB_ID: service.job}
    [scaler] = await client.list(HORIZONTAL_POD_AUTOSCALER, NAMESPACE, ours)
    await client.delete(HORIZONTAL_POD_AUTOSCALER, scaler["metadata"]["name"], NAMESPACE)
    for count in (2, 1, 2):
        await service.ask_cluster(count)
        await service.until_has(count)
    return service


def places_of(attempt: dict[str, Any]) -> set[tuple[Any, ...]]:
    """Return rank, node and GPUs of each replica of an attempt."""
    return {(each["rank"], each["node"], *each["gpu_ids"]) for each in attempt["replicas"]}


async def test_what_runs_is_taken_into_a_new_database_under_the_same_attempt_and_grows_on(
    rig: RunningCluster, tmp_path: Path
) -> None:
    text, new = rig.kubeconfig.read_text(), tmp_path / "new"
    async with KubeClient(rig.connection()) as client:
        async with inside(tmp_path / "lost") as it:
            await registered(it, "east", text, addons=[], admission="embedded")
            job_id = await submit(it, "exec sleep 600")
            service = await grown_service(it, client)
            await until_running(it, job_id)
            before = [await attempt_of(it, each) for each in (job_id, service.job)]
        await service.ask_cluster(1)  # while nobody looks
        async with inside(new) as it:
            await registered(it, "east", text, addons=[], admission="embedded")
            assert (await it.client.get(f"/jobs/{job_id}")).status_code == 404
        done, again = await rebuild_twice(new)
        assert {"kept", "rb-web"} <= set(done.restored)
        assert again.restored == ()
        async with inside(new) as it:
            service.it = it
            job = await until_running(it, job_id)
            await service.until_has(1)
            after = [await attempt_of(it, each) for each in (job_id, service.job)]
            assert job["name"] == "kept"
            assert [each["id"] for each in after] == [each["id"] for each in before]
            assert places_of(after[0]) == places_of(before[0])
            assert places_of(after[1]) < places_of(before[1])
            kept = places_of(after[0]) | places_of(after[1])
            assert await held_gpus(it) == {gpu for _, _, gpu in kept}
            assert it.faults() == []

            await service.ask_cluster(2)
            await service.until_has(2)
            grown = places_of(await attempt_of(it, service.job)) - places_of(after[1])
            [rank] = [each[0] for each in grown]
            assert rank > max(each[0] for each in places_of(before[1])), "no rank is given twice"
            assert len(await held_gpus(it)) == 3
            assert it.faults() == []
            for each in (job_id, service.job):
                assert (await it.client.delete(f"/jobs/{each}")).is_success
                assert await it.wait_for(each, "cancelled", "failed", "completed") == "cancelled"
            assert await held_gpus(it) == set()
