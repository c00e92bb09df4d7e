"""Each type of step does what it says, in a control plane that works."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kit.sealing import SealingKeys
from tests.integration.pipelines.worlds import World, a_job, a_pipeline, a_step, working_world

WRITES = (
    "import json, os; print('said'); "
    "json.dump({'letters': len(os.environ['TEXT'])}, open(os.environ['GPUPLANE_OUTPUTS'], 'w'))"
)


async def test_a_jobs_outputs_reach_later_steps_and_only_it_makes_a_job(any_world: World) -> None:
    ended = await any_world.run(
        a_pipeline(
            a_step("greet", "function", code="def main(who):\n    return {'text': 'Hi ' + who}",
                   inputs={"who": "{{ params.who }}"}),
            a_job("count", WRITES, env={"TEXT": "{{ steps.greet.outputs.text }}"}),
            a_step("sum", outputs={"line": "steps.greet.outputs.text + '!'"}),
            parameters={"who": "you"},
            outputs={"letters": "{{ steps.count.outputs.letters }}"},
        )
    )  # fmt: skip
    assert ended.status == "completed"
    assert ended.output("count")["letters"] == 6
    assert ended.output("pipeline-outputs") == {"letters": 6}
    jobs = (await any_world.get("/jobs"))["items"]
    assert [(job["source_type"], job["source_id"]) for job in jobs] == [
        ("pipeline", ended.steps["count"]["id"])
    ]
    assert jobs[0]["id"] == ended.output("count")["job_id"]


async def test_a_config_that_an_expression_made_wrong_is_told_with_its_place(world: World) -> None:
    for over, told in (
        ("{{ lists.range(20000) }}", "config: A loop has at most 10000"),
        ("{{ null }}", "config: A loop has either over or range"),
    ):
        ended = await world.run(a_pipeline(a_step("l", "loop", over=over, steps=[a_step("x")])))
        step = ended.steps["l"]
        assert (step["error"], step["message"].startswith(told)) == ("InvalidConfig", True), step


@pytest.mark.parametrize(
    ("wrote", "told"),
    [
        ("open(path, 'w').write('{\"x\": \"' + 'a' * 5_000_000 + '\"}')", "bytes"),
        ("open(path, 'wb').write(b'\\xff{')", "outputs.json"),
        ("open(path, 'w').write('[1]')", "not a JSON object"),
        ("os.symlink('/etc/passwd', path)", "cannot be read"),
    ],
    ids=["5 MB", "no JSON", "no object", "a link"],
)
async def test_outputs_of_a_job_that_cannot_be_taken_fail_its_step_with_the_reason(
    world: World, wrote: str, told: str
) -> None:
    script = f"import os; path = os.environ['GPUPLANE_OUTPUTS']; {wrote}"
    ended = await world.run(a_pipeline(a_job("bad", script)))
    step = ended.steps["bad"]
    assert (ended.status, step["error"]) == ("failed", "OutputsRefused"), ended.run
    assert told in step["message"]


async def test_the_logs_of_a_step_are_its_functions_or_its_jobs(world: World) -> None:
    ended = await world.run(
        a_pipeline(
            a_step("speak", "function", code="def main():\n    print('hello there')\n    return 1"),
            a_job("talk", "print('from the job')"),
        )
    )
    run_id = ended.run["id"]
    spoken = await world.get(f"/runs/{run_id}/steps/speak/logs")
    assert spoken["job_id"] is None
    assert [each["text"].strip() for each in spoken["tries"]] == ["hello there"]
    worked = await world.get(f"/runs/{run_id}/steps/talk/logs")
    assert (worked["job_id"], worked["tries"]) == (ended.output("talk")["job_id"], [])


async def test_a_failed_job_fails_its_step_and_a_retry_makes_another_job(world: World) -> None:
    step = a_job("bad", "raise SystemExit(3)", retry={"attempts": 2, "delay_seconds": 0})
    ended = await world.run(a_pipeline(step))
    assert (ended.status, ended.steps["bad"]["error"]) == ("failed", "JobFailed")
    jobs = (await world.get("/jobs"))["items"]
    assert len({job["id"] for job in jobs}) == 2


async def test_cancelling_a_run_cancels_its_job(world: World) -> None:
    run_id = await world.start(a_pipeline(a_job("long", "import time; time.sleep(600)")))
    step = await world.until_step(run_id, "long", lambda each: each["wait_key"] is not None)
    job_id = step["wait_key"].removeprefix("job:")
    await world.post(f"/runs/{run_id}/cancel")
    ended = await world.ended(run_id)
    assert ended.status == "cancelled"
    job = await world.get(f"/jobs/{job_id}")
    assert job["status"] == "cancelled" or job["condition"] == "Stopping"


async def test_a_service_step_ends_when_it_is_healthy_with_url_and_port(world: World) -> None:
    serve = a_step(
        "serve", "job", job_type="SERVICE", deployment_type="docker", cluster="demo",
        spec={"image": "registry.example.com/app:1", "port": 8080, "health": {"path": "/ok"},
              "simulated": {"duration_s": 600, "startup_s": 0.1}},
    )  # fmt: skip
    ended = await world.run(a_pipeline(serve, outputs={"url": "{{ steps.serve.outputs.url }}"}))
    assert ended.status == "completed"
    assert ended.output("serve")["port"] == 8080
    assert ended.output("pipeline-outputs")["url"].endswith(":8080")
    job = await world.get(f"/jobs/{ended.output('serve')['job_id']}")
    assert job["status"] == "running"


async def test_a_service_that_does_not_become_healthy_in_time_fails_and_is_stopped(
    world: World,
) -> None:
    serve = a_step(
        "serve", "job", job_type="service", deployment_type="docker", cluster="demo",
        readiness_timeout_seconds=0.5,
        spec={"image": "registry.example.com/app:1", "port": 8080, "health": {"path": "/ok"},
              "simulated": {"duration_s": 600, "startup_s": 500}},
    )  # fmt: skip
    ended = await world.run(a_pipeline(serve))
    assert (ended.status, ended.steps["serve"]["error"]) == ("failed", "NotReady")
    jobs = (await world.get("/jobs"))["items"]
    assert jobs[0]["status"] == "cancelled" or jobs[0]["condition"] == "Stopping"


async def test_jobs_inherit_the_pipelines_priority_unless_they_have_their_own(world: World) -> None:
    ended = await world.run(
        a_pipeline(a_job("own", "pass", priority="LOW"), a_job("given", "pass"), priority="high")
    )
    found = {
        key: (await world.get(f"/jobs/{ended.output(key)['job_id']}"))["priority"]
        for key in ("own", "given")
    }
    assert found == {"own": "low", "given": "high"}


async def test_the_pipelines_deadline_is_passed_to_its_jobs(world: World) -> None:
    document = a_pipeline(a_job("work", "pass"), deadline="2099-01-01T00:00:00Z")
    ended = await world.run(document)
    job = await world.get(f"/jobs/{ended.output('work')['job_id']}")
    assert (ended.status, job["deadline"][:10]) == ("completed", "2099-01-01")
    past = a_pipeline(a_job("work", "pass"), deadline="2020-01-01T00:00:00Z", name="past")
    saved = await world.save(past)
    answer = await world.http.post(f"/api/v1/pipelines/{saved['pipeline']['id']}/runs")
    assert (answer.status_code, "deadline" in answer.json()["field"]) == (422, True)


async def test_an_api_call_sends_what_it_says_and_its_answer_is_its_output(world: World) -> None:
    world.receiver.answers = [(503, {}), (200, {"config": {"tp": 2}})]
    await world.post("/secrets", {"name": "key", "value": "s3cret"}, 201)
    call = a_step(
        "ask", "API_CALL", url=world.receiver.url + "/optimize", method="POST",
        headers={"X-Team": "ml", "Authorization": {"secret": "key", "prefix": "Bearer "}},
        query={"q": ["a b", 2]}, body={"model": "{{ params.model }}", "n": "{{ 1 + 1 }}"},
        retry_count=2,
    )  # fmt: skip
    ended = await world.run(a_pipeline(call, parameters={"model": "m"}))
    assert ended.status == "completed", ended.run
    assert ended.output("ask")["config"] == {"tp": 2}
    assert ended.output("ask")["status_code"] == 200
    first, second = world.receiver.seen
    assert (second.method, second.path) == ("POST", "/optimize?q=a+b&q=2")
    assert second.body == {"model": "m", "n": 2}
    assert second.headers["authorization"] == "Bearer s3cret"
    assert second.headers["x-team"] == "ml"
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert "s3cret" not in str(ended.steps)


@pytest.mark.parametrize(
    ("answer", "word"),
    [((404, {"no": 1}), "BadStatus"), ((200, b"x" * 3_000_000), "AddressRefused")],
)
async def test_an_answer_that_cannot_be_taken_fails_the_call_at_once(
    world: World, answer: tuple[int, Any], word: str
) -> None:
    world.receiver.answers = [answer]
    ended = await world.run(a_pipeline(a_step("ask", "api_call", url=world.receiver.url)))
    assert (ended.status, ended.steps["ask"]["error"]) == ("failed", word)
    assert len(world.receiver.seen) == 1


async def test_a_call_to_an_inner_address_is_refused_when_saved_and_when_run(
    tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with working_world(tmp_path, sealing_keys, allowed_hosts="") as world:
        call = a_step("ask", "api_call", url="http://169.254.169.254/latest")
        assert "spec.steps[0].config.url" in await world.refused(a_pipeline(call))
        hidden = a_step("ask", "api_call", url="{{ params.where }}", retry_count=0)
        document = a_pipeline(hidden, parameters={"where": world.receiver.url})
        ended = await world.run(document)
        assert ended.steps["ask"]["error"] == "AddressRefused"
        assert world.receiver.seen == []


async def test_a_notification_reaches_its_channel(world: World) -> None:
    ended = await world.run(
        a_pipeline(
            a_step("tell", "NOTIFICATION", channel="slack", recipients=["#ops"],
                   message="done: {{ params.x }}", severity="error"),
            a_step("hook", "notification", channel="webhook",
                   recipients=[world.receiver.url + "/hook"], message="m"),
            parameters={"x": [1]},
        )
    )  # fmt: skip
    assert ended.status == "completed"
    by_path = {each.path: each.body for each in world.receiver.seen}
    assert by_path["/slack"]["text"] == "done: [1]"
    assert by_path["/slack"]["channel"] == "#ops"
    assert by_path["/hook"]["run_id"] == ended.run["id"]


async def test_channels_that_are_not_set_up_and_providers_that_are_not_there_are_refused(
    world: World,
) -> None:
    found = await world.refused(
        a_pipeline(
            a_step("page", "notification", channel="pagerduty", message="m"),
            a_step(
                "mail", "notification", channel="email", recipients=["a@b.example"], message="m"
            ),
            a_step("part", "job", component_ref="qdrant"),
            a_step("model", "job", deployment_type="MODEL", spec={"model_id": "m"}),
            a_step("best", "job", optimize_with_budsim=True, spec={"command": ["true"]}),
            a_step("net", "function", code="result = 1", network=True),
        )
    )
    assert "GPUPLANE_PIPELINES_PAGERDUTY_KEY" in found["spec.steps[0].config.channel"][1]
    assert "GPUPLANE_PIPELINES_SMTP_URL" in found["spec.steps[1].config.channel"][1]
    assert "No catalogue" in found["spec.steps[2].config.component_ref"][0]
    assert "serves models" in found["spec.steps[3].config.deployment_type"][0]
    assert "No optimizer" in found["spec.steps[4].config.optimize_with_budsim"][0]
    assert "no network" in found["spec.steps[5].config.network"][0]


async def test_a_condition_skips_the_other_side_and_skipped_steps_yield_null(
    any_world: World,
) -> None:
    document = a_pipeline(
        a_step("check", "CONDITION", expression="{{ params.go }}",
               then_steps=["left"], else_steps=["right"]),
        a_step("left", expression="'l'"),
        a_step("right", expression="'r'"),
        a_step("guarded", expression="1", condition="{{ params.go }}"),
        a_step("end", outputs={"left": "steps.left.outputs.result | default('none')",
                               "right": "steps.right.outputs.result",
                               "guarded": "steps.guarded.outputs.result"}),
        parameters={"go": True},
    )  # fmt: skip
    went = await any_world.run(document)
    assert went.output("end") == {"left": "l", "right": None, "guarded": 1}
    stayed = await any_world.run(document, go=False)
    assert stayed.output("end") == {"left": "none", "right": "r", "guarded": None}
    assert [stayed.steps[key]["status"] for key in ("left", "guarded")] == ["skipped"] * 2


async def test_branches_run_side_by_side_and_their_outputs_come_together(any_world: World) -> None:
    ended = await any_world.run(
        a_pipeline(
            a_step("par", "parallel", branches=[
                [a_step("one", expression="1"),
                 a_step("two", expression="1 + steps.one.outputs.result")],
                [a_step("three", expression="3")],
            ]),
            a_step("end", expression="steps.par.outputs.results"),
        )
    )  # fmt: skip
    assert ended.status == "completed"
    assert ended.output("end") == {
        "one": {"result": 1}, "two": {"result": 2}, "three": {"result": 3}
    }  # fmt: skip


@pytest.mark.parametrize("join", ["any", {"count": 1}])
async def test_a_join_of_some_cancels_the_rest(world: World, join: Any) -> None:
    slow = a_step("slow", "wait", wait_for_event="never")
    par = a_step("par", "parallel", join=join, steps=[a_step("fast", expression="1"), slow])
    ended = await world.run(a_pipeline(par))
    assert ended.status == "completed"
    assert ended.output("par")["results"] == {"fast": {"result": 1}, "slow": None}
    assert ended.steps["par/1/slow"]["status"] == "cancelled"


async def test_a_parallel_that_never_fails_tells_what_did(world: World) -> None:
    par = a_step("par", "parallel", fail="never", branches=[
        [a_step("bad", expression="params.x.no"),
         a_step("after", expression="1", depends_on=["bad"])],
        [a_step("good", expression="2")],
    ])  # fmt: skip
    ended = await world.run(
        a_pipeline(par, a_step("last", expression="steps.par.outputs.failed"),
                   parameters={"x": {"y": 1}})
    )  # fmt: skip
    assert ended.status == "completed"
    assert list(ended.output("last")) == ["bad"]
    assert "There is no field 'no'" in ended.output("last")["bad"]
    assert ended.output("par")["results"]["good"] == {"result": 2}


async def test_loops_go_over_lists_and_ranges_inside_one_another(any_world: World) -> None:
    inner = a_step("inner", "loop", range={"start": 1, "stop": 3}, **{"as": "n"}, steps=[
        a_step("cell", expression="steps.name.outputs.result + string(n) + string(item)"),
    ])  # fmt: skip
    document = a_pipeline(
        a_step("each", "loop", over="{{ params.names }}", **{"as": "who"}, max_parallel=1,
               steps=[a_step("name", expression="who.upperAscii() + string(index)"), inner]),
        a_step("end", expression="steps.each.outputs.results.map(x, x.inner.results"
                                 ".map(y, y.cell.result))"),
        parameters={"names": ["a", "b"]},
    )  # fmt: skip
    ended = await any_world.run(document)
    assert ended.status == "completed", ended.run
    assert ended.output("end") == {"result": [["A011", "A022"], ["B111", "B122"]]}
    empty = await any_world.run(document, names=[])
    assert empty.output("each") == {"results": [], "count": 0}


async def test_a_loop_that_only_the_run_knows_to_be_too_long_fails_with_the_place(
    world: World,
) -> None:
    step = a_step("each", "loop", over="{{ lists.range(10001) }}",
                  steps=[a_step("x", expression="1")])  # fmt: skip
    ended = await world.run(a_pipeline(step))
    assert ended.steps["each"]["error"] == "InvalidConfig"
    assert "at most 10000 iterations, not 10001" in ended.run["message"]


async def test_a_wait_ends_by_time_by_event_or_by_its_time_out(any_world: World) -> None:
    run_id = await any_world.start(
        a_pipeline(
            a_step("nap", "wait", duration_seconds=0.05),
            a_step("asked", "wait", wait_for_event="approval"),
            a_step("late", "wait", wait_for_event="no", timeout_seconds=0.1, on_timeout="continue"),
            a_step("end", outputs={"by": "steps.asked.outputs.by",
                                   "late": "steps.late.outputs.timed_out"}),
        )
    )  # fmt: skip
    await any_world.until_step(run_id, "asked", lambda step: step["condition"] == "AwaitingEvent")
    await any_world.post(f"/runs/{run_id}/events", {"name": "approval", "payload": {"by": "me"}})
    ended = await any_world.ended(run_id)
    assert ended.output("end") == {"by": "me", "late": True}
    failing = a_pipeline(a_step("w", "wait", wait_for_event="no", timeout_seconds=0.05))
    assert (await any_world.run(failing)).steps["w"]["error"] == "EventTimeout"


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("def main(): raise ValueError('no')", "Raised"),
        ("def main(): return object()", "ResultNotJson"),
        ("globals()", "BadSource"),
        ("def main():\n    while True: pass", "TimedOut"),
        ("def main(): return 'x' * (1 << 34)", "OutOfMemory"),
    ],
)
async def test_a_function_that_goes_wrong_fails_with_the_word(
    world: World, code: str, word: str
) -> None:
    ended = await world.run(a_pipeline(a_step("f", "function", code=code, timeout_seconds=1)))
    assert (ended.status, ended.steps["f"]["error"]) == ("failed", word)


async def test_continue_leaves_a_partial_run_and_rollback_undoes_what_was_done(
    world: World,
) -> None:
    bad = a_step("bad", expression="params.x.no", depends_on=["done"])
    undo = {"step_type": "api_call",
            "config": {"url": world.receiver.url + "/undo", "method": "DELETE"}}  # fmt: skip
    done = a_step("done", expression="1", compensate=undo)
    spec = {"parameters": {"x": {"y": 1}}}
    partial = await world.run(a_pipeline(done, bad, on_failure="continue", **spec))
    assert (partial.status, world.receiver.seen) == ("partial", [])
    undone = await world.run(a_pipeline(done, bad, on_failure="rollback", **spec))
    assert undone.status == "failed"
    assert [(each.method, each.path) for each in world.receiver.seen] == [("DELETE", "/undo")]


async def test_equal_input_may_reuse_an_earlier_output(world: World) -> None:
    call = a_step(
        "ask", "api_call", url=world.receiver.url, body={"p": "{{ params.p }}"}, cache=True
    )
    document = a_pipeline(call, parameters={"p": 1})
    await world.run(document)
    again = await world.run(document)
    assert (again.status, len(world.receiver.seen)) == ("completed", 1)
    other = await world.run(document, p=2)
    assert (other.status, len(world.receiver.seen)) == ("completed", 2)


async def test_runs_of_one_key_wait_for_one_another(world: World) -> None:
    document = a_pipeline(
        a_step("w", "wait", wait_for_event="go"),
        parameters={"m": "x"},
        concurrency={"key": "{{ params.m }}", "limit": 1},
    )
    first, second = await world.start(document), await world.start(document)
    other = await world.start(document, m="y")
    for run_id in (first, other):
        await world.until_step(run_id, "w", lambda step: step["condition"] == "AwaitingEvent")
    assert (await world.get(f"/runs/{second}"))["status"] == "pending"
    for run_id in (first, second, other):
        await world.post(f"/runs/{run_id}/events", {"name": "go"})
    results = await asyncio.gather(*(world.ended(each) for each in (first, second, other)))
    assert [each.status for each in results] == ["completed"] * 3
