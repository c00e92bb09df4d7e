"""A job goes from a manager to the worker that has room, and its end comes back."""

from __future__ import annotations

from typing import Any

from gpuplane.core.ids import ClusterId
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Credential
from gpuplane.kit.ids import new_id
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import (
    CLUSTER_QUEUE,
    JOB,
    LOCAL_QUEUE,
    MULTIKUEUE_CLUSTER,
    NAMESPACE,
    SECRET,
    WORKLOAD,
)
from gpuplane.kube.kueue.states import read_conditions, read_workload
from tests.kubernetes.kueue.worlds import KueueWorld
from tests.kubernetes.rigged import RunningCluster

V = "kueue.x-k8s.io/v1beta2"


async def add_worker(world: KueueWorld, sealing: SealingKeys, name: str, text: str) -> None:
    """Store another cluster with Kueue, as registration does."""
    cluster_id, now = ClusterId(new_id()), world.server.clock.now_ms()
    sealed = sealing.seal(text.encode(), clusters.credential_context(cluster_id, 1))
    kept = Credential(cluster_id, sealed, 1, "", None, now, "test")

    def unit(session: Any) -> None:
        config = {"admission": "kueue"}
        clusters.ensure_cluster(
            session, cluster_id, name=name, kind="kubernetes", simulated=False, config=config,
            now=now,
        )  # fmt: skip
        clusters.replace_credential(session, cluster_id, kept, {}, now)

    await world.server.database.write("tests.worker", unit)


JOB_SETS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobsets.jobset.x-k8s.io"},
    "spec": {
        "group": "jobset.x-k8s.io",
        "names": {"kind": "JobSet", "plural": "jobsets", "singular": "jobset"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
                "subresources": {"status": {}},
            }
        ],
    },
}
"""Kueue follows every kind of job that its configuration names on each worker, or none at all."""


def groups(cpus: int) -> list[dict[str, Any]]:
    quota = {"name": "cpu", "nominalQuota": cpus}
    return [{"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": [quota]}]}]


def queue_objects(world: KueueWorld, tenant: str) -> list[dict[str, Any]]:
    """Return what a worker must have: the same namespace and door, and a queue behind it."""
    space, name = f"tenant-{tenant}", f"{world.prefix}-all"
    return [
        {"apiVersion": V, "kind": "ResourceFlavor", "metadata": {"name": "any"}, "spec": {}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}},
        {
            "apiVersion": V,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups(4)},
        },
        {
            "apiVersion": V,
            "kind": "LocalQueue",
            "metadata": {"name": "main", "namespace": space},
            "spec": {"clusterQueue": name},
        },
    ]


def job(space: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.test/python:3.11",
        "command": ["sleep", "1"],
        "resources": {"requests": {"cpu": "1"}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "far",
            "namespace": space,
            "labels": {"kueue.x-k8s.io/queue-name": "main"},
        },
        "spec": {
            "suspend": True,
            "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
        },
    }


async def test_a_job_runs_on_the_worker_and_its_end_comes_back(
    world: KueueWorld, second_rig: RunningCluster, sealing_keys: SealingKeys
) -> None:
    tenant, base = await world.tenant("acme"), f"/clusters/{world.name}"
    queue, near = f"{world.prefix}-all", f"{world.prefix}-near"
    await add_worker(world, sealing_keys, near, second_rig.kubeconfig.read_text())
    await world.ask(
        "POST", f"{base}/quotas", 201, json={"name": queue, "resourceGroups": groups(4)}
    )
    door = {"name": "main", "tenant": tenant, "clusterQueue": queue}
    await world.ask("POST", f"{base}/queues", 201, json=door)
    body = {"workers": [near], "queues": [queue]}
    started = await world.ask("PUT", f"{base}/multikueue", 202, json=body)
    done = await world.until_over(started["runId"])
    assert done["status"] == "completed", done

    space = f"tenant-{tenant}"
    async with KubeClient(second_rig.connection(), field_manager="test") as worker:
        try:
            await worker.apply(JOB_SETS, force=True)
            for each in queue_objects(world, tenant):
                await worker.apply(each, force=True)
            named = MULTIKUEUE_CLUSTER.at("v1beta2")

            async def is_connected() -> bool:
                found = await world.client.find(named, f"w01-{near}")
                told = read_conditions((found or {}).get("status", {}).get("conditions"))
                return "Active" in told and told["Active"].true

            await world.until(is_connected, "the worker is connected")
            await world.client.create(job(space), space)

            async def is_over() -> bool:
                found = await world.client.get(JOB, "far", space)
                return bool(found.get("status", {}).get("succeeded"))

            await world.until(is_over, "the end came back")
            found = await world.client.list(WORKLOAD.at("v1beta2"), space)
            assert [read_workload(each).cluster_name for each in found] == [f"w01-{near}"]
        finally:
            await worker.delete(LOCAL_QUEUE, "main", space)
            await worker.delete(CLUSTER_QUEUE, queue)
            await worker.delete(NAMESPACE, space)
            await world.client.delete(MULTIKUEUE_CLUSTER, f"w01-{near}")
            await world.client.delete(SECRET, f"gpuplane-w01-{near}", "kueue-system")
