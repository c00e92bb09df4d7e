"""A cluster that is forgotten keeps nothing of ours, and others' work there goes on."""

from __future__ import annotations

from gpuplane.core.quota.specs import ClusterQueueSpec
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import ADMISSION_CHECK, CLUSTER_QUEUE, CONFIG_MAP, JOB, JOB_SET, Kind
from gpuplane.kube.kueue.holds import lift_hold
from gpuplane.kube.kueue.names import HOLD_CHECK, ApiVersion
from gpuplane.kube.kueue.queues import cluster_queue_object
from gpuplane.kube.tenancy import CLUSTER_LABEL
from gpuplane.loops.clusters.deleting import remove_ours
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
