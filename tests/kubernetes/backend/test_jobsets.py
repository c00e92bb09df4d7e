"""A training on several nodes is a JobSet where its controller is: embedded, and under Kueue.

One rig of this module has the controller; on the shared one such a training is an indexed Job.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpuplane.backends.interface import AttemptPlan, Phase, Stream
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import JobType, ResourceRequest
from gpuplane.db.database import Database
from gpuplane.entry.environment import load_settings
from gpuplane.entry.home import Home
from gpuplane.entry.rebuilding import rebuild_from
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.kinds import JOB, JOB_SET, NODE, POD, SERVICE, WORKLOAD, Kind
from gpuplane.kube.kueue.names import PRIORITY_LABEL
from gpuplane.loops.kueue.workloads import Followed, follow
from rig.binaries import JOBSET, Binaries, BinariesUnavailable, find_binaries
from rig.kubelet import NOT_READY
from rig.rigs import Rig, RigPlan, running_rig
from tests.contract.builders import a_plan
from tests.contract.factories import replicas_of, until, until_over, until_phase
from tests.contract.kubernetes import KubernetesFactory
from tests.faults.inside import QUICK, Inside, inside
from tests.http_app import sealing_keys
from tests.kubernetes.backend.test_workloads import labels_of, on_nodes
from tests.kubernetes.clusters.worlds import registered
from tests.kubernetes.kueue.test_three_tenants import GPU, RECLAIMS
from tests.kubernetes.kueue.worlds import KueueWorld, running_kueue_world
from tests.waiting import wait_until_async

__all__ = ["sealing_keys"]

PLAN = RigPlan(nodes=[], process_nodes=[("h100", 2)], jobset=True)
NODES = ("process-h100-1", "process-h100-2")
SLICES = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
ASKED = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64, gpu_count=1)
FLAVOR = "nvidia-h100-80gb"


@pytest.fixture(scope="module")
def own(rig_binaries: Binaries) -> Iterator[Rig]:
    """A cluster with Kueue, the JobSet controller and two nodes whose pods really run."""
    try:
        find_binaries((JOBSET,))
    except BinariesUnavailable as error:
        pytest.skip(str(error))
    with running_rig(PLAN) as rig:
        yield rig


@pytest_asyncio.fixture
async def factory(own: Rig, tmp_path: Path) -> AsyncIterator[KubernetesFactory]:
    """What makes and reopens the backend; what a test leaves is deleted."""
    made = KubernetesFactory(tmp_path, read_kubeconfig(own.manager.kubeconfig.read_text()))
    yield made
    await made.close()


@pytest_asyncio.fixture
async def backend(factory: KubernetesFactory) -> KubernetesBackend:
    """The opened backend."""
    return await factory.open()


def a_training(script: str, **more: Any) -> AttemptPlan:
    """Return a training whose two ranks lie on two nodes."""
    command = ("/bin/sh", "-c", script)
    asked: dict[str, Any] = {"job_type": JobType.TRAINING, "resources": ASKED, "grace_s": 1}
    return on_nodes(a_plan(**asked | more, command=command), NODES)


async def is_nothing_left(client: KubeClient, space: str, labels: dict[str, str]) -> bool:
    """Return whether no object of an attempt is there, the Service of its JobSet among them."""
    found = [
        each for kind in (JOB_SET, JOB, POD) for each in await client.list(kind, space, labels)
    ]
    return not found and not await client.list(SERVICE, space)


async def say_ready(client: KubeClient, node: str, *, ready: bool) -> None:
    """Have a node of the rig report, or fall silent."""
    mark = {NOT_READY: None if ready else "true"}
    await client.patch(NODE, node, {"metadata": {"annotations": mark}})


async def test_the_ranks_of_a_jobset_know_each_other_and_run_where_they_were_placed(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    script = 'echo "$RANK of $WORLD_SIZE at $GPUPLANE_NODE, master $MASTER_ADDR:$MASTER_PORT"'
    # Begins with a digit and is as long as names get: JobSet's webhook has an opinion on both.
    job_name = "7b of the team that gives its jobs long names"
    plan = replace(a_training(f"{script}; exec sleep 600"), job_name=job_name)
    await backend.ensure_workload(plan, {})
    running = await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    assert [(each.node_name, each.gpu_ids) for each in running] == [
        (node, (f"{node}/{rank}",)) for rank, node in enumerate(NODES)
    ]
    client = backend.client
    [made] = await client.list(JOB_SET, labels=labels_of(plan))
    name = made["metadata"]["name"]

    async def hosts() -> bool:
        of_service = {"kubernetes.io/service-name": name}
        found = await client.list(SLICES, "tenant-default", of_service)
        ends = [end for each in found for end in each.get("endpoints") or ()]
        # A cluster's DNS answers `<hostname>.<service>` from these.
        return sorted(str(end.get("hostname")) for end in ends) == [
            f"{name}-r-0-0",
            f"{name}-r-0-1",
        ]

    await wait_until_async(hosts, "each rank has a name of its own")
    for rank, node in enumerate(NODES):
        text = (await backend.read_logs(plan.ref, rank, Stream.STDOUT, 0, 1000)).data.decode()
        assert text == f"{rank} of 2 at {node}, master {name}-r-0-0.{name}:29500\n"

    lost = [Phase.RUNNING, Phase.UNREACHABLE]
    await say_ready(client, NODES[1], ready=False)
    try:
        await until(
            factory,
            backend,
            lambda now: [each.phase for each in replicas_of(now, plan.ref)] == lost,
            "the rank on the silent node is not heard of",
        )
    finally:
        await say_ready(client, NODES[1], ready=True)
    await backend.evict(plan.ref, 0.0, Word.CANCELLED)
    over = await until_over(factory, backend, plan.ref)
    assert {each.reason for each in over} == {Word.CANCELLED}
    labels = labels_of(plan)
    await wait_until_async(
        lambda: is_nothing_left(client, "tenant-default", labels), "nothing is left of it"
    )


async def test_a_jobset_ends_as_its_ranks_end(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    done = a_training("exit 0")
    failing = a_training('[ "$RANK" = 1 ] && exit 7; exec sleep 600')
    endless = a_training("exec sleep 600", max_duration_s=2)
    killed = a_training("exec sleep 600")
    for plan in (done, failing, endless, killed):
        await backend.ensure_workload(plan, {})
    assert {each.reason for each in await until_over(factory, backend, done.ref)} == {
        Word.COMPLETED
    }
    first, second = await until_over(factory, backend, failing.ref)
    assert (second.reason, second.exit_code) == (Word.NON_ZERO_EXIT, 7)
    assert (first.phase, first.reason) == (Phase.EXITED, Word.SIGNALLED)
    timed_out = await until_over(factory, backend, endless.ref)
    assert {each.reason for each in timed_out} == {Word.TIMED_OUT}

    await until_phase(factory, backend, killed.ref, Phase.RUNNING)
    pods = await backend.client.list(POD, labels=labels_of(killed))
    await backend.client.delete(POD, pods[0]["metadata"]["name"], "tenant-default", grace_s=0)
    over = await until_over(factory, backend, killed.ref)
    assert all(each.reason != Word.COMPLETED and each.exit_code != 0 for each in over)
    for plan in (done, failing, endless, killed):
        [kept] = await backend.client.list(JOB_SET, labels=labels_of(plan))
        assert (kept.get("status") or {}).get("restarts", 0) == 0
        # What is tried again is another attempt: nothing of this one starts a second time.
        assert len(await backend.client.list(JOB, labels=labels_of(plan))) == 1


async def submit(it: Inside, name: str) -> str:
    """Submit a training on two nodes and return its id."""
    answer = await it.client.post("/jobs", json={"cluster": "east", **training(name)})
    assert answer.is_success, answer.text
    found: str = answer.json()["id"]
    return found


def training(name: str, gpus: int = 1, **more: Any) -> dict[str, Any]:
    """Return the body of a training of two replicas, each on so many GPUs."""
    return {
        "name": name,
        "job_type": "training",
        "deployment_type": "docker",
        "replicas": {"count": 2},
        "placement": {"spreading": "spread"},
        "gpu_count": gpus,
        "gpu_type": FLAVOR,
        "memory_gb": 1,
        "spec": {"image": "registry.test/python:3.11", "command": ["sleep", "600"]},
        **more,
    }


async def places_of(it: Inside, job_id: str) -> list[tuple[str, list[str]]]:
    """Return the node and GPUs of each replica of a job's one attempt."""
    [found] = (await it.client.get(f"/jobs/{job_id}/attempts")).json()["items"]
    return [(each["node"], each["gpu_ids"]) for each in found["replicas"]]


async def test_a_jobset_that_the_scheduler_placed_is_taken_into_a_database_that_lost_it(
    own: Rig, tmp_path: Path
) -> None:
    text = own.manager.kubeconfig.read_text()
    old, new = tmp_path / "old", tmp_path / "new"
    async with inside(old) as it:
        await registered(it, "east", text, addons=[], admission="embedded")
    shutil.copytree(old, new)  # what was kept before the job was submitted
    async with inside(old) as it:
        job_id = await submit(it, "kept")
        await it.wait_for(job_id, "running")
        before = await places_of(it, job_id)
        assert sorted(node for node, _ in before) == sorted(NODES)
        assert all(len(gpu_ids) == 1 for _, gpu_ids in before)
    home = Home(new / "home")
    database = Database(load_settings(QUICK, home=home.path, port=0).sql_url)
    try:
        done = await asyncio.to_thread(rebuild_from, database, SealingKeys(home.keys), "east")
    finally:
        database.close()
    assert "kept" in done.restored
    async with inside(new) as it, KubeClient(read_kubeconfig(text)) as client:
        await it.wait_for(job_id, "running")
        assert await places_of(it, job_id) == before
        assert len(await client.list(JOB_SET, labels={names.JOB_ID: job_id})) == 1
        assert (await it.client.delete(f"/jobs/{job_id}")).is_success
        assert await it.wait_for(job_id, "cancelled", "failed", "completed") == "cancelled"
        labels = {names.JOB_ID: job_id}
        await wait_until_async(
            lambda: is_nothing_left(client, "tenant-default", labels), "nothing is left of it"
        )


@pytest_asyncio.fixture
async def world(
    own: Rig, sqlite_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> AsyncIterator[KueueWorld]:
    """A product that has this rig's Kueue admit."""
    text = own.manager.kubeconfig.read_text()
    async with running_kueue_world(text, sqlite_url, tmp_path, sealing_keys) as running:
        yield running


async def open_tenant(world: KueueWorld, name: str, gpus: int) -> str:
    """Make a tenant with so many H100 of its own in the world's cohort."""
    tenant, base = await world.tenant(name), f"/clusters/{world.name}"
    flavor = {"name": FLAVOR, "resources": [{"name": GPU, "nominalQuota": gpus}]}
    group = {"coveredResources": [GPU], "flavors": [flavor]}
    quota = {"name": tenant, "cohort": world.prefix, "preemption": RECLAIMS}
    await world.ask("POST", f"{base}/quotas", 201, json={**quota, "resourceGroups": [group]})
    door = {"name": "main", "tenant": tenant, "clusterQueue": tenant}
    await world.ask("POST", f"{base}/queues", 201, json=door)
    return tenant


async def workloads_of(world: KueueWorld, tenant: str) -> list[Followed]:
    """Return the Workloads of a tenant that are not going."""
    found = await world.client.list(WORKLOAD.at("v1beta2"), f"tenant-{tenant}")
    return [follow(each) for each in found if not each["metadata"].get("deletionTimestamp")]


async def test_kueue_admits_a_jobset_as_one_workload_and_takes_its_quota_back(
    world: KueueWorld,
) -> None:
    guest = await open_tenant(world, "guest", 0)
    owner = await open_tenant(world, "owner", 8)
    await world.loops["kueue"].run_once()
    job_id = (await world.submit(guest, **training("guest", 4)))["id"]
    await world.until(lambda: world.has_status(job_id, "running"), "both ranks run")

    [admitted] = await workloads_of(world, guest)
    assert [kind for kind, _, _ in admitted.state.owners] == ["JobSet"]
    assert [(pair.resource, n) for pair, n in admitted.state.usage.items()] == [(GPU, 8_000)]
    [attempt] = (await world.ask("GET", f"/jobs/{job_id}/attempts"))["items"]
    assert [len(each["gpu_ids"]) for each in attempt["replicas"]] == [4, 4]
    first = admitted.attempt_id

    other = (await world.submit(owner, **training("owner", 4)))["id"]
    await world.until(lambda: world.has_status(other, "running"), "the owner has its GPUs back")
    await world.until(lambda: world.has_status(job_id, "queued"), "the guest waits again")
    assert "job.preempted" in await world.kinds(job_id)
    rows = (await world.ask("GET", "/usage?group_by=job&group_by=model"))["rows"]
    used = {each["keys"]["job"]: each for each in rows if each["keys"]["model"] == FLAVOR}
    assert used[job_id]["gpu_busy_s"] > 0

    await world.ask("PUT", f"/jobs/{job_id}/priority", json={"priority": "low"})

    async def is_low() -> bool:
        found = [each for each in await workloads_of(world, guest) if each.attempt_id != first]
        sets = await world.client.list(JOB_SET, f"tenant-{guest}")
        classes = [each["metadata"]["labels"].get(PRIORITY_LABEL) for each in sets]
        return ([each.state.priority for each in found], classes) == ([1], ["gpuplane-low"])

    await world.until(is_low, "its Workload has the class of the JobSet, which is the new one")
    for each in (other, job_id):
        await world.ask("DELETE", f"/jobs/{each}")
        await world.until(lambda each=each: world.has_status(each, "cancelled"), "it is over")
    for tenant in (owner, guest):
        await world.until(
            lambda tenant=tenant: is_nothing_left(world.client, f"tenant-{tenant}", {}),
            "nothing is left of it",
        )
        assert await workloads_of(world, tenant) == []
