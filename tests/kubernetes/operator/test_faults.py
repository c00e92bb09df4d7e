"""The operator when its API server goes away and comes back: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml

from gpuplane.kit.clock import SystemClock
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.errors import KubeError
from gpuplane.kube.kinds import GPU_WORKLOAD, JOB
from gpuplane.operator.models import Models
from gpuplane.operator.running import Operator, OperatorSettings
from rig.binaries import Binaries
from rig.rigs import RigPlan, running_rig
from tests.kubernetes.accounts import PRODUCT
from tests.kubernetes.operator.conftest import MODELS
from tests.waiting import wait_until_async

COUNT = 6


async def make(client: KubeClient, name: str) -> None:
    """Make a GPUWorkload, however long the API server is away."""

    async def is_made() -> bool:
        try:
            if await client.find(GPU_WORKLOAD, name, "default") is None:
                await client.create(
                    {
                        "apiVersion": "gpu.warp.dev/v1alpha1",
                        "kind": "GPUWorkload",
                        "metadata": {"name": name, "namespace": "default"},
                        "spec": {"modelName": "llama2", "gpuCount": 1},
                    }
                )
        except KubeError:
            return False
        return True

    await wait_until_async(is_made, f"{name} is made", deadline_s=60, interval_s=0.2)


async def running_jobs(client: KubeClient, count: int) -> list[dict[str, Any]]:
    try:
        found = await client.list(GPU_WORKLOAD, "default")
        phases = [(each.get("status") or {}).get("phase") for each in found]
        return await client.list(JOB, "default") if phases == ["Running"] * count else []
    except KubeError:
        return []


async def test_an_api_server_that_dies_and_comes_back_loses_nothing_and_starts_nothing_twice(
    rig_binaries: Binaries,
) -> None:
    plan = RigPlan(nodes=[("h100", 2)], process_nodes=[], kueue=False)
    with running_rig(plan) as rig:
        server = rig.manager.parts["kube-apiserver"]
        text = await asyncio.to_thread(Path(rig.manager.kubeconfig).read_text)
        async with KubeClient(read_kubeconfig(text)) as client:
            for path in sorted((PRODUCT / "crds").glob("*.yaml")):
                await client.apply(yaml.safe_load(path.read_text()), force=True)
            settings = OperatorSettings(
                namespace="default", identity="a", metrics_port=0, probe_port=0, lease_s=3
            )
            operator = Operator(client, Models(MODELS), settings, SystemClock())
            task = asyncio.create_task(operator.run())
            await make(client, "w0")
            (first,) = await wait_until_async(
                lambda: running_jobs(client, 1), "the first runs", deadline_s=60, interval_s=0.2
            )
            await asyncio.to_thread(server.kill)
            await wait_until_async(lambda: not operator.leads, "it stops when it cannot renew")
            await asyncio.to_thread(server.start_again)
            for number in range(1, COUNT):
                await make(client, f"w{number}")
            jobs = await wait_until_async(
                lambda: running_jobs(client, COUNT), "all run", deadline_s=90, interval_s=0.2
            )
            owners = [each["metadata"]["ownerReferences"][0]["name"] for each in jobs]
            assert sorted(owners) == [f"w{number}" for number in range(COUNT)]
            assert first["metadata"]["uid"] in {each["metadata"]["uid"] for each in jobs}
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
