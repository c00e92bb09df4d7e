"""What is asked about jobs: logs, why, schedules, timelines, prices, comparisons."""

from __future__ import annotations

import json

from gpuplane.kit.access import Role
from tests.integration.jobs.worlds import World, runs_for


async def test_logs_are_read_in_ranges_that_join_without_gap(world: World) -> None:
    job = await world.submit(spec=runs_for(10, log=["one", "two äöü", "three"]))
    await world.turn(2)
    await world.after(11)
    text, offset = "", 0
    while True:
        part = await world.ask("GET", f"/jobs/{job['id']}/logs?offset={offset}&limit_bytes=7")
        if part["is_over"]:
            break
        assert part["offset"] == offset
        text, offset = text + part["text"], part["next_offset"]
    assert "one" in text
    assert "two äöü" in text
    assert "three" in text


async def test_reading_a_log_leaves_one_audited_trace(world: World) -> None:
    job = await world.submit(spec=runs_for(10, log=["one"]))
    await world.turn(2)
    for _ in range(3):
        await world.ask("GET", f"/jobs/{job['id']}/logs")
    assert (await world.kinds(job["id"])).count("job.logs_read") == 1


async def test_the_log_of_a_job_that_has_not_begun_is_empty(world: World) -> None:
    job = await world.submit(spec=runs_for(10))
    part = await world.ask("GET", f"/jobs/{job['id']}/logs")
    assert (part["text"], part["attempt"], part["is_over"]) == ("", 0, False)


async def test_what_an_attempt_wrote_is_read_until_the_next_one_has_begun(world: World) -> None:
    job = await world.submit(max_retries=1, spec=runs_for(1, log=["first try"], exit_code=3))
    path = f"/jobs/{job['id']}/logs"
    await world.turn(2)
    await world.after(5)
    world.server.clock.advance(60)
    await world.loops["monitor"].run_once()
    await world.loops["scheduler"].run_once()
    assert (await world.job(job["id"]))["current_attempt"]["number"] == 2
    part = await world.ask("GET", path)
    assert (part["attempt"], "first try" in part["text"]) == (1, True)
    await world.ask("POST", f"/jobs/{job['id']}/suspend")
    await world.turn(2)
    assert (await world.ask("GET", path))["attempt"] == 1
    await world.ask("DELETE", f"/jobs/{job['id']}")
    assert "first try" in (await world.http.get(f"/api/v1{path}?follow=true")).text


async def test_following_a_log_ends_with_the_job(world: World) -> None:
    job = await world.submit(spec=runs_for(1, log=["hello", "bye"]))
    await world.turn(2)
    await world.after(5)
    text = (await world.http.get(f"/api/v1/jobs/{job['id']}/logs?follow=true")).text
    assert "hello" in text
    assert "bye" in text
    answer = await world.http.get(
        f"/api/v1/jobs/{job['id']}/logs", headers={"accept": "text/event-stream"}
    )
    frames = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    said = "".join(json.loads(line[6:]).get("text", "") for line in frames)
    assert "hello" in said
    assert answer.text.endswith("event: end\ndata: {}\n\n")


async def test_an_attempt_that_never_was_is_not_found(world: World) -> None:
    job = await world.submit(spec=runs_for(1))
    refused = await world.ask("GET", f"/jobs/{job['id']}/logs?attempt=7", 404)
    assert refused["code"] == "attempt_not_found"


async def test_why_names_one_reason_the_counts_and_the_smallest_change(world: World) -> None:
    await world.submit(
        name="fills", gpu_type="H100", gpu_count=8, spec=runs_for(3600), replicas={"count": 2}
    )  # fmt: skip - the call reads as one line
    await world.turn(2)
    job = await world.submit(
        gpu_type="H100", gpu_count=2, estimated_duration_seconds=60, spec=runs_for(60)
    )
    await world.turn()
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert why["reason"] == "InsufficientGpu"
    assert why["sentence"].endswith(".")
    assert sum(each["nodes"] for each in why["counts"]) >= 2
    assert why["change"] is None
    asked = await world.ask("GET", f"/jobs/{job['id']}/why?change=true")
    assert asked["change"]["field"] == "gpu_type"
    assert "nvidia-t4" in asked["change"]["sentence"]


async def test_a_job_that_runs_says_so_and_where(world: World) -> None:
    job = await world.submit(gpu_count=1, gpu_type="T4", spec=runs_for(60))
    await world.turn(2)
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert (why["status"], why["sentence"], why["fix"]) == ("running", "It runs.", "")
    assert why["explanation"]


async def test_the_schedule_of_a_waiting_job_says_when_it_will_start(world: World) -> None:
    first = await world.submit(
        gpu_type="T4", gpu_count=2, estimated_duration_seconds=600, spec=runs_for(600)
    )
    await world.turn(2)
    second = await world.submit(
        gpu_type="T4",
        gpu_count=1,
        estimated_duration_seconds=60,
        spec=runs_for(60),
        deadline="2126-01-01T00:00:00Z",
    )  # fmt: skip - the call reads as one line
    await world.turn()
    running = await world.ask("GET", f"/jobs/{first['id']}/schedule")
    waiting = await world.ask("GET", f"/jobs/{second['id']}/schedule")
    assert waiting["estimated_start"] == running["estimated_end"]
    assert (waiting["position"], waiting["meets_deadline"]) == (1, True)
    assert (waiting["actual_start"], waiting["cluster"]) == (None, "sim")


async def test_the_timeline_holds_what_ran_and_what_is_expected(world: World) -> None:
    first = await world.submit(
        name="runs",
        gpu_type="T4",
        gpu_count=2,
        estimated_duration_seconds=600,
        spec=runs_for(600),
    )  # fmt: skip - the call reads as one line
    await world.turn(2)
    second = await world.submit(
        name="waits", gpu_type="T4", gpu_count=1, estimated_duration_seconds=60, spec=runs_for(60)
    )
    found = await world.ask("GET", "/clusters/sim/schedule")
    rows = {row["job_id"]: row for row in found["rows"]}
    assert rows[first["id"]]["is_estimate"] is False
    assert rows[second["id"]]["is_estimate"] is True
    assert rows[second["id"]]["start"] == rows[first["id"]]["end"]
    assert rows[first["id"]]["gpu_count"] == 2


async def test_the_resources_of_a_cluster_say_what_is_free_now_and_later(world: World) -> None:
    await world.submit(
        gpu_type="T4", gpu_count=1, estimated_duration_seconds=600, spec=runs_for(600)
    )
    await world.turn(2)
    found = await world.ask("GET", "/clusters/sim/resources")
    t4 = next(each for each in found["gpus"] if each["gpu_type"] == "nvidia-t4")
    assert (t4["total"], t4["free"], t4["busy"], t4["down"]) == (2, 1, 1, 0)
    assert [each["free"] for each in t4["forecast"]] == [2]


async def test_an_estimate_says_where_when_how_much_and_what_is_cheaper(world: World) -> None:
    body = {
        "name": "job",
        "cluster": "sim",
        "gpu_type": "H100",
        "gpu_count": 1,
        "estimated_duration_seconds": 1800,
        "spec": runs_for(1800),
    }  # fmt: skip - the body reads as one line
    found = await world.ask("POST", "/jobs/estimate", json=body)
    assert (found["cluster"], found["simulated"], found["fits_now"]) == ("sim", True, True)
    assert (found["hourly_cost"], found["estimated_cost"]) == ("4.00", "2.00")
    assert found["cheaper"][0]["gpu_type"] == "nvidia-t4"
    assert found["cheaper"][0]["saving"] == "3.60"
    assert (await world.ask("GET", "/jobs"))["items"] == []


async def test_compared_jobs_show_what_differs(world: World) -> None:
    first = await world.submit(name="a", gpu_type="T4", gpu_count=1, spec=runs_for(1))
    second = await world.submit(name="b", gpu_type="T4", gpu_count=2, spec=runs_for(1))
    found = await world.ask("GET", f"/jobs/compare?ids={first['id']},{second['id']}")
    different = {each["field"]: each["values"] for each in found["differences"]}
    assert different["gpu_count"] == [1, 2]
    assert "gpu_type" not in different
    refused = await world.ask("GET", f"/jobs/compare?ids={first['id']}", 400)
    assert refused["field"] == "ids"


async def test_a_job_of_another_tenant_does_not_exist(world: World) -> None:
    job = await world.submit(spec=runs_for(10))
    tenant, project = await world.server.make_tenant("other")
    _, token = await world.server.make_user("eve", Role.ADMIN, tenant, project, on="tenant")
    eve = world.server.client(token)
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/why"),
        ("GET", "/logs"),
        ("GET", "/events"),
        ("POST", "/retry"),
        ("GET", "/attempts"),
        ("GET", "/artifacts"),
    ):  # fmt: skip - pairs on a line
        answer = await eve.request(method, f"/api/v1/jobs/{job['id']}{path}")
        assert answer.status_code == 404, (method, path, answer.text)
    assert (await eve.get("/api/v1/jobs")).json()["items"] == []


async def test_a_colleague_reads_a_job_and_may_not_change_it(world: World) -> None:
    tenant, project = await world.server.make_tenant("team")
    _, owner = await world.server.make_user("ann", Role.MEMBER, tenant, project)
    _, colleague = await world.server.make_user("bob", Role.MEMBER, tenant, project)
    _, lead = await world.server.make_user("cat", Role.OPERATOR, tenant, project)
    body = {"name": "job", "cluster": "sim", "spec": runs_for(10)}
    made = (await world.server.client(owner).post("/api/v1/jobs", json=body)).json()
    path = f"/api/v1/jobs/{made['id']}"
    assert (await world.server.client(colleague).get(path)).json()["user"] == "ann"
    refused = await world.server.client(colleague).delete(path)
    assert (refused.status_code, refused.json()["permission"]) == (403, "job:manage")
    assert (await world.server.client(lead).delete(path)).json()["status"] == "cancelled"


async def test_only_who_manages_jobs_may_use_the_class_that_nobody_evicts(world: World) -> None:
    tenant, project = await world.server.make_tenant("team")
    _, member = await world.server.make_user("ann", Role.MEMBER, tenant, project)
    _, lead = await world.server.make_user("cat", Role.OPERATOR, tenant, project)
    body = {"name": "job", "cluster": "sim", "spec": runs_for(10), "priority": "critical"}
    refused = await world.server.client(member).post("/api/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (403, "priority_not_granted")
    made = await world.server.client(member).post("/api/v1/jobs", json={**body, "priority": "high"})
    raised = await world.server.client(member).put(
        f"/api/v1/jobs/{made.json()['id']}/priority", json={"priority": "critical"}
    )
    assert (raised.status_code, raised.json()["field"]) == (403, "priority")
    assert (await world.server.client(lead).post("/api/v1/jobs", json=body)).status_code == 201
