"""Charts on a real Kueue: they wait whole, run under the job's quota, and go whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.kubernetes.chartplaces import ChartTools
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.kinds import DEPLOYMENT, JOB, POD, SECRET, WORKLOAD
from gpuplane.loops.kueue.workloads import follow
from tests.kubernetes.backend.charting import deployment, write_chart
from tests.kubernetes.kueue.test_three_tenants import FLAVOR, GPU, borrows, gpus, open_tenant
from tests.kubernetes.kueue.worlds import KueueWorld, running_kueue_world
from tests.kubernetes.rigged import RunningCluster

GPUS = {"limits": {GPU: "1"}}


@pytest.fixture
async def charts(
    rig: RunningCluster, sqlite_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> AsyncIterator[KueueWorld]:
    """A product that has the chart `shop`: a hook, two pods with a GPU each, and one beside."""
    folder = tmp_path / "charts"
    web = deployment("web", ["sleep", "600"], resources=GPUS)
    web["spec"]["replicas"] = 2
    beside = deployment("cache", ["sleep", "600"])
    hook = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "{{ .Release.Name }}-prepare",
            "annotations": {
                "helm.sh/hook": "pre-install",
                "helm.sh/hook-delete-policy": "hook-succeeded",
            },
        },
        "spec": {
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "prepare", "image": "app:1", "command": ["true"]}],
                }
            }
        },
    }
    write_chart(folder, "shop", [hook, web, beside])
    tools = ChartTools(helm=str(rig.binaries["helm"]), folder=str(folder), timeout_s=60)
    text = rig.kubeconfig.read_text()
    async with running_kueue_world(text, sqlite_url, tmp_path, sealing_keys, tools) as world:
        yield world


SHOP: dict[str, Any] = {
    "name": "shop",
    "job_type": "service",
    "deployment_type": "helm",
    "gpu_count": 1,
    "gpu_type": FLAVOR,
    "memory_gb": 1,
    "replicas": {"count": 2},
    "spec": {"chart": {"name": "shop"}},
}
"""A job that is the chart `shop`, with its two GPUs."""


async def made(world: KueueWorld, tenant: str) -> list[str]:
    """Return what is there of a tenant's charts: `kind name` without the digits of the attempt."""
    found = []
    for kind in (JOB, DEPLOYMENT, POD):
        for each in await world.client.list(kind, f"tenant-{tenant}"):
            found.append(f"{kind.kind} {each['metadata'].get('labels', {}).get('part-of', '-')}")
    for each in await world.client.list(SECRET, f"tenant-{tenant}", {"owner": "helm"}):
        found.append(f"Release {each['metadata']['labels']['status']}")
    return sorted(found)


RUNNING = [
    "Deployment cache", "Deployment web", "Job -", "Pod cache", "Pod web", "Pod web",
    "Release deployed",
]  # fmt: skip


async def test_a_chart_waits_without_a_pod_runs_under_the_quota_of_its_job_and_is_preempted_whole(
    charts: KueueWorld, add_nodes: Callable[..., list[str]]
) -> None:
    world = charts
    await world.house(add_nodes)
    bolt = await open_tenant(world, "bolt", 2)
    core = await open_tenant(world, "core", 0)
    # A LocalQueue of this name takes up whatever names none (Kueue's LocalQueueDefaulting).
    door = {"name": "default", "tenant": core, "clusterQueue": core}
    await world.ask("POST", f"/clusters/{world.name}/queues", 201, json=door)
    await world.loops["kueue"].run_once()
    first = (await world.submit(bolt, name="first", **gpus(1)))["id"]
    await world.until(lambda: world.has_status(first, "running"), "the owner runs")

    job = (await world.submit(core, queue="main", **SHOP))["id"]

    async def waits_in_line() -> bool:
        found = await world.job(job)
        return found["reason"] == "WaitingForAdmission" and "quota" in found["status_message"]

    await world.until(waits_in_line, "Kueue says that there is no quota")
    assert await made(world, core) == ["Job -"]

    await world.ask("DELETE", f"/jobs/{first}")
    await world.until(lambda: world.has_status(job, "running"), "the chart runs")

    async def is_whole() -> bool:
        return await made(world, core) == RUNNING

    await world.until(is_whole, "all of the chart is there, and its hook is done")
    await world.until(lambda: borrows(world, core, "2"), "what it borrows is what it asked for")
    [workload] = await world.client.list(WORKLOAD.at("v1beta2"), f"tenant-{core}")
    [attempt] = (await world.ask("GET", f"/jobs/{job}/attempts"))["items"]
    assert str(follow(workload).attempt_id) == attempt["id"]
    assert [each["rank"] for each in attempt["replicas"]] == [0, 1]
    assert len({gpu for each in attempt["replicas"] for gpu in each["gpu_ids"]}) == 2
    pods = await world.client.list(POD, f"tenant-{core}", {"part-of": "web"})
    nodes = sorted(each["spec"]["nodeName"] for each in pods)
    assert nodes == sorted(each["node"] for each in attempt["replicas"])

    late = (await world.submit(bolt, name="late", **gpus(2)))["id"]
    await world.until(lambda: world.has_status(late, "running"), "the owner got it back")
    await world.until(lambda: world.has_status(job, "queued"), "the chart waits again")
    await world.until(waits_in_line, "it stands in line anew")
    assert "job.preempting" in await world.kinds(job)

    async def is_taken_off() -> bool:
        return await made(world, core) == ["Job -"]

    await world.until(is_taken_off, "only what stands in line is there")
    await world.ask("DELETE", f"/jobs/{job}")

    async def is_gone() -> bool:
        left = await world.client.list(WORKLOAD.at("v1beta2"), f"tenant-{core}")
        return not left and not await made(world, core)

    await world.until(is_gone, "nothing of it is left")
    assert await world.has_status(job, "cancelled")
