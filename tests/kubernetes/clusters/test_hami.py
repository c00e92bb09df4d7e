"""What HAMi's scheduler tells is read through the API server, and counts for places for work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from rig.nodes import gpu_ids
from tests.faults.inside import QUICK, Inside, inside
from tests.kubernetes.clusters.worlds import registered
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

NODE = "h100-1"


def own_address() -> str:
    """Return an address of this machine at which an API server may be sent: not the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("198.51.100.1", 9))  # of documentation; nothing is sent
        except OSError:
            pytest.skip("this machine has no address but the loopback, where no Service may lead")
        return str(asking.getsockname()[0])


async def serve(client: KubeClient, about: dict[str, Any], address: str, port: int) -> None:
    """Make a Service that leads to a server of this process.

    An API server goes to addresses of Pods alone, so that nobody is sent elsewhere by a Service:
    there is a Pod, which nobody schedules, that has this address.
    """
    namespace = about["namespace"]
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hami", "namespace": namespace},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "hami"}]},
    }  # fmt: skip
    await client.create(pod)
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    await client.patch(kinds.POD, "hami", status, namespace, subresource="status")
    await client.create(
        {
            "apiVersion": "v1", "kind": "Service", "metadata": about,
            "spec": {"ports": [{"name": "monitor", "port": 31_993, "protocol": "TCP"}]},
        }
    )  # fmt: skip
    target = {"kind": "Pod", "name": "hami", "namespace": namespace}
    await client.create(
        {
            "apiVersion": "v1", "kind": "Endpoints", "metadata": about,
            "subsets": [
                {
                    "addresses": [{"ip": address, "targetRef": target}],
                    "ports": [{"name": "monitor", "port": port}],
                }
            ],
        }
    )  # fmt: skip


@pytest.fixture
async def hami(rig: RunningCluster, namespace: str) -> AsyncIterator[dict[str, int]]:
    """A stand-in for HAMi's scheduler: it tells how many percent of cores devices have given."""
    given: dict[str, int] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        lines = [
            f'GPUDevice{what}{{deviceuuid="{gpu_id}",nodeid="{NODE}",zone="vGPU"}} {value}\n'
            for gpu_id, percent in given.items()
            for what, value in (("CoreAllocated", percent), ("CoreLimit", 100))
        ]
        body = "".join(lines).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    address = own_address()
    server = await asyncio.start_server(answer, address, 0)
    port = server.sockets[0].getsockname()[1]
    about = {"name": "hami-scheduler", "namespace": namespace,
             "labels": {"app.kubernetes.io/component": "hami-scheduler"}}  # fmt: skip
    try:
        async with KubeClient(rig.connection()) as client:
            await serve(client, about, address, port)
        yield given
    finally:
        server.close()
        await server.wait_closed()


async def node_of(it: Inside) -> dict[str, Any]:
    found: dict[str, Any] = (await it.client.get(f"/clusters/east/nodes/{NODE}")).json()
    return found


async def test_devices_that_others_use_are_counted_and_full_ones_are_not_available(
    rig: RunningCluster, hami: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_ENABLE_HAMI_METRICS", "true")
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_LOOK_S", "0.2")
    monkeypatch.setitem(QUICK, "GPUPLANE_CLUSTERS_HAMI_UTILIZATION_THRESHOLD", "70")
    ids = gpu_ids(NODE, 8)
    hami.update(dict.fromkeys(ids, 0) | {ids[0]: 69, ids[1]: 70, ids[2]: 100})
    async with inside(tmp_path) as it:
        await registered(it, "east", rig.kubeconfig.read_text(), addons=[])

        async def is_told() -> bool:
            return (await node_of(it))["used_workers"] == 3

        await wait_until_async(is_told, "HAMi was read", deadline_s=60)
        node = await node_of(it)
        assert (node["total_workers"], node["available_workers"]) == (8, 6)
        percents = {gpu["gpu_id"]: gpu["used_percent"] for gpu in node["gpus"]}
        assert (percents[ids[0]], percents[ids[2]], percents[ids[3]]) == (69, 100, 0)
        cluster = (await it.client.get("/clusters/east")).json()
        assert cluster["last_metrics_collection"] is not None
        assert cluster["metrics_collection_status"] == "HAMi told of 8 devices."
        hami.update(dict.fromkeys(ids, 0))

        async def is_free() -> bool:
            return (await node_of(it))["used_workers"] == 0

        await wait_until_async(is_free, "what was given back is available", deadline_s=60)
        assert (await node_of(it))["available_workers"] == 8
