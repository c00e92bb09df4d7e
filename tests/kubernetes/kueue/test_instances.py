"""MIG instances through a real Kueue: in quota by profile, booked, metered and priced by share."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.kube.kinds import POD, WORKLOAD
from gpuplane.loops.kueue.workloads import follow
from tests.kubernetes.kueue.worlds import KueueWorld

FLAVOR, PROFILE = "nvidia-a100-40gb", "2g.10gb"
INSTANCES = f"nvidia.com/mig-{PROFILE}"


def cut(name: str, profile: str = PROFILE, **more: Any) -> dict[str, Any]:
    """Return a job on one MIG instance."""
    return {
        "name": name,
        "resources": {"mig_profile": profile},
        "memory_gb": 1,
        "deployment_type": "docker",
        "spec": {"image": "registry.test/python:3.11", "command": ["sleep", "600"]},
        **more,
    }


async def open_tenant(world: KueueWorld, instances: int) -> str:
    """Make a tenant with so many instances of its own, and no whole GPU."""
    tenant, base = await world.tenant("acme"), f"/clusters/{world.name}"
    names = ("nvidia.com/gpu", INSTANCES)
    owned = [
        {"name": name, "nominalQuota": amount}
        for name, amount in zip(names, (0, instances), strict=True)
    ]
    group = {"coveredResources": names, "flavors": [{"name": FLAVOR, "resources": owned}]}
    await world.ask("POST", f"{base}/quotas", 201, json={"name": tenant, "resourceGroups": [group]})
    door = {"name": "main", "tenant": tenant, "clusterQueue": tenant}
    await world.ask("POST", f"{base}/queues", 201, json=door)
    await world.loops["kueue"].run_once()
    return tenant


async def test_jobs_on_mig_instances_are_admitted_booked_metered_and_refused_by_their_profile(
    world: KueueWorld,
) -> None:
    world.selector = {"kubernetes.io/hostname": "a100-mig-1"}  # others add such nodes for a while
    tenant = await open_tenant(world, 2)
    price = {"item": FLAVOR, "price": "100000", "currency": "USD", "cluster": world.name}
    await world.ask("POST", "/prices", 201, json=price)
    pair = (await world.submit(tenant, **cut("pair", replicas={"count": 2})))["id"]
    await world.until(lambda: world.has_status(pair, "running"), "both instances are had")
    [attempt] = (await world.ask("GET", f"/jobs/{pair}/attempts"))["items"]
    devices = [each["mig_device"] for each in attempt["replicas"]]
    assert len(set(devices)) == 2
    assert all(each.rpartition("@")[0].endswith(f"/{PROFILE}") for each in devices)

    space = f"tenant-{tenant}"
    pods = await world.client.list(POD, space)
    asked = [each["spec"]["containers"][0]["resources"]["limits"] for each in pods]
    assert [each[INSTANCES] for each in asked] == ["1", "1"]
    found = await world.client.list(WORKLOAD.at("v1beta2"), space)
    [usage] = [follow(each).state.usage for each in found]
    assert [(key.flavor, key.resource, n) for key, n in usage.items()] == [(FLAVOR, INSTANCES, 2)]

    late = (await world.submit(tenant, **cut("late")))["id"]

    async def waits() -> bool:
        why = await world.ask("GET", f"/jobs/{late}/why")
        return INSTANCES in why["sentence"] and "insufficient" in why["sentence"]

    await world.until(waits, "Kueue's own sentence is told")
    other = (await world.submit(tenant, **cut("other", "3g.20gb")))["id"]
    lacking = (await world.submit(tenant, **cut("lacking", "7g.40gb")))["id"]
    await world.turn()
    assert (await world.ask("GET", f"/jobs/{other}/why"))["reason"] == "NoQuotaForGpuModel"
    assert (await world.ask("GET", f"/jobs/{lacking}/why"))["reason"] == "MigProfileUnavailable"

    await world.ask("DELETE", f"/jobs/{pair}")
    await world.until(lambda: world.has_status(late, "running"), "it has the quota now")
    rows = (await world.ask("GET", "/usage?group_by=job&group_by=model"))["rows"]
    gpu, rest = (
        next(row for row in rows if row["keys"] == {"job": pair, "model": model})
        for model in (FLAVOR, None)
    )
    # Two replicas of one core each: two of the seven slices of a GPU for the time of one core.
    assert gpu["gpu_billable_s"] == pytest.approx(rest["cpu_core_s"] * 0.285, rel=0.01)
    [line] = gpu["lines"]
    assert (line["item"], float(line["cost"]) > 0) == (FLAVOR, True)
