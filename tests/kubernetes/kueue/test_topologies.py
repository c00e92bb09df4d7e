"""A Topology declared here is Kueue's on the cluster, and its rules hold before it is asked."""

from __future__ import annotations

from gpuplane.kube.kinds import RESOURCE_FLAVOR, TOPOLOGY
from tests.kubernetes.kueue.worlds import KueueWorld

LEVELS = ["example.com/block", "kubernetes.io/hostname"]


async def test_a_topology_is_declared_written_shown_and_withdrawn(world: KueueWorld) -> None:
    path, name = f"/clusters/{world.name}/topologies", f"{world.prefix}-racks"
    refused = await world.ask("POST", path, 422, json={"name": name, "levels": LEVELS[::-1]})
    assert refused["field"] == "levels"
    made = await world.ask("POST", path, 201, json={"name": name, "levels": LEVELS})
    assert (made["isDeclared"], made["isOnCluster"]) == (True, False)
    await world.ask("POST", path, 409, json={"name": name, "levels": LEVELS})
    await world.loops["kueue"].run_once()

    found = await world.client.get(TOPOLOGY.at("v1beta2"), name)
    assert [each["nodeLabel"] for each in found["spec"]["levels"]] == LEVELS
    shown = {each["name"]: each for each in (await world.ask("GET", path))["items"]}
    assert (shown[name]["isOnCluster"], shown[name]["conflict"]) == (True, None)

    other = {"levels": ["example.com/zone"]}
    assert "never change" in (await world.ask("PUT", f"{path}/{name}", 422, json=other))["detail"]
    kept = {"levels": LEVELS, "flavors": ["any"]}
    assert "no node label" in (await world.ask("PUT", f"{path}/{name}", 422, json=kept))["detail"]
    await world.ask("DELETE", f"{path}/{name}")

    async def is_gone() -> bool:
        return await world.client.find(TOPOLOGY.at("v1beta2"), name) is None

    await world.until(is_gone, "Kueue has let go of it")


async def test_one_that_somebody_else_made_is_shown_with_its_flavors_and_not_touched(
    world: KueueWorld,
) -> None:
    path, name = f"/clusters/{world.name}/topologies", f"{world.prefix}-theirs"
    topology, flavor = TOPOLOGY.at("v1beta2"), RESOURCE_FLAVOR.at("v1beta2")
    levels = [{"nodeLabel": each} for each in LEVELS]
    api = {"apiVersion": "kueue.x-k8s.io/v1beta2", "metadata": {"name": name}}
    await world.client.create({**api, "kind": "Topology", "spec": {"levels": levels}})
    spec = {"nodeLabels": {"example.com/kind": "x"}, "topologyName": name}
    await world.client.create({**api, "kind": "ResourceFlavor", "spec": spec})
    try:
        await world.loops["kueue"].run_once()
        shown = {each["name"]: each for each in (await world.ask("GET", path))["items"]}
        assert shown[name]["isDeclared"] is False
        assert (shown[name]["levels"], shown[name]["flavors"]) == (LEVELS, [name])
        await world.ask("DELETE", f"{path}/{name}", 409)
        body = {"name": f"{name}-2", "levels": LEVELS, "flavors": [name]}
        refused = await world.ask("POST", path, 422, json=body)
        assert f"has the Topology {name}" in refused["detail"]
    finally:
        await world.client.delete(flavor, name)
        await world.client.delete(topology, name)
