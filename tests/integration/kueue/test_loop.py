"""The loop that follows a cluster's Kueue: whose work it takes in, and what does not stop it."""

from __future__ import annotations

from uuid import UUID

from gpuplane.kube.kinds import CLUSTER_QUEUE, WORKLOAD
from tests.integration.kube.scripted import Reply
from tests.integration.kueue.conftest import FORMER, Kueue
from tests.integration.kueue.stored import Stored

WORKLOADS = WORKLOAD.at("v1beta2")
AT = "2026-01-01T00:00:00Z"


def reserved(stored: Stored, name: str, attempt_id: UUID, cluster_id: str) -> None:
    """Put a Workload there that has its quota and waits for our check."""
    labels = {"gpuplane.io/attempt-id": str(attempt_id), "gpuplane.io/cluster-id": cluster_id}
    template = {"metadata": {"labels": labels}, "spec": {"containers": []}}
    condition = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": AT}
    check = {"name": "gpuplane-hold", "state": "Pending", "lastTransitionTime": AT, "message": ""}
    stored.put(
        WORKLOADS,
        {
            "metadata": {"name": name, "namespace": "space", "creationTimestamp": AT},
            "spec": {
                "queueName": "main",
                "priority": 10,
                "podSets": [{"name": "main", "count": 1, "template": template}],
            },
            "status": {
                "conditions": [{**condition, "reason": "QuotaReserved", "message": ""}],
                "admission": {"clusterQueue": "q", "podSetAssignments": []},
                "admissionChecks": [check],
            },
        },
    )


def hold(stored: Stored, name: str) -> str:
    found = stored.get(WORKLOADS, name, "space")
    assert found is not None
    return str(found["status"]["admissionChecks"][0]["state"])


async def test_work_is_let_start_though_queues_cannot_be_written(
    kueue: Kueue, stored: Stored
) -> None:
    offer = await kueue.offer()
    reserved(stored, "one", offer.attempt_id, str(kueue.world.sim))
    said = {"reason": "Forbidden", "message": "no right to it"}
    stored.refuse("GET", CLUSTER_QUEUE.at("v1beta2").path(), Reply(403, said))
    await kueue.loop.run_once()
    assert hold(stored, "one") == "Ready"


async def test_work_with_a_former_id_of_the_cluster_is_ours_and_anothers_is_not(
    kueue: Kueue, stored: Stored
) -> None:
    former, other = await kueue.offer(), await kueue.offer()
    reserved(stored, "former", former.attempt_id, FORMER)
    reserved(stored, "other", other.attempt_id, "another-control-plane")
    await kueue.loop.run_once()
    assert (hold(stored, "former"), hold(stored, "other")) == ("Ready", "Pending")
