"""What was kept long enough is forgotten, and nothing else."""

from __future__ import annotations

import hashlib

from gpuplane.loops.retention import Retention, RetentionLoop
from tests.integration.jobs.archives import an_archive
from tests.integration.jobs.worlds import World, runs_for

DAY_S = 86_400


def retention(world: World, **keep: float) -> RetentionLoop:
    server = world.server
    return RetentionLoop(
        server.database, server.clock, world.registry, Retention(**keep), world.workspaces
    )


async def ended(world: World, **fields: object) -> str:
    job = await world.submit(**{"spec": runs_for(1, log=["hello"]), **fields})
    await world.turn(2)
    await world.after(2)
    assert (await world.job(job["id"]))["status"] == "completed"
    return str(job["id"])


async def test_output_goes_first_and_the_job_stays(world: World) -> None:
    job_id = await ended(world)
    loop = retention(world, logs_days=14, jobs_days=90)
    world.server.clock.advance(13 * DAY_S)
    await loop.run_once()
    assert "hello" in (await world.ask("GET", f"/jobs/{job_id}/logs"))["text"]
    world.server.clock.advance(2 * DAY_S)
    await loop.run_once()
    gone = await world.ask("GET", f"/jobs/{job_id}/logs", 410)
    assert gone["code"] == "logs_gone"
    assert (await world.job(job_id))["status"] == "completed"


async def test_a_job_that_is_over_long_enough_is_forgotten_and_its_use_is_not(
    any_world: World,
) -> None:
    world = any_world
    job_id = await ended(world, gpu_type="T4", gpu_count=1)
    running = await world.submit(spec=runs_for(3600 * 24 * 365))
    await world.turn(2)
    world.server.clock.advance(91 * DAY_S)
    await retention(world).run_once()
    assert (await world.http.get(f"/api/v1/jobs/{job_id}")).status_code == 404
    assert (await world.job(running["id"]))["status"] == "running"
    used = await world.ask("GET", "/usage?group_by=job&from=2020-01-01T00:00:00Z")
    assert job_id in str(used)


async def test_a_job_that_another_still_waits_for_is_kept(world: World) -> None:
    job_id = await ended(world)
    waiting = await world.submit(
        after=[{"job_id": job_id}], scheduled_start="2126-01-01T00:00:00Z", spec=runs_for(1)
    )
    world.server.clock.advance(91 * DAY_S)
    await retention(world).run_once()
    assert (await world.job(job_id))["status"] == "completed"
    await world.ask("DELETE", f"/jobs/{waiting['id']}")
    await retention(world).run_once()
    assert (await world.http.get(f"/api/v1/jobs/{job_id}")).status_code == 404


async def test_nothing_is_forgotten_where_the_setting_is_zero(world: World) -> None:
    job_id = await ended(world)
    world.server.clock.advance(4000 * DAY_S)
    await retention(world, jobs_days=0, logs_days=0, events_days=0).run_once()
    assert "hello" in (await world.ask("GET", f"/jobs/{job_id}/logs"))["text"]


async def test_a_working_directory_that_nobody_uses_is_deleted(world: World) -> None:
    archive = an_archive({"train.py": b"print(1)"})
    digest = hashlib.sha256(archive).hexdigest()
    await world.ask("POST", "/workspaces", 201, content=archive)
    path = world.workspaces / f"{digest}.tar.gz"
    world.server.clock.advance(60 * DAY_S)
    job = await world.submit(spec={**runs_for(1), "workspace_digest": digest})
    assert job["spec"]["workspace_digest"] == digest
    world.server.clock.advance(60 * DAY_S)
    await retention(world).run_once()
    assert path.exists()
    world.server.clock.advance(60 * DAY_S)
    await retention(world).run_once()
    assert not path.exists()
