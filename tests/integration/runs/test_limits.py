"""Limits: places in a run, under keys, of runs; what is refused when a run is started."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gpuplane.core.runs.boards import Rules
from gpuplane.core.runs.plans import Limit, RunPlan, StepPlan
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import RunView
from gpuplane.kit.errors import TooManyRequests, Unprocessable
from tests.integration.runs.handlers import Stage
from tests.integration.runs.worlds import World, a_plan, a_step
from tests.waiting import wait_until_async


async def test_a_run_has_no_more_steps_under_way_than_it_may(
    any_world: World, any_stage: Stage
) -> None:
    keys = [f"s{n}" for n in range(9)]
    await any_world.work()
    run = await any_world.start(
        a_plan(*(a_step(key, handler="gate") for key in keys), max_parallel=3)
    )
    await wait_until_async(lambda: any_stage.at_once == 3, "three are at work")
    any_stage.open(*keys)
    run = await any_world.until(run.id, "completed")
    assert (run.status, run.completed, any_stage.most_at_once) == ("completed", 9, 3)


async def test_steps_that_name_the_same_key_wait_for_one_another_across_runs(
    any_world: World, any_stage: Stage
) -> None:
    limit = Limit("gpu", 2)
    await any_world.work()
    started = [
        await any_world.start(a_plan(*(a_step(f"s{n}", handler="gate", limit=limit)
                                       for n in range(3))))
        for _ in range(3)
    ]  # fmt: skip
    await any_world.until_step(started[2].id, "s2", "Limited")
    step = (await any_world.steps(started[2].id))["s2"]
    assert (step.status, step.limited_by) == ("pending", "key")
    await wait_until_async(lambda: any_stage.at_once == 2, "two are at work")
    any_stage.open("s0", "s1", "s2")
    for run in started:
        assert (await any_world.until(run.id, "completed")).completed == 3
    assert any_stage.most_at_once == 2


async def test_runs_that_share_a_key_wait_for_one_another(
    any_world: World, any_stage: Stage
) -> None:
    await any_world.work()
    plan = a_plan(a_step("a", handler="gate"), limits=(Limit("nightly", 1),))
    first, second, third = [await any_world.start(plan) for _ in range(3)]
    await any_world.until_step(first.id, "a", "running")
    assert (second.status, second.condition) == ("pending", "Limited")
    await any_world.do(runs.cancel_run, second.id)
    any_stage.open("a")
    for run in (first, third):
        await any_world.until(run.id, "completed")
    assert any_stage.most_at_once == 1


async def test_a_limit_under_a_cancelled_step_is_given_back(world: World, stage: Stage) -> None:
    await world.work()
    limit = Limit("one", 1)
    first = await world.start(a_plan(a_step("a", handler="gate", limit=limit)))
    second = await world.start(a_plan(a_step("b", handler="gate", limit=limit)))
    await world.until_step(second.id, "b", "Limited")
    await world.do(runs.cancel_run, first.id)
    await world.until_step(second.id, "b", "running")
    stage.open("b")
    assert (await world.until(second.id, "completed")).completed == 1


def refused(place: str, *steps: StepPlan, **more: object) -> object:
    return pytest.param(a_plan(*steps, **more), place, id=place)


@pytest.mark.parametrize(
    ("plan", "place"),
    [
        refused("a: It needs itself.", a_step("a", "a")),
        refused("b: It needs 'x', which is no step beside it.", a_step("b", "x")),
        refused("a: Two steps have this key.", a_step("a"), a_step("a")),
        refused("steps: A run needs at least one step."),
        refused("deadline_at: The deadline has passed.", a_step("a"), deadline_at=1),
        refused(
            "a: The steps wait for one another: a needs c needs b needs a.",
            a_step("a", "c"), a_step("b", "a"), a_step("c", "b"),
        ),
        refused(
            "steps: The run would have 90000 steps more than the 10000 that a run may have.",
            *(a_step(f"s{n}") for n in range(100_000)),
        ),
    ],
)  # fmt: skip
async def test_a_plan_that_cannot_be_run_is_refused_with_the_place(
    world: World, plan: RunPlan, place: str
) -> None:
    with pytest.raises(Unprocessable) as caught:
        await world.start(plan)
    assert caught.value.detail == place


async def test_a_project_has_no_more_open_runs_than_it_may(world: World) -> None:
    world.policy = replace(world.policy, open_runs=2)
    for _ in range(2):
        await world.start(a_plan(a_step("a")))
    with pytest.raises(TooManyRequests):
        await world.start(a_plan(a_step("a")))


async def test_all_outputs_of_a_run_together_have_a_limit(world: World, stage: Stage) -> None:
    world.policy = replace(world.policy, rules=Rules(outputs_bytes=1_500))
    await world.work()
    run = await world.over(
        a_plan(a_step("a", input="x" * 1_000), a_step("b", "a", input="y" * 1_000))
    )
    assert (run.status, run.error) == ("failed", "OutputsTooLarge")


async def test_events_that_nobody_awaits_have_a_limit(world: World) -> None:
    world.policy = replace(world.policy, kept_events=2, event_bytes=100)
    run = await world.start(a_plan(a_step("a", handler="wait")))
    for _ in range(2):
        await world.do(runs.deliver_to_run, run.id, "go", 1)
    with pytest.raises(Unprocessable, match="kept"):
        await world.do(runs.deliver_to_run, run.id, "go", 1)
    with pytest.raises(Unprocessable, match="100 bytes"):
        await world.do(runs.deliver_to_run, run.id, "go", "x" * 200)


async def test_a_handler_that_allows_few_calls_at_once_gets_no_more(
    world: World, stage: Stage
) -> None:
    world.handlers.add("heavy", stage.gate, at_once=2)
    await world.work()
    run = await world.start(a_plan(*(a_step(f"s{n}", handler="heavy") for n in range(5))))
    await wait_until_async(lambda: stage.at_once == 2, "two are at work")
    stage.open(*(f"s{n}" for n in range(5)))
    assert (await world.until(run.id, "completed")).completed == 5
    assert stage.most_at_once == 2


async def test_the_limit_of_open_runs_is_exact_in_batches_and_from_many_sides(
    any_world: World,
) -> None:
    policy = replace(any_world.policy, open_runs=2_500)
    plan, database = a_plan(a_step("a")), any_world.database

    async def start(count: int) -> list[RunView | Exception]:
        return await database.write(
            "runs.start", lambda s: runs.start_runs(s, [plan] * count, any_world.now, policy)
        )

    first = await start(2_480)
    rest = [one for many in await asyncio.gather(*(start(5) for _ in range(8))) for one in many]
    refused = [one for one in rest if isinstance(one, TooManyRequests)]
    assert not [one for one in first if isinstance(one, Exception)]
    assert (len(rest), len(refused)) == (40, 20)
    run = next(one for one in first if isinstance(one, RunView))
    await any_world.do(runs.cancel_run, run.id)
    assert not isinstance((await start(2))[0], Exception)
    with pytest.raises(TooManyRequests, match="2500 runs that are not over"):
        await database.write(
            "runs.rerun",
            lambda s: runs.rerun_from_failure(s, run.id, any_world.now, policy=policy),
        )
