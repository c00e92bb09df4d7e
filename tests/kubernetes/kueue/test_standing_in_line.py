"""What is changed of a job that waits in Kueue is changed there, and the accounts agree."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.kube.kinds import JOB, WORKLOAD
from gpuplane.kube.kueue.names import WorkloadCondition
from gpuplane.loops.kueue.workloads import Followed, find_age, follow
from tests.kubernetes.kueue.test_three_tenants import FLAVOR, GPU, gpus, open_tenant
from tests.kubernetes.kueue.worlds import KueueWorld

pytestmark = pytest.mark.usefixtures("housed")


async def priorities(world: KueueWorld, tenant: str) -> dict[str, int]:
    """Return the priorities of a tenant's Workloads that are not going, by their Jobs' names."""
    found = await world.client.list(WORKLOAD.at("v1beta2"), f"tenant-{tenant}")
    live = [each for each in found if not each["metadata"].get("deletionTimestamp")]
    states = [follow(each).state for each in live]
    return {each.owners[0][1].rpartition("-")[0]: each.priority for each in states if each.owners}


async def test_a_raised_class_a_suspension_and_the_accounts_of_what_waits_in_kueue(
    world: KueueWorld,
) -> None:
    tenant = await open_tenant(world, "acme", 1)
    await world.loops["kueue"].run_once()
    jobs = {}
    for name in ("first", "older", "younger"):
        jobs[name] = (await world.submit(tenant, name=name, **gpus(1)))["id"]
        if name == "first":
            await world.until(lambda: world.has_status(jobs["first"], "running"), "it runs")

    async def stand(**wanted: int) -> bool:
        found = await priorities(world, tenant)
        return {name: found.get(name) for name in wanted} == wanted

    await world.until(lambda: stand(older=10, younger=10), "both stand in Kueue's line")
    base = f"/clusters/{world.name}"

    async def has_nothing_left() -> bool:
        account = await world.ask("GET", f"{base}/queue-usage")
        rows = {each["name"]: each["resources"] for each in account["clusterQueues"]}
        used = next(each for each in rows[tenant] if each["resource"] == GPU)
        return (used["borrowed"], used["available"]) == ("0", "0")

    await world.until(has_nothing_left, "the queue's account says that its quota is used")
    usage = await world.ask("GET", f"{base}/usage")
    assert [each["gpu_milli"] for each in usage["queues"]] == [1000]
    models = {
        each["model"]: each for each in (await world.ask("GET", f"{base}/capacity"))["models"]
    }
    assert models[FLAVOR]["in_use"] == 1
    cohorts = {each["name"]: each for each in (await world.ask("GET", f"{base}/cohorts"))["items"]}
    assert cohorts[world.prefix]["members"] == [tenant]

    await world.ask("PUT", f"/jobs/{jobs['younger']}/priority", json={"priority": "high"})
    await world.until(lambda: stand(older=10, younger=100), "Kueue knows the new class")
    await world.ask("DELETE", f"/jobs/{jobs['first']}")
    await world.until(lambda: world.has_status(jobs["younger"], "running"), "it went first")
    assert await world.has_status(jobs["older"], "queued")

    await world.ask("POST", f"/jobs/{jobs['older']}/suspend")

    async def is_gone() -> bool:
        return "older" not in await priorities(world, tenant)

    await world.until(is_gone, "what is suspended stands in nobody's line")
    await world.ask("DELETE", f"/jobs/{jobs['younger']}")
    await world.until(lambda: world.has_status(jobs["younger"], "cancelled"), "it is over")
    assert not await world.has_status(jobs["older"], "running", "scheduled")
    await world.ask("POST", f"/jobs/{jobs['older']}/resume")
    await world.until(lambda: world.has_status(jobs["older"], "running"), "it runs after all")


def job_of_others(space: str, pods: int) -> dict[str, Any]:
    """Return a Job of so many GPUs for the door `main` that somebody makes with kubectl."""
    container = {
        "name": "main",
        "image": "registry.test/python:3.11",
        "command": ["sleep", "600"],
        "resources": {"limits": {GPU: "1"}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "theirs",
            "namespace": space,
            "labels": {"kueue.x-k8s.io/queue-name": "main"},
        },
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
        },
    }


async def test_what_is_held_gives_its_quota_to_others_at_once_and_stays_in_line(
    world: KueueWorld,
) -> None:
    tenant, base = await open_tenant(world, "acme", 2), f"/clusters/{world.name}"
    space = f"tenant-{tenant}"
    await world.loops["kueue"].run_once()
    first = (await world.submit(tenant, name="first", **gpus(2)))["id"]
    await world.until(lambda: world.has_status(first, "running"), "it runs")
    held = (await world.submit(tenant, name="held", **gpus(1)))["id"]
    service = {"name": "web", "job_type": "service", "replicas": {"count": 1}}
    web = (await world.submit(tenant, **{**gpus(1), **service}))["id"]

    async def workloads() -> dict[str, Followed]:
        found = [follow(each) for each in await world.client.list(WORKLOAD.at("v1beta2"), space)]
        return {each.state.owners[0][1].partition("-")[0]: each for each in found}

    async def stand() -> bool:
        return {"held", "web"} <= set(await workloads())

    await world.until(stand, "they stand in Kueue's line")
    before = (await workloads())["web"]
    await world.ask("POST", f"{base}/freeze", json={"reason": "the room is hot"})
    await world.ask("DELETE", f"/jobs/{first}")

    async def gave_it_back() -> bool:
        found = await workloads()
        mine = [each for name, each in found.items() if name in ("held", "web")]
        return len(mine) == 2 and all(
            each.state.find(WorkloadCondition.EVICTED) is not None
            and each.state.find(WorkloadCondition.QUOTA_RESERVED) is None
            and each.hold is not None
            and each.hold["state"] == "Pending"
            and each.requeue_at is not None
            for each in mine
        )

    await world.until(gave_it_back, "Kueue has their quota back and keeps them out of the line")
    told = await workloads()
    assert find_age(told["held"]) == told["held"].state.created_at, "it goes behind nobody"
    assert "Its cluster is frozen." in told["held"].state.explain()[1]
    await world.turn(3)
    assert {name: each.version for name, each in (await workloads()).items()} == {
        name: each.version for name, each in told.items()
    }, "nothing goes round in circles"

    await world.client.create(job_of_others(space, 2))

    async def theirs_run() -> bool:
        found = (await workloads()).get("theirs")
        return found is not None and found.state.admitted_at is not None

    await world.until(theirs_run, "others have all the quota meanwhile")
    assert await world.has_status(held, "queued")
    assert "job.scheduled" not in await world.kinds(held)
    await world.client.delete(JOB, "theirs", space)
    await world.ask("POST", f"{base}/thaw")
    await world.until(lambda: world.has_status(held, "running"), "it starts when it is let")
    await world.until(lambda: world.has_status(web, "running"), "the service does too")
    after = (await workloads())["web"]
    assert after.state.uid == before.state.uid, "no pod was made anew"
