"""A whole control plane with one cluster whose Kueue admits: a tenant, its queue, nodes of its own.

The home may be served by a process that is killed, or be lost and made anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.kinds import DEPLOYMENT, JOB, POD, WORKLOAD
from tests.faults.inside import QUICK, Inside
from tests.kubernetes.backend.charting import deployment, write_chart
from tests.kubernetes.clusters.worlds import registered
from tests.kubernetes.kueue.test_three_tenants import FLAVOR, GPU, gpus, quota
from tests.kubernetes.kueue.worlds import clean
from tests.kubernetes.rigged import RunningCluster

Ask = Callable[[str, str, Any], Awaitable[dict[str, Any]]]
"""Sends (method, path, body) to a control plane that must say yes, and returns the answer."""

SERVICE: dict[str, Any] = {
    "job_type": "service",
    "max_retries": 0,
    "replicas": {"count": 2, "min": 1, "max": 4},
}
CHART: dict[str, Any] = {
    "job_type": "service",
    "deployment_type": "helm",
    "max_retries": 0,
    "replicas": {"count": 2},
    "spec": {"chart": {"name": "shop"}},
}


@dataclass
class Alone:
    """The names under which a cluster, its tenant and its nodes are known."""

    prefix: str
    text: str
    client: KubeClient
    folder: Path
    helm: str
    nodes: list[str]
    cluster_ids: list[str] = field(default_factory=list)

    @property
    def tenant(self) -> str:
        return f"{self.prefix}-acme"

    @property
    def space(self) -> str:
        return f"tenant-{self.tenant}"

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings of a control plane that installs the chart `shop`."""
        charts = {"GPUPLANE_CLUSTERS_HELM": self.helm, "GPUPLANE_CLUSTERS_CHARTS": str(self.folder)}
        return {**QUICK, **charts}

    async def register(self, it: Inside) -> str:
        """Register the cluster and make the tenant; return its id."""
        await registered(it, self.prefix, self.text, addons=[], admission="kueue")
        found = (await it.client.get(f"/clusters/{self.prefix}")).json()
        self.cluster_ids.append(found["id"])
        return str((await asked(it, "POST", "/tenants", {"name": self.tenant}))["id"])

    async def open_queue(self, it: Inside, count: int) -> None:
        """Give the tenant a queue of so many GPUs."""
        base = f"/clusters/{self.prefix}"
        await asked(it, "POST", f"{base}/quotas", quota(self.tenant, self.prefix, count))
        door = {"name": "main", "tenant": self.tenant, "clusterQueue": self.tenant}
        await asked(it, "POST", f"{base}/queues", door)

    def body(self, name: str, tenant_id: str, **more: Any) -> dict[str, Any]:
        """Return a job with a GPU of the nodes that are its own."""
        where = {"node_selector": {"alone": self.prefix}}
        own = {"name": name, "cluster": self.prefix, "tenant_id": tenant_id, "queue": "main"}
        return {**gpus(1), **own, "placement": where, **more}

    async def left(self) -> list[str]:
        """Return what is there of all jobs of the tenant."""
        kinds = (JOB, DEPLOYMENT, POD, WORKLOAD.at("v1beta2"))
        return [
            f"{kind.kind} {each['metadata']['name']}"
            for kind in kinds
            for each in await self.client.list(kind, self.space)
        ]


async def asked(it: Inside, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """Return the answer to a request that must succeed."""
    answer = await it.client.request(method, path, json=body)
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


@contextlib.asynccontextmanager
async def alone_of(rig: RunningCluster, folder: Path) -> AsyncIterator[Alone]:
    """Give names and two nodes of their own, and take away what was made under them."""
    text, prefix = rig.kubeconfig.read_text(), f"a{uuid4().hex[:6]}"
    web = deployment("web", ["sleep", "600"], resources={"limits": {GPU: "1"}})
    web["spec"]["replicas"] = 2
    write_chart(folder, "shop", [web])
    nodes = rig.add_nodes("l4", 2, prefix, alone=prefix)
    try:
        async with KubeClient(read_kubeconfig(text), field_manager="test") as client:
            made = Alone(prefix, text, client, folder, str(rig.binaries["helm"]), nodes)
            try:
                yield made
            finally:
                for cluster_id in made.cluster_ids or [prefix]:
                    await clean(client, cluster_id, prefix)
    finally:
        rig.remove_nodes(nodes)


def is_whole(job: dict[str, Any], count: int) -> bool:
    """Return whether a job runs with so many replicas that are ready, each on a GPU of its own."""
    attempt = job.get("current_attempt")
    if job.get("status") != "running" or attempt is None or attempt["state"] != "running":
        return False
    held = [gpu for each in attempt["replicas"] for gpu in each["gpu_ids"]]
    phases = {each["phase"] for each in attempt["replicas"]}
    return (len(attempt["replicas"]), len(set(held)), phases) == (count, count, {"running"})


__all__ = ["CHART", "FLAVOR", "SERVICE", "Alone", "Ask", "alone_of", "asked", "is_whole"]
