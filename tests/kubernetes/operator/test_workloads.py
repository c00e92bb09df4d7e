"""GPUWorkloads on a real API server, scheduler and Job controller, from apply to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import yaml

from gpuplane.kube.kinds import EVENT, GPU_WORKLOAD, JOB, LEASE, POD
from gpuplane.operator.names import FINALIZER
from tests.kubernetes.operator.conftest import Bench
from tests.waiting import wait_until_async

Pool = Callable[..., list[str]]
EXAMPLE = Path(__file__).parents[3] / "examples" / "operator" / "gpuworkload.yaml"


async def test_the_documents_example_reaches_its_node_and_its_job_holds_it_there(
    bench: Bench, pool: Pool
) -> None:
    (node,) = pool("h100", 1)
    await bench.start()
    example = yaml.safe_load(EXAMPLE.read_text())
    await bench.admin.apply({**example, "metadata": {**example["metadata"],
                                                     "namespace": bench.namespace}})  # fmt: skip
    name = example["metadata"]["name"]
    status = await bench.until(name, "Scheduled", "Running")
    assert status["assignedNode"] == node
    running = await bench.until(name, "Running")
    job = await bench.admin.get(JOB, running["jobName"], bench.namespace)
    assert job["metadata"]["ownerReferences"][0]["kind"] == "GPUWorkload"
    (pod,) = await bench.admin.list(POD, bench.namespace)
    assert pod["spec"]["nodeName"] == node
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    events = await bench.admin.list(EVENT, bench.namespace)
    told = {e["reason"] for e in events if e["involvedObject"]["kind"] == "GPUWorkload"}
    assert told == {"Scheduled"}


async def test_the_phase_follows_the_job_to_its_good_and_its_bad_end(
    bench: Bench, pool: Pool
) -> None:
    pool("h100", 1, processes=True)
    operator = await bench.start()
    await bench.submit("good", "quick")
    await bench.submit("bad", "broken")
    good = await bench.until("good", "Succeeded")
    assert good["message"].startswith(f"Job {good['jobName']} completed on node")
    bad = await bench.until("bad", "Failed")
    assert "BackoffLimitExceeded" in bad["message"]
    registry = operator.meters.registry
    strategy = {"strategy": "leastLoaded"}
    assert registry.get_sample_value("warp_gpuworkload_scheduled_total", strategy) == 2
    failed = registry.get_sample_value("warp_gpuworkload_failed_total", {"reason": "job_failed"})
    assert failed == 1


async def test_gpus_that_come_free_go_to_the_next_and_nothing_is_sold_twice(
    bench: Bench, pool: Pool
) -> None:
    pool("l4", 1)
    await bench.start()
    await bench.submit("first", gpus=4)
    await bench.until("first", "Running")
    await bench.submit("second", gpus=1, retryPolicy={"maxRetries": 3, "backoffSeconds": 300})
    waiting = await wait_until_async(lambda: _with_retry(bench, "second"), "the second was put off")
    assert waiting["phase"] == "Pending"
    assert "1 with too few GPUs free" in waiting["message"]
    assert len(await bench.jobs()) == 1
    await bench.admin.delete(GPU_WORKLOAD, "first", bench.namespace)
    await bench.until("second", "Running")


async def _with_retry(bench: Bench, name: str) -> dict[str, object]:
    status = await bench.status(name)
    return status if status.get("retryCount") else {}


async def test_a_workload_that_no_node_can_ever_take_fails_after_its_retries(
    bench: Bench, pool: Pool
) -> None:
    pool("cpu", 1)
    operator = await bench.start()
    await bench.submit("w", retryPolicy={"maxRetries": 1, "backoffSeconds": 1})
    failed = await bench.until("w", "Failed")
    assert failed["message"].startswith("Failed to schedule after 1 retries: no node has 2 free")
    assert failed["retryCount"] == 1
    assert operator.meters.registry.get_sample_value("warp_gpuworkload_retries_total") == 1
    assert await bench.jobs() == []


async def test_a_deleted_workload_takes_its_job_and_pods_with_it(bench: Bench, pool: Pool) -> None:
    pool("h100", 1)
    await bench.start()
    await bench.submit("w")
    await bench.until("w", "Running")
    await bench.admin.delete(GPU_WORKLOAD, "w", bench.namespace)

    async def is_gone() -> bool:
        left = [*await bench.jobs(), *await bench.admin.list(POD, bench.namespace)]
        return not left and await bench.admin.find(GPU_WORKLOAD, "w", bench.namespace) is None

    assert await wait_until_async(is_gone, "the workload, its Job and its pods are gone")


async def test_a_job_that_somebody_deleted_is_a_failure_and_is_not_run_again(
    bench: Bench, pool: Pool
) -> None:
    pool("h100", 1)
    await bench.start()
    await bench.submit("w")
    status = await bench.until("w", "Running")
    await bench.admin.delete(JOB, status["jobName"], bench.namespace)
    failed = await bench.until("w", "Failed")
    assert failed["message"].endswith("was deleted before it was over; it is not run again")
    assert await bench.jobs() == []


async def test_a_higher_priority_takes_the_gpus_of_a_lower_one_which_runs_again_later(
    bench: Bench, pool: Pool
) -> None:
    pool("l4", 1)
    await bench.start()
    await bench.submit("low", gpus=4, priority="low")
    first = await bench.until("low", "Running")
    await bench.submit("high", gpus=4, priority="high")
    high = await bench.until("high", "Running")
    assert high["jobName"] != first["jobName"]
    low = await bench.until("low", "Pending")
    assert low["preemptionCount"] == 1
    await bench.admin.delete(GPU_WORKLOAD, "high", bench.namespace)
    again = await bench.until("low", "Running")
    assert again["jobName"] == f"{first['jobName']}-2"


async def test_a_second_replica_takes_over_and_makes_no_job_twice(bench: Bench, pool: Pool) -> None:
    pool("h100", 2)
    first = await bench.start("a")
    await wait_until_async(lambda: first.leads, "the first leads")
    second = await bench.start("b")
    await bench.submit("before")
    before = await bench.until("before", "Running")
    assert not second.leads
    await bench.stop(first)
    await bench.submit("after")
    await bench.until("after", "Running")
    assert second.leads
    lease = await bench.admin.get(LEASE, "gpuplane-operator", bench.namespace)
    assert lease["spec"]["holderIdentity"] == "b"
    assert await bench.status("before") == before
    assert len(await bench.jobs()) == 2


async def test_a_job_that_was_made_before_its_leader_died_is_found_and_not_made_again(
    bench: Bench, pool: Pool
) -> None:
    pool("h100", 2)
    first = await bench.start()
    await bench.submit("w")
    await bench.until("w", "Running")
    await bench.stop(first)
    # As if the leader had died between making the Job and writing that it did.
    cut = {"status": {"phase": "Pending", "jobName": None, "assignedNode": None}}
    await bench.admin.patch(GPU_WORKLOAD, "w", cut, bench.namespace, subresource="status")
    (job,) = await bench.jobs()
    await bench.start("b")
    status = await bench.until("w", "Running")
    assert status["jobName"] == job["metadata"]["name"]
    assert [each["metadata"]["uid"] for each in await bench.jobs()] == [job["metadata"]["uid"]]


async def test_under_kueue_the_job_waits_suspended_in_its_queue(bench: Bench, pool: Pool) -> None:
    pool("h100", 1)
    await bench.start()
    await bench.submit("w", queueName="no-such-queue")
    status = await bench.until("w", "Scheduling")
    assert status["message"].endswith("waits for admission to queue no-such-queue")
    (job,) = await bench.jobs()
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "no-such-queue"


async def test_a_reservation_holds_its_node_and_starts_at_its_hour(
    bench: Bench, pool: Pool
) -> None:
    (node,) = pool("l4", 1)
    await bench.start()
    await bench.submit("later", gpus=4, reservation={"startTime": "2099-01-01T00:00:00Z",
                                                     "holdSeconds": 0})  # fmt: skip
    await bench.until("later", "Pending")
    from_now = {"startTime": _soon(), "holdSeconds": 3600}
    await bench.submit("soon", gpus=3, reservation=from_now)
    held = await bench.until("soon", "Scheduling")
    assert held["assignedNode"] == node
    await bench.submit("other", gpus=2)
    refused = await bench.until("other", "Pending")
    assert "at most 1 are free" in refused["message"]
    started = await bench.until("soon", "Running")
    assert started["assignedNode"] == node


def _soon() -> str:
    from gpuplane.kit.clock import SystemClock, instant_to_text

    return instant_to_text(SystemClock().now_ms() // 1000 * 1000 + 5000).replace(".000Z", "Z")


async def test_many_at_once_each_get_one_job_and_no_gpu_is_sold_twice(
    bench: Bench, pool: Pool
) -> None:
    names = set(pool("l4", 3))
    operator = await bench.start()
    count = 20
    strategies = ["leastLoaded", "random", "costOptimized", "fragmentation", "topology"]
    await asyncio.gather(
        *(bench.submit(f"w{i}", gpus=1, schedulingStrategy=strategies[i % 5]) for i in range(count))
    )

    async def placed() -> list[dict[str, object]]:
        found = [await bench.status(f"w{i}") for i in range(count)]
        running = [each for each in found if each.get("phase") == "Running"]
        waiting = [each for each in found if each.get("retryCount")]
        return running if len(running) == 12 and len(waiting) == 8 else []

    running = await wait_until_async(placed, "twelve run and eight wait")
    assert {each["assignedNode"] for each in running} == names
    jobs = await bench.jobs()
    assert len(jobs) == 12
    pods = await bench.admin.list(POD, bench.namespace)
    by_node = [pod["spec"]["nodeName"] for pod in pods]
    assert sorted(by_node.count(name) for name in names) == [4, 4, 4]
    # Nodes, pods, Jobs, GPUWorkloads and MIGLayouts were read once each and then watched.
    assert operator.leader is not None
    assert operator.leader.list_count == 5


async def test_nothing_of_a_job_that_is_not_ours_is_touched(bench: Bench, pool: Pool) -> None:
    pool("h100", 1)
    made = await bench.submit("w")
    name = f"w-job-{made['metadata']['uid'][:8]}"
    foreign = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": bench.namespace},
        "spec": {"suspend": True, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}},
    }  # fmt: skip
    before = await bench.admin.create(foreign)
    await bench.start()

    async def is_told() -> bool:
        message = (await bench.status("w")).get("message", "")
        return message == f"a Job named {name} that is not ours is in the way; it is left alone"

    assert await wait_until_async(is_told, "the Job in the way is told")
    after = await bench.admin.get(JOB, name, bench.namespace)
    assert msgspec.json.encode(after["spec"]) == msgspec.json.encode(before["spec"])
    assert (
        FINALIZER
        in (await bench.admin.get(GPU_WORKLOAD, "w", bench.namespace))["metadata"]["finalizers"]
    )
