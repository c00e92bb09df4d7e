"""Kill -9 at the writes of a registration and a deletion: each is done once, nothing is half."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.faults.planes import Died, Plane
from tests.faults.proofs import faults_of
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until_async

COMING = (
    "clusters.register:before",
    "clusters.register:after",
    "nodes.sync_inventory:before",
    "clusters.make_available:after",
)
GOING = (
    "clusters.start_deletion:after",
    "clusters.begin_removal:after",
    "clusters.remove:before",
    "clusters.remove:after",
)


async def clusters_of(plane: Plane) -> dict[str, dict[str, Any]]:
    """Return the clusters by name; empty when the plane died meanwhile."""
    try:
        found = (await plane.ask("GET", "/clusters")).json()["items"]
    except Died:
        return {}
    return {each["name"]: each for each in found}


@pytest.mark.timeout(300)  # nine lives of a server, each of some seconds on a busy machine
async def test_a_registration_and_a_deletion_survive_a_kill_at_each_of_their_writes(
    rig: RunningCluster, tmp_path: Path
) -> None:
    plane = Plane(tmp_path / "home")
    body = {"name": "east", "kubeconfig": rig.kubeconfig.read_text(), "addons": []}
    deaths = 0

    async def is_there() -> bool:
        found = (await clusters_of(plane)).get("east")
        return plane.is_over() or (found is not None and found["state"] == "AVAILABLE")

    async def is_gone() -> bool:
        return plane.is_over() or "east" not in await clusters_of(plane)

    try:
        for point in COMING:
            await plane.start(GPUPLANE_FAILPOINTS=point)
            with contextlib.suppress(Died):
                await plane.ask("POST", "/clusters", body, key="register-east")
                await wait_until_async(is_there, f"{point} or AVAILABLE", deadline_s=60)
            deaths += plane.is_over()
            await plane.kill()
            assert faults_of(plane.home) == [], point
        await plane.start()
        await plane.ask("POST", "/clusters", body, key="register-east")
        await wait_until_async(is_there, "it is AVAILABLE", deadline_s=60)
        found = await clusters_of(plane)
        assert sorted(found) == ["demo", "east", "local"]
        assert found["east"]["gpus"]
        await plane.kill()
        for point in GOING:
            await plane.start(GPUPLANE_FAILPOINTS=point)
            with contextlib.suppress(Died):
                await plane.ask("DELETE", "/clusters/east")
                await wait_until_async(is_gone, f"{point} or gone", deadline_s=60)
            deaths += plane.is_over()
            await plane.kill()
            assert faults_of(plane.home) == [], point
        await plane.start()
        await wait_until_async(is_gone, "it is gone", deadline_s=60)
        assert sorted(await clusters_of(plane)) == ["demo", "local"]
    finally:
        await plane.kill()
    assert deaths == len(COMING) + len(GOING)
