"""A manager and its worker, both registered: jobs submitted here are dispatched and followed."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.ids import ClusterId
from gpuplane.domains.clusters import service as clusters
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.kinds import MULTIKUEUE_CLUSTER, POD, SECRET, WORKLOAD
from gpuplane.kube.kueue.keeping import keeping_objects
from gpuplane.kube.kueue.states import WorkloadState, read_conditions, read_workload
from tests.kubernetes.kueue.workers import JOB_SETS, add_worker
from tests.kubernetes.kueue.worlds import KueueWorld, clean
from tests.kubernetes.rigged import RunningCluster

GPU = "nvidia.com/gpu"
FLAVOR = "nvidia-h100-80gb"
PROCESSES = {"rig.gpuplane.io/kind": "process"}


@dataclass
class Worker:
    """A worker as its manager and we know it."""

    world: KueueWorld
    cluster_id: ClusterId
    name: str
    client: KubeClient

    async def workloads(self, tenant: str) -> list[WorkloadState]:
        """Return the Workloads of a tenant there."""
        return await workloads_of(self.client, tenant)

    async def pods(self, tenant: str) -> list[dict[str, Any]]:
        """Return the pods of a tenant there."""
        return await self.client.list(POD, f"tenant-{tenant}")


async def workloads_of(client: KubeClient, tenant: str) -> list[WorkloadState]:
    """Return the Workloads of a tenant on a cluster that are not going."""
    found = await client.list(WORKLOAD.at("v1beta2"), f"tenant-{tenant}")
    return [read_workload(one) for one in found if not one["metadata"].get("deletionTimestamp")]


def make_backend(
    world: KueueWorld,
    cluster_id: ClusterId,
    text: str,
    folder: Path,
    manager_ids: tuple[str, ...] = (),
) -> KubernetesBackend:
    """Return a backend of a cluster as another process of the control plane makes it."""
    settings = KubernetesSettings(
        admission="kueue",
        manager_ids=manager_ids,
        records_namespace=f"{world.prefix}-system",
        default_image="registry.test/python:3.11",
    )
    client = KubeClient(read_kubeconfig(text))
    return KubernetesBackend(client, str(cluster_id), folder, world.server.clock, settings)


@contextlib.asynccontextmanager
async def nobody_looking(
    world: KueueWorld, worker: Worker, texts: tuple[str, str], folder: Path
) -> AsyncIterator[None]:
    """Let a control plane that was killed be gone meanwhile; another goes on after that.

    Args:
        texts: The kubeconfigs of the manager and of the worker.
        folder: The home of the new one.
    """
    backends = world.server.ports["backends"].backends
    for each in (world.cluster_id, worker.cluster_id):
        await backends[each].stop()
    yield
    ids = (str(world.cluster_id),)
    backends[world.cluster_id] = make_backend(world, world.cluster_id, texts[0], folder)
    made = make_backend(world, worker.cluster_id, texts[1], folder, manager_ids=ids)
    backends[worker.cluster_id] = made
    await world.begin_again()


@contextlib.asynccontextmanager
async def serving(
    world: KueueWorld, sealing: SealingKeys, folder: Path, name: str, text: str
) -> AsyncIterator[Worker]:
    """Register another cluster whose backend this world has too."""
    full = f"{world.prefix}-{name}"
    cluster_id = await add_worker(world, sealing, full, text)
    now = world.server.clock.now_ms()
    await world.server.database.write(
        "tests.available", lambda s: clusters.make_available(s, cluster_id, now)
    )
    backend = make_backend(world, cluster_id, text, folder, manager_ids=(str(world.cluster_id),))
    registry = world.server.ports["backends"]
    registry.backends[cluster_id] = backend
    client = KubeClient(read_kubeconfig(text), field_manager="test")
    try:
        await client.apply(JOB_SETS, force=True)
        await world.loops["inventory"].run_once()
        yield Worker(world, cluster_id, full, client)
    finally:
        await registry.backends.pop(cluster_id).stop()
        await clean(client, str(cluster_id), world.prefix)
        await client.close()


@contextlib.asynccontextmanager
async def near_of(
    world: KueueWorld,
    rig: RunningCluster,
    second_rig: RunningCluster,
    sealing: SealingKeys,
    folder: Path,
) -> AsyncIterator[Worker]:
    """Have the rig's other cluster as a worker of the first."""
    text = second_rig.kubeconfig.read_text()
    async with (
        dispatching_turn(rig.kubeconfig.parent),
        serving(world, sealing, folder / "near", "near", text) as worker,
    ):
        yield worker
        await disconnect(world, [worker])


def gpu_groups(flavor: str, gpus: int) -> list[dict[str, Any]]:
    """Return the resource groups of a queue with so many GPUs."""
    quota = {"name": GPU, "nominalQuota": gpus}
    return [{"coveredResources": [GPU], "flavors": [{"name": flavor, "resources": [quota]}]}]


async def dispatch(world: KueueWorld, workers: Sequence[Worker], tenant: str, gpus: int) -> None:
    """Declare a dispatching queue of so many GPUs with its queues on the workers; connect them."""
    quotas = [gpu_groups("any", gpus), *([gpu_groups(FLAVOR, gpus)] * len(workers))]
    await dispatch_to(world, workers, tenant, quotas)


async def dispatch_to(
    world: KueueWorld, workers: Sequence[Worker], tenant: str, quotas: Sequence[Any]
) -> None:
    """Declare a dispatching queue of a tenant with its queues on the workers, and connect them.

    Args:
        quotas: The resource groups of the manager's queue, then those of each worker's.
    """
    queue = f"{world.prefix}-all"
    names = [world.name, *(each.name for each in workers)]
    for name, groups in zip(names, quotas, strict=True):
        body: dict[str, Any] = {"name": queue, "resourceGroups": groups}
        body["preemption"] = {"withinClusterQueue": "LowerPriority"}
        await world.ask("POST", f"/clusters/{name}/quotas", 201, json=body)
        door = {"name": "main", "tenant": tenant, "clusterQueue": queue}
        await world.ask("POST", f"/clusters/{name}/queues", 201, json=door)
    asked = {"workers": names[1:], "queues": [queue]}
    started = await world.ask("PUT", f"/clusters/{world.name}/multikueue", 202, json=asked)
    done = await world.until_over(started["runId"])
    assert done["status"] == "completed", done

    async def are_connected() -> bool:
        for number, each in enumerate(workers, 1):
            kind = MULTIKUEUE_CLUSTER.at("v1beta2")
            found = await world.client.find(kind, f"w{number:02d}-{each.name}")
            told = read_conditions((found or {}).get("status", {}).get("conditions"))
            if "Active" not in told or not told["Active"].true:
                return False
        return True

    await world.until(are_connected, "the workers are connected", 120.0)


async def keep_no_more(client: KubeClient) -> None:
    """Let what is over go from a worker, whoever reads it."""
    for each in reversed(keeping_objects()):
        await client.delete(await client.kind_of(each), each["metadata"]["name"])


async def disconnect(world: KueueWorld, workers: Sequence[Worker]) -> None:
    """Take away how the manager knew the workers, and what keeps ended work there."""
    for each in workers:
        await keep_no_more(each.client)
    for number, each in enumerate(workers, 1):
        await world.client.delete(MULTIKUEUE_CLUSTER, f"w{number:02d}-{each.name}")
        await world.client.delete(SECRET, f"gpuplane-w{number:02d}-{each.name}", "kueue-system")


def command(text: str, **more: Any) -> dict[str, Any]:
    """Return a job of one GPU whose shell runs as a process of this machine."""
    return {
        "gpu_count": 1,
        "gpu_type": FLAVOR,
        "memory_gb": 1,
        "queue": "main",
        "deployment_type": "docker",
        "placement": {"node_selector": PROCESSES},
        "spec": {"image": "registry.test/python:3.11", "command": ["sh", "-c", text]},
        **more,
    }


IN_TURN = pytest.mark.timeout(299, func_only=True)
"""Of tests that have the manager to themselves by a fixture: waiting for it is no part of them."""


@contextlib.asynccontextmanager
async def dispatching_turn(folder: Path) -> AsyncIterator[None]:
    """Have the manager of a rig to oneself: it has one list of workers."""
    with (folder / "dispatching.lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield
