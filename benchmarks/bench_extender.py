"""The kube-scheduler extender over HTTP: a client process asks, a server process answers.

    python -m benchmarks.bench_extender [--rounds N]

Each round is one pod: filter, prioritize with the list that filter answered, then the pod is bound
to the best node and an older one ends, as the informers would tell. Candidates are nodes with
enough free GPUs in random order, another list for each pod, or one list for all: what
kube-scheduler sends after its own filters lies between the two. The limits
are held against the server's CPU time (throughput: one core) and the time that the client waits
(latency); the reference is the same server answering the same bytes without looking at anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.figures import Limit, print_figure, print_machine, quantile
from gpuplane.core.scheduling.devices import choose_devices
from gpuplane.core.topology.named import described_topology
from gpuplane.extender.answering import Answerer
from gpuplane.extender.holdings import name_devices
from gpuplane.extender.http import Request, Response, Server
from gpuplane.extender.nodes import read_record
from gpuplane.extender.pods import PodFacts, PodView, facts_of
from gpuplane.extender.serving import settle
from gpuplane.extender.state import ClusterState

GPUS = 8
SIZES = (1, 1, 1, 2, 4, 8)
SPARE = 1.25
"""Nodes for each candidate: some are always full."""
WARM = 200
OTHER, SAME = "another list each time", "one list"
_VIEW = msgspec.json.Decoder(PodView)
_HEADERS = {
    b"/filter": b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n",
    b"/prioritize": b"POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n",
    b"/bound": b"POST /bound HTTP/1.1\r\nHost: x\r\n",
    b"/ended": b"POST /ended HTTP/1.1\r\nHost: x\r\n",
}


def make_node(index: int) -> dict[str, Any]:
    """Return a node as the API has it."""
    amounts = {"cpu": "192", "memory": "2000Gi", "nvidia.com/gpu": str(GPUS), "pods": "110"}
    return {
        "metadata": {
            "name": f"gpu-node-{index:05}.region-1.example.org",
            "uid": f"node-{index}",
            "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "annotations": {
                "gpuplane.io/topology": "nvswitch-8" if index % 2 else "nvlink-cube-mesh-8"
            },
        },
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def make_pod(index: int, gpus: int) -> dict[str, Any]:
    """Return a pod about as long as real ones are."""
    return {
        "metadata": {
            "name": f"training-{index}",
            "namespace": "team-a",
            "uid": f"pod-{index}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {f"label-{i}": f"value-{i}" for i in range(8)},
            "annotations": {"gpuplane.io/links": "nvlink"} if index % 2 else {},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:x": {}}}}] * 4,
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.org/team/image:1.2.3",
                    "env": [{"name": f"VARIABLE_{i}", "value": "x" * 24} for i in range(12)],
                    "resources": {
                        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": str(gpus)},
                        "limits": {"nvidia.com/gpu": str(gpus)},
                    },
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "schedulerName": "gpuplane-scheduler",
        },
        "status": {"phase": "Pending"},
    }


async def _serve(nodes: int, ready: Connection) -> None:
    state = ClusterState()
    answerer = Answerer(state, lambda: 1)
    for index in range(nodes):
        state.put_node(
            read_record(
                make_node(index), lambda _, text, count: described_topology(text or "", count)
            )
        )
    state.refresh(1)
    settle()
    verbs = {b"/filter": answerer.filter, b"/prioritize": answerer.prioritize}
    echoed: dict[bytes, bytes] = {}

    def handle(request: Request) -> Response:
        path = request.path
        if path in verbs:
            echoed[path] = verbs[path](request.body)
            return Response(200, echoed[path])
        if path == b"/bound":
            pod = facts_of(_VIEW.decode(request.body))
            assert pod is not None
            answerer.put_pod(_with_devices(state, pod))
        elif path == b"/ended":
            answerer.drop_pod(request.body.decode())
        elif path.startswith(b"/echo"):
            return Response(200, echoed[path[5:]])
        return Response(200, b"{}")

    server = Server(handle)
    listener = await asyncio.get_running_loop().create_server(server.connect, "127.0.0.1", 0)
    ready.send((os.getpid(), listener.sockets[0].getsockname()[1]))
    await asyncio.get_running_loop().run_in_executor(None, ready.recv)
    listener.close()
    server.close()


def _with_devices(state: ClusterState, pod: PodFacts) -> PodFacts:
    """Return a pod annotated with the GPUs that binding gives it."""
    state.refresh(1)
    take = choose_devices(state.row(pod.workload), state.place_of[pod.node])
    ids = name_devices(state.nodes[pod.node], take)
    return msgspec.structs.replace(pod, gpu_ids=ids)


def _server(nodes: int, ready: Connection) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(nodes, ready))


class Client:
    """A keep-alive connection, as Go's client keeps one."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, path: bytes, body: bytes) -> tuple[bytes, float]:
        """Return the answer and how long it took, in seconds."""
        head = _HEADERS.get(path) or b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n"
        message = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        began = time.perf_counter()
        self._socket.sendall(message)
        data = self._socket.recv(1 << 18)
        end = data.index(b"\r\n\r\n")
        at = data.index(b"Content-Length: ") + 16
        missing = end + 4 + int(data[at : data.index(b"\r\n", at)]) - len(data)
        parts = [data]
        while missing > 0:
            more = self._socket.recv(1 << 18)
            missing -= len(more)
            parts.append(more)
        seconds = time.perf_counter() - began
        assert data.startswith(b"HTTP/1.1 200"), data[:200]
        return b"".join(parts)[end + 4 :], seconds


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has taken, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


class Load:
    """Pods that come and go so that about half of the GPUs are taken."""

    def __init__(self, nodes: int, candidates: int, lists: str) -> None:
        self._random = random.Random(1)
        self.names = [make_node(index)["metadata"]["name"] for index in range(nodes)]
        self._free = dict.fromkeys(self.names, GPUS)
        self._candidates = candidates
        self._same = self._random.sample(self.names, candidates) if lists == SAME else None
        self._bound: list[tuple[int, str, int]] = []
        self._next = 0

    def ask_for(self) -> tuple[int, int, bytes, bytes]:
        """Return (pod, GPUs, the pod's JSON, the JSON list of candidates)."""
        size = self._random.choice(SIZES)
        chosen = self._same
        if chosen is None:
            fitting = [name for name in self.names if self._free[name] >= size]
            chosen = self._random.sample(fitting, min(self._candidates, len(fitting)))
        self._next += 1
        pod = json.dumps(make_pod(self._next, size), separators=(",", ":")).encode()
        return self._next, size, pod, json.dumps(chosen, separators=(",", ":")).encode()

    def bind(self, pod: int, size: int, text: bytes, node: str) -> tuple[bytes, str | None]:
        """Return the bound pod, and the uid of one that ends now."""
        self._free[node] -= size
        self._bound.append((pod, node, size))
        bound = text.replace(b'"spec":{', b'"spec":{"nodeName":"%b",' % node.encode(), 1)
        ended = None
        if sum(self._free.values()) * 2 < len(self.names) * GPUS or len(self._bound) > 400:
            number, there, held = self._bound.pop(self._random.randrange(len(self._bound)))
            self._free[there] += held
            ended = f"pod-{number}"
        return bound, ended


def measure(candidates: int, rounds: int, lists: str) -> None:
    """Print the figures for one number of candidates, in one list or in many."""
    nodes = int(candidates * SPARE)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_server, args=(nodes, theirs))
    process.start()
    pid, port = ours.recv()
    client, load = Client(port), Load(nodes, candidates, lists)
    filters, ranks, per_pair, echoes, echo_cpu = [], [], [], [], []
    batch = max(1, rounds // 10)
    began, before = 0, cpu_s(pid)
    for index in range(-WARM, rounds):
        if index == 0 or (index > 0 and index % batch == 0):
            now = cpu_s(pid)
            if index > 0:
                per_pair.append((now - before) / (index - began))
            began, before = index, now
        number, size, pod, names = load.ask_for()
        head = b'{"Pod":' + pod + b',"Nodes":null,"NodeNames":'
        answer, filter_s = client.ask(b"/filter", head + names + b"}")
        start = answer.index(b'"NodeNames":') + 12
        kept = answer[start : answer.index(b"]", start) + 1]
        answer, rank_s = client.ask(b"/prioritize", head + kept + b"}")
        best = max(json.loads(answer), key=lambda each: each["Score"])
        bound, ended = load.bind(number, size, pod, best["Host"])
        client.ask(b"/bound", bound)
        if ended is not None:
            client.ask(b"/ended", ended.encode())
        if index >= 0:
            filters.append(filter_s * 1000)
            ranks.append(rank_s * 1000)
    per_pair.append((cpu_s(pid) - before) / (rounds - began))
    for _ in range(10):
        before = cpu_s(pid)
        for _ in range(batch):
            _, one = client.ask(b"/echo/filter", head + names + b"}")
            _, two = client.ask(b"/echo/prioritize", head + kept + b"}")
            echoes.append((one + two) * 1000)
        echo_cpu.append((cpu_s(pid) - before) / batch)
    ours.send(None)
    process.join(10)
    _print(candidates, lists, filters, ranks, per_pair, echoes, echo_cpu)


def _print(
    candidates: int,
    lists: str,
    filters: list[float],
    ranks: list[float],
    per_pair: list[float],
    echoes: list[float],
    echo_cpu: list[float],
) -> None:
    name = f"{candidates} candidates, {lists}"
    echo = 1 / max(1e-9, statistics.median(echo_cpu))
    print_figure(
        f"{name}: filter+prioritize pairs a second of one core (server's CPU time, bind included)",
        [1 / max(1e-9, each) for each in per_pair],
        "pairs/s",
        Limit("at least", 2000) if candidates <= 500 else None,
        ("echo", echo),
    )
    pairs = [one + two for one, two in zip(filters, ranks, strict=True)]
    for what, samples in (("filter", filters), ("prioritize", ranks), ("pair", pairs)):
        reference = ("echo of a pair", statistics.median(echoes)) if what == "pair" else None
        limited = candidates >= 5000 and what != "pair"
        print_figure(
            f"{name}: {what}, waited",
            samples,
            "ms",
            Limit("at most", 2) if limited else None,
            reference,
        )
        print_figure(
            f"{name}: {what}, waited, p99",
            samples,
            "ms",
            Limit("at most", 15) if candidates >= 5000 else None,
            judged=quantile(samples, 0.99),
        )


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--candidates", type=int, action="append")
    options = parser.parse_args()
    print_machine()
    for candidates in options.candidates or (500, 5000):
        for lists in (OTHER, SAME):
            measure(candidates, options.rounds if candidates <= 500 else options.rounds // 2, lists)


if __name__ == "__main__":
    main()
