"""The lives of jobs from submit to end, over HTTP and through the real loops."""

from __future__ import annotations

from tests.integration.jobs.worlds import World, runs_for


async def test_a_job_that_exits_zero_is_completed(any_world: World) -> None:
    world = any_world
    job = await world.submit(gpu_type="T4", gpu_count=1, spec=runs_for(60))
    assert job["status"] == "queued"
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "running"
    await world.after(61)
    done = await world.job(job["id"])
    assert done["status"] == "completed"
    assert done["exit_code"] == 0
    assert await world.kinds(job["id"]) == [
        "job.pending", "job.queued", "job.scheduled", "job.running", "job.completed",
    ]  # fmt: skip - one line of kinds
