"""Gaudi goes through Kueue as GPUs do: offered, counted in its own resource, run on its nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuplane.domains.queues import service as queues
from tests.kubernetes.kueue.test_three_tenants import gpus
from tests.kubernetes.kueue.worlds import KueueWorld

GAUDI, MODEL = "habana.ai/gaudi", "intel-gaudi2"


async def covered_by_default(world: KueueWorld) -> list[str]:
    """Return what the queue of a newly registered cluster covers; it is not written there."""
    now = world.server.clock.now_ms()
    make = partial(queues.ensure_default_quotas, cluster_id=world.cluster_id, now=now)
    [name] = await world.server.database.write("tests.defaults", make)
    shown = (await world.ask("GET", f"/clusters/{world.name}/quotas"))["items"]
    await world.ask("DELETE", f"/clusters/{world.name}/quotas/{name}")
    found = next(each for each in shown if each["name"] == name and each["isDeclared"])
    return [one for group in found["resourceGroups"] for one in group["coveredResources"]]


async def test_a_job_on_gaudi_is_admitted_by_its_resource_and_runs_on_such_a_node(
    world: KueueWorld,
) -> None:
    tenant, base = await world.tenant("acme"), f"/clusters/{world.name}"
    assert GAUDI in await covered_by_default(world)
    quota: dict[str, Any] = {"name": GAUDI, "nominalQuota": 2}
    flavors = [{"name": "any", "resources": [quota]}]
    body = {
        "name": tenant,
        "resourceGroups": [{"coveredResources": [GAUDI], "flavors": flavors}],
    }
    await world.ask("POST", f"{base}/quotas", 201, json=body)
    door = {"name": "main", "tenant": tenant, "clusterQueue": tenant}
    await world.ask("POST", f"{base}/queues", 201, json=door)
    await world.loops["kueue"].run_once()

    small = {**gpus(2), "gpu_type": MODEL}
    ran = await world.submit(tenant, name="ran", **small)
    over = ("completed", "running")
    await world.until(lambda: world.has_status(ran["id"], *over), "it runs on the Gaudi node")
    told = await world.ask("GET", f"/jobs/{ran['id']}/events?limit=200")
    scheduled = next(each for each in told["items"] if each["kind"] == "job.scheduled")
    assert [each.partition("-")[0] for each in scheduled["data"]["nodes"]] == ["gaudi"]
    assert len(scheduled["data"]["gpu_ids"]) == 2

    large = await world.submit(tenant, name="large", **{**gpus(4), "gpu_type": MODEL})

    async def is_refused() -> bool:
        why = await world.ask("GET", f"/jobs/{large['id']}/why")
        return GAUDI in why["sentence"]

    await world.until(is_refused, "Kueue says that its quota has too little of it")
