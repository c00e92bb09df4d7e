"""Steps that wait: for events, for time, for handlers; and how those are told that are stopped."""

from __future__ import annotations

from gpuplane.core.runs.plans import Completed, Sleeping, StepCall
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import Handlers
from tests.integration.runs.handlers import Stage
from tests.integration.runs.worlds import World, a_plan, a_step
from tests.waiting import wait_until_async


async def test_an_event_wakes_the_step_that_awaits_it(any_world: World, any_stage: Stage) -> None:
    await any_world.work()
    run = await any_world.start(
        a_plan(a_step("a", handler="wait", input={"key": "run:RUN:go"}), a_step("b", "a"))
    )
    step = await any_world.until_step(run.id, "a", "AwaitingEvent")
    assert step.wait_key == f"run:{run.id}:go"
    assert await any_world.do(runs.deliver_to_run, run.id, "go", {"by": "me"}) == 1
    run = await any_world.until(run.id, "completed")
    output = (await any_world.steps(run.id))["a"].output
    assert output == {"event": {"by": "me"}, "timed_out": False}


async def test_an_event_that_comes_early_is_kept_for_the_first_that_awaits_it(
    any_world: World, any_stage: Stage
) -> None:
    run = await any_world.start(a_plan(a_step("a", handler="wait", input={"key": "run:RUN:go"})))
    assert await any_world.do(runs.deliver_to_run, run.id, "go", 7) == 0
    await any_world.work()
    run = await any_world.until(run.id, "completed")
    assert (await any_world.steps(run.id))["a"].output["event"] == 7


async def test_everybody_who_awaits_an_event_gets_it(world: World, stage: Stage) -> None:
    await world.work()
    plan = a_plan(*(a_step(key, handler="wait", input={"key": "job:1"}) for key in "abc"))
    first, second = await world.start(plan), await world.start(plan)
    for run in (first, second):
        for key in "abc":
            await world.until_step(run.id, key, "AwaitingEvent")
    assert await world.do(runs.deliver, "job:1", {"ok": True}) == 6
    for run in (first, second):
        assert (await world.until(run.id, "completed")).completed == 3


async def test_the_time_for_an_event_ends_the_wait(any_world: World, any_stage: Stage) -> None:
    await any_world.work()
    run = await any_world.over(
        a_plan(a_step("a", handler="wait", input={"key": "never", "wait_ms": 30}))
    )
    output = (await any_world.steps(run.id))["a"].output
    assert (run.status, output) == ("completed", {"event": None, "timed_out": True})


async def test_a_cancelled_run_tells_handlers_that_began_something(
    any_world: World, any_stage: Stage
) -> None:
    await any_world.work()
    run = await any_world.start(
        a_plan(
            a_step("job", handler="job", input={"key": "job:7"}), a_step("plain", handler="gate"),
            a_step("after", "job"),
        )
    )  # fmt: skip
    await any_world.until_step(run.id, "job", "AwaitingEvent")
    await any_world.until_step(run.id, "plain", "running")
    await any_world.do(runs.cancel_run, run.id, actor="me")
    run = await any_world.until(run.id, "cancelled")
    assert [call.key for call in any_stage.stopped] == ["job"]
    assert any_stage.stopped[0].idempotency_key == any_stage.calls[0].idempotency_key
    await wait_until_async(lambda: any_stage.cancelled == ["plain"], "it is told")
    assert set((await any_world.statuses(run.id)).values()) == {"cancelled"}
    assert (run.error, run.message) == ("Cancelled", "me cancelled it.")


async def test_a_paused_run_begins_nothing_until_it_is_resumed(
    any_world: World, any_stage: Stage
) -> None:
    await any_world.work()
    run = await any_world.start(a_plan(a_step("a", handler="gate"), a_step("b", "a", handler="do")))
    await any_world.until_step(run.id, "a", "running")
    paused = await any_world.do(runs.pause_run, run.id)
    assert paused.condition == "Paused"
    any_stage.open("a")
    await any_world.until_step(run.id, "a", "completed")
    other = await any_world.over(a_plan(a_step("c", handler="do")))
    assert other.status == "completed"
    assert any_stage.keys() == ["a", "c"]
    assert await any_world.statuses(run.id) == {"a": "completed", "b": "pending"}
    await any_world.do(runs.resume_run, run.id)
    assert (await any_world.until(run.id, "completed")).completed == 2


async def test_a_step_whose_handler_nobody_knows_is_parked_until_somebody_does(
    any_world: World,
) -> None:
    any_world.settings = type(any_world.settings)(lease_s=0.6)
    await any_world.work()
    run = await any_world.start(a_plan(a_step("a", handler="later"), a_step("b")))
    step = await any_world.until_step(run.id, "a", "NoHandler")
    assert (step.status, step.error) == ("pending", "NoHandler")
    assert "'later'" in step.message
    await any_world.stop_work()
    knowing = Handlers()
    Stage(knowing).answer("later", lambda call: Completed("done"))
    await any_world.work(knowing)
    run = await any_world.until(run.id, "completed")
    assert (await any_world.steps(run.id))["a"].output == "done"


async def test_state_is_kept_between_the_calls_of_an_attempt(world: World, stage: Stage) -> None:
    def count(call: StepCall) -> Completed | Sleeping:
        seen = call.state or 0
        return Completed(seen) if seen == 3 else Sleeping(call.now, state=seen + 1)

    stage.answer("count", count)
    await world.work()
    run = await world.over(a_plan(a_step("a", handler="count")))
    assert (await world.steps(run.id))["a"].output == 3
    assert [call.attempt for call in stage.calls] == [1, 1, 1, 1]
