"""The Kubernetes backend in the contract suite: real API server, controllers and processes.

The pods of one node of the rig run as processes of this machine, so the plans' commands do what
they say. Every test has a cluster id of its own, by which its objects are told from others'.
"""

from __future__ import annotations

from pathlib import Path

from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.backends.kubernetes.chartplaces import ChartTools
from gpuplane.backends.kubernetes.names import CLUSTER
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.kit.clock import Clock, SystemClock
from gpuplane.kit.ids import new_id
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import Connection
from gpuplane.kube.errors import AlreadyThere
from gpuplane.kube.kinds import CONFIG_MAP, JOB, JOB_SET, NODE

NODE_NAME = "contract-processes"
SETTINGS = KubernetesSettings(default_image="busybox:1.36")


class MovedClock(SystemClock):
    """The time, and so much more."""

    ahead_ms = 0

    def now_ms(self) -> int:
        """Return the moved instant."""
        return super().now_ms() + self.ahead_ms


class KubernetesFactory:
    """Jobs of a cluster whose pods really run."""

    kind = "kubernetes"
    node_name = NODE_NAME
    survives_restart = True

    def __init__(self, folder: Path, connection: Connection) -> None:
        self.home = folder / "home"
        self.cluster_id = str(new_id())
        self._connection = connection
        self.charts: ChartTools | None = None
        self.clock: Clock = SystemClock()
        self._backend: KubernetesBackend | None = None

    async def open(self) -> KubernetesBackend:
        return await self.open_with(SETTINGS)

    async def open_with(self, settings: KubernetesSettings) -> KubernetesBackend:
        """Return the backend with other settings, the object before it stopped."""
        if self._backend is not None:
            await self._backend.stop()
        client = KubeClient(self._connection)
        await ensure_process_node(client)
        self._backend = KubernetesBackend(
            client, self.cluster_id, self.home, self.clock, settings, self.charts
        )
        await self._backend.open()
        return self._backend

    async def pass_time(self, seconds: float) -> None:
        return None

    def plain(self, data: bytes) -> bytes:
        return data

    async def close(self) -> None:
        if self._backend is not None:
            await self._backend.stop()
        async with KubeClient(self._connection) as client:
            kinds = [JOB, CONFIG_MAP]
            if await client.resolve(JOB_SET) is not None:
                kinds.insert(0, JOB_SET)
            for kind in kinds:
                for each in await client.list(kind, labels={CLUSTER: self.cluster_id}):
                    metadata = each["metadata"]
                    await client.delete(kind, metadata["name"], metadata["namespace"])


async def ensure_process_node(client: KubeClient) -> None:
    """Have the node whose pods run as processes of this machine."""
    if await client.find(NODE, NODE_NAME) is not None:
        return
    amounts = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "2Ti", "pods": "110"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": NODE_NAME,
            "labels": {"rig.gpuplane.io/kind": "process", "kubernetes.io/hostname": NODE_NAME},
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    try:
        await client.create(node)
    except AlreadyThere:
        return
