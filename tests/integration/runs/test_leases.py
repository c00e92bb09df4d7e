"""Two workers on one database: a claim holds as long as its worker's lease, and not longer."""

from __future__ import annotations

from typing import Any

from gpuplane.core.runs.boards import Reply
from gpuplane.core.runs.plans import Completed, Failed
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import Advance, Turn
from tests.integration.runs.handlers import Stage
from tests.integration.runs.worlds import World, a_plan, a_step
from tests.waiting import wait_until_async

LEASE_MS = 10_000
WITHIN_MS = 15_000
NAMES = frozenset({"runs.nothing"})


async def turn(world: World, owner: str, now: int, *replies: Reply, room: int = 10) -> Advance:
    """Take one turn of a worker by hand."""
    asked = Turn(owner, NAMES, replies, room, room, {}, looks=True, now=now)
    return await world.database.write("runs.advance", lambda s: runs.advance(s, asked))


async def register(world: World, owner: str, now: int) -> Any:
    return await world.database.write(
        "runs.register", lambda s: runs.register_worker(s, owner, NAMES, now, LEASE_MS)
    )


async def test_an_answer_of_a_worker_that_lost_its_lease_changes_nothing(any_world: World) -> None:
    run = await any_world.start(a_plan(a_step("a"), a_step("b", "a")))
    now = any_world.now
    await register(any_world, "first", now)
    (claimed,) = (await turn(any_world, "first", now)).claimed
    late = now + WITHIN_MS - 1
    assert await register(any_world, "second", late) == 1
    (again,) = (await turn(any_world, "second", late)).claimed
    assert (again.step.id, again.epoch, again.attempt) == (claimed.step.id, 2, 1)
    stale = Reply(run.id, claimed.step.id, claimed.epoch, Failed("Late", "late", True))
    assert (await turn(any_world, "first", late, stale)).stale == 1
    assert await any_world.statuses(run.id) == {"a": "running", "b": "waiting"}
    good = Reply(run.id, again.step.id, again.epoch, Completed(), again.step.followers)
    answered = await turn(any_world, "second", late, good)
    assert [each.step.key for each in answered.claimed] == ["b"]
    assert (await turn(any_world, "second", late, good)).stale == 1
    assert (await any_world.steps(run.id))["a"].status == "completed"
    last = answered.claimed[0]
    done = Reply(run.id, last.step.id, last.epoch, Completed())
    await turn(any_world, "second", late, done)
    assert (await any_world.get(run.id)).status == "completed"


async def test_a_worker_that_renews_its_lease_keeps_its_steps(any_world: World) -> None:
    await any_world.start(a_plan(a_step("a")))
    now = any_world.now
    await register(any_world, "first", now)
    (claimed,) = (await turn(any_world, "first", now)).claimed
    for beat in range(1, 4):
        at = now + beat * LEASE_MS // 2
        told = await any_world.database.write(
            "runs.beat", lambda s, at=at: runs.beat(s, "first", at, LEASE_MS)
        )
        assert (told.alive, told.taken) == (True, 0)
    done = Reply(claimed.step.run_id, claimed.step.id, claimed.epoch, Completed())
    assert (await turn(any_world, "first", at, done)).stale == 0


async def test_a_worker_that_ends_cleanly_hands_its_steps_over_at_once(
    world: World, stage: Stage
) -> None:
    await world.work()
    run = await world.start(a_plan(a_step("a", handler="gate")))
    await wait_until_async(lambda: stage.at_once == 1, "its handler is at work")
    await world.stop_work()
    assert await world.statuses(run.id) == {"a": "pending"}
    assert stage.cancelled == ["a"]
    stage.open("a")
    await world.work()
    assert (await world.until(run.id, "completed")).completed == 1
    assert {call.attempt for call in stage.calls} == {1}


async def test_one_run_does_not_hold_up_the_others(world: World, stage: Stage) -> None:
    world.settings = type(world.settings)(handlers=4, share=2)
    await world.work()
    wide = await world.start(a_plan(*(a_step(f"s{n}", handler="gate") for n in range(8))))
    await wait_until_async(lambda: stage.at_once == 2, "its share is at work")
    narrow = await world.over(a_plan(a_step("quick", handler="do")))
    assert narrow.status == "completed"
    assert stage.at_once == 2
    stage.open(*(f"s{n}" for n in range(8)))
    assert (await world.until(wide.id, "completed")).completed == 8
