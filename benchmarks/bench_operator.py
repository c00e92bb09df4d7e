"""The operator on 1,000 nodes with 5,000 GPUWorkloads: time to Scheduled, memory, CPU per workload.

Runs `gpuplane operator` as a process of its own against a rig of its own (real API server,
scheduler, Job controller; KWOK nodes). Figures of time on a shared machine are for comparison
only; processor time and memory are the operator's own.

    python -m benchmarks.bench_operator [--nodes 1000] [--workloads 5000]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.figures import Limit, print_figure, print_machine
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import Connection, read_kubeconfig
from gpuplane.kube.kinds import GPU_WORKLOAD, NAMESPACE, NODE
from rig.rigs import RigPlan, running_rig

ROOT = Path(__file__).parents[1]
Popen = subprocess.Popen[bytes]
NAMESPACE_NAME = "bench-operator"
LEASE_S = 400
"""Of the fake nodes: their renewals are no work of the operator's."""
AT_ONCE = 16
DEADLINE_S = 1_500
MEMORY_MB = 150.0
SCHEDULED_S = 1.0
TRIES = 10


def workload(name: str, gpus: int = 1, priority: str = "normal") -> dict[str, Any]:
    return {
        "apiVersion": GPU_WORKLOAD.api_version,
        "kind": GPU_WORKLOAD.kind,
        "metadata": {"name": name, "namespace": NAMESPACE_NAME},
        "spec": {"modelName": "held", "gpuCount": gpus, "priority": priority},
    }


async def make_world(client: KubeClient) -> None:
    for path in sorted((ROOT / "charts" / "gpuplane" / "crds").glob("*.yaml")):
        await client.apply(yaml.safe_load(path.read_text()), force=True)
    await client.create(
        {"apiVersion": "v1", "kind": NAMESPACE.kind, "metadata": {"name": NAMESPACE_NAME}}
    )
    while await client.served("gpu.warp.dev") is None:
        client.discovery.forget()
        await asyncio.sleep(0.2)


async def make_workloads(client: KubeClient, names: list[str]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def make(name: str) -> None:
        async with gate:
            await client.create(workload(name))

    await asyncio.gather(*(make(name) for name in names))


async def wait_placed(client: KubeClient, count: int, seconds: float) -> int:
    """Return how many of all workloads were placed within so long."""
    placed = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = await client.list(GPU_WORKLOAD, NAMESPACE_NAME)
        placed = sum(bool((each.get("status") or {}).get("jobName")) for each in found)
        print(f"  {placed} of {count} placed", flush=True)
        if placed == count:
            break
        await asyncio.sleep(20)
    return placed


async def time_to_scheduled(client: KubeClient, name: str) -> float:
    """Return seconds from the answer to `create` until the status says Scheduled or later."""
    made = await client.create(workload(name))
    started = time.perf_counter()
    events = client.watch(
        GPU_WORKLOAD,
        NAMESPACE_NAME,
        fields={"metadata.name": name},
        resource_version=made["metadata"]["resourceVersion"],
    )
    async for _, item in events:
        if (item.get("status") or {}).get("phase") in ("Scheduled", "Running", "Succeeded"):
            return time.perf_counter() - started
    raise SystemExit("the watch ended before the workload was scheduled")


def memory_mb(process: int) -> tuple[float, float]:
    """Return the memory of a process now and at most, in MB."""
    text = Path(f"/proc/{process}/status").read_text()
    now, peak = (re.search(rf"{name}:\s+(\d+)", text) for name in ("VmRSS", "VmHWM"))
    assert now is not None
    assert peak is not None
    return int(now[1]) / 1024, int(peak[1]) / 1024


def cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_operator(kubeconfig: Path, models: Path) -> subprocess.Popen[bytes]:
    options = ["--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE_NAME, "--single"]
    options += ["--models", str(models), "--metrics-port", "0", "--probe-port", "0"]
    return subprocess.Popen([sys.executable, "-m", "gpuplane", "operator", *options])


async def measure(
    connection: Connection, start: Callable[[], Popen], count: int, seconds: float
) -> None:
    async with KubeClient(connection) as client:
        await make_world(client)
        nodes = len(await client.list(NODE))
        process = start()
        try:
            await time_to_scheduled(client, "first")  # it has read everything then
            empty = [await time_to_scheduled(client, f"alone-{i}") for i in range(TRIES)]
            print(f"{nodes} nodes, nothing else to do")
            print_figure("create to Scheduled", empty, "s", Limit("at most", SCHEDULED_S))
            before = cpu_s(process.pid)
            await make_workloads(client, [f"w-{i}" for i in range(count)])
            began = time.monotonic()
            placed = await wait_placed(client, count + 1 + TRIES, seconds) - 1 - TRIES
            used = cpu_s(process.pid) - before
            waited_s = time.monotonic() - began
            print(f"{placed} of {count} were placed {waited_s:.0f} s after the last was made")
            print_figure("processor time a workload placed", [used / max(1, placed) * 1000], "ms")
            full = [await time_to_scheduled(client, f"late-{i}") for i in range(TRIES)]
            print(f"{nodes} nodes, {count} workloads there")
            print_figure("create to Scheduled", full, "s", Limit("at most", SCHEDULED_S))
            now, peak = memory_mb(process.pid)
            print_figure("memory now", [now], "MB")
            print_figure("memory at most", [peak], "MB", Limit("at most", MEMORY_MB))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--workloads", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=DEADLINE_S, help="for placing them")
    options = parser.parse_args()
    print_machine()
    plan = RigPlan(nodes=[("h100", options.nodes)], process_nodes=[], kueue=False, lease_s=LEASE_S)
    with running_rig(plan) as rig, tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models.yaml")
        models.write_text("held: {image: registry.example/held:1, command: [sleep, '86400']}\n")
        kubeconfig = rig.manager.kubeconfig
        connection = read_kubeconfig(kubeconfig.read_text())
        start = partial(start_operator, kubeconfig, models)
        asyncio.run(measure(connection, start, options.workloads, options.seconds))


if __name__ == "__main__":
    main()
