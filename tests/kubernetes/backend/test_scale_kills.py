"""Kill -9 between the record of a service's ranks and their places: none lost, none twice."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.kubernetes import names
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import DEPLOYMENT, HORIZONTAL_POD_AUTOSCALER, POD
from tests.faults.inside import QUICK
from tests.faults.planes import Died, Plane
from tests.faults.proofs import faults_of
from tests.kubernetes.backend.test_scaling import BODY, NAMESPACE
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

RECORDED, PLACED = "kubernetes.scale.recorded", "kubernetes.scale.placed"
WALK = (  # what is wanted, and where the process dies on the way there
    (2, RECORDED),
    (2, PLACED),  # met while it recovers from the one before
    (1, RECORDED),
    (1, PLACED),
)


class Walked:
    """A service of a control plane that dies, as its API and its cluster show it."""

    def __init__(self, plane: Plane, client: KubeClient) -> None:
        self.plane, self.client, self.job = plane, client, ""

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something holds, or the control plane has died."""

        async def look() -> bool:
            if self.plane.is_over():
                return True
            with contextlib.suppress(Died):
                return await holds()
            return True

        await wait_until_async(look, what, deadline_s=60, interval_s=0.1)

    async def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.plane.ask("GET", path)).json()
        return found

    async def begin(self, kubeconfig: str) -> None:
        """Have the cluster, and the service on it, whose number only this test moves."""
        body = {"name": "east", "kubeconfig": kubeconfig, "addons": [], "admission": "embedded"}
        await self.plane.ask("POST", "/clusters", body)

        async def is_available() -> bool:
            items = (await self.get("/clusters"))["items"]
            return any(each["name"] == "east" and each["state"] == "AVAILABLE" for each in items)

        await self.until("the cluster is AVAILABLE", is_available)
        spec = {**BODY["spec"], "port": 18_379}
        answer = await self.plane.ask("POST", "/jobs", {**BODY, "name": "sk-web", "spec": spec})
        assert answer.status_code == 201, answer.text
        self.job = answer.json()["id"]
        await self.until_has(1)
        ours = {names.JOB_ID: self.job}
        for each in await self.client.list(HORIZONTAL_POD_AUTOSCALER, NAMESPACE, ours):
            name = each["metadata"]["name"]
            await self.client.delete(HORIZONTAL_POD_AUTOSCALER, name, NAMESPACE)

    async def until_has(self, count: int) -> None:
        """Wait until the service has so many replicas and all are ready, or its plane died."""

        async def has() -> bool:
            job = await self.get(f"/jobs/{self.job}")
            there = len((job["current_attempt"] or {"replicas": ()})["replicas"])
            return (there, job["replicas_ready"]) == (count, count)

        await self.until(f"{count} replicas", has)

    async def want(self, count: int) -> None:
        """Move the number as `kubectl scale` does."""
        [found] = await self.client.list(DEPLOYMENT, NAMESPACE, {names.JOB_ID: self.job})
        patch = {"spec": {"replicas": count}}
        await self.client.patch(DEPLOYMENT, found["metadata"]["name"], patch, NAMESPACE)

    async def running(self) -> list[tuple[str, str]]:
        """Return (rank, GPUs) of each pod that is let go and not going."""
        found = await self.client.list(POD, NAMESPACE, {names.JOB_ID: self.job})
        return sorted(
            (each["metadata"]["labels"][names.RANK], each["metadata"]["annotations"][names.GPU_IDS])
            for each in found
            if not each["metadata"].get("deletionTimestamp") and each["spec"].get("nodeName")
        )


@pytest.mark.timeout(300)  # six lives of a server, each of some seconds on a busy machine
async def test_a_service_grows_and_shrinks_as_asked_though_it_is_killed_at_each_step(
    rig: RunningCluster, tmp_path: Path
) -> None:
    plane, deaths = Plane(tmp_path / "home"), []
    async with KubeClient(rig.connection()) as client:
        service = Walked(plane, client)
        try:
            for wanted, point in WALK:
                await plane.start(**QUICK, GPUPLANE_FAILPOINTS=point)
                if not service.job:
                    await service.begin(rig.kubeconfig.read_text())
                await service.want(wanted)

                async def is_dead() -> bool:
                    return plane.is_over()

                await service.until(f"{point} is reached", is_dead)
                deaths.append(plane.is_over())
                await plane.kill()
                assert faults_of(plane.home) == [], point
            await plane.start(**QUICK)
            for wanted in (1, 3):
                await service.want(wanted)
                await service.until_has(wanted)
                running = await service.running()
                assert len(running) == wanted
                assert len({gpu for _, gpu in running}) == wanted, "each has a GPU of its own"
                attempt = (await service.get(f"/jobs/{service.job}"))["current_attempt"]
                told = [(str(r["rank"]), ",".join(r["gpu_ids"])) for r in attempt["replicas"]]
                assert sorted(told) == running
            assert (await service.get(f"/jobs/{service.job}"))["attempt_count"] == 1
            await plane.ask("DELETE", f"/jobs/{service.job}")

            async def is_over() -> bool:
                return (await service.get(f"/jobs/{service.job}"))["status"] == "cancelled"

            await service.until("it is over", is_over)
        finally:
            await plane.kill()
        assert faults_of(plane.home) == []
        assert await service.running() == []
    assert deaths == [True] * len(WALK)
