"""Two workers of a manager: the preferred one first, and one that hangs holds nobody up."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.kinds import JOB, MULTIKUEUE_CLUSTER, WORKLOAD
from gpuplane.kube.kueue.dispatching import DISPATCHER
from gpuplane.kube.kueue.states import read_conditions, read_workload
from rig.binaries import Binaries
from rig.clusters import Cluster
from rig.rigs import RigPlan, running_rig
from tests.kubernetes.kueue.workers import JOB_SETS, add_worker, groups, job, queue_objects
from tests.kubernetes.kueue.worlds import KueueWorld, running_kueue_world

HANG_S = 120.0
"""Kueue asks a worker that hangs until its connection is given up, after 45 s at most."""


def dispatch_in_order(manager: Cluster) -> None:
    """Leave nominating to us and start the manager's Kueue again."""
    path = manager.folder / "kueue" / "configuration.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["multiKueue"]["dispatcherName"] = DISPATCHER
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    manager.parts["kueue"].stop()
    manager.parts["kueue"].start_again()


class Manager:
    """A manager with the workers `near` and `far`, the preferred one first."""

    def __init__(self, world: KueueWorld, tenant: str) -> None:
        self.world = world
        self.space = f"tenant-{tenant}"
        self.near, self.far = f"w01-{world.prefix}-near", f"w02-{world.prefix}-far"

    async def is_connected(self) -> bool:
        """Return whether both workers are."""
        told = []
        for name in (self.near, self.far):
            found = await self.world.client.find(MULTIKUEUE_CLUSTER.at("v1beta2"), name)
            conditions = read_conditions((found or {}).get("status", {}).get("conditions"))
            told.append("Active" in conditions and conditions["Active"].true)
        return all(told)

    async def run(self, name: str, cpus: int, patience_s: float) -> str:
        """Run a Job to its end and return the worker that had it."""
        await self.world.client.create(job(self.space, name, cpus), self.space)

        async def is_over() -> bool:
            found = await self.world.client.get(JOB, name, self.space)
            return bool(found.get("status", {}).get("succeeded"))

        await self.world.until(is_over, f"{name} is over", patience_s)
        found = await self.world.client.list(WORKLOAD.at("v1beta2"), self.space)
        states = [read_workload(each) for each in found]
        return next(each.cluster_name for each in states if each.owners[0][1] == name)


async def connect(world: KueueWorld, sealing: SealingKeys, clusters: dict[str, Cluster]) -> Manager:
    """Declare a dispatching queue and let the run connect both workers."""
    tenant, base, queue = (
        await world.tenant("acme"),
        f"/clusters/{world.name}",
        f"{world.prefix}-all",
    )
    quota = {"name": queue, "resourceGroups": groups(8)}
    await world.ask("POST", f"{base}/quotas", 201, json=quota)
    door = {"name": "main", "tenant": tenant, "clusterQueue": queue}
    await world.ask("POST", f"{base}/queues", 201, json=door)
    for (name, cluster), cpus in zip(clusters.items(), (1, 4), strict=True):
        text = cluster.kubeconfig.read_text()
        await add_worker(world, sealing, f"{world.prefix}-{name}", text)
        async with KubeClient(read_kubeconfig(text), field_manager="test") as client:
            await client.apply(JOB_SETS, force=True)
            for each in queue_objects(world, tenant, cpus):
                await client.apply(each, force=True)
    body = {"workers": [f"{world.prefix}-{name}" for name in clusters], "queues": [queue]}
    started = await world.ask("PUT", f"{base}/multikueue", 202, json=body)
    done = await world.until_over(started["runId"])
    assert done["status"] == "completed", done
    return Manager(world, tenant)


@pytest.mark.timeout(400)
async def test_the_preferred_worker_is_first_and_one_that_hangs_holds_nobody_up(
    rig_binaries: Binaries, sqlite_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    plan = RigPlan(workers=2, nodes=[("cpu", 1)], process_nodes=[])
    with running_rig(plan) as rig:
        dispatch_in_order(rig.manager)
        workers = {"near": rig.clusters["worker-1"], "far": rig.clusters["worker-2"]}
        text = rig.manager.kubeconfig.read_text()
        async with running_kueue_world(text, sqlite_url, tmp_path, sealing_keys) as world:
            manager = await connect(world, sealing_keys, workers)
            await world.until(manager.is_connected, "both workers are connected", HANG_S)
            had = [await manager.run(f"small-{number}", 1, HANG_S) for number in range(2)]
            assert had == [manager.near] * 2
            assert await manager.run("large", 2, HANG_S) == manager.far
            workers["near"].parts["kube-apiserver"].freeze()
            try:
                assert await manager.run("while-near-hangs", 1, HANG_S) == manager.far
            finally:
                workers["near"].parts["kube-apiserver"].thaw()
