"""A service that its cluster scales, from the request over HTTP to the pods and the ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuplane.backends.kubernetes import names
from gpuplane.domains.placements import service as placements
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import DEPLOYMENT, HORIZONTAL_POD_AUTOSCALER, POD
from tests.faults.inside import Inside, inside
from tests.kubernetes.clusters.worlds import registered
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

NAMESPACE = "tenant-default"
SERVER = (  # pods of the rig share one machine: they share the port too
    "import http.server, os, socket\n"
    "class Server(http.server.ThreadingHTTPServer):\n"
    "    def server_bind(self):\n"
    "        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
    "        super().server_bind()\n"
    "handler = http.server.SimpleHTTPRequestHandler\n"
    "Server(('', int(os.environ['PORT'])), handler).serve_forever()"
)
BODY: dict[str, Any] = {
    "name": "el-web",
    "cluster": "east",
    "job_type": "service",
    "deployment_type": "docker",
    "gpu_count": 1,
    "gpu_type": "H100-80GB",
    "cpu_cores": 0.1,
    "memory_gb": 0.1,
    "max_retries": 0,
    "resources": {"ephemeral_storage_gb": 0.1},
    "replicas": {"count": 1, "min": 0, "max": 3, "scale_to_zero": True},
    "placement": {"node_selector": {"rig.gpuplane.io/kind": "process"}},
    "spec": {"image": "python", "command": ["python3", "-c", SERVER], "port": 18_377, "grace_s": 1},
}


class Service:
    """The service of the test, as the API and the cluster show it."""

    def __init__(self, it: Inside, client: KubeClient, job: str) -> None:
        self.it, self.client, self.job = it, client, job

    async def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.it.client.get(f"/jobs/{self.job}")).json()
        return found

    async def pods(self) -> list[dict[str, Any]]:
        found = await self.client.list(POD, NAMESPACE, {names.JOB_ID: self.job})
        return [each for each in found if not each["metadata"].get("deletionTimestamp")]

    async def ask_cluster(self, replicas: int) -> None:
        """Move the number as `kubectl scale` does."""
        patch = {"spec": {"replicas": replicas}}
        [found] = await self.client.list(DEPLOYMENT, NAMESPACE, {names.JOB_ID: self.job})
        await self.client.patch(DEPLOYMENT, found["metadata"]["name"], patch, NAMESPACE)

    async def scale(self, replicas: int) -> tuple[int, dict[str, Any]]:
        answer = await self.it.client.put(f"/jobs/{self.job}/scale", json={"replicas": replicas})
        return answer.status_code, answer.json()

    async def until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            found = await self.shown()
            return found if holds(found) else None

        found: dict[str, Any] | None = await wait_until_async(look, what, deadline_s=60)
        assert found is not None
        return found

    async def until_has(self, count: int) -> dict[str, Any]:
        """Return the job once it has so many replicas and all are ready."""

        def has(job: dict[str, Any]) -> bool:
            there = len((job["current_attempt"] or {"replicas": ()})["replicas"])
            return (there, job["replicas_ready"], job["replicas_wanted"]) == (count, count, count)

        return await self.until(f"{count} replicas", has)


async def held_gpus(it: Inside) -> set[str]:
    """Return the GPUs that the books give to somebody."""
    rows = await it.control.database.read(placements.list_open)
    return {row.gpu_id for row in rows if row.gpu_id is not None}


async def test_a_service_follows_what_its_cluster_scales_it_to(
    rig: RunningCluster, tmp_path: Path
) -> None:
    async with KubeClient(rig.connection()) as client:
        async with inside(tmp_path) as it:
            text = rig.kubeconfig.read_text()
            await registered(it, "east", text, addons=[], admission="embedded")
            answer = await it.client.post("/jobs", json=BODY)
            assert answer.status_code == 201, answer.text
            service = Service(it, client, answer.json()["id"])
            assert await it.wait_for(service.job, "running", "failed") == "running"
            await service.until_has(1)
            [scaler] = await client.list(
                HORIZONTAL_POD_AUTOSCALER, NAMESPACE, {names.JOB_ID: service.job}
            )
            spec = scaler["spec"]
            assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 3)
            status, refused = await service.scale(2)
            assert (status, refused["code"]) == (409, "job_not_scalable")
            assert "HorizontalPodAutoscaler" in refused["detail"]

            await service.ask_cluster(2)
            await service.until_has(2)
            pods = await service.pods()
            assert sorted(each["metadata"]["labels"][names.RANK] for each in pods) == ["0", "1"]
            told = {each["metadata"]["annotations"][names.GPU_IDS] for each in pods}
            assert told == await held_gpus(it)
            assert len(told) == 2
            assert it.faults() == []

            await service.ask_cluster(1)
            job = await service.until_has(1)
            assert (job["status"], job["attempt_count"]) == ("running", 1)
            assert len(await held_gpus(it)) == 1

            name = scaler["metadata"]["name"]
            await client.delete(HORIZONTAL_POD_AUTOSCALER, name, NAMESPACE)
            status, scaled = await service.scale(0)
            assert (status, scaled["replicas_wanted"]) == (200, 0)
            job = await service.until_has(0)
            assert job["status"] == "running"
            assert await held_gpus(it) == set()
            assert it.faults() == []
        await service.ask_cluster(2)  # while no control plane runs
        async with inside(tmp_path) as it:
            service.it = it
            job = await service.until_has(2)
            assert (job["status"], job["attempt_count"]) == ("running", 1)
            assert it.faults() == []
            assert (await it.client.delete(f"/jobs/{service.job}")).is_success
            assert await it.wait_for(service.job, "cancelled", "failed") == "cancelled"
            assert await held_gpus(it) == set()
            assert it.faults() == []
            assert await client.list(DEPLOYMENT, NAMESPACE, {names.JOB_ID: service.job}) == []
