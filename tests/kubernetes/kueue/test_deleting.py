"""What somebody deletes with kubectl under a running job ends its attempt, by that name."""

from __future__ import annotations

import pytest

from gpuplane.kube.kinds import JOB, POD, WORKLOAD, Kind
from tests.kubernetes.kueue.test_three_tenants import gpus, open_tenant
from tests.kubernetes.kueue.worlds import KueueWorld

pytestmark = pytest.mark.usefixtures("housed")


@pytest.mark.parametrize("kind", [WORKLOAD.at("v1beta2"), JOB], ids=["Workload", "Job"])
async def test_what_is_deleted_under_a_running_job_ends_its_attempt_and_starts_nothing_again(
    world: KueueWorld, kind: Kind
) -> None:
    tenant = await open_tenant(world, "acme", 1)
    await world.loops["kueue"].run_once()
    job = await world.submit(tenant, name="victim", max_retries=0, **gpus(1))
    await world.until(lambda: world.has_status(job["id"], "running"), "it runs")
    space = f"tenant-{tenant}"
    pods = {each["metadata"]["uid"] for each in await world.client.list(POD, space)}
    (found,) = await world.client.list(kind, space)
    await world.client.delete(kind, found["metadata"]["name"], space, propagation="Background")
    await world.until(lambda: world.has_status(job["id"], "failed"), "its attempt is over")
    ended = await world.job(job["id"])
    assert ended["reason"] == "DeletedOnCluster"
    (attempt,) = (await world.ask("GET", f"/jobs/{job['id']}/attempts"))["items"]
    assert attempt["number"] == 1
    live = {
        each["metadata"]["uid"]
        for each in await world.client.list(POD, space)
        if not each["metadata"].get("deletionTimestamp")
    }
    assert live <= pods
