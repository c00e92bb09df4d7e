"""A database is lost with all that was in it: what runs goes on and is kept account of again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gpuplane.db.database import Database
from gpuplane.entry.home import Home
from gpuplane.entry.rebuilding import rebuild_from
from gpuplane.entry.settings import load_settings
from gpuplane.kit.sealing import SealingKeys
from tests.faults.inside import QUICK, Inside, inside
from tests.kubernetes.clusters.worlds import registered
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

PROCESSES = {"rig.gpuplane.io/kind": "process"}


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


async def test_what_runs_is_taken_into_a_new_database_under_the_same_attempt(
    rig: RunningCluster, tmp_path: Path
) -> None:
    text = rig.kubeconfig.read_text()
    async with inside(tmp_path / "lost") as it:
        await registered(it, "east", text, addons=[], admission="embedded")
        job_id = await submit(it, "exec sleep 600")
        await until_running(it, job_id)
        before = await attempt_of(it, job_id)
    new = tmp_path / "new"
    async with inside(new) as it:
        await registered(it, "east", text, addons=[], admission="embedded")
        assert (await it.client.get(f"/jobs/{job_id}")).status_code == 404
    home = Home(new / "home")
    database = Database(load_settings(QUICK, home=home.path, port=0).sql_url)
    try:
        done = await asyncio.to_thread(rebuild_from, database, SealingKeys(home.keys), "east")
        again = await asyncio.to_thread(rebuild_from, database, SealingKeys(home.keys), "east")
    finally:
        database.close()
    assert "kept" in done.restored
    assert again.restored == ()
    async with inside(new) as it:
        job = await until_running(it, job_id)
        after = await attempt_of(it, job_id)
        assert job["name"] == "kept"
        assert after["id"] == before["id"]
        held = [[(r["node"], r["gpu_ids"]) for r in each["replicas"]] for each in (before, after)]
        assert held[0] == held[1]
        assert (await it.client.delete(f"/jobs/{job_id}")).is_success
        assert await it.wait_for(job_id, "cancelled", "failed", "completed") == "cancelled"
