"""What cannot be stored, sent or read is refused where it comes in, with the place and the cure."""

from __future__ import annotations

import pytest

from tests.integration.pipelines.worlds import World, a_job, a_pipeline, a_step

FUNCTION = "def main():\n    x = 1\n    for _ in range({}):\n        x = [x]\n    return dict(x=x)"


@pytest.mark.parametrize("levels", [64, 255, 400])
async def test_outputs_of_a_function_that_nest_too_deep_fail_its_step_and_the_run_is_readable(
    world: World, levels: int
) -> None:
    code = FUNCTION.format(levels)
    ended = await world.run(a_pipeline(a_step("deep", "function", code=code)))
    step = ended.steps["deep"]
    assert (ended.status, step["error"]) == ("failed", "OutputTooDeep"), step
    assert "deeper than 64 levels" in step["message"]


async def test_outputs_up_to_the_limit_are_kept_and_what_wraps_them_once_more_is_refused(
    world: World,
) -> None:
    code = FUNCTION.format(63)
    ended = await world.run(
        a_pipeline(
            a_step("whole", "function", code=code),
            a_step("more", outputs={"y": "[steps.whole.outputs]"}, depends_on=["whole"]),
        )
    )
    assert ended.steps["whole"]["status"] == "completed"
    assert (ended.status, ended.steps["more"]["error"]) == ("failed", "OutputTooDeep")


async def test_outputs_of_a_job_that_nest_too_deep_fail_its_step_and_the_job_is_readable(
    world: World,
) -> None:
    script = (
        "import os; open(os.environ['GPUPLANE_OUTPUTS'], 'w')"
        ".write('{\"x\": ' + '[' * 400 + ']' * 400 + '}')"
    )
    ended = await world.run(a_pipeline(a_job("deep", script)))
    step = ended.steps["deep"]
    assert (ended.status, step["error"]) == ("failed", "OutputsRefused"), step
    assert "deeper than 64 levels" in step["message"]
    assert (await world.get("/jobs"))["items"][0]["status"] == "completed"


async def test_code_that_is_no_python_or_lacks_its_entry_point_is_refused_when_saved(
    world: World,
) -> None:
    undo = {"step_type": "function", "config": {"code": "def main(:"}}
    found = await world.refused(
        a_pipeline(
            a_step("a", "function", code="def main():\n    return (1\n"),
            a_step("b", "function", code="def mian():\n    return 1\n"),
            a_step("c", "function", code="def main():\n    return 1", entrypoint="run"),
            a_step("d", "function", code="-" * 60_000 + "1"),
            a_step("e", "function", code="def main():\n    pass\nreturn 1"),
            a_step("f", "transform", compensate=undo),
        )
    )
    at = "spec.steps[{}].config.code".format
    assert found[at(0)][0] == "It is no Python: line 2, column 12: '(' was never closed."
    assert found[at(1)] == ("The code defines no main(...).", "Did you mean mian?")
    assert found["spec.steps[2].config.entrypoint"][0] == "The code defines no run(...)."
    assert found[at(3)][0] == "It is nested too deeply."
    assert "line 3, column 1: 'return' outside function" in found[at(4)][0]
    assert "line 1" in found["spec.steps[5].compensate.config.code"][0]
    assert len(found) == 6


async def test_code_whose_names_show_only_when_it_runs_is_taken(world: World) -> None:
    codes = (
        "result = '{{ params.x }}'",
        "from os.path import *",
        "globals()['main'] = len",
        "def make():\n    global main\n    main = dict\nmake()",
        "if True:\n    from math import sqrt as main",
        "x = " + "1 +" * 30_000,
    )
    steps = [a_step(f"s{n}", "function", code=code) for n, code in enumerate(codes)]
    saved = await world.save(a_pipeline(*steps))
    assert saved["created"] is True


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"X-A": "one\nTwo: 3"}, "header X-A has a line break"),
        ({"X-A": "\u00e9"}, "header X-A has a line break"),
        ({"X A": "one"}, "'X A' is no name"),
    ],
)
async def test_a_header_that_cannot_be_sent_is_refused_when_saved(
    world: World, headers: dict[str, str], told: str
) -> None:
    call = a_step("ask", "api_call", url=world.receiver.url, headers=headers)
    found = await world.refused(a_pipeline(call))
    assert told in found["spec.steps[0].config.headers"][0]


async def test_a_header_that_an_expression_or_a_secret_spoils_fails_the_call_at_once(
    world: World,
) -> None:
    await world.post("/secrets", {"name": "key", "value": "hunter2\n"}, 201)
    for header in ("{{ params.x }}", {"secret": "key"}):
        call = a_step("ask", "api_call", url=world.receiver.url, headers={"X-A": header},
                      retry={"attempts": 3, "delay_seconds": 0})  # fmt: skip
        ended = await world.run(a_pipeline(call, parameters={"x": ""}), x="a\nB: c")
        step = ended.steps["ask"]
        assert (ended.status, step["error"], step["attempt"]) == ("failed", "InvalidConfig", 1)
        assert "header X-A has a line break" in step["message"]
        assert "hunter2" not in step["message"]
    assert world.receiver.seen == []


async def test_a_refused_connection_is_told_with_host_and_port(world: World) -> None:
    call = a_step("ask", "api_call", url="http://127.0.0.1:1/x?n=1", retry_count=0)
    ended = await world.run(a_pipeline(call))
    step = ended.steps["ask"]
    assert step["error"] == "Unreachable"
    assert step["message"].startswith("127.0.0.1:1: ConnectError")


async def test_a_number_that_an_expression_gives_an_environment_is_told_once_with_the_cure(
    world: World,
) -> None:
    step = a_job("work", "print(1)", env={"N": "{{ params.n }}"})
    ended = await world.run(a_pipeline(step, parameters={"n": 1}))
    assert ended.steps["work"]["message"] == (
        "config.spec.env.N: This must be text. Use string(...) in the expression."
    )
