"""What a manager dispatched: held on its worker until it is known there, and let go of on both."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import update

from gpuplane.backends.interface import AttemptRef, Phase, ReplicaObservation
from gpuplane.core.ids import ClusterId
from gpuplane.db.types import table_of
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.domains.jobs.tables import OfferRow
from gpuplane.kit.ids import new_id
from gpuplane.loops.kueue.dispatches import follow_dispatches
from gpuplane.loops.kueue.workloads import follow
from tests.integration.jobs.offers import faults, seen, settle
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored
from tests.integration.kueue.test_loop import WORKLOADS, hold, reserved

NODE = "big-01"


@pytest.fixture
async def hub(kueue: Kueue) -> ClusterId:
    """A manager that dispatches to the cluster of the world."""
    made = ClusterId(new_id())
    told = {"workers": ["sim"], "queues": ["q"]}

    def unit(session: Any) -> None:
        config = {"admission": "kueue", "dispatch": told}
        clusters.ensure_cluster(
            session, made, name="hub", kind="kubernetes", simulated=False, config=config, now=1
        )

    await kueue.world.server.database.write("tests.hub", unit)
    return made


async def dispatched(kueue: Kueue, hub: ClusterId) -> Offer:
    """Return an offer that the manager has dispatched to the cluster of the world."""
    offer = await kueue.offer()
    table = table_of(OfferRow)
    change = update(table).where(table.c.attempt_id == offer.attempt_id).values(cluster_id=hub)
    write = kueue.world.server.database.write
    await write("tests.move", lambda s: s.execute(change))
    dispatch = partial(
        jobs.note_dispatched,
        attempt_id=offer.attempt_id,
        worker_id=kueue.world.sim,
        worker="sim",
        now=2,
    )
    assert await write("tests.dispatch", dispatch)
    return await stands(kueue, offer)


async def stands(kueue: Kueue, offer: Offer) -> Offer:
    """Return an offer as it is stored."""
    found = await kueue.world.server.database.read(jobs.list_offers)
    return next(each for each in found if each.attempt_id == offer.attempt_id)


async def test_a_worker_holds_what_was_dispatched_until_a_record_is_kept_of_it_there(
    kueue: Kueue, hub: ClusterId, stored: Stored
) -> None:
    offer = await dispatched(kueue, hub)
    reserved(stored, "far", offer.attempt_id, str(hub))
    found = stored.get(WORKLOADS, "far", "space")
    assert found is not None
    found["metadata"]["labels"] = {"kueue.x-k8s.io/multikueue-origin": "hub"}
    found["spec"]["priority"] = 500
    await kueue.loop.run_once()
    assert hold(stored, "far") == "Pending"
    taken = partial(jobs.note_offers_taken, attempt_ids=[offer.attempt_id], now=3)
    await kueue.world.server.database.write("tests.taken", taken)
    await kueue.loop.run_once()
    assert hold(stored, "far") == "Ready"
    after = stored.get(WORKLOADS, "far", "space")
    assert after is not None
    assert after["spec"]["priority"] == 500  # its manager would delete it, were it another


async def test_a_bound_one_is_booked_on_its_worker_and_only_the_worker_says_how_it_is(
    kueue: Kueue, hub: ClusterId
) -> None:
    world, read = kueue.world, kueue.world.server.database.read
    offer = await dispatched(kueue, hub)
    assert (await settle(world, seen(offer, NODE))).bound == (offer.attempt_id,)
    [attempt] = await read(lambda s: jobs.list_running_on(s, hub))
    assert (attempt.cluster_id, attempt.manager_id) == (world.sim, hub)
    lost = ReplicaObservation(AttemptRef(attempt.id, attempt.epoch), 0, Phase.LOST, ended_at=9)
    ignore = partial(
        jobs.take_in, seen=[lost], seal=str.encode, chance=lambda: 0.0, now=9, cluster_id=hub
    )
    assert await world.server.database.write("tests.manager", ignore) == 0
    assert [each.state for each in await read(jobs.list_open)] == ["starting"]
    assert await read(lambda s: jobs.list_to_release(s, [hub], 10)) == []
    await world.ask("DELETE", f"/jobs/{offer.job_id}")
    [told] = await read(lambda s: jobs.list_to_release(s, [hub], 10))
    note = partial(jobs.note_managers_told, attempts=[told], now=10)
    await world.server.database.write("tests.told", note)
    assert await read(lambda s: jobs.list_to_release(s, [hub], 10)) == []
    assert await faults(world) == []


async def test_what_is_taken_back_is_dropped_when_both_clusters_were_told(
    kueue: Kueue, hub: ClusterId
) -> None:
    world, write = kueue.world, kueue.world.server.database.write
    offer = await dispatched(kueue, hub)
    back = partial(jobs.withdraw_offers, attempt_ids=[offer.attempt_id])
    await write("tests.back", back)
    read = world.server.database.read
    assert len(await read(lambda s: jobs.list_offers_to_evict(s, hub, 10))) == 1
    assert len(await read(lambda s: jobs.list_offers_to_let_go(s, world.sim, 10))) == 1
    over = seen(offer, "", Phase.EXITED, reason="Withdrawn", forbids=True)
    await settle(world, over)
    assert (await stands(kueue, offer)).is_withdrawing
    told = partial(jobs.note_offers_evicted, attempt_ids=[offer.attempt_id], now=5)
    await write("tests.told", told)
    await settle(world, over)
    assert await read(jobs.list_offers) == []


async def test_an_offer_that_moved_on_from_its_worker_is_taken_back_and_not_followed(
    kueue: Kueue, hub: ClusterId, stored: Stored
) -> None:
    offer = await dispatched(kueue, hub)
    reserved(stored, "far", offer.attempt_id, str(hub))
    found = stored.get(WORKLOADS, "far", "space")
    assert found is not None
    database = kueue.world.server.database
    found["status"]["clusterName"] = "w01-sim"
    assert await follow_dispatches(database, hub, [follow(found)], 4) == 0
    del found["status"]["clusterName"]
    found["status"]["conditions"][0]["status"] = "False"
    assert await follow_dispatches(database, hub, [follow(found)], 5) == 1
    after = await stands(kueue, offer)
    assert after.is_withdrawing
    assert after.worker_id == kueue.world.sim
