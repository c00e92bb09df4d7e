"""How work leaves a cluster that is being deleted, each kind in its own way."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import update

from gpuplane.backends.interface import AttemptRef
from gpuplane.db.types import table_of
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service.emptying import Emptied
from gpuplane.domains.jobs.tables import JobRow
from tests.integration.jobs.worlds import World, runs_for

KINDS = ("service", "training", "batch")
WAIT_S = 3_600


async def running(world: World, *, bound: bool = False) -> dict[str, str]:
    """Start a job of each kind, let ten minutes pass, and let nothing new start after them.

    Args:
        bound: Whether they may run on their cluster alone, as the submit of these says.
    """
    ids: dict[str, str] = {}
    for kind in KINDS:
        job = await world.submit(name=kind, job_type=kind, gpu_count=0, spec=runs_for(36_000))
        ids[kind] = job["id"]
    await world.turn(2)
    await world.after(600)
    await world.ask("POST", "/clusters/sim/freeze", json={"reason": "it is deleted"})
    if not bound:
        free = update(table_of(JobRow)).values(requested_cluster_id=None)
        await world.server.database.write("tests.free", lambda s: s.execute(free))
    return ids


async def statuses(world: World, ids: dict[str, str]) -> dict[str, str]:
    return {kind: (await world.job(each))["status"] for kind, each in ids.items()}


async def empty(world: World, began: int, *, force: bool = False) -> Emptied:
    """Take the next step with each job, as the run that deletes a cluster does, and let it act."""
    unit = partial(
        jobs.empty_cluster, cluster_id=world.sim, began=began, until=began + WAIT_S * 1000,
        force=force, now=world.server.clock.now_ms(),
    )  # fmt: skip
    found: Emptied = await world.server.database.write("jobs.empty_cluster", unit)
    for attempt in found.to_checkpoint:
        await world.backend.request_checkpoint(AttemptRef(attempt.id, attempt.epoch))
    await world.turn(2)
    return found


async def test_services_move_at_once_training_after_its_checkpoint_and_batch_may_end(
    world: World,
) -> None:
    ids = await running(world)
    began = world.server.clock.now_ms()
    first = await empty(world, began)
    assert [str(each.job_id) for each in first.to_checkpoint] == [ids["training"]]
    assert await statuses(world, ids) == {
        "service": "queued", "training": "running", "batch": "running",
    }  # fmt: skip
    await world.after(1)
    await empty(world, began)
    assert await statuses(world, ids) == {
        "service": "queued", "training": "queued", "batch": "running",
    }  # fmt: skip
    assert (await world.job(ids["training"]))["last_checkpoint"]
    kinds = await world.kinds(ids["training"])
    assert kinds.index("job.checkpointed") < kinds.index("job.stopping")
    await world.after(WAIT_S)
    await empty(world, began)
    assert set((await statuses(world, ids)).values()) == {"queued"}
    assert (await empty(world, began)).open == ()


async def test_by_force_all_ends_at_once_and_what_is_lost_is_told_before(world: World) -> None:
    ids = await running(world)
    told: list[Any] = await world.server.database.read(
        lambda s: jobs.list_leaving(s, world.sim, world.server.clock.now_ms())
    )
    assert {each.name: str(each.parting) for each in told} == {
        "service": "migrate", "training": "checkpoint_then_move", "batch": "wait",
    }  # fmt: skip
    assert all(600 <= each.lost_s < 700 for each in told)
    emptied = await empty(world, world.server.clock.now_ms(), force=True)
    assert emptied.to_checkpoint == ()
    assert set((await statuses(world, ids)).values()) == {"queued"}


async def test_what_may_run_nowhere_else_is_cancelled_and_told_so_and_no_sooner_than_announced(
    world: World,
) -> None:
    ids = await running(world, bound=True)
    waiting = await world.submit(name="waits", gpu_count=0, spec=runs_for(10))
    began = world.server.clock.now_ms()
    await empty(world, began)
    told = await world.job(waiting["id"])
    assert (told["status"], told["reason"]) == ("cancelled", "NoClusterAllowed")
    assert told["status_message"] == "It was to run on sim alone, which is being deleted."
    assert await statuses(world, ids) == {
        "service": "cancelled", "training": "running", "batch": "running",
    }  # fmt: skip
    await world.after(WAIT_S + 1)
    await empty(world, began)
    assert set((await statuses(world, ids)).values()) == {"cancelled"}
    events = await world.ask("GET", f"/jobs/{ids['batch']}/events?limit=200")
    said = [each["message"] for each in events["items"]]
    assert [each for each in said if "may run nowhere else: it is cancelled" in each]
    assert not [each for each in said if "it is moved" in each]
