"""Services under Kueue that lose replicas: all of them, those of a node, and who wanted fewer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gpuplane.backends.interface import AttemptRef, Phase, ReplicaObservation, ScaleObservation
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.domains.nodes import service as nodes
from gpuplane.loops.kueue.replicas import BARE_MS
from gpuplane.loops.kueue.workloads import find_age, follow, instant_text
from tests.integration.jobs.offers import faults, held, offered, settle, take_in
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored
from tests.integration.kueue.test_services import (
    WORKLOADS,
    now_of,
    pod,
    put,
    ranks,
    serving,
    want,
)

SAID = "Preempted to accommodate a workload (UID: a, JobUID: b) due to prioritization"


def over(kueue: Kueue, offer: Offer, rank: int, reason: str, **more: Any) -> ReplicaObservation:
    """Return the end of a replica that ended just now."""
    return pod(offer, rank, Phase.EXITED, ended_at=now_of(kueue), reason=reason, **more)


async def events_of(kueue: Kueue, job: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    found = await kueue.world.ask("GET", f"/jobs/{job['id']}/events?limit=200")
    return [each for each in found["items"] if each["kind"] == kind]


async def test_a_service_that_lost_all_to_a_preemption_stands_in_line_again_with_its_age(
    kueue: Kueue, stored: Stored
) -> None:
    world = kueue.world
    in_line = now_of(kueue)
    job, offer = await serving(kueue, 0, 1)
    world.server.clock.advance(100)
    gone = {"message": SAID, "exit_code": 143, "started_at": now_of(kueue) - 100_000}
    await take_in(world, over(kueue, offer, 0, str(Word.PREEMPTED), **gone))
    assert (await world.job(job["id"]))["status"] == "running", "one of two serves still"
    await take_in(world, over(kueue, offer, 1, str(Word.PREEMPTED), **gone))
    shown = await world.job(job["id"])
    assert (shown["condition"], shown["reason"]) == ("Stopping", "Preempted")
    assert shown["status_message"] == SAID
    assert await held(world) == 0
    [receipt] = await events_of(kueue, job, "job.preempting")
    assert receipt["data"]["lost_gpu_s"] == 2 * 100
    await world.loops["dispatcher"].run_once()
    assert (await world.job(job["id"]))["status"] == "preempted"
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert (why["reason"], why["sentence"]) == ("Preempted", SAID)
    for loop in ("monitor", "scheduler"):
        await world.loops[loop].run_once()
    shown = await world.job(job["id"])
    assert (shown["status"], shown["reason"]) == ("queued", "WaitingForAdmission")
    kinds = await world.kinds(job["id"])
    assert kinds.count("job.replica_preempted") == 2
    assert kinds[-3:] == ["job.preempted", "job.queued", "job.offered"]

    [again] = await world.server.database.read(jobs.list_offers)
    put(stored, kueue, again, "pod-c", 7, admitted=False)
    found = stored.get(WORKLOADS, "pod-c", "space")
    assert found is not None
    found["metadata"]["creationTimestamp"] = instant_text(now_of(kueue))
    await kueue.loop.run_once()
    found = stored.get(WORKLOADS, "pod-c", "space")
    assert found is not None
    assert find_age(follow(found)) == in_line // 1000 * 1000
    settled = partial(jobs.settle_offers, seen=[pod(again, 0, started_at=now_of(kueue))],
                      seal=str.encode, chance=lambda: 0.0, now=now_of(kueue))  # fmt: skip
    assert (await world.server.database.write("tests.settle", settled)).bound == (again.attempt_id,)
    await take_in(world, pod(again, 0, started_at=now_of(kueue)))
    shown = await world.job(job["id"])
    assert (shown["status"], shown["attempt_count"]) == ("running", 2)
    assert await faults(world) == []


async def test_replicas_that_were_preempted_and_the_receipt_of_the_last_name_the_job_that_won(
    kueue: Kueue,
) -> None:
    job, offer = await serving(kueue, 0, 1)
    winner = await kueue.offer()
    found = await kueue.world.job(str(winner.job_id))
    for rank, owner in ((0, None), (1, winner.attempt_id)):
        lost = over(kueue, offer, rank, str(Word.PREEMPTED), message=SAID, exit_code=143)
        await take_in(kueue.world, replace(lost, for_attempt=owner))
    told = await events_of(kueue, job, "job.replica_preempted")
    told.sort(key=lambda each: each["data"]["rank"])
    assert [each["data"]["for_job"] for each in told] == [None, found["id"]]
    said = f"{found['name']} (normal) needs its quota. {SAID}"
    assert [each["message"].partition(" ended: ")[2] for each in told] == [SAID, said]
    [receipt] = await events_of(kueue, job, "job.preempting")
    assert (receipt["data"]["for_job"], receipt["message"]) == (found["id"], said)
    assert (await kueue.world.job(job["id"]))["status_message"] == said


async def test_what_a_service_adds_later_stands_in_line_for_itself(
    kueue: Kueue, stored: Stored
) -> None:
    _, offer = await serving(kueue, 0)
    read = partial(
        jobs.load_offer_standings, cluster_id=kueue.world.sim, boosts=Boosts(), now=now_of(kueue)
    )
    standings = await kueue.world.server.database.read(read)
    assert standings[offer.attempt_id].in_line_since is None


async def test_a_service_that_was_scaled_to_none_is_not_preempted(kueue: Kueue) -> None:
    job, offer = await serving(kueue, 0)
    await want(kueue, offer, 0)
    await take_in(kueue.world, over(kueue, offer, 0, str(Word.PREEMPTED)))
    shown = await kueue.world.job(job["id"])
    assert (shown["status"], shown["condition"]) == ("running", "")


@pytest.mark.parametrize("reason", [Word.EVICTED, Word.NODE_LOST])
async def test_a_service_whose_last_replica_ended_waits_in_line_where_kueue_admits_no_other(
    kueue: Kueue, stored: Stored, reason: Word
) -> None:
    world = kueue.world
    job, offer = await serving(kueue, 0)
    await take_in(world, over(kueue, offer, 0, str(reason)))
    put(stored, kueue, offer, "pod-b", 1, admitted=False)
    await kueue.loop.run_once()
    world.server.clock.advance(BARE_MS // 1000 - 5)
    await kueue.loop.run_once()
    assert (await world.job(job["id"]))["status"] == "running", "another may come any moment"
    world.server.clock.advance(6)
    await kueue.loop.run_once()
    shown = await world.job(job["id"])
    assert (shown["condition"], shown["reason"]) == ("Stopping", "Evicted")
    assert "couldn't assign flavors to pod-b" in shown["status_message"]
    for loop in ("dispatcher", "scheduler"):
        await world.loops[loop].run_once()
    assert (await world.job(job["id"]))["status"] == "queued"
    assert await faults(world) == []


async def test_a_service_without_a_replica_goes_on_where_kueue_has_admitted_another(
    kueue: Kueue, stored: Stored
) -> None:
    world = kueue.world
    job, offer = await serving(kueue, 0)
    await take_in(world, over(kueue, offer, 0, str(Word.EVICTED)))
    put(stored, kueue, offer, "pod-b", 1, admitted=True)
    for _ in range(3):
        await kueue.loop.run_once()
        world.server.clock.advance(60)
    shown = await world.job(job["id"])
    assert (shown["status"], shown["condition"]) == ("running", "")


async def drained(kueue: Kueue, name: str) -> None:
    """Look once after a node that is drained, whose cluster shows that it is cordoned."""
    world = kueue.world
    listed = await world.server.database.read(lambda s: nodes.list_nodes(s, world.sim))
    node = next(each for each in listed if each.name == name)
    closed = replace(
        node, drain_started_at=1, details=replace(node.details, unschedulable=True)
    )  # fmt: skip - the call reads as one line
    unit = partial(jobs.drain_node, node=closed, now=now_of(kueue))
    await world.server.database.write("jobs.drain_node", unit)


async def test_a_drain_moves_the_replicas_of_its_node_and_the_others_go_on_serving(
    kueue: Kueue,
) -> None:
    world = kueue.world
    job, offer = await serving(kueue, 0)
    other = pod(offer, 1, node="big-02", started_at=now_of(kueue))
    await take_in(world, pod(offer, 0, started_at=now_of(kueue)), other)
    await drained(kueue, "big-01")
    shown = await world.job(job["id"])
    assert (shown["status"], shown["condition"], shown["replicas_ready"]) == ("running", "", 1)
    [plan] = await plans(kueue)
    assert (plan.leaving, [each.rank for each in plan.replicas]) == ((0,), [1])
    await drained(kueue, "big-01")  # asked once
    assert [each.scale_number for each in await plans(kueue)] == [plan.scale_number]

    world.server.clock.advance(30)
    await take_in(world, other, over(kueue, offer, 0, str(Word.EVICTED), exit_code=143))
    assert await ranks(kueue, job) == [1]
    assert await held(world) == 2
    [told] = await events_of(kueue, job, "job.replica_ended")
    assert told["reason"] == "NodeDrained"
    assert "being drained" in told["message"]
    replaced = pod(offer, 2, node="big-02", started_at=now_of(kueue))
    await take_in(world, other, replaced)
    shown = await world.job(job["id"])
    assert (shown["status"], shown["attempt_count"], shown["replicas_ready"]) == ("running", 1, 2)
    assert await faults(world) == []


async def plans(kueue: Kueue) -> list[Any]:
    """Return what the cluster is to be told of the service."""

    def load(session: Any) -> list[Any]:
        attempts = jobs.list_to_scale(session, [kueue.world.sim], 10)
        around = jobs.Surroundings("", "", "test")
        return [plan for _, _, plan in jobs.load_scale_plans(session, attempts, around)]

    return list(await kueue.world.server.database.read(load))


@pytest.mark.parametrize(
    ("by", "actor", "said"),
    [
        ("autoscaler", "autoscaler", "instead of 3."),
        ("kubectl", "cluster", "instead of 3: kubectl asked its cluster for it."),
        ("gpuplane", "system", "instead of 3."),
        ("", "cluster", "instead of 3."),
    ],
)
async def test_who_asked_for_another_number_is_told(
    kueue: Kueue, by: str, actor: str, said: str
) -> None:
    job, offer = await serving(kueue, 0)
    seen = [ScaleObservation(AttemptRef(offer.attempt_id, offer.number), 2, by=by)]
    unit = partial(jobs.note_scales, seen=seen, now=now_of(kueue))
    await kueue.world.server.database.write("tests.scales", unit)
    [told] = await events_of(kueue, job, "job.scaled")
    assert told["actor"] == actor
    assert told["data"].get("by") == ("kubectl" if by == "kubectl" else None)
    assert told["message"].endswith(said)


async def test_a_service_cancelled_before_it_was_ready_is_not_told_to_have_run(
    kueue: Kueue,
) -> None:
    world = kueue.world
    job, offer = await offered(world, job_type="service", replicas={"count": 1})
    silent = pod(offer, 0, started_at=now_of(kueue), ready=False)
    await settle(world, silent)
    await take_in(world, silent)
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert why["sentence"] == "0 of 1 replicas are ready: nothing answers at its port."
    await world.ask("DELETE", f"/jobs/{job['id']}")
    world.server.clock.advance(30)
    ended = over(kueue, offer, 0, str(Word.CANCELLED), started_at=silent.started_at, exit_code=143)
    await take_in(world, ended)
    shown = await world.job(job["id"])
    assert (shown["status"], shown["actual_start"]) == ("cancelled", None)
    assert "job.running" not in await world.kinds(job["id"])
    assert await faults(world) == []
