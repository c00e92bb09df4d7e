"""Runs go on by themselves: needs, sleeps, answers, ends."""

from __future__ import annotations

from tests.integration.runs.worlds import World, a_plan, a_step, chain


async def test_steps_run_after_what_they_need_and_the_run_completes(any_world: World) -> None:
    await any_world.work()
    run = await any_world.over(
        a_plan(a_step("a", input=1), a_step("b", "a"), a_step("c", "a"), a_step("d", "b", "c"))
    )
    assert run.status == "completed"
    steps = await any_world.steps(run.id)
    assert {step.status.value for step in steps.values()} == {"completed"}
    assert steps["a"].output == 1
    assert steps["d"].started_at >= max(steps["b"].ended_at, steps["c"].ended_at)
    assert (run.left, run.completed, run.failed) == (0, 4, 0)


async def test_a_long_chain_completes(any_world: World) -> None:
    await any_world.work()
    run = await any_world.over(a_plan(*chain(40)))
    assert (run.status, run.completed) == ("completed", 40)


async def test_a_sleeping_step_goes_on_by_itself(any_world: World) -> None:
    await any_world.work()
    run = await any_world.over(a_plan(a_step("nap", handler="runs.sleep", input={"ms": 50})))
    assert run.status == "completed"
    assert run.ended_at - run.started_at >= 50
