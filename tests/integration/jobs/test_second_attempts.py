"""A job that stands in line again: nothing of its first attempt is told as if it were of now."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuplane.backends.interface import Phase
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.kit.clock import instant_to_text
from tests.integration.jobs.offers import faults, offered, seen, settle, take_in
from tests.integration.jobs.worlds import World


async def preempted(world: World) -> tuple[dict[str, Any], Offer, int]:
    """Run a job, let Kueue preempt it for another, and return both and when it was told."""
    job, offer = await offered(world, name="loser")
    winner, other = await offered(world, name="winner", priority="high")
    world.server.clock.advance(5)
    await settle(world, seen(offer, "big-01"))
    await take_in(
        world, seen(offer, "big-01", Phase.RUNNING, started_at=world.server.clock.now_ms() - 800)
    )
    world.server.clock.advance(60)
    told_at = world.server.clock.now_ms()
    note = partial(
        jobs.note_evicted,
        attempt_id=offer.attempt_id,
        reason="Preempted",
        message="Preempted to accommodate a workload (UID: 1, JobUID: 2)",
        for_attempt=other.attempt_id,
        now=told_at,
    )
    assert await world.server.database.write("tests.evicted", note)
    over = seen(offer, "big-01", Phase.EXITED, ended_at=told_at - 400, exit_code=143, signal=15)
    await take_in(world, over)
    assert winner["name"] == "winner"
    return job, offer, told_at


async def test_a_job_that_is_queued_again_keeps_no_exit_code_and_counts_no_offer(
    kueue: World,
) -> None:
    job, _, _ = await preempted(kueue)
    await kueue.loops["monitor"].run_once()
    await kueue.loops["scheduler"].run_once()
    found = await kueue.job(job["id"])
    assert (found["status"], found["reason"]) == ("queued", "WaitingForAdmission")
    assert found["exit_code"] is None
    assert found["attempt_count"] == 1  # the second is an offer and none yet
    rows = (await kueue.ask("GET", "/jobs?name=loser"))["items"]
    assert [row["attempt_count"] for row in rows] == [1]
    tried = (await kueue.ask("GET", f"/jobs/{job['id']}/attempts"))["items"]
    assert [(each["number"], each["exit_code"]) for each in tried] == [(1, 143)]
    offers = await kueue.server.database.read(jobs.list_offers)
    second = next(each for each in offers if str(each.job_id) == job["id"])
    await settle(kueue, seen(second, "big-02"))
    started = kueue.server.clock.now_ms()
    await take_in(kueue, seen(second, "big-02", Phase.RUNNING, started_at=started))
    running = await kueue.job(job["id"])
    assert (running["status"], running["exit_code"]) == ("running", None)
    assert (running["attempt_count"], running["actual_start"]) == (2, instant_to_text(started))
    assert await faults(kueue) == []


async def test_events_of_a_preempted_job_are_told_in_the_order_of_their_instants(
    kueue: World,
) -> None:
    job, _, told_at = await preempted(kueue)
    found = (await kueue.ask("GET", f"/jobs/{job['id']}/events?limit=200"))["items"]
    kinds = [each["kind"] for each in found]
    assert kinds.index("job.scheduled") < kinds.index("job.running")
    assert kinds.index("job.preempting") < kinds.index("job.preempted")
    instants = [each["at"] for each in found]
    assert instants == sorted(instants)
    tried = (await kueue.ask("GET", f"/jobs/{job['id']}/attempts"))["items"]
    assert tried[0]["ended_at"] == instant_to_text(told_at - 400)  # metered until it ended


async def test_the_receipt_of_a_preemption_names_who_needed_the_quota(kueue: World) -> None:
    job, _, _ = await preempted(kueue)
    found = (await kueue.ask("GET", f"/jobs/{job['id']}/events?limit=200"))["items"]
    receipt = next(each for each in found if each["kind"] == "job.preempting")
    assert receipt["message"].startswith("winner (high) needs its quota. Preempted to accommodate")
