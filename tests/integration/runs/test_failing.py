"""What failed steps do: tries again, time-outs, the run's rule, compensation in reverse."""

from __future__ import annotations

import asyncio

import pytest

from gpuplane.core.runs.plans import (
    Answer,
    Completed,
    Failed,
    OnFailure,
    Retry,
    StepCall,
    Undo,
)
from tests.integration.runs.handlers import Stage
from tests.integration.runs.worlds import World, a_plan, a_step
from tests.waiting import wait_until_async

QUICK = Retry(attempts=3, delay_ms=1, jitter=0.0)


async def test_a_failed_step_is_tried_again_until_its_attempts_are_over(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.fails = {"a": 2, "b": 9}
    await any_world.work()
    run = await any_world.over(
        a_plan(a_step("a", handler="do", retry=QUICK), a_step("b", "a", handler="do", retry=QUICK))
    )
    steps = await any_world.steps(run.id)
    assert any_stage.keys() == ["a", "a", "a", "b", "b", "b"]
    assert [call.attempt for call in any_stage.calls] == [1, 2, 3, 1, 2, 3]
    assert (steps["a"].status, steps["b"].status, steps["b"].error) == (
        "completed", "failed", "Told",
    )  # fmt: skip
    assert (run.status, run.error) == ("failed", "Told")


async def test_a_final_failure_is_not_tried_again(world: World, stage: Stage) -> None:
    stage.answer("no", lambda call: Failed("Never", "never", is_final=True))
    await world.work()
    run = await world.over(a_plan(a_step("a", handler="no", retry=QUICK)))
    assert (run.status, stage.keys()) == ("failed", ["a"])


async def test_every_call_of_a_step_has_the_same_idempotency_key(
    world: World, stage: Stage
) -> None:
    stage.fails = {"a": 2}
    await world.work()
    await world.over(a_plan(a_step("a", handler="do", retry=QUICK)))
    assert len({call.idempotency_key for call in stage.calls}) == 1


async def test_a_back_off_is_shown_with_its_reason_and_its_end(world: World, stage: Stage) -> None:
    stage.fails = {"a": 1}
    await world.work()
    retry = Retry(attempts=2, delay_ms=60_000, jitter=0.0)
    run = await world.start(a_plan(a_step("a", handler="do", retry=retry)))
    step = await world.until_step(run.id, "a", "BackingOff")
    assert (step.status, step.error, step.attempt, step.attempts) == ("pending", "Told", 1, 2)
    assert step.due_at is not None
    assert step.due_at > world.now + 30_000


async def test_fail_fast_cancels_what_is_not_over(world: World, stage: Stage) -> None:
    stage.fails = {"bad": 9}
    await world.work()
    run = await world.start(
        a_plan(a_step("slow", handler="gate"), a_step("wait"), a_step("after", "slow"),
               a_step("bad", "wait", handler="do"))
    )  # fmt: skip
    run = await world.until(run.id, "failed")
    assert await world.statuses(run.id) == {
        "slow": "cancelled", "wait": "completed", "after": "cancelled", "bad": "failed",
    }  # fmt: skip
    await wait_until_async(lambda: stage.cancelled == ["slow"], "the handler is told")
    assert run.message == "bad failed: it was told to fail"


async def test_continue_runs_what_does_not_need_the_failed_step_and_ends_partial(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.fails = {"bad": 9}
    await any_world.work()
    run = await any_world.over(
        a_plan(
            a_step("bad", handler="do"), a_step("after", "bad"), a_step("last", "after"),
            a_step("good"), a_step("better", "good"),
            on_failure=OnFailure.CONTINUE,
        )
    )  # fmt: skip
    assert (run.status, run.failed, run.error) == ("partial", 1, "Told")
    assert await any_world.statuses(run.id) == {
        "bad": "failed", "after": "cancelled", "last": "cancelled",
        "good": "completed", "better": "completed",
    }  # fmt: skip
    assert (await any_world.steps(run.id))["last"].error == "NeedFailed"


async def test_a_step_has_its_own_rule(world: World, stage: Stage) -> None:
    stage.fails = {"bad": 9}
    await world.work()
    run = await world.over(
        a_plan(a_step("bad", handler="do", on_failure=OnFailure.CONTINUE), a_step("good"))
    )
    assert run.status == "partial"


async def test_rollback_undoes_completed_steps_last_first(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.fails = {"c": 9}
    await any_world.work()

    def undo(key: str) -> Undo:
        return Undo("do", {"undo": key})

    run = await any_world.over(
        a_plan(
            a_step("a", handler="do", undo=undo("a")),
            a_step("b", "a", handler="do", undo=undo("b")),
            a_step("plain", "b", handler="do"),
            a_step("c", "plain", handler="do", undo=undo("c")),
            on_failure=OnFailure.ROLLBACK,
        )
    )
    assert (run.status, run.error) == ("failed", "Told")
    assert any_stage.keys() == ["a", "b", "plain", "c", "undo:b", "undo:a"]
    assert any_stage.calls[-1].input == {"undo": "a"}
    steps = await any_world.steps(run.id)
    assert (steps["a"].status, steps["undo:a"].status) == ("completed", "completed")
    assert steps["undo:a"].undo_of == steps["a"].seq


async def test_a_compensation_that_fails_does_not_keep_the_others_from_running(
    world: World, stage: Stage
) -> None:
    stage.fails = {"bad": 9, "undo:b": 9}
    await world.work()
    run = await world.over(
        a_plan(
            a_step("a", handler="do", undo=Undo("do", 1)),
            a_step("b", "a", handler="do", undo=Undo("do", 2, QUICK)),
            a_step("bad", "b", handler="do"),
            on_failure=OnFailure.ROLLBACK,
        )
    )
    statuses = await world.statuses(run.id)
    assert (statuses["undo:b"], statuses["undo:a"]) == ("failed", "completed")
    assert (run.status, stage.keys().count("undo:b")) == ("failed", 3)


async def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again(
    world: World, stage: Stage
) -> None:
    await world.work()
    run = await world.over(
        a_plan(a_step("a", handler="gate", timeout_ms=30, retry=Retry(attempts=2, delay_ms=1)))
    )
    step = (await world.steps(run.id))["a"]
    assert (step.status, step.error, stage.cancelled) == ("failed", "TimedOut", ["a", "a"])


async def test_waits_count_into_the_time_of_an_attempt(world: World, stage: Stage) -> None:
    await world.work()
    run = await world.over(
        a_plan(a_step("a", handler="wait", input={"key": "never"}, timeout_ms=30))
    )
    step = (await world.steps(run.id))["a"]
    assert (step.status, step.error) == ("failed", "TimedOut")


@pytest.mark.parametrize("limit", ["timeout_ms", "deadline_at"])
async def test_a_run_whose_time_is_over_is_stopped_and_fails(
    any_world: World, any_stage: Stage, limit: str
) -> None:
    await any_world.work()
    value = 50 if limit == "timeout_ms" else any_world.now + 300
    run = await any_world.over(
        a_plan(a_step("a", handler="gate"), a_step("b", "a"), **{limit: value})
    )
    word = "TimedOut" if limit == "timeout_ms" else "DeadlinePassed"
    assert (run.status, run.error) == ("failed", word)
    assert await any_world.statuses(run.id) == {"a": "cancelled", "b": "cancelled"}


async def test_what_a_handler_raises_fails_its_try(world: World, stage: Stage) -> None:
    async def broken(call: StepCall) -> Answer:
        raise ValueError("no such thing")

    world.handlers.add("broken", broken)
    await world.work()
    run = await world.over(a_plan(a_step("a", handler="broken")))
    step = (await world.steps(run.id))["a"]
    assert (step.error, step.message) == ("HandlerError", "ValueError: no such thing")


async def test_an_answer_that_is_none_and_an_output_that_is_no_json_fail_the_step(
    world: World, stage: Stage
) -> None:
    stage.answer("nothing", lambda call: None)  # type: ignore[arg-type,return-value]  # the mistake
    stage.answer("odd", lambda call: Completed(asyncio.Event()))
    stage.answer("large", lambda call: Completed("x" * 5_000_000))
    await world.work()
    words = {}
    for name in ("nothing", "odd", "large"):
        run = await world.over(a_plan(a_step("a", handler=name)))
        words[name] = run.error
    assert words == {"nothing": "BadAnswer", "odd": "BadOutput", "large": "OutputTooLarge"}


async def test_input_and_output_are_of_the_types_that_were_registered(
    world: World, stage: Stage
) -> None:
    stage.answer("typed", lambda call: Completed(call.input), input_type=int, output_type=int)
    stage.answer("lies", lambda call: Completed("text"), output_type=int)
    await world.work()
    good = await world.over(a_plan(a_step("a", handler="typed", input=3)))
    bad = await world.over(a_plan(a_step("a", handler="typed", input="three")))
    lie = await world.over(a_plan(a_step("a", handler="lies")))
    assert (good.status, bad.error, lie.error) == ("completed", "BadInput", "BadOutput")
