"""A job that Kueue preempted stands in line with its old age, by the new Workload that it gets."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.backends.interface import Phase
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.loops.kueue.workloads import find_age, follow, instant_text
from tests.integration.jobs.offers import offered, seen, settle, take_in
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored
from tests.integration.kueue.test_loop import WORKLOADS, reserved


def _waiting(kueue: Kueue, stored: Stored, name: str, offer: Offer, *, made_at: int) -> None:
    """Put the Workload of an offer there that waits for quota."""
    reserved(stored, name, offer.attempt_id, str(kueue.world.sim))
    found = stored.get(WORKLOADS, name, "space")
    assert found is not None
    found["metadata"]["creationTimestamp"] = instant_text(made_at)
    refused = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "full"}
    found["status"] = {"conditions": [refused]}
    stored.put(WORKLOADS, found)


def _conditions(stored: Stored, name: str) -> dict[str, dict[str, Any]]:
    found = stored.get(WORKLOADS, name, "space")
    assert found is not None
    return {each["type"]: each for each in found["status"]["conditions"]}


async def _offer_of(kueue: Kueue, job_id: str) -> Offer:
    offers = await kueue.world.server.database.read(jobs.list_offers)
    found = [each for each in offers if str(each.job_id) == job_id]
    assert len(found) == 1, await kueue.world.job(job_id)
    return found[0]


async def _taken_back(kueue: Kueue, offer: Offer, reason: str) -> None:
    """Have the cluster run an offer, evict it and end its pods a while later."""
    world = kueue.world
    sight = seen(offer, "big-01")
    await settle(world, sight)
    await take_in(
        world, seen(offer, "big-01", Phase.RUNNING, started_at=world.server.clock.now_ms())
    )
    world.server.clock.advance(600)
    now = world.server.clock.now_ms()
    await world.server.database.write(
        "evict",
        lambda s: jobs.note_evicted(
            s, offer.attempt_id, reason=reason, message="others", for_attempt=None, now=now
        ),
    )
    over = seen(offer, "big-01", Phase.EXITED, ended_at=now, exit_code=143, signal=15)
    await take_in(world, over)
    for loop in ("monitor", "scheduler"):
        await world.loops[loop].run_once()


@pytest.mark.parametrize("reason", ["Preempted", "PodsReadyTimeout"])
async def test_the_next_workload_of_what_was_taken_back_has_the_age_of_the_first(
    kueue: Kueue, stored: Stored, reason: str
) -> None:
    world = kueue.world
    first_at = world.server.clock.now_ms()
    job, offer = await offered(world)
    for _ in range(2):  # however often it is taken back
        await _taken_back(kueue, offer, reason)
        offer = await _offer_of(kueue, job["id"])
    _waiting(kueue, stored, "one", offer, made_at=world.server.clock.now_ms())
    await kueue.loop.run_once()
    told = _conditions(stored, "one")
    assert told["QuotaReserved"]["message"] == "full"
    assert (told["Evicted"]["status"], told["Evicted"]["reason"]) == ("True", "AdmissionCheck")
    assert told["Evicted"]["lastTransitionTime"] == instant_text(first_at)
    written = stored.get(WORKLOADS, "one", "space")
    assert written is not None
    assert follow(written).eviction is None, "it was never admitted"
    assert find_age(follow(written)) == first_at // 1000 * 1000, "nothing more is to be written"


async def test_what_waits_for_the_first_time_or_has_its_quota_is_left_as_kueue_made_it(
    kueue: Kueue, stored: Stored
) -> None:
    world = kueue.world
    _, fresh = await offered(world)
    job, offer = await offered(world)
    await _taken_back(kueue, offer, "Preempted")
    offer = await _offer_of(kueue, job["id"])
    later = world.server.clock.now_ms() + 60_000
    _waiting(kueue, stored, "new", fresh, made_at=later)
    reserved(stored, "again", offer.attempt_id, str(world.sim))
    await kueue.loop.run_once()
    assert "Evicted" not in _conditions(stored, "new")
    assert "Evicted" not in _conditions(stored, "again")
