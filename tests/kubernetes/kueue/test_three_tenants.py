"""Three tenants on a real Kueue: admitted, borrowed, preempted; both sides tell the same."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.domains.jobs import service as jobs
from gpuplane.kube.kinds import WORKLOAD
from gpuplane.kube.kueue.names import WorkloadCondition
from gpuplane.loops.kueue.workloads import find_age, follow
from tests.kubernetes.kueue.worlds import KueueWorld

pytestmark = pytest.mark.usefixtures("housed")

GPU = "nvidia.com/gpu"
FLAVOR = "nvidia-l4"
RECLAIMS = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}


def quota(name: str, cohort: str, gpus: int, **more: Any) -> dict[str, Any]:
    """Return the body of a ClusterQueue with so many GPUs of its own."""
    return {
        "name": name,
        "cohort": cohort,
        "preemption": RECLAIMS,
        "resourceGroups": [
            {
                "coveredResources": [GPU],
                "flavors": [{"name": FLAVOR, "resources": [{"name": GPU, "nominalQuota": gpus}]}],
            },
        ],
        **more,
    }


async def open_tenant(world: KueueWorld, name: str, gpus: int) -> str:
    """Make a tenant with a ClusterQueue of its own in the world's cohort, and a door to it."""
    tenant = await world.tenant(name)
    base = f"/clusters/{world.name}"
    await world.ask("POST", f"{base}/quotas", 201, json=quota(tenant, world.prefix, gpus))
    door = {"name": "main", "tenant": tenant, "clusterQueue": tenant}
    await world.ask("POST", f"{base}/queues", 201, json=door)
    return tenant


def gpus(count: int, seconds: int = 600, **more: Any) -> dict[str, Any]:
    """Return a job on so many GPUs that runs so long."""
    return {
        "gpu_count": count,
        "gpu_type": FLAVOR,
        "memory_gb": 1,
        "deployment_type": "docker",
        "spec": {"image": "registry.test/python:3.11", "command": ["sleep", str(seconds)]},
        **more,
    }


async def borrows(world: KueueWorld, name: str, amount: str) -> bool:
    """Return whether a queue is shown to borrow so many GPUs."""
    shown = await world.ask("GET", f"/clusters/{world.name}/quotas")
    found = next(each for each in shown["items"] if each["name"] == name)
    used = [] if found["cluster"] is None else found["cluster"]["used"]
    return [each["borrowed"] for each in used if each["resource"] == GPU] == [amount]


async def tells_the_same(world: KueueWorld, tenant: str, job_id: str, former: str) -> bool:
    """Return whether Kueue refuses the offer of a tenant's job and `why` repeats its sentence.

    Both are read until they agree: what Kueue says changes between two reads, and the Workload of
    the attempt that it evicted (`former`) stays until the cluster's collector has come by.
    """
    found = await world.client.list(WORKLOAD.at("v1beta2"), f"tenant-{tenant}")
    live = [follow(each) for each in found if not each["metadata"].get("deletionTimestamp")]
    attempt = await attempts_of(world, job_id)
    offered = [each.state for each in live if str(each.attempt_id) == attempt != former]
    if len(offered) != 1:
        return False
    refused = offered[0].conditions.get(str(WorkloadCondition.QUOTA_RESERVED))
    if refused is None or refused.true or not refused.message:
        return False
    why = await world.ask("GET", f"/jobs/{job_id}/why")
    return refused.message in why["sentence"]


async def ages_of(world: KueueWorld, tenant: str) -> dict[str, int]:
    """Return by which instant Kueue orders each of a tenant's Workloads, by attempt."""
    found = await world.client.list(WORKLOAD.at("v1beta2"), f"tenant-{tenant}")
    live = [follow(each) for each in found if not each["metadata"].get("deletionTimestamp")]
    return {str(each.attempt_id): find_age(each) or 0 for each in live}


async def attempts_of(world: KueueWorld, job_id: str) -> str:
    """Return the attempt that a job is offered as, empty while it is not."""
    offers = await world.server.database.read(jobs.list_offers)
    return next((str(one.attempt_id) for one in offers if str(one.job_id) == job_id), "")


async def stands_in_line(world: KueueWorld, tenant: str, job_id: str) -> bool:
    """Return whether Kueue has the Workload of a job."""
    return await attempts_of(world, job_id) in await ages_of(world, tenant)


async def is_first(world: KueueWorld, tenant: str, job_id: str) -> bool:
    """Return whether a job's Workload is the oldest of those that its tenant has in line."""
    ages = await ages_of(world, tenant)
    own = ages.get(await attempts_of(world, job_id))
    return own is not None and len(ages) > 1 and own == min(ages.values())


async def attempt_of(world: KueueWorld, tenant: str) -> str:
    """Return the attempt that a tenant's only Workload was made for."""
    found = await world.client.list(WORKLOAD.at("v1beta2"), f"tenant-{tenant}")
    ids = [str(follow(each).attempt_id) for each in found]
    assert len(ids) == 1, ids
    return ids[0]


async def test_one_tenant_borrows_and_gives_back_when_the_owner_comes(
    world: KueueWorld,
) -> None:
    acme = await open_tenant(world, "acme", 2)
    bolt = await open_tenant(world, "bolt", 2)
    core = await open_tenant(world, "core", 0)
    await world.loops["kueue"].run_once()

    own = await world.submit(acme, name="own", **gpus(1))
    big = await world.submit(core, name="borrower", **gpus(3))
    await world.until(lambda: world.has_status(own["id"], "running"), "the owner runs")
    await world.until(lambda: world.has_status(big["id"], "running"), "the borrower runs")
    await world.until(lambda: borrows(world, core, "3"), "the queue says what it borrows")

    account = await world.ask("GET", f"/clusters/{world.name}/queue-usage")
    rows = {each["name"]: each["resources"] for each in account["clusterQueues"]}
    assert [each["borrowed"] for each in rows[core] if each["resource"] == GPU] == ["3"]

    former = await attempt_of(world, core)
    # It came after the borrower, and is to start after it too, whatever happens to that one.
    younger = await world.submit(core, name="younger", **gpus(3))
    await world.until(lambda: stands_in_line(world, core, younger["id"]), "another one waits")
    late = await world.submit(bolt, name="late", **gpus(2))
    await world.until(lambda: world.has_status(late["id"], "running"), "the owner got it back")
    await world.until(lambda: world.has_status(big["id"], "queued"), "the borrower waits again")

    await world.until(
        lambda: tells_the_same(world, core, big["id"], former), "both say why it waits"
    )
    await world.until(lambda: is_first(world, core, big["id"]), "the borrower kept its age")
    assert (await world.job(younger["id"]))["status"] == "queued"

    kinds = await world.kinds(big["id"])
    assert "job.preempting" in kinds
    assert kinds.index("job.scheduled") < kinds.index("job.preempted")
    assert (await world.job(own["id"]))["status"] == "running"
    await world.ask("DELETE", f"/jobs/{late['id']}")
    await world.until(lambda: world.has_status(big["id"], "running"), "the older one goes first")
    assert (await world.job(younger["id"]))["status"] == "queued"
