"""The lives of jobs from submit to end, over HTTP and through the real loops."""

from __future__ import annotations

import re
from typing import Any

from gpuplane.domains.jobs.service.verbs import ARRAY_BATCH
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
        "job.pending",
        "job.queued",
        "job.scheduled",
        "job.running",
        "job.completed",
    ]  # fmt: skip - one line of kinds


async def test_a_job_that_fails_is_tried_again_after_a_delay_and_then_fails(world: World) -> None:
    job = await world.submit(max_retries=1, spec=runs_for(1, exit_code=3))
    await world.turn(2)
    await world.after(2)
    waiting = await world.job(job["id"])
    assert (waiting["status"], waiting["condition"]) == ("pending", "BackingOff")
    await world.after(31)
    assert (await world.job(job["id"]))["attempt_count"] == 2
    await world.after(2)
    failed = await world.job(job["id"])
    assert (failed["status"], failed["reason"], failed["exit_code"]) == ("failed", "NonZeroExit", 3)


async def test_a_failed_job_is_tried_again_by_hand_with_its_retries_as_new(world: World) -> None:
    job = await world.submit(max_retries=0, spec=runs_for(1, exit_code=1))
    await world.turn(2)
    await world.after(2)
    assert (await world.job(job["id"]))["status"] == "failed"
    again = await world.ask("POST", f"/jobs/{job['id']}/retry")
    assert (again["status"], again["retry_count"]) == ("queued", 0)


async def test_five_failures_within_an_hour_open_the_breaker_until_a_manual_retry(
    world: World,
) -> None:
    job = await world.submit(
        max_retries=20, retry={"max_delay_seconds": 60}, spec=runs_for(1, exit_code=1)
    )
    await world.turn(2)
    for _ in range(5):
        await world.after(2)
        await world.after(70)
    failed = await world.job(job["id"])
    assert (failed["status"], failed["attempt_count"]) == ("failed", 5)
    assert "5 times within an hour" in failed["status_message"]
    again = await world.ask("POST", f"/jobs/{job['id']}/retry")
    assert again["status"] == "queued"


async def test_a_running_job_is_cancelled_once_it_is_seen_to_be_over(world: World) -> None:
    job = await world.submit(spec=runs_for(3600))
    await world.turn(2)
    stopping = await world.ask("DELETE", f"/jobs/{job['id']}")
    assert (stopping["status"], stopping["condition"]) == ("running", "Stopping")
    await world.after(1)
    assert (await world.job(job["id"]))["status"] == "cancelled"


async def test_a_gang_that_is_cancelled_before_its_backend_was_told_of_it_ends(
    world: World,
) -> None:
    job = await world.submit(gpu_type="T4", gpu_count=1, replicas={"count": 2}, spec=runs_for(600))
    await world.loops["scheduler"].run_once()
    assert (await world.job(job["id"]))["status"] == "scheduled"
    assert (await world.http.delete(f"/api/v1/jobs/{job['id']}")).status_code == 200
    await world.turn(2)
    over = await world.job(job["id"])
    assert (over["status"], over["actual_start"]) == ("cancelled", None)


async def test_a_waiting_job_is_cancelled_at_once_and_again_changes_nothing(world: World) -> None:
    job = await world.submit(spec=runs_for(10))
    assert (await world.ask("DELETE", f"/jobs/{job['id']}"))["status"] == "cancelled"
    assert (await world.ask("DELETE", f"/jobs/{job['id']}"))["status"] == "cancelled"


async def test_a_completed_job_cannot_be_cancelled(world: World) -> None:
    job = await world.submit(spec=runs_for(1))
    await world.turn(2)
    await world.after(2)
    refused = await world.ask("DELETE", f"/jobs/{job['id']}", 409)
    assert refused["code"] == "job_wrong_status"


async def test_a_suspended_job_gives_its_devices_back_and_runs_again_when_resumed(
    world: World,
) -> None:
    job = await world.submit(spec=runs_for(3600))
    await world.turn(2)
    await world.ask("POST", f"/jobs/{job['id']}/suspend", json={"reason": "lunch"})
    await world.after(1)
    paused = await world.job(job["id"])
    assert (paused["status"], paused["condition"]) == ("pending", "Paused")
    assert "lunch" in paused["status_message"]
    resumed = await world.ask("POST", f"/jobs/{job['id']}/resume")
    assert resumed["status"] == "queued"
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "running"


async def test_a_job_that_is_being_cancelled_is_not_suspended_any_more(world: World) -> None:
    job = await world.submit(spec=runs_for(3600))
    await world.turn(2)
    await world.ask("DELETE", f"/jobs/{job['id']}")
    refused = await world.ask("POST", f"/jobs/{job['id']}/suspend", 409)
    assert refused["code"] == "job_wrong_status"
    assert refused["fix"]
    await world.after(1)
    assert (await world.job(job["id"]))["status"] == "cancelled"


async def test_a_waiting_job_is_suspended_and_stays_out_of_the_queue(world: World) -> None:
    job = await world.submit(spec=runs_for(10))
    paused = await world.ask("POST", f"/jobs/{job['id']}/suspend")
    assert (paused["status"], paused["condition"]) == ("pending", "Paused")
    await world.after(100)
    assert (await world.job(job["id"]))["condition"] == "Paused"
    assert (await world.ask("POST", f"/jobs/{job['id']}/suspend"))["condition"] == "Paused"


async def test_what_a_job_waited_between_its_attempts_is_no_time_that_it_ran(
    any_world: World,
) -> None:
    world = any_world
    job = await world.submit(spec=runs_for(3600))
    await world.turn(2)
    await world.after(5)
    await world.ask("POST", f"/jobs/{job['id']}/suspend")
    await world.after(1)
    first = (await world.job(job["id"]))["ran_seconds"]
    assert 5 <= first < 40
    await world.after(1000)
    assert (await world.job(job["id"]))["ran_seconds"] == first
    await world.ask("POST", f"/jobs/{job['id']}/resume")
    await world.after(1)
    await world.after(7)
    [row] = (await world.ask("GET", "/jobs"))["items"]
    assert (row["status"], first + 7 <= row["ran_seconds"] < first + 40) == ("running", True)


async def test_a_job_preempted_by_hand_stands_in_line_again(world: World) -> None:
    job = await world.submit(spec=runs_for(3600))
    await world.turn(2)
    await world.ask("POST", f"/jobs/{job['id']}/preempt", json={"reason": "a test"})
    await world.after(1)
    kinds = await world.kinds(job["id"])
    assert "job.preempted" in kinds
    assert kinds.count("job.queued") == 2


async def test_who_waits_for_the_limit_of_the_hour_is_told_when_the_next_is_possible(
    world: World,
) -> None:
    limit = {"max_preemptions_per_hour": 1}
    await world.ask("PATCH", "/clusters/sim/preemption-policy", json=limit)
    whole: dict[str, Any] = {"gpu_type": "H100", "gpu_count": 8, "spec": runs_for(36_000)}
    low = [await world.submit(name=f"low-{n}", priority="low", **whole) for n in range(3)]
    await world.turn(2)
    await world.after(400)
    await world.ask("POST", f"/jobs/{low[0]['id']}/preempt", json={"reason": "by hand"})
    await world.after(400)
    high = [await world.submit(name=f"high-{n}", priority="high", **whole) for n in range(2)]
    await world.turn(2)
    await world.after(60)
    assert (await world.job(high[0]["id"]))["status"] == "running", "by hand does not count"
    await world.after(400)
    told = await world.ask("GET", f"/jobs/{high[1]['id']}/why?change=true")
    assert told["status"] == "queued"
    assert told["reason"] == "InsufficientGpu"
    assert "limit of preemptions in an hour is reached (1 of 1)" in told["sentence"]
    assert re.match(r"Wait until \d{4}-\d\d-\d\dT\d\d:\d\dZ: the limit", told["fix"])


async def test_a_job_that_stands_in_line_again_tells_no_start_that_is_past(world: World) -> None:
    job = await world.submit(spec=runs_for(3600))
    await world.turn(2)
    assert (await world.job(job["id"]))["estimated_start"] is not None
    await world.ask("POST", f"/jobs/{job['id']}/suspend")
    for _ in range(3):
        await world.loops["dispatcher"].run_once()
        await world.loops["observer"].run_once()
    again = await world.job(job["id"])
    assert (again["condition"], again["estimated_start"]) == ("Paused", None)
    schedule = (await world.http.get(f"/api/v1/jobs/{job['id']}/schedule")).json()
    assert schedule["estimated_start"] is None
    assert schedule["actual_start"] is not None, "what was is told as what was"


async def test_the_priority_of_a_waiting_job_can_be_changed(world: World) -> None:
    job = await world.submit(spec=runs_for(10))
    changed = await world.ask("PUT", f"/jobs/{job['id']}/priority", json={"priority": "high"})
    assert changed["priority"] == "high"
    assert changed["resource_version"] > job["resource_version"]
    assert "job.priority_changed" in await world.kinds(job["id"])


async def test_an_array_runs_no_more_jobs_at_once_than_its_limit(world: World) -> None:
    first = await world.submit(array={"size": 5, "limit": 2}, spec=runs_for(10))
    assert (first["array"]["size"], len(first["array"]["job_ids"])) == (5, 5)
    ids = first["array"]["job_ids"]
    most = 0
    for _ in range(12):
        await world.after(5)
        states = [(await world.job(each))["status"] for each in ids]
        most = max(most, states.count("running"))
    assert most == 2
    assert states == ["completed"] * 5


async def test_cancelling_an_array_cancels_every_job_of_it_in_batches(world: World) -> None:
    size = ARRAY_BATCH + 3
    first = await world.submit(array={"size": size, "limit": 2}, spec=runs_for(3600))
    await world.turn(2)
    await world.ask("DELETE", f"/jobs/{first['id']}?array=true")
    await world.after(1)
    query = f"array_id={first['array']['id']}&status=cancelled&limit=500"
    assert len((await world.ask("GET", f"/jobs?{query}"))["items"]) == size


async def test_a_job_waits_for_the_job_it_comes_after(world: World) -> None:
    first = await world.submit(name="first", spec=runs_for(10))
    second = await world.submit(name="second", after=[{"job_id": first["id"]}], spec=runs_for(10))
    assert (second["status"], second["reason"]) == ("pending", "WaitingForDependency")
    await world.turn(2)
    await world.after(11)
    assert (await world.job(first["id"]))["status"] == "completed"
    await world.turn(2)
    assert (await world.job(second["id"]))["status"] == "running"


async def test_a_job_fails_when_the_job_it_comes_after_fails(world: World) -> None:
    first = await world.submit(max_retries=0, spec=runs_for(1, exit_code=1))
    second = await world.submit(after=[{"job_id": first["id"]}], spec=runs_for(10))
    after = await world.submit(
        after=[{"job_id": first["id"], "condition": "finished"}], spec=runs_for(10)
    )
    await world.turn(2)
    await world.after(2)
    failed = await world.job(second["id"])
    assert (failed["status"], failed["reason"]) == ("failed", "DependencyFailed")
    assert (await world.job(after["id"]))["status"] in ("queued", "scheduled", "running")


async def test_outputs_with_secret_names_are_masked_everywhere(world: World) -> None:
    job = await world.submit(
        spec=runs_for(1, outputs={"accuracy": 0.9, "api_key": "sk-very-secret"})
    )
    await world.turn(2)
    await world.after(2)
    shown = await world.job(job["id"])
    assert shown["outputs"]["accuracy"] == 0.9
    assert shown["outputs"]["api_key"] == "********"
    everything = await world.http.get(f"/api/v1/jobs/{job['id']}/events?limit=200")
    assert "sk-very-secret" not in everything.text + str(shown)


async def test_a_job_reports_progress_and_checkpoints_while_it_runs(world: World) -> None:
    job = await world.submit(job_type="training", spec=runs_for(3600))
    refused = await world.ask("POST", f"/jobs/{job['id']}/progress", 409, json={"progress": 0.1})
    assert refused["code"] == "job_wrong_status"
    await world.turn(2)
    told = await world.ask("POST", f"/jobs/{job['id']}/progress", json={"progress": 0.35})
    assert told["progress"] == 0.35
    await world.ask("POST", f"/jobs/{job['id']}/checkpoints", json={"path": "/checkpoints/7"})
    kept = await world.ask("GET", f"/jobs/{job['id']}/checkpoints")
    assert [each["path"] for each in kept["items"]] == ["/checkpoints/7"]
    assert (await world.job(job["id"]))["last_checkpoint"] == "/checkpoints/7"


async def test_the_manifest_is_captured_when_the_job_starts(world: World) -> None:
    job = await world.submit(
        gpu_type="H100",
        gpu_count=2,
        spec={**runs_for(60), "env": {"ALPHA": "1"}, "seed": 7},
    )  # fmt: skip - the call reads as one line
    refused = await world.ask("GET", f"/jobs/{job['id']}/reproducibility-manifest", 409)
    assert refused["code"] == "manifest_not_captured"
    await world.turn(2)
    found = await world.ask("GET", f"/jobs/{job['id']}/reproducibility-manifest")
    manifest = found["manifest"]
    started = (await world.job(job["id"]))["current_attempt"]["admitted_at"]
    assert re.fullmatch(r"[0-9-]{10}T[0-9:]{8}\.[0-9]{3}Z", manifest["captured_at"])
    assert manifest["captured_at"] >= started  # both are text of one form, so they sort by time
    assert manifest["environment_names"] == ["ALPHA"]
    assert (manifest["seed"], len(manifest["devices"])) == (7, 2)
    assert manifest["devices"][0]["model"] == "nvidia-h100-80gb"
