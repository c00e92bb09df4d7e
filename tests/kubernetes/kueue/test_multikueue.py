"""A job goes from a manager to the worker that has room, and its end comes back."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest
import yaml

from gpuplane.core.runs.plans import Completed, Failed
from gpuplane.domains.clusters import service as clusters
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import (
    CLUSTER_QUEUE,
    JOB,
    LOCAL_QUEUE,
    MULTIKUEUE_CLUSTER,
    NAMESPACE,
    SECRET,
    WORKLOAD,
)
from gpuplane.kube.kueue.states import read_conditions, read_workload
from gpuplane.loops.kueue.multikueue import connect_workers, join_managers
from tests.kubernetes.kueue.dispatching import IN_TURN
from tests.kubernetes.kueue.workers import (
    JOB_SETS,
    add_worker,
    do_step,
    groups,
    job,
    queue_objects,
)
from tests.kubernetes.kueue.worlds import KueueWorld
from tests.kubernetes.rigged import RunningCluster

pytestmark = [IN_TURN, pytest.mark.usefixtures("turn")]


async def join(
    world: KueueWorld, sealing: SealingKeys, near: str, worker_id: UUID, text: str
) -> None:
    """Register the worker with its manager, beside one that nobody reaches."""
    database = world.server.database
    lead = partial(
        clusters.change, key=world.cluster_id, wanted={"role": "manager"}, actor="test", now=1
    )
    await database.write("tests.role", lead)
    joined = await do_step(world, join_managers, worker_id, {})
    assert isinstance(joined, Completed)
    assert joined.output == {"managers": [world.name], "warnings": []}

    nowhere = yaml.safe_load(text)
    nowhere["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away_id = await add_worker(world, sealing, f"{world.prefix}-away", yaml.safe_dump(nowhere))
    given = {"workers": [str(away_id), str(worker_id)]}
    answer = await do_step(world, connect_workers, world.cluster_id, given)
    assert isinstance(answer, Failed)
    assert answer.word == "WorkerUnreachable"
    assert answer.message.startswith(f"{world.prefix}-away: ")
    kind = MULTIKUEUE_CLUSTER.at("v1beta2")
    known = {each["metadata"]["name"] for each in await world.client.list(kind)}
    assert f"w02-{near}" in known
    assert f"w01-{world.prefix}-away" not in known


async def test_a_job_runs_on_the_worker_and_its_end_comes_back(
    world: KueueWorld, second_rig: RunningCluster, sealing_keys: SealingKeys
) -> None:
    tenant, base = await world.tenant("acme"), f"/clusters/{world.name}"
    queue, near = f"{world.prefix}-all", f"{world.prefix}-near"
    text = second_rig.kubeconfig.read_text()
    async with KubeClient(second_rig.connection(), field_manager="test") as worker:
        await worker.apply(JOB_SETS, force=True)  # or Kueue does not connect with it
    worker_id = await add_worker(world, sealing_keys, near, text)
    await world.ask(
        "POST", f"{base}/quotas", 201, json={"name": queue, "resourceGroups": groups(4)}
    )
    door = {"name": "main", "tenant": tenant, "clusterQueue": queue}
    await world.ask("POST", f"{base}/queues", 201, json=door)
    await join(world, sealing_keys, near, worker_id, text)
    body = {"workers": [near], "queues": [queue]}
    started = await world.ask("PUT", f"{base}/multikueue", 202, json=body)
    done = await world.until_over(started["runId"])
    assert done["status"] == "completed", done

    space = f"tenant-{tenant}"
    async with KubeClient(second_rig.connection(), field_manager="test") as worker:
        try:
            for each in queue_objects(world, tenant):
                await worker.apply(each, force=True)
            named = MULTIKUEUE_CLUSTER.at("v1beta2")

            async def is_connected() -> bool:
                found = await world.client.find(named, f"w01-{near}")
                told = read_conditions((found or {}).get("status", {}).get("conditions"))
                return "Active" in told and told["Active"].true

            await world.until(is_connected, "the worker is connected")
            await world.client.create(job(space), space)

            async def is_over() -> bool:
                found = await world.client.get(JOB, "far", space)
                return bool(found.get("status", {}).get("succeeded"))

            await world.until(is_over, "the end came back")
            found = await world.client.list(WORKLOAD.at("v1beta2"), space)
            assert [read_workload(each).cluster_name for each in found] == [f"w01-{near}"]
        finally:
            await worker.delete(LOCAL_QUEUE, "main", space)
            await worker.delete(CLUSTER_QUEUE, queue)
            await worker.delete(NAMESPACE, space)
            await world.client.delete(MULTIKUEUE_CLUSTER, f"w01-{near}")
            await world.client.delete(SECRET, f"gpuplane-w01-{near}", "kueue-system")
