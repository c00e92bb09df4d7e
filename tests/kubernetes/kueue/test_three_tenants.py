"""Three tenants on a real Kueue: admitted, borrowed, preempted; both sides tell the same."""

from __future__ import annotations

from typing import Any

from gpuplane.kube.kinds import WORKLOAD
from gpuplane.kube.kueue.names import WorkloadCondition
from gpuplane.loops.kueue.workloads import follow
from tests.kubernetes.kueue.worlds import KueueWorld

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
    """Return whether Kueue refuses a tenant's only offer and `why` repeats its sentence.

    Both are read until they agree: what Kueue says changes between two reads, and the Workload of
    the attempt that it evicted (`former`) stays until the cluster's collector has come by.
    """
    found = await world.client.list(WORKLOAD.at("v1beta2"), f"tenant-{tenant}")
    live = [follow(each) for each in found if not each["metadata"].get("deletionTimestamp")]
    offered = [each.state for each in live if str(each.attempt_id) != former]
    if len(offered) != 1:
        return False
    refused = offered[0].conditions.get(str(WorkloadCondition.QUOTA_RESERVED))
    if refused is None or refused.true or not refused.message:
        return False
    why = await world.ask("GET", f"/jobs/{job_id}/why")
    return refused.message in why["sentence"]


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
    late = await world.submit(bolt, name="late", **gpus(2))
    await world.until(lambda: world.has_status(late["id"], "running"), "the owner got it back")
    await world.until(lambda: world.has_status(big["id"], "queued"), "the borrower waits again")

    await world.until(
        lambda: tells_the_same(world, core, big["id"], former), "both say why it waits"
    )

    kinds = await world.kinds(big["id"])
    assert "job.preempting" in kinds
    assert kinds.index("job.scheduled") < kinds.index("job.preempted")
    assert (await world.job(own["id"]))["status"] == "running"
