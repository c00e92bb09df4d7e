"""Jobs that Kueue admitted and no node has room for: the scheduler's own sentence is told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from gpuplane.backends.interface import Observation, ReplicaChanges, ReplicaObservation
from gpuplane.core.ids import AttemptId
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from tests.integration.jobs.offers import faults, offered, seen, settle
from tests.integration.jobs.worlds import World

FULL = "0/5 nodes are available: 5 Insufficient nvidia.com/gpu."


async def admitted(world: World, offer: Offer) -> None:
    await world.server.database.write(
        "tests.note",
        partial(
            jobs.note_admission,
            attempt_id=offer.attempt_id,
            reason="Admitted",
            message="The workload is admitted",
            admitted_at=world.server.clock.now_ms(),
            usage_of={},
            cluster_queue="q",
        ),
    )


async def unplaced(world: World, *observations: ReplicaObservation) -> tuple[AttemptId, ...]:
    return await world.server.database.write(
        "tests.unplaced", partial(jobs.note_unplaced, seen=observations)
    )


async def test_an_admitted_job_that_fits_nowhere_says_so_in_the_words_of_the_scheduler(
    kueue: World,
) -> None:
    job, offer = await offered(kueue)
    await admitted(kueue, offer)
    told = seen(offer, "", message=f"Unschedulable: {FULL}")
    assert await unplaced(kueue, told) == ()
    found = await kueue.job(job["id"])
    assert (found["status"], found["reason"]) == ("queued", "Unschedulable")
    assert found["status_message"] == FULL
    why = await kueue.ask("GET", f"/jobs/{job['id']}/why?change=true")
    assert (why["reason"], why["sentence"]) == ("Unschedulable", FULL)
    assert "no node has room" in why["fix"]
    await settle(kueue, seen(offer, "big-01"))
    assert (await kueue.job(job["id"]))["reason"] == ""
    assert await faults(kueue) == []


async def test_a_job_that_is_not_known_to_be_admitted_yet_is_looked_at_again(kueue: World) -> None:
    job, offer = await offered(kueue)
    told = seen(offer, "", message=f"Unschedulable: {FULL}")
    assert await unplaced(kueue, told) == (offer.attempt_id,)
    await admitted(kueue, offer)
    assert (await kueue.job(job["id"]))["reason"] == "WaitingForAdmission"
    assert await unplaced(kueue, told) == ()
    assert (await kueue.job(job["id"]))["reason"] == "Unschedulable"


class Crowded:
    """The simulated cluster, where the pods of one offer fit on no node."""

    kind = "simulated"

    def __init__(self, world: World, told: ReplicaObservation) -> None:
        self.backend = world.backend
        self.told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    async def observe(self) -> Observation:
        found = await self.backend.observe()
        return replace(found, replicas=(*found.replicas, self.told))

    async def observe_replicas_since(self, cursor: str) -> ReplicaChanges:
        found = await self.backend.observe_replicas_since(cursor)
        return found if cursor else replace(found, replicas=(*found.replicas, self.told))


async def test_the_observer_tells_it_whether_the_pod_or_its_admission_is_seen_first(
    kueue: World,
) -> None:
    job, offer = await offered(kueue)
    told = seen(offer, "", message=f"Unschedulable: {FULL}")
    kueue.registry.backends[kueue.sim] = Crowded(kueue, told)
    await kueue.loops["observer"].run_once()
    assert (await kueue.job(job["id"]))["reason"] == "Unschedulable"
    await admitted(kueue, offer)
    assert (await kueue.job(job["id"]))["reason"] == "WaitingForAdmission"
    await kueue.loops["observer"].run_once()  # nothing changed on the cluster since
    assert (await kueue.job(job["id"]))["reason"] == "Unschedulable"


async def test_other_things_that_pods_wait_for_are_not_called_unschedulable(kueue: World) -> None:
    job, offer = await offered(kueue)
    await admitted(kueue, offer)
    await unplaced(kueue, seen(offer, "", message="SchedulingGated: gates are not removed"))
    await unplaced(kueue, seen(offer, "big-01", message="ImagePullBackOff: no such image"))
    assert (await kueue.job(job["id"]))["reason"] == "WaitingForAdmission"
