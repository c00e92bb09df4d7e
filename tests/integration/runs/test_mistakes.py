"""One bad answer hurts its own step and no other."""

from __future__ import annotations

from gpuplane.core.runs.plans import Completed, Expanding
from tests.integration.runs.handlers import Stage
from tests.integration.runs.worlds import World, a_plan, a_step


async def test_an_answer_that_cannot_be_stored_fails_its_step_and_no_other(
    any_world: World, any_stage: Stage
) -> None:
    # A message is text: one that is a number passes the handler and not the database's driver.
    any_stage.answer("odd", lambda call: Completed(message=object()))  # type: ignore[arg-type]  # the mistake
    any_stage.answer("odder", lambda call: Expanding(("no plan",)))  # type: ignore[arg-type]  # the mistake
    await any_world.work()
    plan = a_plan(a_step("odd", handler="odd"))
    started = [await any_world.start(a_plan(a_step(f"s{n}"))) for n in range(3)]
    odd = await any_world.start(plan)
    odder = await any_world.start(a_plan(a_step("a", handler="odder")))
    started += [await any_world.start(a_plan(a_step(f"s{n}"))) for n in range(3)]
    assert (await any_world.until(odd.id, "failed")).error == "EngineError"
    assert (await any_world.until(odder.id, "failed")).error in ("EngineError", "BadAnswer")
    for run in started:
        assert (await any_world.until(run.id, "completed")).completed == 1
