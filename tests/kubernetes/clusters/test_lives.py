"""A cluster goes away and comes back, and is deleted under work; its states say the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rig.binaries import Binaries
from rig.processes import Part
from rig.rigs import RigPlan, running_rig
from tests.faults.inside import QUICK, Inside, inside
from tests.kubernetes.clusters.worlds import end_of, registered
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

IMAGE = "busybox"


async def state_of(it: Inside, name: str) -> str:
    """Return the state of a cluster."""
    found: str = (await it.client.get(f"/clusters/{name}")).json()["state"]
    return found


async def submit(it: Inside, name: str, command: str) -> str:
    """Submit a batch job to the cluster east and return its id."""
    spec = {"image": IMAGE, "command": ["sh", "-c", command]}
    body: dict[str, Any] = {
        "name": name, "cluster": "east", "gpu_count": 0, "deployment_type": "docker",
    }  # fmt: skip
    body["spec"] = spec
    # Pods of fake nodes end as KWOK is told; these are to run as long as they say.
    body["placement"] = {"node_selector": {"rig.gpuplane.io/kind": "process"}}
    answer = await it.client.post("/jobs", json=body)
    assert answer.is_success, answer.text
    found: str = answer.json()["id"]
    return found


async def check_that_a_cluster_that_hangs_slows_no_other(it: Inside, server: Part) -> None:
    """Freeze an API server while it is asked to start work: other work goes on beside it."""
    server.freeze()
    try:
        stuck = await submit(it, "g-stuck", "true")
        assert await it.wait_for(stuck, "scheduled", "queued")
        for number in range(3):
            simulated = await it.submit(f"meanwhile-{number}")
            assert await it.wait_for(simulated.json()["id"], "completed") == "completed"
        assert await it.status_of(stuck) in ("scheduled", "queued")
    finally:
        server.thaw()


async def test_a_cluster_that_does_not_answer_is_said_so_hurts_no_other_and_comes_back(
    rig_binaries: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_LOOK_S", "0.2")
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_CALL_S", "2")
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_RETRY_BASE_S", "0.5")
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_TRIES", "20")
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_BREAKER_FAILURES", "100")
    plan = RigPlan(workers=0, nodes=[("cpu", 1)], process_nodes=[], kueue=False)
    with running_rig(plan) as own:
        async with inside(tmp_path) as it:
            await registered(it, "east", own.manager.kubeconfig.read_text(), addons=[])
            server = own.manager.parts["kube-apiserver"]
            await check_that_a_cluster_that_hangs_slows_no_other(it, server)
            server.kill()

            async def is_away() -> bool:
                return await state_of(it, "east") == "NOT_AVAILABLE"

            await wait_until_async(is_away, "it is NOT_AVAILABLE", deadline_s=60)
            found = (await it.client.get("/clusters/east")).json()
            assert found["not_available_since"] is not None
            assert found["next_retry_time"] is not None
            assert found["state_reason"]
            verdicts = {each["kind"]: each["verdict"] for each in found["health"]}
            assert verdicts["api_server"] == "unhealthy"
            server.start_again()

            async def is_back() -> bool:
                return await state_of(it, "east") == "AVAILABLE"

            await wait_until_async(is_back, "it is AVAILABLE", deadline_s=90)
            found = (await it.client.get("/clusters/east")).json()
            assert (found["not_available_since"], found["state_reason"]) == (None, "")
            kinds = [e["kind"] for e in (await it.client.get("/events?limit=200")).json()["items"]]
            assert {"cluster.not_available", "cluster.available"} <= set(kinds)


async def test_a_deletion_waits_for_batch_work_and_tells_before_what_it_does(
    rig: RunningCluster, tmp_path: Path
) -> None:
    async with inside(tmp_path) as it:
        text = rig.kubeconfig.read_text()
        await registered(it, "east", text, addons=[], admission="embedded")
        job = await submit(it, "g-slow", "sleep 6")
        assert await it.wait_for(job, "running", "failed") == "running"
        plan = (await it.client.get("/clusters/east/deletion-plan")).json()
        assert [(each["name"], each["parting"]) for each in plan["jobs"]] == [("g-slow", "wait")]
        deleted = await it.client.delete("/clusters/east")
        assert (await it.client.get("/clusters/east")).json()["state"] == "DRAINING"
        run = await end_of(it, deleted.json()["workflow_id"])
        assert run["status"] == "completed"
        assert await it.status_of(job) == "completed"
        assert (await it.client.get("/clusters/east")).status_code == 404


async def test_a_deletion_by_force_ends_work_and_says_what_it_loses(
    rig: RunningCluster, tmp_path: Path
) -> None:
    async with inside(tmp_path) as it:
        text = rig.kubeconfig.read_text()
        await registered(it, "east", text, addons=[], admission="embedded")
        job = await submit(it, "g-long", "sleep 600")
        assert await it.wait_for(job, "running", "failed") == "running"
        plan = (await it.client.get("/clusters/east/deletion-plan")).json()
        assert (plan["cancelled"], plan["jobs"][0]["may_move"]) == (1, False)
        deleted = await it.client.delete("/clusters/east?force=true")
        run = await end_of(it, deleted.json()["workflow_id"])
        assert run["status"] == "completed"
        assert await it.wait_for(job, "cancelled") == "cancelled"
        assert "deleted" in (await it.client.get(f"/jobs/{job}")).json()["status_message"]
