"""A whole control plane whose manager dispatches to one worker: made once on a home, then used.

The home may be served afterwards by a process that is killed, or be lost and made anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.kinds import MULTIKUEUE_CLUSTER, SECRET
from gpuplane.kube.kueue.states import read_conditions
from tests.faults.inside import Inside
from tests.kubernetes.clusters.worlds import end_of, registered
from tests.kubernetes.kueue.dispatching import (
    FLAVOR,
    command,
    dispatching_turn,
    gpu_groups,
    keep_no_more,
)
from tests.kubernetes.kueue.workers import JOB_SETS
from tests.kubernetes.kueue.worlds import clean
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async


@dataclass
class Hub:
    """The names under which a manager, its worker, their queue and its tenant are known."""

    prefix: str
    texts: tuple[str, str]
    manager: KubeClient
    worker: KubeClient
    cluster_ids: list[str]

    @property
    def names(self) -> tuple[str, str]:
        return f"{self.prefix}-hub", f"{self.prefix}-near"

    @property
    def tenant(self) -> str:
        return f"{self.prefix}-acme"

    @property
    def space(self) -> str:
        return f"tenant-{self.tenant}"

    def body(self, name: str, text: str, **more: Any) -> dict[str, Any]:
        """Return a job of one GPU of the worker that runs a shell's text."""
        return {"name": name, "cluster": self.names[0], "max_retries": 0, **command(text), **more}

    async def join(self, it: Inside, gpus: int) -> str:
        """Register both and let the manager dispatch a queue of so many GPUs; the tenant's id."""
        tenant = await self.register(it)
        await self.connect(it, gpus)
        return tenant

    async def register(self, it: Inside) -> str:
        """Register both clusters and make the tenant; return its id."""
        for name, text in zip(self.names, self.texts, strict=True):
            await registered(it, name, text, addons=[], admission="kueue")
            found = (await it.client.get(f"/clusters/{name}")).json()
            self.cluster_ids.append(found["id"])
        return str((await asked(it, "POST", "/tenants", name=self.tenant))["id"])

    async def connect(self, it: Inside, gpus: int) -> None:
        """Declare a queue of so many GPUs on both, and let the manager dispatch it."""
        for name, flavor in zip(self.names, ("any", FLAVOR), strict=True):
            base, queue = f"/clusters/{name}", f"{self.prefix}-all"
            body = {"name": queue, "resourceGroups": gpu_groups(flavor, gpus)}
            await asked(it, "POST", f"{base}/quotas", **body)
            door = {"name": "main", "tenant": self.tenant, "clusterQueue": queue}
            await asked(it, "POST", f"{base}/queues", **door)
        told = {"workers": [self.names[1]], "queues": [f"{self.prefix}-all"]}
        started = await asked(it, "PUT", f"/clusters/{self.names[0]}/multikueue", **told)
        assert (await end_of(it, started["runId"]))["status"] == "completed"
        await wait_until_async(self._is_connected, "the worker is connected", deadline_s=120)

    async def _is_connected(self) -> bool:
        kind = MULTIKUEUE_CLUSTER.at("v1beta2")
        found = await self.manager.find(kind, f"w01-{self.names[1]}")
        told = read_conditions((found or {}).get("status", {}).get("conditions"))
        return "Active" in told and told["Active"].true


async def asked(it: Inside, method: str, path: str, **body: Any) -> dict[str, Any]:
    """Return the answer to a request that must succeed."""
    answer = await it.client.request(method, path, json=body or None)
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


@contextlib.asynccontextmanager
async def hub_of(rig: RunningCluster, second_rig: RunningCluster) -> AsyncIterator[Hub]:
    """Give names of their own on both clusters, and take away what was made under them."""
    texts = (rig.kubeconfig.read_text(), second_rig.kubeconfig.read_text())
    prefix = f"h{uuid4().hex[:6]}"
    async with (
        dispatching_turn(rig.kubeconfig.parent),
        KubeClient(read_kubeconfig(texts[0]), field_manager="test") as manager,
        KubeClient(read_kubeconfig(texts[1]), field_manager="test") as worker,
    ):
        await worker.apply(JOB_SETS, force=True)
        hub = Hub(prefix, texts, manager, worker, [])
        try:
            yield hub
        finally:
            await manager.delete(MULTIKUEUE_CLUSTER, f"w01-{hub.names[1]}")
            await manager.delete(SECRET, f"gpuplane-w01-{hub.names[1]}", "kueue-system")
            await keep_no_more(worker)
            for client in (manager, worker):
                for cluster_id in hub.cluster_ids or [""]:
                    await clean(client, cluster_id or prefix, prefix)
