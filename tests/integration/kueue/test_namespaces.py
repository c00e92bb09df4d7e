"""One tenant's namespace stops no other's queues, and nobody's namespace is taken over."""

from __future__ import annotations

from typing import Any

from gpuplane.core.ids import ClusterId
from gpuplane.core.quota.specs import ClusterQueueSpec
from gpuplane.domains.queues.service import Seen
from gpuplane.kit.ids import new_id
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, NAMESPACE
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object
from gpuplane.kube.tenancy import CLUSTER_LABEL, Tenancy, namespace_object
from gpuplane.loops.kueue.namespaces import find_strangeness, write_namespaces
from gpuplane.loops.kueue.syncing import sync
from tests.integration.kube.scripted import Reply
from tests.integration.kueue.stored import Stored, conflict

V = ApiVersion.V1BETA2
CLUSTER = ClusterId(new_id())
DOORS = LOCAL_QUEUE.at("v1beta2")


def tenancy(name: str) -> Tenancy:
    return Tenancy(name, f"id-of-{name}", str(CLUSTER), {})


def door(tenant: str) -> dict[str, Any]:
    return {
        "apiVersion": V.group_version,
        "kind": "LocalQueue",
        "metadata": {"name": "main", "namespace": f"tenant-{tenant}"},
        "spec": {"clusterQueue": "q"},
    }


async def turn(client: KubeClient, tenants: list[Tenancy]) -> dict[str, Seen]:
    """Write namespaces and a door for each tenant; return what is shown of each door."""
    spaces = await write_namespaces(client, tenants)
    wanted = [door(each.name) for each in tenants]
    seen = await sync(client, V, CLUSTER, wanted, {}, 1, spaces)
    return {each.namespace: each for each in seen if each.name == "main"}


async def test_a_changed_label_of_one_namespace_is_its_queues_conflict_and_stops_no_other(
    client: KubeClient, stored: Stored
) -> None:
    left = namespace_object(tenancy("acme"))
    left["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "privileged"
    stored.put(NAMESPACE, left)
    field = ".metadata.labels.pod-security"
    stored.refuse("PATCH", "/api/v1/namespaces/tenant-acme", conflict(field, "kubectl-edit"))
    shown = await turn(client, [tenancy("acme"), tenancy("bolt")])
    told = shown["tenant-acme"].conflict
    assert told is not None
    assert "kubectl-edit set .metadata.labels.pod-security of namespace tenant-acme" in told.message
    assert shown["tenant-bolt"].conflict is None
    assert stored.get(DOORS, "main", "tenant-bolt") is not None
    assert stored.get(DOORS, "main", "tenant-acme") is not None


async def test_somebody_elses_namespace_is_left_as_it_is_and_no_queue_is_written_into_it(
    client: KubeClient, stored: Stored
) -> None:
    theirs = {"metadata": {"name": "tenant-acme", "labels": {"team": "blue"}}}
    stored.put(NAMESPACE, theirs)
    shown = await turn(client, [tenancy("acme"), tenancy("bolt")])
    found = stored.get(NAMESPACE, "tenant-acme")
    assert found is not None
    assert found["metadata"]["labels"] == {"team": "blue"}
    told = shown["tenant-acme"].conflict
    assert told is not None
    assert (told.reason, "Somebody else made" in told.message) == ("NamespaceTaken", True)
    assert stored.get(DOORS, "main", "tenant-acme") is None
    assert stored.get(DOORS, "main", "tenant-bolt") is not None


async def test_namespaces_that_are_as_they_should_be_are_not_written_again(
    client: KubeClient, stored: Stored
) -> None:
    await write_namespaces(client, [tenancy("acme"), tenancy("bolt")])
    assert len(stored.applied) == 2
    await write_namespaces(client, [tenancy("acme"), tenancy("bolt")])
    assert len(stored.applied) == 2


async def test_a_queue_that_cannot_be_deleted_is_its_conflict_and_the_next_one_goes(
    client: KubeClient, stored: Stored
) -> None:
    for name in ("first", "second"):
        made = cluster_queue_object(ClusterQueueSpec(name), V)
        made["metadata"]["labels"] = {CLUSTER_LABEL: str(CLUSTER)}
        stored.put(CLUSTER_QUEUE.at("v1beta2"), made)
    path = CLUSTER_QUEUE.at("v1beta2").path(None, "first")
    said = {"reason": "Forbidden", "message": "a webhook keeps it"}
    stored.refuse("DELETE", path, Reply(403, said))
    seen = await sync(client, V, CLUSTER, [], {}, 1)
    told = [(each.name, each.conflict and each.conflict.message) for each in seen]
    assert told == [("first", "a webhook keeps it")]


def test_only_a_namespace_with_our_mark_and_the_tenants_id_is_the_tenants() -> None:
    ours = namespace_object(tenancy("acme"))
    assert find_strangeness(ours, tenancy("acme")) is None
    for taken in ("app.kubernetes.io/managed-by", "gpuplane.io/tenant-id"):
        labels = {key: each for key, each in ours["metadata"]["labels"].items() if key != taken}
        said = find_strangeness({"metadata": {"labels": labels}}, tenancy("acme"))
        assert said is not None
        assert "is not taken over" in said
    other = namespace_object(Tenancy("acme", "another-id", str(CLUSTER), {}))
    said = str(find_strangeness(other, tenancy("acme")))
    assert "belongs to tenant another-id" in said
    assert said.endswith("If it was deleted: kubectl delete namespace tenant-acme")
