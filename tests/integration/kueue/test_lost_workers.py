"""Workers that cannot be reached for long: what cannot have started moves on, the rest says why."""

from __future__ import annotations

from functools import partial

from sqlalchemy import update

from gpuplane.backends.interface import Phase
from gpuplane.core.ids import ClusterId
from gpuplane.db.types import table_of
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.tables import ClusterRow
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.loops.kueue.dispatches import follow_lost_workers
from tests.integration.jobs.offers import faults, seen, settle
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.test_dispatching import NODE, dispatched, hub, stands

__all__ = ["hub"]
LOST_S = 900.0


async def lose(kueue: Kueue, since: int | None) -> None:
    """Let the worker be out of reach since an instant, or be reached again."""
    table = table_of(ClusterRow)
    change = update(table).where(table.c.id == kueue.world.sim).values(not_available_since=since)
    await kueue.world.server.database.write("tests.lose", lambda s: s.execute(change))


async def look(kueue: Kueue, hub: ClusterId, now: int) -> int:
    """Look after the work of lost workers once."""
    database = kueue.world.server.database
    known = await database.read(clusters.list_clusters)
    manager = next(each for each in known if each.id == hub)
    return await follow_lost_workers(database, manager, known, LOST_S, now)


async def why(kueue: Kueue, offer: Offer) -> tuple[str, str]:
    """Return the reason and the sentence of an offered job."""
    job = await kueue.world.ask("GET", f"/jobs/{offer.job_id}")
    return job["reason"], job["status_message"]


async def test_what_a_lost_worker_never_took_is_offered_anew_after_the_setting(
    kueue: Kueue, hub: ClusterId
) -> None:
    world, write = kueue.world, kueue.world.server.database.write
    read = world.server.database.read
    offer = await dispatched(kueue, hub)
    await lose(kueue, 10_000)
    assert await look(kueue, hub, 909_999) == 0
    assert await look(kueue, hub, 910_000) == 1
    assert await look(kueue, hub, 910_001) == 0
    # Nobody waits for the lost worker: its Kueue holds what comes back.
    assert await read(lambda s: jobs.list_offers_to_let_go(s, world.sim, 10)) == []
    [told] = await read(lambda s: jobs.list_offers_to_evict(s, hub, 10))
    assert told.attempt_id == offer.attempt_id
    note = partial(jobs.note_offers_evicted, attempt_ids=[offer.attempt_id], now=910_002)
    await write("tests.told", note)
    late = partial(jobs.note_offers_taken, attempt_ids=[offer.attempt_id], now=910_003)
    await write("tests.late", late)
    await settle(world, seen(offer, "", Phase.EXITED, reason="Withdrawn", forbids=True))
    assert await read(jobs.list_offers) == []
    await world.loops["scheduler"].run_once()
    [anew] = await read(jobs.list_offers)
    assert anew.job_id == offer.job_id
    assert anew.attempt_id != offer.attempt_id
    assert await faults(world) == []


async def test_what_may_have_started_on_a_lost_worker_waits_for_it_and_says_so(
    kueue: Kueue, hub: ClusterId
) -> None:
    write = kueue.world.server.database.write
    offer = await dispatched(kueue, hub)
    taken = partial(jobs.note_offers_taken, attempt_ids=[offer.attempt_id], now=3)
    await write("tests.taken", taken)
    before = await why(kueue, offer)
    await lose(kueue, 0)
    assert await look(kueue, hub, 900_000) == 1
    assert await look(kueue, hub, 900_001) == 0
    reason, sentence = await why(kueue, offer)
    assert reason == "WorkerLost"
    assert "sim, which cannot be reached since 1970-01-01T00:00:00Z" in sentence
    assert "gpuplane clusters rm sim --force" in sentence
    assert (await stands(kueue, offer)).worker_id == kueue.world.sim
    await lose(kueue, None)
    assert await look(kueue, hub, 900_002) == 1
    assert (await why(kueue, offer))[0] == before[0]


async def test_what_is_stopped_on_a_lost_worker_says_why_it_is_not_started_elsewhere(
    kueue: Kueue, hub: ClusterId
) -> None:
    world = kueue.world
    offer = await dispatched(kueue, hub)
    assert (await settle(world, seen(offer, NODE))).bound == (offer.attempt_id,)
    evict = partial(
        jobs.note_evicted,
        attempt_id=offer.attempt_id,
        reason="AdmissionCheck",
        message="Reserving remote lost",
        for_attempt=None,
        now=5,
    )
    assert await world.server.database.write("tests.evicted", evict)
    await lose(kueue, 0)
    assert await look(kueue, hub, 900_000) == 1
    assert await look(kueue, hub, 900_001) == 0
    assert (await why(kueue, offer))[0] == "WorkerLost"
    [attempt] = (await world.ask("GET", f"/jobs/{offer.job_id}/attempts"))["items"]
    assert attempt["state"] == "stopping"
