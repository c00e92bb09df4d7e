"""What a declaration is told to be, from the moment it is made to what its cluster says of it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from gpuplane.core.quota.specs import ClusterQueueSpec
from gpuplane.db.types import table_of
from gpuplane.domains.clusters.service import ClusterState
from gpuplane.domains.clusters.tables import ClusterRow
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import CLUSTER_QUEUE, RESOURCE_FLAVOR
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object
from gpuplane.loops.kueue.defaults import ensure_defaults
from tests.integration.jobs.worlds import H100
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored, conflict

QUEUES = CLUSTER_QUEUE.at("v1beta2")
BASE = "/clusters/sim/quotas"


def gpus(count: int, flavor: str = H100) -> list[dict[str, Any]]:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": count}
    flavors = [{"name": flavor, "resources": [quota]}]
    return [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]


async def look(kueue: Kueue, client: KubeClient, name: str) -> dict[str, Any]:
    """Return a queue as it is shown after the cluster was brought to what is declared."""
    await ensure_defaults(client, kueue.world.server.database, kueue.world.sim, 5)
    return await shown(kueue, name)


async def shown(kueue: Kueue, name: str) -> dict[str, Any]:
    found = await kueue.world.ask("GET", BASE)
    return next(each for each in found["items"] if each["name"] == name)


def says(stored: Stored, name: str, reason: str) -> None:
    """Let the Kueue of the cluster say whether a queue is active."""
    found = stored.get(QUEUES, name)
    assert found is not None
    active = {
        "type": "Active",
        "status": "False" if reason else "True",
        "reason": reason or "Ready",
    }
    found["status"] = {"conditions": [active]}


async def test_a_declaration_is_pending_until_it_is_written_and_then_as_kueue_says(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    assert (await shown(kueue, "q"))["standing"] == "pending"
    assert (await look(kueue, client, "q"))["standing"] == "pending"
    says(stored, "q", "FlavorNotFound")
    assert (await look(kueue, client, "q"))["standing"] == "inactive"
    says(stored, "q", "")
    assert (await look(kueue, client, "q"))["standing"] == "active"
    await kueue.world.ask("PUT", f"{BASE}/q", json={"resourceGroups": gpus(4)})
    assert (await shown(kueue, "q"))["standing"] == "pending"


async def test_a_queue_that_somebody_made_before_it_was_seen_is_pending_then_in_conflict(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    stored.put(QUEUES, cluster_queue_object(ClusterQueueSpec("mine", "theirs"), ApiVersion.V1BETA2))
    body = {"name": "mine", "resourceGroups": gpus(1)}
    made = await kueue.world.ask("POST", BASE, 201, json=body)
    assert made["standing"] == "pending"
    told = await look(kueue, client, "mine")
    assert (told["standing"], told["conflict"]["reason"]) == ("conflict", "NotOurs")
    refused = await kueue.world.ask("PUT", f"{BASE}/mine", 409, json={"resourceGroups": gpus(2)})
    assert refused["code"] == "queue_in_conflict"
    await kueue.world.ask("DELETE", f"{BASE}/mine")
    assert (await look(kueue, client, "mine"))["standing"] == "foreign"


async def test_a_change_of_what_others_changed_on_the_cluster_is_refused_and_changes_nothing(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    await look(kueue, client, "q")
    found = stored.get(QUEUES, "q")
    assert found is not None
    nominal = found["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    assert nominal["nominalQuota"] == "8"
    nominal["nominalQuota"] = "5"
    path = QUEUES.path(None, "q")
    stored.refuse("PATCH", path, conflict("spec.resourceGroups", "kubectl-edit"))
    before = await look(kueue, client, "q")
    assert (before["standing"], owned(before), owned(before["onCluster"])) == ("conflict", "8", "5")
    refused = await kueue.world.ask("PUT", f"{BASE}/q", 409, json={"resourceGroups": gpus(1)})
    assert "kubectl-edit set spec.resourceGroups" in refused["detail"]
    assert "gpuplane quotas adopt q --cluster sim" in refused["fix"]
    assert await shown(kueue, "q") == before
    # What the cluster has may be declared, which ends the conflict.
    await kueue.world.ask("PUT", f"{BASE}/q", json={"resourceGroups": gpus(5)})
    after = await look(kueue, client, "q")
    assert (owned(after), after["conflict"], after["onCluster"]) == ("5", None, None)


def owned(queue: dict[str, Any]) -> str:
    """Return the first amount that a queue owns."""
    return str(queue["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"])


async def test_a_queue_is_withdrawn_until_the_cluster_has_let_go_of_it(
    kueue: Kueue, client: KubeClient
) -> None:
    await kueue.world.ask("POST", BASE, 201, json={"name": "spare", "resourceGroups": gpus(1)})
    await look(kueue, client, "spare")
    await kueue.world.ask("DELETE", f"{BASE}/spare")
    assert (await shown(kueue, "spare"))["standing"] == "withdrawn"
    await look(kueue, client, "q")
    found = await kueue.world.ask("GET", BASE)
    assert "spare" not in [each["name"] for each in found["items"]]


async def test_a_quota_of_what_no_node_has_is_taken_with_a_warning_that_names_it(
    kueue: Kueue, client: KubeClient
) -> None:
    groups = gpus(1, "nvidia-h20-96gb")
    made = await kueue.world.ask(
        "POST", BASE, 201, json={"name": "ahead", "resourceGroups": groups}
    )
    assert [each for each in made["warnings"] if "no node of nvidia-h20-96gb" in each]
    assert (await look(kueue, client, "q"))["warnings"] == []


async def test_queues_that_own_more_than_there_is_are_taken_with_a_warning_that_counts_both(
    kueue: Kueue,
) -> None:
    listed = await kueue.world.ask("GET", "/clusters/sim")
    here = next(each["total"] for each in listed["gpus"] if each["gpu_type"] == H100)
    spare = {"name": "spare", "resourceGroups": gpus(max(0, here - 8))}
    assert (await kueue.world.ask("POST", BASE, 201, json=spare))["warnings"] == []
    made = await kueue.world.ask("PUT", f"{BASE}/q", json={"resourceGroups": gpus(400)})
    owned = 400 + max(0, here - 8)
    [told] = made["warnings"]
    assert f"own {owned} {H100} now, and it has {here}" in told
    groups = gpus(10**19)
    refused = await kueue.world.ask("PUT", f"{BASE}/q", 422, json={"resourceGroups": groups})
    assert refused["errors"][0]["reason"] == "It is too large: nobody has so much."


async def test_a_quota_of_what_nobody_makes_is_refused_until_the_cluster_has_a_flavor_of_it(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    body = {"name": "typo", "resourceGroups": gpus(2, "l44")}
    refused = await kueue.world.ask("POST", BASE, 422, json=body)
    assert "There is no GPU model 'l44'" in refused["detail"]
    assert "nvidia-l4" in refused["fix"]
    stored.put(RESOURCE_FLAVOR.at("v1beta2"), {"metadata": {"name": "l44"}, "spec": {}})
    await look(kueue, client, "q")
    made = await kueue.world.ask("POST", BASE, 201, json=body)
    assert made["warnings"] == []
    # What was declared while it was there may stay in a queue that is changed later.
    del stored.objects[RESOURCE_FLAVOR.at("v1beta2").path(None, "l44")]
    await look(kueue, client, "q")
    await kueue.world.ask("PUT", f"{BASE}/typo", json={"resourceGroups": gpus(0, "l44")})
    emptied = await kueue.world.ask("PUT", f"{BASE}/typo", json={"resourceGroups": []})
    assert (emptied["resourceGroups"], emptied["warnings"]) == ([], [])


async def test_a_queue_of_ours_that_somebody_deleted_is_made_again_and_told(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    await look(kueue, client, "q")
    del stored.objects[QUEUES.path(None, "q")]
    await look(kueue, client, "q")
    assert stored.get(QUEUES, "q") is not None
    found = await kueue.world.ask("GET", "/events?limit=200")
    told = [each for each in found["items"] if each["kind"] == "queue.made_again"]
    assert [each["subject_id"] for each in told] == ["q"]
    assert "deleted" in told[0]["message"]
    await look(kueue, client, "q")
    found = await kueue.world.ask("GET", "/events?limit=200")
    assert len([each for each in found["items"] if each["kind"] == "queue.made_again"]) == 1


@pytest.mark.parametrize("state", [ClusterState.DRAINING, ClusterState.DELETING])
async def test_nothing_is_declared_on_a_cluster_that_is_being_deleted(
    kueue: Kueue, state: ClusterState
) -> None:
    world = kueue.world
    leaves = update(table_of(ClusterRow)).values(state=str(state))
    await world.server.database.write("tests.leave", lambda s: s.execute(leaves))
    body = {"resourceGroups": gpus(1)}
    refused = await world.ask("PUT", f"{BASE}/q", 409, json=body)
    assert (refused["code"], str(state) in refused["detail"]) == ("cluster_leaves", True)
    await world.ask("POST", BASE, 409, json={"name": "new", **body})
    door = {"name": "new", "tenant": "default", "clusterQueue": "q"}
    await world.ask("POST", "/clusters/sim/queues", 409, json=door)
    await world.ask("POST", "/clusters/sim/cohorts", 409, json={"name": "c"})
    await world.ask("DELETE", "/clusters/sim/queues/main?tenant=default")
