"""A manager that Kueue connects with no worker says so: in the step, in health, of its jobs."""

from __future__ import annotations

from typing import Any

from gpuplane.domains.clusters import service as clusters
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import MULTIKUEUE_CLUSTER
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.loops.clusters.health import check
from gpuplane.loops.connections import wait_connected
from tests.integration.kube.scripted import Reply
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored
from tests.integration.kueue.test_loop import reserved

NO_KIND = 'no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"'


def worker(stored: Stored, name: str, *, connected: bool) -> None:
    """Have Kueue say whether it is connected with a worker."""
    told = ("True", "Active", "Connected") if connected else (
        "False", "ClientConnectionFailed", NO_KIND
    )  # fmt: skip
    condition = dict(zip(("status", "reason", "message"), told, strict=True), type="Active")
    kind = MULTIKUEUE_CLUSTER.at("v1beta2")
    stored.put(kind, {"metadata": {"name": name}, "status": {"conditions": [condition]}})


async def dispatch(kueue: Kueue, workers: list[str]) -> clusters.Cluster:
    """Have the world's cluster dispatch its queue to workers."""

    def unit(session: Any) -> clusters.Cluster:
        cluster = clusters.get_cluster(session, kueue.world.sim)
        config = {**cluster.config, "dispatch": {"workers": workers, "queues": ["q"]}}
        clusters.change(session, cluster.id, {"config": config}, "test", 1)
        return clusters.get_cluster(session, cluster.id)

    return await kueue.world.server.database.write("tests.dispatch", unit)


async def test_connecting_waits_for_kueue_and_names_the_worker_it_has_no_connection_with(
    client: KubeClient, stored: Stored
) -> None:
    worker(stored, "w01-near", connected=True)
    worker(stored, "w02-far", connected=False)
    names, version = ["w01-near", "w02-far"], ApiVersion.V1BETA2
    left = await wait_connected(client, version, names, 0.0)
    assert list(left) == ["w02-far"]
    assert NO_KIND in left["w02-far"]
    assert await wait_connected(client, version, ["w01-near"], 60.0) == {}


async def test_a_job_of_a_queue_that_is_cut_off_from_all_workers_says_why_until_one_is_there(
    kueue: Kueue, stored: Stored
) -> None:
    offer = await kueue.offer()
    reserved(stored, "one", offer.attempt_id, str(kueue.world.sim))
    await dispatch(kueue, ["far", "near"])
    worker(stored, "w01-far", connected=False)
    worker(stored, "w02-near", connected=False)
    await kueue.loop.run_once()
    job = await kueue.world.ask("GET", f"/jobs/{offer.job_id}")
    assert job["reason"] == "WorkerNotConnected"
    assert "Install the definition of JobSet on far" in job["status_message"]
    worker(stored, "w02-near", connected=True)
    await kueue.loop.run_once()
    job = await kueue.world.ask("GET", f"/jobs/{offer.job_id}")
    assert job["reason"] == "WaitingForAdmission"


async def test_health_of_a_manager_is_degraded_while_a_worker_is_not_connected(
    kueue: Kueue, client: KubeClient, stored: Stored
) -> None:
    served = {"resources": [{"name": "resourceflavors", "kind": "ResourceFlavor", "verbs": []}]}
    stored.refuse("GET", "/apis/kueue.x-k8s.io/v1beta2", Reply(body=served))
    version = {"major": "1", "minor": "34", "gitVersion": "v1.34.4"}
    stored.refuse("GET", "/version", Reply(body=version))
    manager = await dispatch(kueue, ["far"])
    for connected, verdict in ((False, "degraded"), (True, "healthy")):
        worker(stored, "w01-far", connected=connected)
        found = {each.kind: each for each in await check(client, manager, (), 1)}
        assert found["kueue"].verdict == verdict
        assert (NO_KIND in found["kueue"].message) is not connected
