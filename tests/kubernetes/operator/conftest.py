"""An operator of the test's own on the rig: its namespace, its nodes, the chart's rights."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import yaml

from gpuplane.kit.clock import SystemClock
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import GPU_WORKLOAD, JOB
from gpuplane.operator.models import Models
from gpuplane.operator.names import FINALIZER
from gpuplane.operator.rules.jobs import Image
from gpuplane.operator.running import Operator, OperatorSettings
from tests.kubernetes.accounts import PRODUCT, account_of
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

MODELS = {
    "llama2": Image("registry.example/llama2:1", command=("sleep", "3600")),
    "quick": Image("registry.example/quick:1", command=("true",)),
    "broken": Image("registry.example/broken:1", command=("sh", "-c", "exit 3")),
}
Obj = dict[str, Any]


@pytest.fixture
async def admin(rig: RunningCluster) -> AsyncIterator[KubeClient]:
    """A client that may do everything."""
    async with KubeClient(rig.connection()) as client:
        yield client


@pytest.fixture
async def resources(admin: KubeClient) -> None:
    """Both custom resources as the chart brings them; they stay, other tests use them too."""
    for path in sorted((PRODUCT / "crds").glob("*.yaml")):
        await admin.apply(yaml.safe_load(path.read_text()), force=True)
    await wait_until_async(
        lambda: _is_served(admin), "the API server serves GPUWorkload and MIGLayout"
    )


async def _is_served(admin: KubeClient) -> bool:
    admin.discovery.forget()
    for group, plural in (("gpu.warp.dev", "gpuworkloads"), ("gpuplane.io", "miglayouts")):
        if await admin.served(group) is None:
            return False
        kinds = await admin.discovery.kinds(group, "v1alpha1")
        if not any(kind.plural == plural for kind in kinds):
            return False
    return True


@dataclasses.dataclass
class Bench:
    """What a test works with.

    Attributes:
        operators: Those that run, in the order of their start.
    """

    rig: RunningCluster
    admin: KubeClient
    namespace: str
    account: KubeClient
    operators: list[tuple[Operator, asyncio.Task[None]]]

    async def start(self, name: str = "a", **settings: Any) -> Operator:
        """Start a replica with the rights of the chart, and nothing beyond them."""
        told = OperatorSettings(
            namespace=self.namespace,
            identity=name,
            metrics_port=0,
            probe_port=0,
            namespaces=(self.namespace,),
            node_labels={"pool": self.namespace},
            **{"lease_s": 3, **settings},
        )
        operator = Operator(self.account, Models(MODELS), told, SystemClock())
        task = asyncio.create_task(operator.run())
        self.operators.append((operator, task))
        await operator.serving.wait()
        return operator

    async def stop(self, operator: Operator) -> None:
        """End a replica as SIGTERM does."""
        for known, task in self.operators:
            if known is operator:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def submit(self, name: str, model: str = "llama2", gpus: int = 2, **spec: Any) -> Obj:
        """Make a GPUWorkload."""
        return await self.admin.create(
            {
                "apiVersion": "gpu.warp.dev/v1alpha1",
                "kind": "GPUWorkload",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"modelName": model, "gpuCount": gpus, **spec},
            }
        )

    async def status(self, name: str) -> Obj:
        """Return the status of a GPUWorkload."""
        found = await self.admin.find(GPU_WORKLOAD, name, self.namespace)
        return {} if found is None else found.get("status") or {}

    async def until(self, name: str, *phases: str) -> Obj:
        """Return the status of a GPUWorkload once it is in one of these phases."""

        async def reached() -> Obj | None:
            status = await self.status(name)
            return status if status.get("phase") in phases else None

        found = await wait_until_async(reached, f"{name} is {' or '.join(phases)}")
        assert found is not None
        return found

    async def jobs(self) -> list[Obj]:
        """Return the Jobs of the namespace."""
        return await self.admin.list(JOB, self.namespace)


@pytest.fixture
async def bench(
    rig: RunningCluster, admin: KubeClient, resources: None, namespace: str
) -> AsyncIterator[Bench]:
    options = ["operator.provisioningClass=x", f"operator.namespaces={{{namespace}}}"]
    async with (
        account_of(rig, admin, namespace, "operator", *options) as connection,
        KubeClient(connection) as client,
    ):
        work = Bench(rig, admin, namespace, client, [])
        yield work
        for operator, _ in work.operators:
            await work.stop(operator)
    # What only an operator would let go, or the namespace could not be deleted.
    for workload in await admin.list(GPU_WORKLOAD, namespace):
        name = workload["metadata"]["name"]
        if FINALIZER in workload["metadata"].get("finalizers", ()):
            await admin.patch(GPU_WORKLOAD, name, {"metadata": {"finalizers": None}}, namespace)


@pytest.fixture
def pool(bench: Bench, add_nodes: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Add nodes that only this test's operator places work on."""

    def add(kind: str, count: int, name: str = "n", **more: Any) -> list[str]:
        prefix = f"o-{name}-{bench.namespace[-6:]}"
        return add_nodes(kind, count, prefix, pool=bench.namespace, **more)

    return add
