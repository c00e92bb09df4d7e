"""What others change on the cluster is shown and never written over; others' queues are adopted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import CLUSTER_QUEUE, Kind
from tests.kubernetes.kueue.worlds import KueueWorld
from tests.kubernetes.rigged import RunningCluster

QUEUES: Kind = CLUSTER_QUEUE.at("v1beta2")


@pytest.fixture
async def kubectl(rig: RunningCluster) -> AsyncIterator[KubeClient]:
    """Somebody else on the cluster."""
    async with KubeClient(rig.connection(), field_manager="kubectl-edit") as client:
        yield client


def groups(gpus: int) -> list[dict[str, Any]]:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": gpus}
    return [
        {
            "coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": "nvidia-l4", "resources": [quota]}],
        }
    ]


async def shown(world: KueueWorld, name: str) -> dict[str, Any]:
    """Return a ClusterQueue as the API shows it after a fresh look."""
    world.server.clock.advance(10)
    await world.loops["kueue"].run_once()
    found = await world.ask("GET", f"/clusters/{world.name}/quotas")
    return next(each for each in found["items"] if each["name"] == name)


def nominal(told: dict[str, Any]) -> str:
    return str(told["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"])


async def edit(kubectl: KubeClient, name: str, gpus: int) -> None:
    """Change a quota as `kubectl edit` does."""
    found = await kubectl.get(QUEUES, name)
    found["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = str(gpus)
    await kubectl.replace(found)


async def test_a_change_by_somebody_else_is_a_conflict_and_stays_until_it_is_adopted(
    world: KueueWorld, kubectl: KubeClient
) -> None:
    name, base = f"{world.prefix}-team", f"/clusters/{world.name}/quotas"
    await world.ask("POST", base, 201, json={"name": name, "resourceGroups": groups(4)})
    first = await shown(world, name)
    assert (first["conflict"], first["onCluster"]) == (None, None)
    assert first["cluster"]["active"] is not None

    await edit(kubectl, name, 7)
    told = await shown(world, name)
    assert told["conflict"]["reason"] == "FieldConflict"
    assert {each["manager"] for each in told["conflict"]["owners"]} == {"kubectl-edit"}
    assert (nominal(told), nominal(told["onCluster"])) == ("4", "7")
    live = await kubectl.get(QUEUES, name)
    assert live["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] == "7"

    adopted = await world.ask("POST", f"{base}/{name}/adopt")
    assert nominal(adopted) == "7"
    after = await shown(world, name)
    assert (after["conflict"], after["onCluster"]) == (None, None)

    await world.ask("PUT", f"{base}/{name}", json={"resourceGroups": groups(9)})
    changed = await shown(world, name)
    assert changed["conflict"] is None
    live = await kubectl.get(QUEUES, name)
    assert live["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] == "9"

    await world.ask("DELETE", f"{base}/{name}")
    world.server.clock.advance(10)
    await world.loops["kueue"].run_once()
    left = await kubectl.find(QUEUES, name)
    assert left is None or left["metadata"]["deletionTimestamp"]


async def test_a_queue_of_somebody_else_is_read_only_until_it_is_adopted(
    world: KueueWorld, kubectl: KubeClient
) -> None:
    name, base = f"{world.prefix}-theirs", f"/clusters/{world.name}/quotas"
    theirs = {
        "apiVersion": QUEUES.api_version,
        "kind": QUEUES.kind,
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {"matchLabels": {"a": "b"}}, "resourceGroups": groups(3)},
    }
    await kubectl.apply(theirs)
    told = await shown(world, name)
    assert (told["isDeclared"], nominal(told)) == (False, "3")
    assert told["notes"] == ["Only namespaces that its selector matches may use it."]
    refused = await world.ask("PUT", f"{base}/{name}", 409, json={"resourceGroups": groups(1)})
    assert "Adopt it" in refused["fix"]
    await world.ask("DELETE", f"{base}/{name}", 409)

    await world.ask("POST", f"{base}/{name}/adopt")
    assert (await shown(world, name))["isDeclared"]
    await world.ask("PUT", f"{base}/{name}", json={"resourceGroups": groups(5)})
    changed = await shown(world, name)
    assert (changed["conflict"], nominal(changed)) == (None, "5")
    live = await kubectl.get(QUEUES, name)
    assert live["spec"]["namespaceSelector"] == {"matchLabels": {"a": "b"}}


async def test_what_kueue_cannot_keep_is_refused_by_the_field(world: KueueWorld) -> None:
    base = f"/clusters/{world.name}/quotas"
    everything = {"name": f"{world.prefix}-all", "coversEverything": True}
    refused = await world.ask("POST", base, 422, json=everything)
    assert refused["field"] == "coversEverything"
