"""Jobs submitted here to a queue that dispatches: run on the worker, followed and booked there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuplane.domains.jobs import service as jobs
from gpuplane.kube.kinds import JOB
from gpuplane.kube.kueue.names import WorkloadCondition
from tests.kubernetes.kueue.dispatching import (
    IN_TURN,
    Worker,
    command,
    dispatch,
    nobody_looking,
    workloads_of,
)
from tests.kubernetes.kueue.worlds import KueueWorld
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

pytestmark = IN_TURN


async def replicas_of(world: KueueWorld, job_id: str) -> list[dict[str, Any]]:
    """Return the replicas of a job's last attempt."""
    found = await world.ask("GET", f"/jobs/{job_id}/attempts")
    replicas: list[dict[str, Any]] = found["items"][-1]["replicas"]
    return replicas


async def in_use(world: KueueWorld, cluster: str) -> int:
    """Return how many GPUs of a cluster are booked."""
    found = await world.ask("GET", f"/clusters/{cluster}/capacity")
    return sum(each["in_use"] for each in found["models"])


async def test_a_job_is_dispatched_run_read_and_booked_on_the_worker(
    world: KueueWorld, near: Worker
) -> None:
    tenant = await world.tenant("acme")
    await dispatch(world, [near], tenant, 2)
    text = "echo hello from afar; sleep 5; exit 3"
    made = await world.submit(tenant, name="far", max_retries=0, **command(text))
    await world.until(lambda: world.has_status(made["id"], "running"), "it runs")

    job = await world.job(made["id"])
    assert job["cluster_id"] == str(near.cluster_id)
    assert job["queue"] == f"{world.name}/main"
    [replica] = await replicas_of(world, made["id"])
    assert replica["node"].startswith("process-h100")
    assert len(replica["gpu_ids"]) == 1
    assert await in_use(world, near.name) == 1
    assert await in_use(world, world.name) == 0
    [here], [there] = await workloads_of(world.client, tenant), await near.workloads(tenant)
    assert here.cluster_name == f"w01-{near.name}"
    for state in (here, there):
        assert state.find(WorkloadCondition.ADMITTED) is not None
    body = {"command": ["sh", "-c", "echo beside"], "stdin": ""}
    beside = await world.ask("POST", f"/jobs/{made['id']}/exec", json=body)
    assert (beside["exit_code"], beside["stdout"]) == (0, "beside\n")

    await world.until(lambda: world.has_status(made["id"], "failed"), "its end came back")
    job = await world.job(made["id"])
    assert (job["reason"], job["exit_code"]) == ("NonZeroExit", 3)
    logs = await world.ask("GET", f"/jobs/{made['id']}/logs")
    assert "hello from afar" in logs["text"]
    kinds = await world.kinds(made["id"])
    told = ["job.offered", "job.dispatched", "job.scheduled", "job.running", "job.failed"]
    assert [kind for kind in kinds if kind in told] == told
    usage = await world.ask("GET", "/usage?group_by=job&group_by=cluster")
    [row] = usage["rows"]
    assert row["keys"]["cluster"] in (near.name, str(near.cluster_id))
    assert row["gpu_busy_s"] >= 4

    async def is_finished() -> bool:
        found = await workloads_of(world.client, tenant)
        return [each.find(WorkloadCondition.FINISHED) is not None for each in found] == [True]

    await world.until(is_finished, "the manager's Workload says so too")
    await world.until(lambda: has_told(world, made["id"]), "its manager knows")
    assert await world.server.database.read(jobs.check) == []


async def has_told(world: KueueWorld, job_id: str) -> bool:
    """Return whether managers were told of every attempt of a job."""
    found = await world.server.database.read(
        lambda s: jobs.list_to_release(s, [world.cluster_id], 100)
    )
    return str(job_id) not in {str(each.job_id) for each in found}


async def test_a_gang_runs_on_the_worker_and_a_cancel_ends_it_on_both_clusters(
    world: KueueWorld, near: Worker
) -> None:
    tenant = await world.tenant("acme")
    await dispatch(world, [near], tenant, 2)
    fields = command("echo rank $RANK of $WORLD_SIZE; sleep 600", replicas={"count": 2})
    made = await world.submit(tenant, name="gang", **fields)
    await world.until(lambda: world.has_status(made["id"], "running"), "both ranks run")
    assert [each["rank"] for each in await replicas_of(world, made["id"])] == [0, 1]
    for rank in (0, 1):
        logs = await world.ask("GET", f"/jobs/{made['id']}/logs?rank={rank}")
        assert f"rank {rank} of 2" in logs["text"]

    await world.ask("DELETE", f"/jobs/{made['id']}")
    await world.until(lambda: world.has_status(made["id"], "cancelled"), "it is cancelled")
    await world.until(lambda: has_told(world, made["id"]), "its manager knows")

    async def is_gone() -> bool:
        jobs_here = await world.client.list(JOB, f"tenant-{tenant}")
        jobs_there = await near.client.list(JOB, f"tenant-{tenant}")
        return not jobs_here and not jobs_there and not await near.pods(tenant)

    await world.until(is_gone, "nothing of it is left on either cluster")
    assert await world.server.database.read(jobs.check) == []


async def test_a_higher_class_takes_the_place_of_what_was_dispatched(
    world: KueueWorld, near: Worker
) -> None:
    tenant = await world.tenant("acme")
    await dispatch(world, [near], tenant, 1)
    low = await world.submit(tenant, name="low", **command("sleep 600", priority="low"))
    await world.until(lambda: world.has_status(low["id"], "running"), "the low one runs")
    high = await world.submit(tenant, name="high", **command("sleep 600", priority="high"))
    await world.until(lambda: world.has_status(high["id"], "running"), "the high one runs")
    await world.until(lambda: world.has_status(low["id"], "queued"), "the low one waits again")
    kinds = await world.kinds(low["id"])
    assert kinds.index("job.preempting") < kinds.index("job.preempted")
    assert (await world.job(high["id"]))["cluster_id"] == str(near.cluster_id)
    assert [len(each["spec"]["containers"]) for each in await near.pods(tenant)] == [1]
    assert await world.server.database.read(jobs.check) == []


async def test_a_queue_that_a_worker_does_not_have_from_here_takes_no_jobs(
    world: KueueWorld, near: Worker
) -> None:
    tenant, other = await world.tenant("acme"), await world.tenant("bolt")
    await dispatch(world, [near], tenant, 1)
    door = {"name": "main", "tenant": other, "clusterQueue": f"{world.prefix}-all"}
    await world.ask("POST", f"/clusters/{world.name}/queues", 201, json=door)
    made = await world.submit(other, name="nowhere", **command("true"))

    async def is_told() -> bool:
        found = await world.ask("GET", f"/jobs/{made['id']}/why")
        return near.name in found["sentence"] and "not declared" in found["sentence"]

    await world.until(is_told, "it says which worker lacks the queue")
    assert (await world.job(made["id"]))["reason"] == "NoQueue"


async def test_what_ended_while_no_control_plane_looked_ran_once_and_tells_code_and_logs(
    world: KueueWorld,
    near: Worker,
    rig: RunningCluster,
    second_rig: RunningCluster,
    tmp_path: Path,
) -> None:
    texts = (rig.kubeconfig.read_text(), second_rig.kubeconfig.read_text())
    tenant, ran, go = await world.tenant("acme"), tmp_path / "ran", tmp_path / "go"
    await dispatch(world, [near], tenant, 1)
    text = f"echo once >> {ran}; until [ -e {go} ]; do sleep 0.2; done; echo bye; exit 7"
    made = await world.submit(tenant, name="far", max_retries=0, **command(text))

    async def is_dispatched() -> bool:
        await world.loops["observer"].run_once()
        return "job.dispatched" in await world.kinds(made["id"])

    await world.until(is_dispatched, "it is dispatched")
    async with nobody_looking(world, near, texts, tmp_path / "second"):
        pass
    await world.until(lambda: world.has_status(made["id"], "running"), "it runs")
    async with nobody_looking(world, near, texts, tmp_path / "third"):
        go.touch()

        async def is_told() -> bool:
            found = await workloads_of(world.client, tenant)
            return [each.find(WorkloadCondition.FINISHED) is not None for each in found] == [True]

        await wait_until_async(is_told, "its manager knows", deadline_s=60, interval_s=0.3)
    await world.until(lambda: world.has_status(made["id"], "failed"), "its end came back")
    job = await world.job(made["id"])
    assert (job["reason"], job["exit_code"]) == ("NonZeroExit", 7)
    assert ran.read_text() == "once\n"
    logs = await world.ask("GET", f"/jobs/{made['id']}/logs")
    assert logs["text"] == "bye\n"

    async def is_gone() -> bool:
        return not await near.client.list(JOB, f"tenant-{tenant}")

    await world.until(is_gone, "Kueue takes it away once it was read")
    found = await world.ask("GET", f"/jobs/{made['id']}/attempts")
    assert len(found["items"]) == 1
    assert await world.server.database.read(jobs.check) == []
