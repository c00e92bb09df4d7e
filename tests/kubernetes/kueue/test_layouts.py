"""A gang is laid out by Kueue within a level of a Topology that was declared through gpuplane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from gpuplane.kube.kinds import NODE, POD, RESOURCE_FLAVOR, TOPOLOGY
from rig.nodes import build_node
from tests.kubernetes.kueue.worlds import KueueWorld

GPU, FLAVOR = "nvidia.com/gpu", "nvidia-a10g"
RACK = "gpuplane.io/rack"
LEVELS = ["gpuplane.io/block", RACK, "kubernetes.io/hostname"]


def a_node(name: str, rack: str) -> dict[str, Any]:
    """Return a node of a model that no other test has: a flavor never loses its Topology."""
    node = build_node("l4", name, rack=rack)
    node["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-A10G"
    del node["metadata"]["annotations"]["hami.io/node-nvidia-register"]  # it tells L4
    return node


@pytest_asyncio.fixture
async def racks(world: KueueWorld) -> AsyncIterator[dict[str, str]]:
    """Nodes of four GPUs with the rack of each: one in `lone`, two in `pair`; laid out so."""
    lone, pair = f"{world.prefix}-lone", f"{world.prefix}-pair"
    found = {f"{lone}-1": lone, f"{pair}-1": pair, f"{pair}-2": pair}
    for name, rack in found.items():
        await world.client.create(a_node(name, rack))
    topology = f"{world.prefix}-racks"
    try:
        await world.loops["inventory"].run_once()
        await world.loops["kueue"].run_once()
        body = {"name": topology, "levels": LEVELS, "flavors": [FLAVOR]}
        await world.ask("POST", f"/clusters/{world.name}/topologies", 201, json=body)
        await world.loops["kueue"].run_once()
        flavor = await world.client.get(RESOURCE_FLAVOR.at("v1beta2"), FLAVOR)
        assert flavor["spec"]["topologyName"] == topology
        yield found
    finally:
        # Both go once the queues are gone, which the world takes along.
        await world.client.delete(RESOURCE_FLAVOR.at("v1beta2"), FLAVOR)
        await world.client.delete(TOPOLOGY.at("v1beta2"), topology)
        for name in found:
            await world.client.delete(NODE, name)


def gang(name: str, count: int, network: dict[str, str] | None) -> dict[str, Any]:
    """Return so many replicas on all GPUs of a node each."""
    return {
        "name": name,
        "replicas": {"count": count},
        "placement": {"network": network} if network else {},
        "gpu_count": 4,
        "gpu_type": FLAVOR,
        "memory_gb": 1,
        "deployment_type": "docker",
        "spec": {"image": "registry.test/python:3.11", "command": ["sleep", "600"]},
    }


async def open_tenant(world: KueueWorld) -> str:
    """Make a tenant with quota for more than there is: room is what the Topology tells."""
    tenant, base = await world.tenant("acme"), f"/clusters/{world.name}"
    flavor = {"name": FLAVOR, "resources": [{"name": GPU, "nominalQuota": 64}]}
    group = {"coveredResources": [GPU], "flavors": [flavor]}
    await world.ask("POST", f"{base}/quotas", 201, json={"name": tenant, "resourceGroups": [group]})
    door = {"name": "main", "tenant": tenant, "clusterQueue": tenant}
    await world.ask("POST", f"{base}/queues", 201, json=door)
    await world.loops["kueue"].run_once()
    return tenant


async def nodes_of(world: KueueWorld, job_id: str) -> list[str]:
    """Return the nodes that the books say a job runs on."""
    found = (await world.ask("GET", f"/jobs/{job_id}/attempts"))["items"]
    return sorted(each["node"] for each in found[-1]["replicas"])


async def test_a_rack_that_is_required_is_kept_and_one_that_is_preferred_is_left_for_room(
    world: KueueWorld, racks: dict[str, str]
) -> None:
    tenant = await open_tenant(world)
    lone, *pair = sorted(racks)
    required, preferred = ({"level": "rack", "mode": mode} for mode in ("required", "preferred"))
    wide = (await world.submit(tenant, **gang("wide", 3, required)))["id"]

    async def is_refused() -> bool:
        why = await world.ask("GET", f"/jobs/{wide}/why")
        return "topology" in why["sentence"] and "2 out of 3" in why["sentence"]

    await world.until(is_refused, "Kueue says that no rack has room for three")
    close = (await world.submit(tenant, **gang("close", 2, required)))["id"]
    await world.until(lambda: world.has_status(close, "running"), "two are in one rack")
    assert await nodes_of(world, close) == pair
    pods = await world.client.list(POD, f"tenant-{tenant}")
    asked = [
        each["metadata"]["annotations"].get("kueue.x-k8s.io/podset-required-topology")
        for each in pods
    ]
    assert asked == [RACK, RACK]
    told = (await world.ask("GET", f"/jobs/{close}/why"))["explanation"]
    assert f"Laid out on {pair[0]} (1), {pair[1]} (1)." in told[-1], told

    for job_id in (wide, close):
        await world.ask("DELETE", f"/jobs/{job_id}")
    await world.until(lambda: world.has_status(close, "cancelled"), "the rack is free")
    loose = (await world.submit(tenant, **gang("loose", 3, preferred)))["id"]
    await world.until(lambda: world.has_status(loose, "running"), "it is over two racks")
    assert await nodes_of(world, loose) == [lone, *pair]

    await world.ask("DELETE", f"/jobs/{loose}")
    plain = (await world.submit(tenant, **gang("plain", 1, None)))["id"]
    await world.until(lambda: world.has_status(plain, "running"), "what asks for no level runs too")
    shown = (await world.ask("GET", f"/clusters/{world.name}/quotas"))["items"]
    [queue] = [each for each in shown if each["name"] == tenant]
    assert queue["standing"] == "active"
    assert {each["resource"] for each in queue["cluster"]["used"]} == {GPU}
