"""Two workers of a manager: the preferred one first, and one that hangs holds nobody up."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import pytest
import yaml

from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.kinds import JOB, WORKLOAD
from gpuplane.kube.kueue.dispatching import DISPATCHER
from gpuplane.kube.kueue.states import read_workload
from rig.binaries import Binaries
from rig.clusters import Cluster
from rig.rigs import RigPlan, running_rig
from tests.kubernetes.kueue.dispatching import dispatch_to, serving
from tests.kubernetes.kueue.workers import groups, job
from tests.kubernetes.kueue.worlds import KueueWorld, running_kueue_world

HANG_S = 120.0
"""Kueue asks a worker that hangs until its connection is given up."""
GIVE_UP = {"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "5", "HTTP2_PING_TIMEOUT_SECONDS": "5"}
"""When that is: Kubernetes' own client library waits 30 s and 15 s where nothing else is said, see
`configureHTTP2Transport` of k8s.io/apimachinery/pkg/util/net."""


def dispatch_in_order(manager: Cluster) -> None:
    """Leave nominating to us and start the manager's Kueue again, which gives up early."""
    path = manager.folder / "kueue" / "configuration.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["multiKueue"]["dispatcherName"] = DISPATCHER
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    manager.parts["kueue"].environment |= GIVE_UP
    manager.parts["kueue"].stop()
    manager.parts["kueue"].start_again()


class Manager:
    """A manager with the workers `near` and `far`, the preferred one first."""

    def __init__(self, world: KueueWorld, tenant: str) -> None:
        self.world = world
        self.space = f"tenant-{tenant}"
        self.near, self.far = f"w01-{world.prefix}-near", f"w02-{world.prefix}-far"

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

    async def submit(self, tenant: str, name: str, patience_s: float) -> str:
        """Run a job that is submitted here to its end and return the cluster that had it."""
        image = {"image": "registry.test/python:3.11", "command": ["sleep", "1"]}
        fields = {"cpu_cores": 1, "memory_gb": 1, "deployment_type": "docker", "spec": image}
        made = await self.world.submit(tenant, name=name, queue="main", **fields)
        over = partial(self.world.has_status, made["id"], "completed")
        await self.world.until(over, f"{name} is over", patience_s)
        return str((await self.world.job(made["id"]))["cluster_id"])


@pytest.mark.timeout(500)
async def test_the_preferred_worker_is_first_and_one_that_hangs_holds_nobody_up(
    rig_binaries: Binaries, sqlite_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    plan = RigPlan(workers=2, nodes=[("cpu", 1)], process_nodes=[])
    with running_rig(plan) as rig:
        dispatch_in_order(rig.manager)
        clusters = {"near": rig.clusters["worker-1"], "far": rig.clusters["worker-2"]}
        text = rig.manager.kubeconfig.read_text()
        async with (
            running_kueue_world(text, sqlite_url, tmp_path, sealing_keys) as world,
            contextlib.AsyncExitStack() as stack,
        ):
            near, far = [
                await stack.enter_async_context(
                    serving(world, sealing_keys, tmp_path / name, name, each.kubeconfig.read_text())
                )
                for name, each in clusters.items()
            ]
            tenant = await world.tenant("acme")
            await dispatch_to(world, [near, far], tenant, [groups(8), groups(1), groups(4)])
            manager = Manager(world, tenant)
            assert await manager.run("small", 1, HANG_S) == manager.near
            assert await manager.submit(tenant, "ours", HANG_S) == str(near.cluster_id)
            assert await manager.run("large", 2, HANG_S) == manager.far
            clusters["near"].parts["kube-apiserver"].freeze()
            try:
                assert await manager.run("while-near-hangs", 1, HANG_S) == manager.far
                had = await manager.submit(tenant, "ours-while-near-hangs", HANG_S)
                assert had == str(far.cluster_id)
            finally:
                clusters["near"].parts["kube-apiserver"].thaw()
