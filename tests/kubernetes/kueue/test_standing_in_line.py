"""What is changed of a job that waits in Kueue is changed there, and the accounts agree."""

from __future__ import annotations

from gpuplane.kube.kinds import WORKLOAD
from gpuplane.kube.kueue.names import WorkloadCondition
from gpuplane.loops.kueue.workloads import follow
from tests.kubernetes.kueue.test_three_tenants import FLAVOR, GPU, gpus, open_tenant
from tests.kubernetes.kueue.worlds import KueueWorld


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


async def test_what_is_held_gives_the_quota_back_that_kueue_reserved_for_it(
    world: KueueWorld,
) -> None:
    tenant, base = await open_tenant(world, "acme", 1), f"/clusters/{world.name}"
    await world.loops["kueue"].run_once()
    first = (await world.submit(tenant, name="first", **gpus(1)))["id"]
    await world.until(lambda: world.has_status(first, "running"), "it runs")
    held = (await world.submit(tenant, name="held", **gpus(1)))["id"]

    async def stands() -> bool:
        return "held" in await priorities(world, tenant)

    await world.until(stands, "it stands in Kueue's line")
    await world.ask("POST", f"{base}/freeze", json={"reason": "the room is hot"})
    await world.ask("DELETE", f"/jobs/{first}")

    async def gave_it_back() -> bool:
        found = await world.client.list(WORKLOAD.at("v1beta2"), f"tenant-{tenant}")
        states = [follow(each).state for each in found]
        mine = [each for each in states if each.owners[0][1].startswith("held-")]
        told = [each.conditions.get(str(WorkloadCondition.EVICTED)) for each in mine]
        return [each and each.reason for each in told] == ["AdmissionCheck"]

    await world.until(gave_it_back, "Kueue has its quota back, by our check")
    assert await world.has_status(held, "queued")
    assert "job.scheduled" not in await world.kinds(held)
