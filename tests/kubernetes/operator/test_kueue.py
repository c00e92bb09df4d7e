"""GPUWorkloads under a real Kueue: quota first, then the Job, then the node that was found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gpuplane.kube.kinds import CLUSTER_QUEUE, GPU_WORKLOAD, RESOURCE_FLAVOR
from tests.kubernetes.operator.conftest import Bench
from tests.waiting import wait_until_async

Pool = Callable[..., list[str]]
API = "kueue.x-k8s.io/v1beta1"


@pytest.fixture
async def queue(bench: Bench) -> AsyncIterator[str]:
    """A LocalQueue whose quota is two GPUs on the test's nodes."""
    name = f"o-{bench.namespace}"
    flavor: dict[str, Any] = {
        "apiVersion": API,
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {"nodeLabels": {"pool": bench.namespace}},
    }
    quota = [{"name": "nvidia.com/gpu", "nominalQuota": 2}]
    cluster_queue: dict[str, Any] = {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["nvidia.com/gpu"],
                    "flavors": [{"name": name, "resources": quota}],
                }
            ],
        },
    }
    local_queue = {
        "apiVersion": API,
        "kind": "LocalQueue",
        "metadata": {"name": "team", "namespace": bench.namespace},
        "spec": {"clusterQueue": name},
    }
    for each in (flavor, cluster_queue, local_queue):
        await bench.admin.create(each)
    yield "team"
    await bench.admin.delete(CLUSTER_QUEUE, name)
    await bench.admin.delete(RESOURCE_FLAVOR, name)


async def test_a_workload_runs_when_kueue_admits_it_and_the_next_when_there_is_quota(
    bench: Bench, pool: Pool, queue: str
) -> None:
    (node,) = pool("h100", 1)
    await bench.start(default_queue=queue)
    await bench.submit("first", gpus=2)
    first = await bench.until("first", "Running")
    assert first["assignedNode"] == node
    await bench.submit("second", gpus=2)
    second = await bench.until("second", "Scheduling")
    assert "waits for admission" in second["message"]
    await bench.admin.delete(GPU_WORKLOAD, "first", bench.namespace)
    assert (await bench.until("second", "Running"))["assignedNode"] == node


async def test_a_full_cluster_leaves_the_turn_to_kueue_and_uses_up_no_retry(
    bench: Bench, pool: Pool, queue: str
) -> None:
    pool("l4", 1)
    await bench.start()
    await bench.submit("outside", gpus=4)
    await bench.until("outside", "Running")
    await bench.submit("queued", gpus=2, queueName=queue, priority="high")

    async def admitted() -> bool:
        status = await bench.status("queued")
        return "is admitted and waits for a node" in status.get("message", "")

    assert await wait_until_async(admitted, "Kueue admitted it")
    status = await bench.status("queued")
    assert (status["phase"], status.get("retryCount")) == ("Scheduling", None)
    assert (await bench.status("outside"))["phase"] == "Running"
    await bench.admin.delete(GPU_WORKLOAD, "outside", bench.namespace)
    await bench.until("queued", "Running")
