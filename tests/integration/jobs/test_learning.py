"""What ended jobs teach about those to come, over HTTP and through the real loops."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.core.prediction.experience import NOTHING, Measure
from gpuplane.core.prediction.sketches import middle_of
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.repository import experience
from gpuplane.loops.retention import REMEMBERED_MS, Retention, RetentionLoop
from tests.integration.jobs.worlds import World, runs_for

ONE_GPU = {"gpu_type": "T4", "gpu_count": 1}


async def run_whole(world: World, name: str, seconds: float, **fields: Any) -> str:
    """Run a job to its end and learn from it."""
    job = await world.submit(name=name, spec=runs_for(seconds), **{**ONE_GPU, **fields})
    await world.turn(2)
    await world.after(seconds + 1)
    assert (await world.job(job["id"]))["status"] in ("completed", "failed")
    await world.loops["learner"].run_once()
    return str(job["id"])


async def estimate(world: World, name: str, **fields: Any) -> dict[str, Any]:
    body = {"name": name, "cluster": "sim", "spec": runs_for(1), **ONE_GPU, **fields}
    return await world.ask("POST", "/jobs/estimate", json=body)


async def stored(world: World) -> dict[str, Any]:
    """Return everything remembered, by key name."""

    def read(session: Any) -> dict[str, Any]:
        names = experience.list_changed(session, -1)
        return experience.load_records(session, names)

    return await world.server.database.read(read)


async def test_three_runs_of_a_series_say_how_long_the_fourth_takes(any_world: World) -> None:
    world = any_world
    before = await estimate(world, "train-mnist-1")
    assert before["prediction"]["basis"] == "default"
    assert before["prediction"]["sentence"] == "Nothing is known of its like: the default of 1 h."
    assert before["expected_end"] is None
    for number in range(3):
        await run_whole(world, f"train-mnist-{number}", 600)
    after = await estimate(world, "train-mnist-9")
    told = after["prediction"]
    assert told["basis"] == "history"
    assert told["durations_seconds"]["samples"] == 3
    assert told["durations_seconds"]["likeness"] == "series"
    assert abs(told["duration_seconds"] - 600) <= 600 / 32 + 2
    assert "3 similar jobs of this project ran" in " ".join(after["explanation"])
    assert after["expected_end"] is not None
    assert float(after["estimated_cost"]) > 0


async def test_another_name_or_gpu_count_is_not_the_same_series(world: World) -> None:
    for number in range(3):
        await run_whole(world, f"train-{number}", 600)
    for other in (await estimate(world, "evaluate"), await estimate(world, "train", gpu_count=2)):
        assert other["prediction"]["basis"] == "default"


async def test_what_a_user_states_is_counted_on_and_history_is_told_beside_it(
    world: World,
) -> None:
    for number in range(3):
        await run_whole(world, f"train-{number}", 600)
    told = (await estimate(world, "train-7", estimated_duration_seconds=3600))["prediction"]
    assert (told["basis"], told["duration_seconds"]) == ("estimate", 3600)
    assert told["durations_seconds"]["samples"] == 3
    assert "3 similar jobs of this project ran" in told["sentence"]


async def test_learning_again_counts_every_attempt_once(any_world: World) -> None:
    world = any_world
    for number in range(2):
        await run_whole(world, f"train-{number}", 60)
    first = await stored(world)
    for _ in range(2):
        await world.loops["learner"].run_once()
    assert await stored(world) == first
    counts = {record.sketch(Measure.DURATION_S).count for record in first.values()}
    assert counts == {2}


async def test_an_attempt_teaches_nothing_when_its_learning_is_undone(world: World) -> None:
    job = await world.submit(name="train", spec=runs_for(60), **ONE_GPU)
    await world.turn(2)
    await world.after(61)
    now = world.server.clock.now_ms()

    class Killed(Exception):
        pass

    def cut_short(session: Any) -> None:
        assert jobs.learn(session, 10, now) == 1
        raise Killed

    with pytest.raises(Killed):
        await world.server.database.write("tests.cut_short", cut_short)
    assert await stored(world) == {}
    assert (await world.job(job["id"]))["status"] == "completed"
    await world.loops["learner"].run_once()
    assert all(record != NOTHING for record in (await stored(world)).values())
    assert len(await stored(world)) == 4


async def test_a_run_that_fails_says_nothing_of_how_long_one_takes(world: World) -> None:
    spec = runs_for(5, exit_code=1)
    job = await world.submit(name="train", spec=spec, max_retries=0, **ONE_GPU)
    await world.turn(2)
    await world.after(6)
    await world.loops["learner"].run_once()
    assert (await world.job(job["id"]))["status"] == "failed"
    assert await stored(world) == {}


async def test_a_placed_job_says_its_class_and_ends_when_its_like_did(any_world: World) -> None:
    world = any_world
    for number in range(3):
        await run_whole(world, f"train-{number}", 600)
    job = await world.submit(name="train-8", spec=runs_for(600), **ONE_GPU)
    await world.turn(2)
    running = await world.job(job["id"])
    assert running["status"] == "running"
    told = running["current_attempt"]["explanation"]
    assert told["prediction"]["workload_class"] == "training"
    assert told["prediction"]["durations"]["basis"] == "history"
    why = " ".join((await world.ask("GET", f"/jobs/{job['id']}/why"))["explanation"])
    assert "Taken for training" in why or "Most likely training" in why
    assert "3 similar jobs of this project ran" in why
    assert running["estimated_end"] is not None


async def test_a_short_job_goes_onto_the_node_in_use_and_is_told_why(world: World) -> None:
    big = await world.submit(name="big", gpu_type="H100", gpu_count=2, spec=runs_for(9000))
    await world.turn(2)
    spec = {"command": ["jupyter", "lab"], "simulated": {"duration_s": 60}}
    job = await world.submit(name="notebook", gpu_type="H100", gpu_count=1, spec=spec)
    await world.turn(2)
    nodes = [
        (await world.job(each["id"]))["current_attempt"]["replicas"][0]["node"]
        for each in (big, job)
    ]  # fmt: skip - one line each
    assert nodes[0] == nodes[1]
    why = " ".join((await world.ask("GET", f"/jobs/{job['id']}/why"))["explanation"])
    assert "The hint for interactive is worth +" in why
    assert "short work fills up a node that is in use" in why


async def test_a_waiting_job_is_forecast_by_the_history_of_those_before_it(world: World) -> None:
    for number in range(3):
        await run_whole(world, f"train-{number}", 600, gpu_count=2)
    first = await world.submit(name="train-5", spec=runs_for(600), gpu_type="T4", gpu_count=2)
    await world.turn(2)
    second = await world.submit(name="train-6", spec=runs_for(600), gpu_type="T4", gpu_count=2)
    await world.turn(1)
    plan = await world.ask("GET", f"/jobs/{second['id']}/schedule")
    running = await world.job(first["id"])
    assert plan["estimated_start"] == running["estimated_end"]
    assert "3 similar jobs of this project ran" in " ".join(plan["explanation"])


async def test_measured_memory_and_utilisation_are_expected_of_the_next_run(
    any_world: World,
) -> None:
    world = any_world
    use = {"gpu_memory_mib": 11_000, "gpu_utilization": 0.85}
    for number in range(3):
        spec = runs_for(600, **use)
        job = await world.submit(name=f"train-{number}", spec=spec, **ONE_GPU)
        await world.turn(2)
        await world.after(601)
        assert (await world.job(job["id"]))["status"] == "completed"
    await world.loops["learner"].run_once()
    told = await estimate(world, "train-9")
    memory = told["prediction"]["gpu_memory_mib"]
    assert (memory["samples"], memory["likeness"]) == (3, "series")
    assert abs(memory["high"] - 11_000) <= 11_000 / 32
    busy = told["prediction"]["gpu_utilization_permille"]
    assert abs(busy["median"] - 850) <= 850 / 32
    said = " ".join(told["explanation"])
    assert "3 similar jobs of this project took up to" in said
    assert "its GPUs fit the measured peak of memory" in said


async def test_the_event_of_an_end_tells_what_was_expected(world: World) -> None:
    for number in range(3):
        await run_whole(world, f"train-{number}", 600)
    job_id = await run_whole(world, "train-8", 700)
    found = await world.ask("GET", f"/jobs/{job_id}/events?limit=200")
    (end,) = [each for each in found["items"] if each["kind"] == "job.completed"]
    assert end["data"]["expected_basis"] == "history"
    assert abs(end["data"]["expected_s"] - 600) <= 600 / 32 + 2
    assert end["data"]["ran_ms"] >= 700_000


async def test_what_nothing_was_added_to_for_twelve_weeks_is_forgotten(any_world: World) -> None:
    world = any_world
    server = world.server
    retention = RetentionLoop(
        server.database, server.clock, world.registry, Retention(), world.workspaces
    )
    await run_whole(world, "train", 60)
    server.clock.advance(REMEMBERED_MS / 1000 - 120)
    await retention.run_once()
    assert len(await stored(world)) == 4
    server.clock.advance(240)
    await retention.run_once()
    assert await stored(world) == {}


async def test_a_job_that_goes_on_from_a_checkpoint_took_the_time_of_all_its_runs(
    world: World,
) -> None:
    spec = runs_for(600, checkpoint_every_s=60)
    job = await world.submit(name="train", spec=spec, checkpoint={}, **ONE_GPU)
    await world.turn(2)
    await world.after(305)
    await world.ask("POST", f"/jobs/{job['id']}/suspend", json={})
    await world.after(60)
    await world.ask("POST", f"/jobs/{job['id']}/resume")
    await world.turn(2)
    await world.after(400)
    done = await world.job(job["id"])
    assert (done["status"], done["attempt_count"]) == ("completed", 2)
    await world.loops["learner"].run_once()
    told = {
        sketch.buckets
        for record in (await stored(world)).values()
        if (sketch := record.sketch(Measure.DURATION_S)).count
    }
    ((bucket, count),) = next(iter(told))
    assert (len(told), count) == (1, 1)
    assert 570 <= middle_of(bucket) <= 800, "the last run alone took 300 s"
