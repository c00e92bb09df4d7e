"""Jobs through the real loops: what is reserved is used by its project, and usage adds up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.domains.placements import service as placements
from gpuplane.domains.usage import service as usage
from gpuplane.kit.access import Role
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.sealing import SealingKeys
from tests.integration.jobs.worlds import H100, T4, World, running_world, runs_for


@pytest.fixture
async def whole(
    database_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> AsyncIterator[World]:
    """The API and the loops on each kind of database."""
    async with running_world(database_url, tmp_path, sealing_keys) as running:
        yield running


async def faults(world: World) -> list[str]:
    now = world.server.clock.now_ms()
    return await world.server.database.read(lambda s: [*placements.check(s), *usage.check(s, now)])


async def test_a_job_is_metered_and_priced_to_the_second_and_everything_adds_up(
    whole: World,
) -> None:
    job = await whole.submit(gpu_type="H100", gpu_count=2, spec=runs_for(3600))
    await whole.turn(2)
    await whole.after(3601)
    assert (await whole.job(job["id"]))["status"] == "completed"
    answer = await whole.ask("GET", "/usage?group_by=job&group_by=model")
    row = next(each for each in answer["rows"] if each["keys"]["model"] == H100)
    assert row["simulated"] is True
    assert row["gpu_busy_s"] == pytest.approx(2 * 3601, abs=4)
    gpu_cost = next(line for line in row["lines"] if line["resource"] == "gpu")
    assert float(gpu_cost["cost"]) == pytest.approx(8.0, abs=0.02)
    assert answer["cost"] == {}
    devices = await whole.ask("GET", "/usage/devices")
    assert devices["adds_up"] is True
    assert await faults(whole) == []


async def test_reserved_gpus_are_kept_for_the_jobs_of_their_project(whole: World) -> None:
    now = whole.server.clock.now_ms()
    body = {
        "cluster": "sim",
        "model": "T4",
        "count": 2,
        "start": instant_to_text(now),
        "end": instant_to_text(now + 86_400_000),
    }
    made = await whole.ask("POST", "/capacity/reservations", 201, json=body)
    await whole.after(60)
    active = await whole.ask("GET", f"/capacity/reservations/{made['id']}")
    assert (active["state"], len(active["gpu_ids"])) == ("active", 2)
    capacity = await whole.ask("GET", "/clusters/sim/capacity")
    model = next(each for each in capacity["models"] if each["model"] == T4)
    assert (model["reserved"], model["free"]) == (2, 0)

    own = await whole.submit(gpu_type="T4", gpu_count=1, spec=runs_for(3600))
    tenant_id, project_id = await whole.server.make_tenant("acme")
    _, token = await whole.server.make_user("ada", Role.MEMBER, tenant_id, project_id)
    stranger = await whole.server.client(token).post(
        "/api/v1/jobs",
        json={
            "name": "other",
            "cluster": "sim",
            "gpu_type": "T4",
            "gpu_count": 1,
            "spec": runs_for(60),
        },
    )
    await whole.turn(2)
    assert (await whole.job(own["id"]))["status"] == "running"
    assert stranger.status_code == 201, stranger.text
    waiting = await whole.job(stranger.json()["id"])
    assert (waiting["status"], waiting["reason"]) == ("queued", "ReservedForOthers")
    assert await faults(whole) == []
