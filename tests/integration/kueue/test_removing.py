"""A cluster that is forgotten keeps nothing of ours, and others' work there goes on."""

from __future__ import annotations

import pytest

from gpuplane.core.quota.specs import ClusterQueueSpec
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict
from gpuplane.kube.kinds import ADMISSION_CHECK, CLUSTER_QUEUE, CONFIG_MAP, JOB, JOB_SET, NODE, Kind
from gpuplane.kube.kueue.holds import lift_hold
from gpuplane.kube.kueue.names import HOLD_CHECK, ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object
from gpuplane.kube.tenancy import CLUSTER_LABEL
from gpuplane.loops.clusters.deleting import remove_ours
from gpuplane.loops.cordons import MARK, lift_all
from tests.integration.kube.scripted import Reply, Request, ScriptedServer, Stream
from tests.integration.kueue.stored import Stored

NOW, BEFORE = "the-id", "a-former-id"


def put(stored: Stored, kind: Kind, name: str, cluster_id: str) -> str:
    labels = {CLUSTER_LABEL: cluster_id}
    stored.put(kind, {"metadata": {"name": name, "namespace": "space", "labels": labels}})
    return kind.path("space", name)


async def test_job_sets_go_before_the_jobs_that_they_would_make_anew_also_under_former_ids(
    client: KubeClient, stored: Stored
) -> None:
    job = put(stored, JOB, "one", NOW)
    job_set = put(stored, JOB_SET, "many", NOW)
    former = put(stored, CONFIG_MAP, "record", BEFORE)
    other = put(stored, JOB, "other", "another-control-plane")
    assert await remove_ours(client, [NOW, BEFORE]) == 3
    assert stored.deleted == [job_set, job, former]
    assert list(stored.objects) == [other]


async def test_a_cluster_without_job_sets_is_left_clean_as_well(
    client: KubeClient, stored: Stored
) -> None:
    put(stored, JOB, "one", BEFORE)
    stored.unserved.add("jobsets")
    assert await remove_ours(client, [NOW, BEFORE]) == 1
    assert stored.objects == {}


async def test_queues_of_a_forgotten_cluster_wait_for_our_check_no_more(
    client: KubeClient, stored: Stored
) -> None:
    queues, checks = CLUSTER_QUEUE.at("v1beta2"), ADMISSION_CHECK.at("v1beta2")
    for name, cluster_id in (("new", NOW), ("old", BEFORE)):
        made = cluster_queue_object(ClusterQueueSpec(name), ApiVersion.V1BETA2, (HOLD_CHECK,))
        made["metadata"]["labels"] = {CLUSTER_LABEL: cluster_id}
        stored.put(queues, made)
    stored.put(checks, {"metadata": {"name": HOLD_CHECK, "labels": {CLUSTER_LABEL: NOW}}})
    assert await lift_hold(client, [NOW, BEFORE]) == 2
    for name in ("new", "old"):
        found = stored.get(queues, name)
        assert found is not None
        assert "admissionChecksStrategy" not in found["spec"]
    assert stored.get(checks, HOLD_CHECK) is None


class Busy:
    """Objects that somebody changes just before some of the writes to them."""

    def __init__(self, stored: Stored, times: int) -> None:
        self.stored = stored
        self.left = times

    def __call__(self, request: Request) -> Reply | Stream:
        if request.method == "PATCH" and self.left:
            self.left -= 1
            said = "the object has been modified; please apply your changes to the latest version"
            return Reply(409, {"reason": "Conflict", "message": said})
        return self.stored(request)


@pytest.mark.parametrize("times", [4, 9])
async def test_a_queue_that_changes_under_our_write_is_read_anew_a_few_times_at_once(
    client: KubeClient, server: ScriptedServer, stored: Stored, times: int
) -> None:
    queues = CLUSTER_QUEUE.at("v1beta2")
    made = cluster_queue_object(ClusterQueueSpec("q"), ApiVersion.V1BETA2, (HOLD_CHECK,))
    made["metadata"]["labels"] = {CLUSTER_LABEL: NOW}
    stored.put(queues, made)
    busy = Busy(stored, times)
    server.handler = busy
    if times == 9:
        with pytest.raises(Conflict):
            await lift_hold(client, [NOW])
        return
    assert await lift_hold(client, [NOW]) == 1
    found = stored.get(queues, "q")
    assert found is not None
    assert "admissionChecksStrategy" not in found["spec"]


def put_node(stored: Stored, name: str, by: str) -> None:
    """Keep a Node that somebody has cordoned."""
    metadata = {"name": name, "resourceVersion": "1", "annotations": {MARK: by} if by else {}}
    stored.put(NODE, {"metadata": metadata, "spec": {"unschedulable": True}})


def closed(stored: Stored) -> list[str]:
    """Return the Nodes that are cordoned, with whose mark."""
    found = [(name, stored.get(NODE, name) or {}) for name in ("now", "former", "other", "theirs")]
    return [name for name, node in found if (node.get("spec") or {}).get("unschedulable")]


async def test_nodes_that_were_cordoned_here_are_uncordoned_and_no_others(
    client: KubeClient, stored: Stored
) -> None:
    for name, by in (("now", NOW), ("former", BEFORE), ("other", "elsewhere"), ("theirs", "")):
        put_node(stored, name, by)
    assert await lift_all(client, [NOW, BEFORE]) == ("former", "now")
    assert closed(stored) == ["other", "theirs"]
    node = stored.get(NODE, "now")
    assert node is not None
    assert MARK not in node["metadata"]["annotations"]
    assert await lift_all(client, [NOW, BEFORE]) == ()
