"""What Kueue runs is in our books, whatever they say of the node and its GPUs."""

from __future__ import annotations

from typing import Any

from gpuplane.backends.interface import Phase
from gpuplane.domains.jobs.service.bound_places import UNCOUNTED_AFTER_MS
from gpuplane.domains.placements import repository as guards
from gpuplane.domains.usage import service as usage
from gpuplane.kit.clock import instant_to_text
from tests.integration.jobs.offers import (
    admit_by_kueue,
    faults,
    held,
    offered,
    seen,
    settle,
    take_in,
)
from tests.integration.jobs.worlds import H100, World


def a_reservation(world: World, count: int, project: str | None = None) -> dict[str, Any]:
    now = world.server.clock.now_ms()
    return {
        "cluster": "sim",
        "model": "H100",
        "count": count,
        "start": instant_to_text(now),
        "end": instant_to_text(now + 3_600_000),
        "project_id": project,
    }


async def reserve_all(world: World) -> str:
    """Reserve every H100 for another project, from now on."""
    other = await world.ask("POST", "/projects", 201, json={"name": "others"})
    body = a_reservation(world, 16, str(other["id"]))
    made = await world.ask("POST", "/capacity/reservations", 201, json=body)
    await world.loops["monitor"].run_once()
    found = await world.ask("GET", f"/capacity/reservations/{made['id']}")
    assert (found["state"], len(found["gpu_ids"])) == ("active", 16)
    return str(made["id"])


async def change_guards(world: World, **values: Any) -> None:
    """Write values into the guard of every H100."""

    def unit(session: Any) -> None:
        found = guards.lock_model(session, world.sim, H100)
        for guard in found.values():
            for name, value in values.items():
                setattr(guard, name, value)
            guard.changed = True
        guards.store_guards(session, (), found.values())

    await world.server.database.write("tests.guards", unit)


async def ran_for(world: World, job_id: str) -> int:
    """Return the GPU-seconds that the ledger has of a job, to be paid for."""
    now = world.server.clock.now_ms()
    found = await world.server.database.read(lambda s: usage.list_intervals(s, 0, now))
    milli_ms = sum(
        ((each.to_at or now) - each.from_at) * share.milli
        for each in found
        for share in each.shares
        if str(share.job_id) == job_id and share.billable
    )
    return round(milli_ms / 1_000_000)


async def test_a_job_that_kueue_runs_on_reserved_gpus_is_running_metered_and_ends_well(
    world: World,
) -> None:
    world.server.clock.hold()  # until it is seen to run, its GPUs are the reservation's to pay
    await reserve_all(world)
    await admit_by_kueue(world)
    job, offer = await offered(world)
    started = world.server.clock.now_ms()
    assert (await settle(world, seen(offer, "big-01"))).bound == (offer.attempt_id,)
    await take_in(world, seen(offer, "big-01", Phase.RUNNING, started_at=started))
    assert (await world.job(job["id"]))["status"] == "running"
    assert await held(world) == 2
    assert await faults(world) == []
    world.server.clock.advance(30)
    now = world.server.clock.now_ms()
    done = seen(offer, "big-01", Phase.EXITED, started_at=started, ended_at=now, exit_code=0)
    await take_in(world, done)
    ended = await world.job(job["id"])
    assert (ended["status"], float(ended["actual_cost"]) > 0) == ("completed", True)
    assert await ran_for(world, job["id"]) == 60
    assert await faults(world) == []


async def test_a_job_that_kueue_runs_on_ailing_gpus_of_a_cordoned_and_full_node_is_booked(
    kueue: World,
) -> None:
    await kueue.ask("POST", "/clusters/sim/nodes/big-01/cordon")
    job, offer = await offered(kueue, cpu_cores=64)
    await change_guards(kueue, down=True)
    other, second = await offered(kueue, name="beside", cpu_cores=64)
    bound = await settle(kueue, seen(offer, "big-01"), seen(second, "big-01"))
    assert set(bound.bound) == {offer.attempt_id, second.attempt_id}
    assert await held(kueue) == 4
    assert (await kueue.job(job["id"]))["status"] == "scheduled"
    assert (await kueue.job(other["id"]))["status"] == "scheduled"


async def test_gpus_that_others_hold_in_the_books_are_waited_for_and_then_told(
    kueue: World,
) -> None:
    rivals = [await offered(kueue, name=f"rival-{each}") for each in range(4)]
    for _, rival in rivals:
        await settle(kueue, seen(rival, "big-01"))
    job, offer = await offered(kueue, name="late")
    started = kueue.server.clock.now_ms()
    sight = seen(offer, "big-01", Phase.RUNNING, started_at=started)
    assert (await settle(kueue, sight)).refused == (offer.attempt_id,)
    kueue.server.clock.advance(UNCOUNTED_AFTER_MS / 1000 + 1)
    assert (await settle(kueue, sight)).bound == (offer.attempt_id,)
    await take_in(kueue, sight)
    assert (await kueue.job(job["id"]))["status"] == "running"
    events = await kueue.ask("GET", f"/jobs/{job['id']}/events?limit=200")
    told = [
        each["data"]["gpu_count"] for each in events["items"] if each["kind"] == "job.uncounted"
    ]
    assert told == [2]
    assert await held(kueue) == 8
    assert await faults(kueue) == []


async def test_what_ran_while_nobody_looked_is_metered_for_the_time_that_it_ran(
    kueue: World,
) -> None:
    kueue.server.clock.hold()
    job, offer = await offered(kueue)
    started = kueue.server.clock.now_ms()
    kueue.server.clock.advance(45)
    ended = kueue.server.clock.now_ms()
    kueue.server.clock.advance(600)
    over = seen(
        offer, "big-01", Phase.EXITED, started_at=started, ended_at=ended, exit_code=0,
        reason="Completed",
    )  # fmt: skip
    await settle(kueue, over)
    assert (await kueue.job(job["id"]))["status"] == "completed"
    (attempt,) = (await kueue.ask("GET", f"/jobs/{job['id']}/attempts"))["items"]
    assert len(attempt["replicas"][0]["gpu_ids"]) == 2
    assert await ran_for(kueue, job["id"]) == 90
    assert await held(kueue) == 0
    assert await faults(kueue) == []


async def test_gpus_of_a_cluster_whose_kueue_admits_cannot_be_reserved(kueue: World) -> None:
    refused = await kueue.ask("POST", "/capacity/reservations", 422, json=a_reservation(kueue, 3))
    (field,) = refused.get("errors", [refused])
    assert field["field"] == "cluster"
    assert "Kueue" in refused["detail"]
    assert "ClusterQueue of its own" in str(refused)


async def test_a_cluster_with_reservations_is_not_handed_to_its_kueue(world: World) -> None:
    kept = await reserve_all(world)
    change = {"admission": "kueue"}
    refused = await world.ask("PATCH", "/clusters/sim", 409, json=change)
    assert "1 reservation is active or to come on sim" in refused["detail"]
    await world.ask("DELETE", f"/capacity/reservations/{kept}")
    changed = await world.ask("PATCH", "/clusters/sim", json=change)
    assert changed["admission"] == "kueue"


async def test_a_reservation_from_before_is_given_up_where_kueue_admits(world: World) -> None:
    kept = await reserve_all(world)
    await admit_by_kueue(world)
    world.server.clock.advance(60)
    await world.loops["monitor"].run_once()
    found = await world.ask("GET", f"/capacity/reservations/{kept}")
    assert (found["state"], found["gpu_ids"]) == ("cancelled", [])
    assert await faults(world) == []
