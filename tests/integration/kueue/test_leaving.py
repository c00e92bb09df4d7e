"""A cluster that stops admitting by itself: nobody is left waiting for a check nobody keeps."""

from __future__ import annotations

from typing import Any

from gpuplane.core.quota.specs import ClusterQueueSpec
from gpuplane.domains.queues import service as queues
from gpuplane.kube.kinds import ADMISSION_CHECK, CLUSTER_QUEUE
from gpuplane.kube.kueue.holds import without_hold
from gpuplane.kube.kueue.names import HOLD_CHECK, ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored

QUEUES = CLUSTER_QUEUE.at("v1beta2")


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
    both = without_hold(queue(HOLD_CHECK, "sizes"))
    assert both is not None
    rest = {"admissionChecksStrategy": {"admissionChecks": [{"name": "sizes"}]}}
    assert both["spec"] == rest
    assert without_hold(queue("sizes")) is None
