"""A large cluster seen for the first time: 5,000 nodes and 50,000 pods by two informers.

Each run is a process of its own, so that its memory is that of the client alone: the time from
nothing to both informers synced, over TLS from a server on this machine (`kube_lists`), with
answers packed as the API server packs them, and plain. Beside it `json.loads` of the same bytes,
a page at a time and thrown away, which is the least that a client of dicts would do.

Run from the root: `PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_kube`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.figures import Limit, print_figure, print_machine
from benchmarks.kube_lists import Lists, Running, running_server
from gpuplane.kube import kinds, shapes
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.credentials import Connection
from gpuplane.kube.informers import Informer
from gpuplane.kube.nodefacts import read_node

RUNS = 5


async def tick(gaps: list[float]) -> None:
    """Note the processor time between two turns of others on the event loop."""
    while True:
        before = time.thread_time()
        await asyncio.sleep(0.002)
        gaps.append(time.thread_time() - before)


async def sync(server: Running, events: int, *, packed: bool) -> dict[str, float]:
    """Bring both informers to their first sync, take the changes, and say what that took."""
    connection = Connection(
        f"https://127.0.0.1:{server.port}", ca_pem=server.authority, token="token"
    )
    began, cpu = time.perf_counter(), time.process_time()
    gaps: list[float] = []
    ticking = asyncio.create_task(tick(gaps))
    async with KubeClient(connection, packed=packed) as client:
        nodes: Informer[Any] = Informer(client, kinds.NODE, convert=read_node)
        pods: Informer[Any] = Informer(client, kinds.POD, decode=shapes.SlimPod)
        pods.add_index("node", lambda pod: [pod.spec.node_name])
        nodes.start()
        pods.start()
        assert await nodes.wait_synced(300)
        assert await pods.wait_synced(300)
        found = {
            "wall_s": time.perf_counter() - began,
            "cpu_s": time.process_time() - cpu,
            "gap_ms": max(gaps) * 1000,
            "objects": len(nodes) + len(pods),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        }
        ticking.cancel()
        cpu, before = time.process_time(), pods.state.events
        while pods.state.events < events:
            assert await pods.wait_changed(60, since=pods.generation)
        taken = events - before
        found["event_us"] = (time.process_time() - cpu) * 1e6 / max(1, taken)
        await nodes.stop()
        await pods.stop()
    return found


def plain(lists: Lists) -> dict[str, float]:
    """Read the same pages with the standard library and keep nothing."""
    spent, size = 0.0, 0
    for plural in ("nodes", "pods"):
        for page in lists.pages(plural):
            began = time.process_time()
            json.loads(page)
            spent += time.process_time() - began
            size += len(page)
    return {"cpu_s": spent, "bytes": size}


def child(*words: str) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_kube", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--sync", help="one run in this process, of this server")
    parser.add_argument("--plain", action="store_true", help="the reference in this process")
    arguments = parser.parse_args()
    lists = Lists(arguments.nodes, arguments.pods, arguments.events)
    if arguments.sync:
        told = json.loads(arguments.sync)
        server = Running(told["port"], told["authority"])
        print(json.dumps(asyncio.run(sync(server, arguments.events, packed=told["packed"]))))
        return
    if arguments.plain:
        print(json.dumps(plain(lists)))
        return
    print_machine()
    size = ["--nodes", str(lists.nodes), "--pods", str(lists.pods), "--events", str(lists.events)]
    by_way: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    plains = []
    with running_server(lists) as server:
        for _ in range(arguments.runs):
            plains.append(child(*size, "--plain"))
            for packed, found in by_way.items():
                told = {"port": server.port, "authority": server.authority, "packed": packed}
                found.append(child(*size, "--sync", json.dumps(told)))
    reference = statistics.median(one["cpu_s"] for one in plains)
    print(f"{arguments.nodes} nodes, {arguments.pods} pods, {plains[0]['bytes'] / 1e6:.0f} MB JSON")
    for packed, found in by_way.items():
        way = "packed" if packed else "plain"
        assert all(one["objects"] == arguments.nodes + arguments.pods for one in found)
        walls = [one["wall_s"] for one in found]
        print_figure(f"first sync, {way} answers, wall", walls, "s", Limit("at most", 10))
        cpus = [one["cpu_s"] for one in found]
        print_figure(
            f"first sync, {way} answers, client CPU",
            cpus,
            "s",
            reference=("json.loads of the same bytes", reference),
        )
        gaps = [one["gap_ms"] for one in found]
        print_figure(f"longest turn on the event loop, {way} answers", gaps, "ms CPU")
        each = [one["event_us"] for one in found]
        print_figure(f"one change of a pod, {way} answers, client CPU", each, "us")
        peaks = [one["peak_mb"] for one in found]
        print_figure(f"peak memory, {way} answers", peaks, "MB", Limit("at most", 600))


if __name__ == "__main__":
    main()
