"""A cluster that stops admitting by itself: nobody is left waiting for a check nobody keeps."""

from __future__ import annotations

from typing import Any

from gpuplane.core.quota.specs import ClusterQueueSpec
from gpuplane.domains.queues import service as queues
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    SECRET,
)
from gpuplane.kube.kueue.holds import STOPPED_BY, start_queues, stop_queues, without_check
from gpuplane.kube.kueue.multikueue import CHECK, CONFIG, NAMESPACE, secret_name
from gpuplane.kube.kueue.names import HOLD_CHECK, MANAGED_LABEL, MANAGED_VALUE, ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object
from gpuplane.kube.tenancy import CLUSTER_LABEL
from gpuplane.loops.kueue.retiring import forget_all_workers
from tests.integration.kueue.conftest import FORMER, Kueue
from tests.integration.kueue.stored import Stored

QUEUES = CLUSTER_QUEUE.at("v1beta2")
CHECKS = ADMISSION_CHECK.at("v1beta2")
CONFIGS = MULTIKUEUE_CONFIG.at("v1beta2")
WORKERS = MULTIKUEUE_CLUSTER.at("v1beta2")


def queue(*checks: str) -> dict[str, Any]:
    return cluster_queue_object(ClusterQueueSpec("q"), ApiVersion.V1BETA2, checks)


async def test_a_cluster_keeps_its_kueue_while_jobs_are_in_its_hands(kueue: Kueue) -> None:
    await kueue.offer()
    body = {"admission": "embedded"}
    told = await kueue.world.ask("PATCH", "/clusters/sim", 409, json=body)
    assert (told["code"], told["field"]) == ("cluster_busy", "admission")
    assert told["detail"].startswith("1 job was handed to the Kueue of sim")
    assert "cancel" in told["fix"]
    assert (await kueue.world.ask("GET", "/clusters/sim"))["admission"] == "kueue"


async def test_our_check_is_taken_off_our_queues_when_a_cluster_admits_by_itself_no_more(
    kueue: Kueue, stored: Stored
) -> None:
    theirs = queue(HOLD_CHECK)
    theirs["metadata"]["name"] = "theirs"
    stored.put(QUEUES, theirs)
    await kueue.loop.run_once()
    check = {"admissionChecks": [{"name": HOLD_CHECK}]}
    ours = stored.get(QUEUES, "q")
    assert ours is not None
    assert ours["spec"]["admissionChecksStrategy"] == check
    await kueue.world.ask("PATCH", "/clusters/sim", json={"admission": "embedded"})
    await kueue.loop.run_once()
    ours, left = stored.get(QUEUES, "q"), stored.get(QUEUES, "theirs")
    assert ours is not None
    assert left is not None
    assert "admissionChecksStrategy" not in ours["spec"]
    assert left["spec"]["admissionChecksStrategy"] == check
    assert stored.get(ADMISSION_CHECK.at("v1beta2"), HOLD_CHECK) is None
    database = kueue.world.server.database
    assert await database.read(lambda s: queues.list_seen(s, kueue.world.sim)) == []


def test_only_our_check_is_taken_off_a_queue() -> None:
    both = without_check(queue(HOLD_CHECK, "sizes"))
    assert both is not None
    rest = {"admissionChecksStrategy": {"admissionChecks": [{"name": "sizes"}]}}
    assert both["spec"] == rest
    assert without_check(queue("sizes")) is None


def a_manager(stored: Stored) -> None:
    """Put what a manager has: a queue of ours that dispatches, one that does not, one of others."""
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck"}
    for name, checks, ids in (
        ("ours", (CHECK, "sizes"), {CLUSTER_LABEL: FORMER}),
        ("near", ("sizes",), {CLUSTER_LABEL: FORMER}),
        ("theirs", (CHECK,), {}),
    ):
        made = queue(*checks)
        metadata = {**made["metadata"], "name": name, "labels": ids}
        stored.put(QUEUES, {**made, "metadata": metadata})
    stored.put(CHECKS, {**check, "metadata": {"name": CHECK}})
    stored.put(CONFIGS, {"metadata": {"name": CONFIG}, "spec": {"clusters": ["w01-far"]}})
    managed = {MANAGED_LABEL: MANAGED_VALUE}
    stored.put(WORKERS, {"metadata": {"name": "w01-far", "labels": managed}})
    metadata = {"name": secret_name("w01-far"), "namespace": NAMESPACE, "labels": managed}
    stored.put(SECRET, {"metadata": metadata})


async def test_a_manager_that_is_deleted_keeps_nothing_of_its_workers_and_its_queues_are_stopped(
    client: KubeClient, stored: Stored
) -> None:
    a_manager(stored)
    stored.put(WORKERS, {"metadata": {"name": "by-hand"}})
    assert await stop_queues(client, ApiVersion.V1BETA2, [FORMER]) == ["theirs"]
    await forget_all_workers(client, ApiVersion.V1BETA2)
    live = {path.rsplit("/", 1)[-1]: each for path, each in stored.objects.items()}
    assert sorted(live) == ["by-hand", "near", "ours", "theirs"]
    sizes = {"admissionChecks": [{"name": "sizes"}]}
    assert live["ours"]["spec"]["admissionChecksStrategy"] == sizes
    assert live["ours"]["spec"]["stopPolicy"] == "Hold", "else its work would start right there"
    assert "stopPolicy" not in live["near"]["spec"]
    assert live["theirs"]["spec"]["admissionChecksStrategy"] == {
        "admissionChecks": [{"name": CHECK}]
    }
    await stop_queues(client, ApiVersion.V1BETA2, [FORMER])
    await forget_all_workers(client, ApiVersion.V1BETA2)
    assert len(stored.objects) == 4


async def test_only_queues_that_were_stopped_here_go_on_when_their_cluster_comes_back(
    client: KubeClient, stored: Stored
) -> None:
    a_manager(stored)
    found = [each for each in stored.objects.values() if each["kind"] == "ClusterQueue"]
    found[0]["metadata"]["managedFields"] = [{"manager": "kubectl"}, {"manager": STOPPED_BY}]
    found[1]["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    await start_queues(client, ApiVersion.V1BETA2, found)
    assert stored.applied == [QUEUES.path(None, found[0]["metadata"]["name"])]
