"""Workers of a MultiKueue manager for tests: how they are stored, and what each must have."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId
from gpuplane.core.runs.plans import Answer, StepCall
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Credential
from gpuplane.kit.ids import new_id
from gpuplane.kit.sealing import SealingKeys
from gpuplane.loops.clusters.tools import Work
from tests.kubernetes.kueue.worlds import KueueWorld

V = "kueue.x-k8s.io/v1beta2"


async def do_step(world: KueueWorld, work: Work, cluster_id: UUID, given: dict[str, Any]) -> Answer:
    """Do one step of a run for a cluster, as a worker does."""
    admin, name = world.server.admin, work.__name__
    call = StepCall(
        run_id=new_id(), step_id=new_id(), key=name, name=name, tenant_id=admin.tenant_id,
        project_id=admin.project_id, idempotency_key=name, attempt=1,
        now=world.server.clock.now_ms(), input=given, params={}, context={}, scope={}, outputs={},
    )  # fmt: skip
    return await work(world.tools, await world.tools.cluster(cluster_id), given, call)


async def add_worker(world: KueueWorld, sealing: SealingKeys, name: str, text: str) -> ClusterId:
    """Store another cluster with Kueue, as registration does; return its id."""
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
    return cluster_id


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
    """Return the resource groups of a queue with so many CPUs."""
    quota = {"name": "cpu", "nominalQuota": cpus}
    return [{"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": [quota]}]}]


def queue_objects(world: KueueWorld, tenant: str, cpus: int = 4) -> list[dict[str, Any]]:
    """Return what a worker must have: the same namespace and door, and a queue behind it."""
    space, name = f"tenant-{tenant}", f"{world.prefix}-all"
    return [
        {"apiVersion": V, "kind": "ResourceFlavor", "metadata": {"name": "any"}, "spec": {}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}},
        {
            "apiVersion": V,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups(cpus)},
        },
        {
            "apiVersion": V,
            "kind": "LocalQueue",
            "metadata": {"name": "main", "namespace": space},
            "spec": {"clusterQueue": name},
        },
    ]


def job(space: str, name: str = "far", cpus: int = 1) -> dict[str, Any]:
    """Return a Job for the door `main` of a namespace, as somebody with kubectl makes it."""
    container = {
        "name": "main",
        "image": "registry.test/python:3.11",
        "command": ["sleep", "1"],
        "resources": {"requests": {"cpu": str(cpus)}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": space,
            "labels": {"kueue.x-k8s.io/queue-name": "main"},
        },
        "spec": {
            "suspend": True,
            "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
        },
    }
