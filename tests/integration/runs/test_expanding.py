"""Steps that become several: joins, limits, nesting, and what a child's failure means."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuplane.core.runs.plans import (
    Answer,
    Completed,
    Expanding,
    Failed,
    Join,
    Limit,
    OnFailure,
    Retry,
    StepCall,
    StepPlan,
)
from tests.integration.runs.handlers import Stage
from tests.integration.runs.worlds import World, a_plan, a_step
from tests.waiting import wait_until_async


def expander(
    children: Callable[[StepCall], tuple[StepPlan, ...]], **more: object
) -> Callable[[StepCall], Answer]:
    """Return an answer that expands once and then tells how its children ended."""

    def answer(call: StepCall) -> Answer:
        if call.state is None:
            return Expanding(children(call), state={"expanded": True}, **more)  # type: ignore[arg-type]  # the test says what
        if any(child.status == "failed" for child in call.children) and not more.get("join"):
            return Failed("ChildFailed", "a child failed", is_final=True)
        return Completed([[child.key, child.status, child.output] for child in call.children])

    return answer


def three(call: StepCall) -> tuple[StepPlan, ...]:
    return tuple(
        a_step(f"{call.key}/{n}", handler="do", input=n, scope={"index": n}) for n in range(3)
    )


async def test_a_step_goes_on_when_all_its_children_are_over(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.answer("loop", expander(three))
    await any_world.work()
    run = await any_world.over(a_plan(a_step("l", handler="loop"), a_step("z", "l")))
    steps = await any_world.steps(run.id)
    assert (run.status, run.step_count, run.completed) == ("completed", 5, 5)
    assert steps["l"].output == [[f"l/{n}", "completed", n] for n in range(3)]
    assert {steps[f"l/{n}"].parent for n in range(3)} == {steps["l"].seq}
    assert steps["z"].started_at >= steps["l"].ended_at


async def test_no_more_children_run_at_once_than_allowed(
    any_world: World, any_stage: Stage
) -> None:
    def many(call: StepCall) -> tuple[StepPlan, ...]:
        return tuple(a_step(f"l/{n}", handler="gate") for n in range(7))

    any_stage.answer("loop", expander(many, max_parallel=2))
    await any_world.work()
    run = await any_world.start(a_plan(a_step("l", handler="loop")))
    await wait_until_async(lambda: any_stage.at_once == 2, "two are at work")
    any_stage.open(*(f"l/{n}" for n in range(7)))
    run = await any_world.until(run.id, "completed")
    assert (run.status, any_stage.most_at_once) == ("completed", 2)


@pytest.mark.parametrize(("join", "count", "open_first"), [("any", 0, 1), ("count", 2, 2)])
async def test_a_join_of_some_cancels_the_rest(
    world: World, stage: Stage, join: str, count: int, open_first: int
) -> None:
    def many(call: StepCall) -> tuple[StepPlan, ...]:
        return tuple(a_step(f"l/{n}", handler="gate") for n in range(4))

    stage.answer("loop", expander(many, join=Join(join), count=count))
    stage.open(*(f"l/{n}" for n in range(open_first)))
    await world.work()
    run = await world.over(a_plan(a_step("l", handler="loop")))
    statuses = [each[1] for each in (await world.steps(run.id))["l"].output]
    assert run.status == "completed"
    assert sorted(statuses) == ["cancelled"] * (4 - open_first) + ["completed"] * open_first


async def test_a_join_that_cannot_hold_any_more_is_told_so(world: World, stage: Stage) -> None:
    stage.fails = {"l/0": 9, "l/1": 9}

    def mixed(call: StepCall) -> tuple[StepPlan, ...]:
        bad = tuple(a_step(f"l/{n}", handler="do") for n in range(2))
        return (*bad, a_step("l/2", handler="gate"))

    stage.answer("loop", expander(mixed, join=Join.COUNT, count=2))
    await world.work()
    run = await world.over(a_plan(a_step("l", handler="loop")))
    statuses = [each[1] for each in (await world.steps(run.id))["l"].output]
    assert statuses == ["failed", "failed", "cancelled"]


async def test_a_child_that_fails_is_its_parents_business(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.fails = {"l/1": 9}
    any_stage.answer("loop", expander(three))
    await any_world.work()
    run = await any_world.over(a_plan(a_step("l", handler="loop"), on_failure=OnFailure.CONTINUE))
    statuses = await any_world.statuses(run.id)
    assert (run.status, run.error, run.failed) == ("partial", "ChildFailed", 1)
    assert statuses == {"l": "failed", "l/0": "completed", "l/1": "failed", "l/2": "completed"}


async def test_children_of_children_see_outputs_of_what_their_parents_need(
    world: World, stage: Stage
) -> None:
    def inner(call: StepCall) -> tuple[StepPlan, ...]:
        return (a_step(f"{call.key}/x", handler="look"), a_step(f"{call.key}/y", f"{call.key}/x",
                                                               handler="look"))  # fmt: skip

    def outer(call: StepCall) -> tuple[StepPlan, ...]:
        return tuple(a_step(f"l/{n}", handler="inner") for n in range(2))

    stage.answer("outer", expander(outer))
    stage.answer("inner", expander(inner))
    stage.answer("look", lambda call: Completed(dict(call.outputs)))
    await world.work()
    run = await world.over(
        a_plan(a_step("a", input=1), a_step("b", "a", input=2), a_step("other", input=9),
               a_step("l", "b", handler="outer"))
    )  # fmt: skip
    steps = await world.steps(run.id)
    assert run.status == "completed"
    assert steps["l/1/x"].output == {"a": 1, "b": 2}
    assert steps["l/1/y"].output == {"a": 1, "b": 2, "l/1/x": {"a": 1, "b": 2}}


def _tried_again(join: Join = Join.ALL, count: int = 0) -> Callable[[StepCall], Answer]:
    def answer(call: StepCall) -> Answer:
        if call.state is None:
            return Expanding(three(call), join, count, max_parallel=1, state=1)
        done = sum(child.status == "completed" for child in call.children)
        if done < (3 if join is Join.ALL else count):
            return Failed("Some", "some failed")
        return Completed([[child.key, child.status.value] for child in call.children])

    return answer


async def test_a_step_that_is_tried_again_goes_on_with_what_completed_of_it(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.fails = {"l/1": 2}
    any_stage.answer("loop", _tried_again())
    await any_world.work()
    step = a_step("l", handler="loop", retry=Retry(attempts=3, delay_ms=1))
    run = await any_world.over(a_plan(step, on_failure=OnFailure.CONTINUE))
    assert (run.status, run.step_count, run.left) == ("completed", 4, 0)
    calls = [call for call in any_stage.calls if "/" in call.key]
    assert sorted(call.key for call in calls) == ["l/0", "l/1", "l/1", "l/1", "l/2"]
    assert len({call.idempotency_key for call in calls}) == 5  # what failed is asked for anew
    assert (await any_world.steps(run.id))["l"].attempt == 3


async def test_a_join_of_some_that_is_tried_again_counts_what_completed_before(
    world: World, stage: Stage
) -> None:
    stage.fails = {"l/1": 1, "l/2": 1}
    stage.answer("loop", _tried_again(Join.COUNT, 2))
    await world.work()
    run = await world.over(a_plan(a_step("l", handler="loop", retry=Retry(attempts=2, delay_ms=1))))
    output = (await world.steps(run.id))["l"].output
    assert run.status == "completed"
    assert [status for _, status in output] == ["completed", "completed", "cancelled"]
    assert [call.key for call in stage.calls if "/" in call.key] == ["l/0", "l/1", "l/2", "l/1"]


async def test_a_step_that_asks_for_other_children_when_tried_again_forgets_the_first(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.fails = {"l/1": 1}

    def changing(call: StepCall) -> Answer:
        if call.state is None:
            kids = tuple(a_step(f"l/{n}", handler="do", input=call.attempt) for n in range(2))
            return Expanding(kids, state=1)
        bad = [child for child in call.children if child.status != "completed"]
        return (
            Failed("Some", "some failed") if bad else Completed([c.output for c in call.children])
        )

    any_stage.answer("loop", changing)
    await any_world.work()
    run = await any_world.over(
        a_plan(a_step("l", handler="loop", retry=Retry(attempts=2, delay_ms=1)))
    )
    calls = [call for call in any_stage.calls if call.key == "l/0"]
    assert (run.status, run.step_count) == ("completed", 3)
    assert (await any_world.steps(run.id))["l"].output == [2, 2]
    assert len({call.idempotency_key for call in calls}) == 2


async def test_containers_within_containers_go_on_where_they_failed(
    world: World, stage: Stage
) -> None:
    stage.fails = {"l/1/0": 1}

    def nested(call: StepCall) -> Answer:
        if call.state is None:
            inner = call.key.count("/") == 1
            kids = tuple(
                a_step(f"{call.key}/{n}", handler="do" if inner else "loop") for n in range(2)
            )
            return Expanding(kids, state=1, max_parallel=1)
        bad = [child for child in call.children if child.status != "completed"]
        return Failed("Some", "some failed") if bad else Completed()

    stage.answer("loop", nested)
    await world.work()
    run = await world.over(a_plan(a_step("l", handler="loop", retry=Retry(attempts=2, delay_ms=1))))
    done = [call.key for call in stage.calls if call.key.count("/") == 2]
    assert run.status == "completed"
    assert sorted(done) == ["l/0/0", "l/0/1", "l/1/0", "l/1/0", "l/1/1"]


async def test_a_step_without_children_goes_on_at_once(world: World, stage: Stage) -> None:
    stage.answer("loop", expander(lambda call: ()))
    await world.work()
    run = await world.over(a_plan(a_step("l", handler="loop")))
    assert (run.status, (await world.steps(run.id))["l"].output) == ("completed", [])


@pytest.mark.parametrize(
    ("children", "place"),
    [
        ([a_step("x")], "'l/'"),
        ([a_step("l/0", "l/1"), a_step("l/1", "l/0")], "wait for one another"),
        ([a_step("l/0", "l/0")], "needs itself"),
        ([a_step(f"l/{n}") for n in range(20_000)], "10000"),
        ([a_step("l/0", limit=Limit("held", 9))], "l/0: The step around it holds a place"),
    ],
    ids=["key", "cycle", "self", "too many", "limit"],
)
async def test_children_that_cannot_be_run_fail_their_step_with_the_place(
    world: World, stage: Stage, children: list[StepPlan], place: str
) -> None:
    stage.answer("loop", expander(lambda call: tuple(children)))
    await world.work()
    run = await world.over(a_plan(a_step("l", handler="loop", limit=Limit("held", 9))))
    assert (run.status, run.error) == ("failed", "BadChildren")
    assert place in run.message
