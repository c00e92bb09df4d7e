"""One bad answer hurts its own step and no other."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from gpuplane.core.runs.plans import Completed, Expanding
from gpuplane.domains.runs import service as runs
from gpuplane.loops.runs.loop import WorkerSettings
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


def damage(column: str, table: str, run_id: Any) -> Any:
    """Return a unit that writes nonsense into a run's row or those of its steps."""
    key = "id" if table == "runs_runs" else "run_id"

    def unit(session: Any) -> int:
        value = run_id if session.dialect == "postgresql" else run_id.hex
        statement = text(f"UPDATE {table} SET {column} = '{{broken' WHERE {key} = :id")
        return int(session.execute(statement.bindparams(id=value)))

    return unit


async def test_a_damaged_row_fails_its_own_run_and_keeps_no_other_from_running(
    any_world: World, any_stage: Stage
) -> None:
    steps, whole = [await any_world.start(a_plan(a_step("a"), a_step("b", "a"))) for _ in range(2)]
    head = await any_world.start(a_plan(a_step("a")))
    assert await any_world.database.write("d", damage("spec", "runs_steps", steps.id)) == 2
    assert await any_world.database.write("d", damage("params", "runs_runs", head.id)) == 1
    await any_world.work()
    assert (await any_world.until(whole.id, "completed")).completed == 2
    assert (await any_world.until(steps.id, "failed")).error == "Unreadable"
    step = await any_world.until_step(head.id, "a", "failed")
    assert step.error == "Unreadable"
    named = await any_world.database.read(runs.check)
    assert [fault.split(":")[0] for fault in named] == [
        f"Run {each}" for each in (steps.id, steps.id, head.id)
    ]
    await any_world.database.write("d", lambda s: runs.prune_runs(s, [steps.id, head.id]))


async def test_a_claim_that_never_came_to_a_handler_is_claimed_again(
    world: World, stage: Stage
) -> None:
    world.settings = WorkerSettings(lease_s=0.6)
    loop = await world.work()
    first = await world.start(a_plan(a_step("busy", handler="gate")))
    await world.until_step(first.id, "busy", "running")
    run = await world.start(a_plan(a_step("a", handler="runs.sleep", input={"ms": 3_600_000})))
    await world.until_step(run.id, "a", "Sleeping")
    taken = text(
        "UPDATE runs_steps SET status = 'running', owner = :owner, due_at = NULL, condition = '', "
        "epoch = epoch + 1, state = '{}' WHERE run_id = :id"
    )
    await world.database.write(
        "tests.take", lambda s: s.execute(taken.bindparams(owner=loop.owner, id=run.id.hex))
    )
    assert (await world.until(run.id, "completed")).completed == 1
    stage.open("busy")
    assert (await world.until(first.id, "completed")).completed == 1
