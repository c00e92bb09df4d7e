"""What is told of runs, what is counted, and what is forgotten in the end."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from gpuplane.core.runs.plans import Cache, Limit
from gpuplane.domains.events import service as events
from gpuplane.domains.runs import service as runs
from gpuplane.kit.pagination import PageRequest
from tests.integration.runs.handlers import Stage
from tests.integration.runs.worlds import World, a_plan, a_step

TABLES = ("runs_runs", "runs_steps", "runs_events", "runs_places")


async def test_the_life_of_a_run_is_told_in_the_transactions_of_its_changes(
    any_world: World, any_stage: Stage
) -> None:
    any_stage.fails = {"b": 1}
    await any_world.work()
    run = await any_world.over(a_plan(a_step("a"), a_step("b", "a", handler="do"), name="nightly"))
    await any_world.do(runs.rerun_from_failure, run.id, actor="me")
    await any_world.until(run.id, "completed")
    found = await any_world.database.read(
        lambda s: events.list_events_of(s, "run", run.id, PageRequest(50))
    )
    # How far it is, is told each second that it takes: how often is the machine's affair.
    told = [(each.kind, each.reason) for each in found.items if each.kind != "run.progressed"]
    assert told == [
        ("run.started", ""), ("step.failed", "Told"), ("run.failed", "Told"),
        ("run.reopened", ""), ("run.completed", ""),
    ]  # fmt: skip
    assert found.items[1].data["step"] == "b"
    assert {event.tenant_id for event in found.items} == {run.tenant_id}
    assert [event.actor for event in found.items if event.kind == "run.reopened"] == ["me"]


async def test_runs_that_were_kept_long_enough_are_forgotten_with_all_that_is_theirs(
    any_world: World, any_stage: Stage
) -> None:
    old = await any_world.start(
        a_plan(a_step("a", limit=Limit("k", 1), cache=Cache(keep_ms=1)), limits=(Limit("r", 1),))
    )
    await any_world.do(runs.deliver_to_run, old.id, "early", 1)
    await any_world.work()
    await any_world.until(old.id, "completed")
    young = await any_world.start(a_plan(a_step("b", handler="wait", input={"key": "x"})))
    await any_world.until_step(young.id, "b", "AwaitingEvent")
    later = any_world.now + 1_000
    ids = await any_world.database.read(lambda s: runs.list_to_prune(s, later, 10))
    assert ids == [old.id]
    await any_world.database.write("runs.prune", lambda s: runs.prune_runs(s, ids))
    await any_world.database.write("runs.left", lambda s: runs.prune_leftovers(s, later))
    counts = {}
    for table in (*TABLES, "runs_cache"):
        query = text(f"SELECT count(*) FROM {table}")
        counts[table] = await any_world.database.read(lambda s, q=query: s.scalar(q))
    assert counts == {
        "runs_runs": 1, "runs_steps": 1, "runs_events": 0, "runs_places": 0, "runs_cache": 0,
    }  # fmt: skip
    assert await any_world.database.read(lambda s: runs.find_run(s, old.id)) is None


async def test_open_runs_are_counted_by_source_and_by_kind(world: World) -> None:
    source = (await world.start(a_plan(a_step("a")))).id
    await world.start(a_plan(a_step("a"), source_id=source))
    other = await world.start(a_plan(a_step("a"), source_id=source, kind="other"))
    await world.do(runs.cancel_run, other.id)
    assert await world.database.read(lambda s: runs.count_open_runs_of(s, source)) == 1
    counted = await world.database.read(runs.count_open_runs)
    assert counted == {("test", "pending"): 2}


async def test_the_proof_finds_counts_that_are_wrong_and_steps_without_a_way_on(
    world: World,
) -> None:
    run = await world.start(a_plan(a_step("a"), a_step("b", "a")))
    broken = (
        "UPDATE runs_runs SET \"left\" = 7",
        "UPDATE runs_steps SET due_at = NULL WHERE key = 'a'",
        "UPDATE runs_steps SET needs_left = 0 WHERE key = 'b'",
    )  # fmt: skip
    for statement in broken:
        await world.database.write("tests.break", lambda s, t=statement: s.execute(text(t)))
    faults = await world.database.read(runs.check)
    assert faults == [
        f"Run {run.id}: it counts 7 steps that are not over and has 2.",
        f"Run {run.id}: its step a waits for something that will not come.",
        f"Run {run.id}: its step b waits for 0 and 1 are not satisfied.",
    ]
    await world.database.write("tests.mend", lambda s: runs.prune_runs(s, [run.id]))


DAMAGE = {
    "followers": ("runs_steps", "its step a has followers that cannot be read"),
    "needs": ("runs_steps", "its step a has needs that cannot be read"),
    "spec": ("runs_steps", "its step a has spec that cannot be read"),
    "state": ("runs_steps", "its step a has state that cannot be read"),
    "event": ("runs_steps", "its step a has event that cannot be read"),
    "output": ("runs_steps", "its step a has output that cannot be read"),
    "condition": ("runs_steps", "its step a cannot be read: '{\"cut' is unknown"),
    "params": ("runs_runs", "has params that cannot be read"),
    "context": ("runs_runs", "has context that cannot be read"),
    "limits": ("runs_runs", "has limits that cannot be read"),
}


@pytest.mark.parametrize("column", DAMAGE)
async def test_the_proof_names_every_column_that_is_cut_short(
    any_world: World, column: str
) -> None:
    run = await any_world.start(a_plan(a_step("a"), a_step("b", "a")))
    sound = await any_world.start(a_plan(a_step("a")))
    table, told = DAMAGE[column]
    where = f"run_id = '{run.id}' AND key = 'a'" if table == "runs_steps" else f"id = '{run.id}'"
    if any_world.database.is_sqlite:
        where = where.replace("-", "")
    statement = text(f'UPDATE {table} SET "{column}" = \'{{"cut\' WHERE {where}')
    assert await any_world.database.write("tests.break", lambda s: s.execute(statement)) == 1
    faults = await any_world.database.read(runs.check)
    assert faults == [f"Run {run.id}: {told}."]
    await any_world.database.write("tests.mend", lambda s: runs.prune_runs(s, [run.id, sound.id]))


async def test_the_proof_names_steps_that_forget_one_another(world: World) -> None:
    run = await world.start(a_plan(a_step("a"), a_step("b", "a")))
    statement = text("UPDATE runs_steps SET followers = '[]' WHERE key = 'a'")
    await world.database.write("tests.break", lambda s: s.execute(statement))
    assert await world.database.read(runs.check) == [
        f"Run {run.id}: its step b and those it names do not name one another: 1."
    ]
    await world.database.write("tests.mend", lambda s: runs.prune_runs(s, [run.id]))
