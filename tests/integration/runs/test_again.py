"""Doing it again: dedup, retry of a step, rerun from failure, fork, reuse of outputs."""

from __future__ import annotations

import pytest

from gpuplane.core.runs.plans import (
    Answer,
    Cache,
    Completed,
    Expanding,
    Failed,
    OnFailure,
    StepCall,
    Undo,
)
from gpuplane.domains.runs import service as runs
from gpuplane.kit.errors import Conflict
from tests.integration.runs.handlers import Stage
from tests.integration.runs.worlds import World, a_plan, a_step, chain


async def test_a_run_of_the_same_deduplication_id_is_started_once(any_world: World) -> None:
    first = await any_world.start(a_plan(a_step("a"), dedup_id="nightly-7"))
    second = await any_world.start(a_plan(a_step("a"), dedup_id="nightly-7"))
    other = await any_world.start(a_plan(a_step("a"), dedup_id="nightly-8"))
    assert first.id == second.id != other.id


async def test_a_rerun_keeps_what_completed_and_runs_the_rest(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.fails = {"c": 1}
    await any_world.work()
    plan = a_plan(
        a_step("a", handler="do"), a_step("b", "a", handler="do"),
        a_step("c", "b", handler="do"), a_step("d", "c", handler="do"),
    )  # fmt: skip
    run = await any_world.over(plan)
    assert run.status == "failed"
    keys = {call.idempotency_key for call in any_stage.calls if call.key == "c"}
    reopened = await any_world.do(runs.rerun_from_failure, run.id)
    assert (reopened.status, reopened.left, reopened.error) == ("running", 2, "")
    run = await any_world.until(run.id, "completed")
    assert any_stage.keys() == ["a", "b", "c", "c", "d"]
    assert any_stage.calls[3].idempotency_key not in keys


async def test_one_failed_step_is_retried_with_what_waited_for_it(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.fails = {"x": 1, "y": 1}
    await any_world.work()
    run = await any_world.over(
        a_plan(
            a_step("x", handler="do"), a_step("x2", "x", handler="do"), a_step("y", handler="do"),
            on_failure=OnFailure.CONTINUE,
        )
    )  # fmt: skip
    assert run.status == "failed"
    await any_world.do(runs.retry_step, run.id, "x")
    run = await any_world.until(run.id, "partial")
    assert await any_world.statuses(run.id) == {"x": "completed", "x2": "completed", "y": "failed"}
    assert (run.failed, run.left) == (1, 0)


async def test_a_loop_is_rerun_only_where_it_failed(world: World, stage: Stage) -> None:
    stage.fails = {"l/1": 1}

    def loop(call: StepCall) -> Answer:
        if call.state is None:
            kids = tuple(a_step(f"l/{n}", handler="do") for n in range(3))
            return Expanding(kids, state=1)
        bad = [child for child in call.children if child.status != "completed"]
        return Failed("Some", "some failed", is_final=True) if bad else Completed("all")

    stage.answer("loop", loop)
    await world.work()
    plan = a_plan(a_step("l", handler="loop"), on_failure=OnFailure.CONTINUE)
    run = await world.over(plan)
    assert run.status == "partial"
    await world.do(runs.rerun_from_failure, run.id)
    run = await world.until(run.id, "completed")
    assert [stage.keys().count(f"l/{n}") for n in range(3)] == [1, 2, 1]


async def test_what_needs_another_failed_step_is_not_begun_until_that_is_retried(
    world: World, stage: Stage
) -> None:
    stage.fails = {"x": 1, "y": 1}
    await world.work()
    plan = a_plan(
        a_step("x", handler="do"), a_step("y", handler="do"), a_step("z", "x", "y", handler="do"),
        on_failure=OnFailure.CONTINUE,
    )  # fmt: skip
    run = await world.over(plan)
    with pytest.raises(Conflict, match="z needs x, y, which did not complete"):
        await world.do(runs.retry_step, run.id, "z")
    await world.do(runs.retry_step, run.id, "x")
    run = await world.until(run.id, "partial")
    assert await world.statuses(run.id) == {"x": "completed", "y": "failed", "z": "cancelled"}
    await world.do(runs.retry_step, run.id, "y")
    run = await world.until(run.id, "completed")
    assert await world.statuses(run.id) == dict.fromkeys("xyz", "completed")


async def test_a_completed_step_is_not_retried_and_a_compensated_run_not_rerun(
    world: World, stage: Stage
) -> None:
    stage.fails = {"b": 1}
    await world.work()
    run = await world.over(
        a_plan(
            a_step("a", handler="do", undo=Undo("do", 1)), a_step("b", "a", handler="do"),
            on_failure=OnFailure.ROLLBACK,
        )
    )  # fmt: skip
    with pytest.raises(Conflict, match="compensated"):
        await world.do(runs.rerun_from_failure, run.id)
    done = await world.over(a_plan(a_step("a", handler="do")))
    with pytest.raises(Conflict, match="completed"):
        await world.do(runs.retry_step, done.id, "a")


async def test_a_fork_takes_over_the_outputs_of_what_lies_before(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.answer("see", lambda call: Completed([dict(call.outputs), dict(call.params)]))
    await any_world.work()
    run = await any_world.over(
        a_plan(
            a_step("a", handler="do", input=1), a_step("b", "a", handler="do", input=2),
            a_step("c", "b", handler="see"), a_step("d", "c", handler="do"), a_step("side"),
            params={"model": "small"},
        )
    )  # fmt: skip
    fork = await any_world.do(runs.fork_run, run.id, "c", params={"model": "large"})
    fork = await any_world.until(fork.id, "completed")
    steps = await any_world.steps(fork.id)
    assert (fork.forked_from, fork.trigger) == (run.id, "fork")
    assert any_stage.keys().count("a") == 1
    assert any_stage.keys().count("d") == 2
    assert steps["c"].output == [{"a": 1, "b": 2}, {"model": "large"}]
    assert steps["a"].message == f"Taken over from run {run.id}."


async def test_equal_input_reuses_an_output_and_says_so(any_world: World, any_stage: Stage) -> None:
    await any_world.work()

    async def note_of(value: object, salt: str = "", keep_ms: int = 60_000) -> str:
        cache = Cache(salt, keep_ms)
        run = await any_world.over(
            a_plan(a_step("a", handler="do", input=value, cache=cache), a_step("b", "a"))
        )
        step = (await any_world.steps(run.id))["a"]
        assert (run.status, step.output) == ("completed", value)
        return step.cache_note

    notes = [await note_of({"x": 1}), await note_of({"x": 1}), await note_of({"x": 2})]
    notes += [await note_of({"x": 2}, "v2"), await note_of({"x": 2}, "v2", keep_ms=0)]
    assert len(any_stage.calls) == 4
    assert "no output of this step" in notes[0]
    assert notes[1].startswith("Hit:")
    assert "input differs" in notes[2]
    assert "salt differs" in notes[3]
    assert "too old" in notes[4]


async def test_the_rendered_input_decides_where_a_handler_gives_it(
    world: World, stage: Stage
) -> None:
    def told(call: StepCall) -> object:
        return [call.input, call.params["model"]]

    stage.answer("render", lambda call: Completed(call.params["model"]), cache_input=told)
    await world.work()
    for model in ("small", "large", "small"):
        plan = a_plan(a_step("a", handler="render", cache=Cache()), params={"model": model})
        run = await world.over(plan)
        assert (await world.steps(run.id))["a"].output == model
    assert len(stage.calls) == 2


async def test_a_rerun_of_a_cancelled_run_goes_on_where_it_stopped(
    world: World, stage: Stage
) -> None:
    await world.work()
    run = await world.start(a_plan(a_step("a", handler="gate"), *chain(3), a_step("z", "a", "s2")))
    await world.until_step(run.id, "s2", "completed")
    await world.until_step(run.id, "a", "running")
    await world.do(runs.cancel_run, run.id)
    stage.open("a")
    await world.do(runs.rerun_from_failure, run.id)
    run = await world.until(run.id, "completed")
    assert run.completed == 5
