"""Jobs on a cluster that admits by itself: offered, bound, evicted, taken back; books agree."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gpuplane.backends.interface import (
    STARTING,
    AttemptPlan,
    AttemptRef,
    BackendError,
    Phase,
    Unavailable,
)
from gpuplane.backends.kubernetes.inventory import observe_node
from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.runs.plans import Answer, Completed, Sleeping, StepCall
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import ClusterState
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.repository import offers as rows
from gpuplane.domains.placements import service as placements
from gpuplane.domains.usage import service as usage
from gpuplane.kit.ids import new_id
from gpuplane.kit.sealing import SealingKeys
from gpuplane.loops import dispatcher
from gpuplane.loops import offers as carrying
from gpuplane.loops.clusters.deleting import drain, forget
from gpuplane.loops.clusters.tools import ClusterTools, Work
from tests.integration.jobs.offers import faults, held, offered, seen, settle, take_in
from tests.integration.jobs.worlds import H100, World

GPU = FlavorResource(H100, "nvidia.com/gpu")


class Distant:
    """The simulated cluster behind a line that can be cut, where what is offered stands in line."""

    kind = "simulated"

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_away = False
        self.refusal: BackendError | None = None
        self.asked: list[AttemptId] = []
        self.evicted: list[AttemptId] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world.backend, name)

    async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        self.asked.append(plan.ref.attempt_id)
        self._answer()
        if self.refusal is not None:
            raise self.refusal

    async def evict(self, ref: AttemptRef, grace_s: float, reason: str) -> None:
        self.evicted.append(ref.attempt_id)
        self._answer()
        await self.world.backend.evict(ref, grace_s, reason)

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("", "no route to host")


def put_away(world: World) -> Distant:
    """Have the cluster served by a backend that can be out of reach."""
    distant = Distant(world)
    world.registry.backends[world.sim] = distant
    return distant


async def standing(world: World) -> list[tuple[AttemptId, str]]:
    """Return the offers there are and their states, oldest first."""
    return [
        (each.attempt_id, each.state) for each in await world.server.database.read(jobs.list_offers)
    ]


async def test_a_job_is_handed_over_once_and_waits_in_the_words_of_its_cluster(
    kueue: World,
) -> None:
    job, offer = await offered(kueue)
    await kueue.loops["scheduler"].run_once()
    assert len(await kueue.server.database.read(jobs.list_offers)) == 1
    await kueue.server.database.write(
        "tests.note",
        partial(
            jobs.note_admission,
            attempt_id=offer.attempt_id,
            reason="Pending",
            message="insufficient unused quota for nvidia.com/gpu",
            admitted_at=None,
            usage_of={},
            cluster_queue="",
        ),
    )
    found = await kueue.job(job["id"])
    assert (found["status"], found["reason"]) == ("queued", "WaitingForAdmission")
    assert "insufficient unused quota" in found["status_message"]
    assert await held(kueue) == 0
    assert await faults(kueue) == []


async def test_a_bound_job_holds_the_devices_of_its_node_from_then_on(kueue: World) -> None:
    job, offer = await offered(kueue)
    await kueue.server.database.write(
        "tests.note",
        partial(
            jobs.note_admission,
            attempt_id=offer.attempt_id,
            reason="Admitted",
            message="The workload is admitted",
            admitted_at=kueue.server.clock.now_ms(),
            usage_of={GPU: 2000},
            cluster_queue="q",
        ),
    )
    assert (await settle(kueue, seen(offer, "big-01"))).bound == (offer.attempt_id,)
    found = await kueue.job(job["id"])
    assert (found["status"], found["queue"]) == ("scheduled", "sim/main")
    assert await held(kueue) == 2
    started = kueue.server.clock.now_ms()
    await take_in(kueue, seen(offer, "big-01", Phase.RUNNING, started_at=started))
    assert (await kueue.job(job["id"]))["status"] == "running"
    assert await faults(kueue) == []
    done = seen(offer, "big-01", Phase.EXITED, started_at=started, ended_at=started, exit_code=0)
    await take_in(kueue, done)
    assert (await kueue.job(job["id"]))["status"] == "completed"
    assert await held(kueue) == 0
    assert await faults(kueue) == []


async def test_devices_that_are_named_are_the_ones_that_are_held(kueue: World) -> None:
    _, offer = await offered(kueue)
    rows = await kueue.server.database.read(lambda s: usage.list_devices(s, kueue.sim))
    named = tuple(row.gpu_id for row in rows if row.node_name == "big-01")[5:7]
    assert len(named) == 2
    await settle(kueue, seen(offer, "big-01", gpu_ids=named))
    found = await kueue.server.database.read(placements.list_open)
    assert {row.gpu_id for row in found if row.gpu_id is not None} == set(named)


async def test_a_node_that_is_not_known_leaves_the_offer_as_it_is(kueue: World) -> None:
    job, offer = await offered(kueue)
    settled = await settle(kueue, seen(offer, "nowhere"))
    assert settled.refused == (offer.attempt_id,)
    assert (await kueue.job(job["id"]))["status"] == "queued"
    assert await faults(kueue) == []


async def test_a_cancelled_job_is_taken_back_and_offered_no_more(kueue: World) -> None:
    job, offer = await offered(kueue)
    await kueue.ask("DELETE", f"/jobs/{job['id']}")
    assert await kueue.server.database.read(jobs.has_void_offers)
    await kueue.server.database.write("tests.withdraw", lambda s: jobs.withdraw_void_offers(s, 10))
    late = await settle(kueue, seen(offer, "big-01"))
    assert late.bound == ()
    assert (await kueue.job(job["id"]))["status"] == "cancelled"
    await settle(kueue, seen(offer, "", Phase.EXITED, forbids=True))
    assert await kueue.server.database.read(jobs.list_offers) == []
    assert await faults(kueue) == []


async def test_a_suspended_job_is_offered_anew_only_when_the_first_offer_is_gone(
    kueue: World,
) -> None:
    job, offer = await offered(kueue)
    await kueue.ask("POST", f"/jobs/{job['id']}/suspend")
    await kueue.server.database.write("tests.withdraw", lambda s: jobs.withdraw_void_offers(s, 10))
    await kueue.ask("POST", f"/jobs/{job['id']}/resume")
    await kueue.loops["scheduler"].run_once()
    assert [each.attempt_id for each in await kueue.server.database.read(jobs.list_offers)] == [
        offer.attempt_id
    ]
    await settle(kueue, seen(offer, "", Phase.LOST, forbids=True))
    await kueue.loops["scheduler"].run_once()
    again = await kueue.server.database.read(jobs.list_offers)
    assert [(each.number, str(each.job_id)) for each in again] == [(2, job["id"])]


async def test_what_kueue_preempts_is_a_preempted_attempt_with_a_receipt(kueue: World) -> None:
    job, offer = await offered(kueue)
    winner, other = await offered(kueue, name="winner", priority="high")
    await settle(kueue, seen(offer, "big-01"))
    started = kueue.server.clock.now_ms()
    await take_in(kueue, seen(offer, "big-01", Phase.RUNNING, started_at=started))
    kueue.server.clock.advance(60)
    now = kueue.server.clock.now_ms()
    told = await kueue.server.database.write(
        "tests.evicted",
        partial(
            jobs.note_evicted,
            attempt_id=offer.attempt_id,
            reason="Preempted",
            message="Preempted to accommodate a workload",
            for_attempt=other.attempt_id,
            now=now,
        ),
    )
    assert told
    events = await kueue.ask("GET", f"/jobs/{job['id']}/events?limit=200")
    receipt = next(each for each in events["items"] if each["kind"] == "job.preempting")
    assert receipt["data"]["for_job"] == winner["id"]
    assert receipt["data"]["lost_gpu_s"] == 120
    over = seen(offer, "big-01", Phase.EXITED, ended_at=now, exit_code=143, signal=15)
    await take_in(kueue, over)
    assert (await kueue.job(job["id"]))["status"] in ("preempted", "queued")
    assert await held(kueue) == 0
    assert await faults(kueue) == []


async def test_nothing_is_handed_to_a_frozen_cluster(kueue: World) -> None:
    await kueue.ask("POST", "/clusters/sim/freeze", json={"reason": "an upgrade"})
    job = await kueue.submit(name="late", gpu_count=1, gpu_type=H100)
    await kueue.loops["scheduler"].run_once()
    found = await kueue.job(job["id"])
    assert (found["status"], found["reason"]) == ("queued", "SchedulingFrozen")
    assert UUID(job["id"]) not in await kueue.server.database.read(jobs.list_offered_jobs)


async def test_an_offer_to_a_cluster_out_of_reach_stays_as_it_is_and_uses_up_no_retry(
    kueue: World,
) -> None:
    job, offer = await offered(kueue, name="far", max_retries=0)
    distant = put_away(kueue)
    distant.is_away = True
    await kueue.loops["dispatcher"].run_once()
    assert distant.asked == [offer.attempt_id]
    assert await standing(kueue) == [(offer.attempt_id, "offered")]
    assert (await kueue.job(job["id"]))["status"] == "queued"
    distant.is_away = False
    await kueue.loops["dispatcher"].run_once()
    (found,) = await kueue.server.database.read(jobs.list_offers)
    assert found.ensured_at is not None
    assert distant.asked == [offer.attempt_id] * 2
    assert await faults(kueue) == []


@pytest.mark.parametrize(("retries", "status"), [(0, "failed"), (1, "pending")])
async def test_an_offer_that_could_not_start_is_taken_back_before_its_job_is_offered_again(
    kueue: World, retries: int, status: str
) -> None:
    job, offer = await offered(kueue, name="refused", max_retries=retries)
    distant = put_away(kueue)
    distant.refusal = BackendError("StartFailed", "its pods were let go and then refused.")
    await kueue.loops["dispatcher"].run_once()
    assert (await kueue.job(job["id"]))["status"] == status
    assert await standing(kueue) == [(offer.attempt_id, "withdrawing")]
    await kueue.loops["dispatcher"].run_once()
    assert distant.evicted == [offer.attempt_id]
    await kueue.loops["observer"].run_once()
    assert await standing(kueue) == []
    kueue.server.clock.advance(3600)
    await kueue.loops["monitor"].run_once()
    await kueue.loops["scheduler"].run_once()
    again = await kueue.server.database.read(jobs.list_offers)
    assert [each.number for each in again] == [2] * retries
    assert await faults(kueue) == []


async def test_an_offer_that_its_cluster_does_not_show_is_forbidden_before_it_is_offered_again(
    kueue: World,
) -> None:
    job, offer = await offered(kueue)
    distant = put_away(kueue)
    await kueue.loops["dispatcher"].run_once()
    kueue.server.clock.advance(20)
    await kueue.loops["observer"].run_once()
    await kueue.loops["scheduler"].run_once()
    assert await standing(kueue) == [(offer.attempt_id, "withdrawing")]
    distant.is_away = True
    await kueue.loops["dispatcher"].run_once()
    assert await standing(kueue) == [(offer.attempt_id, "withdrawing")]
    distant.is_away = False
    await kueue.loops["dispatcher"].run_once()
    assert distant.evicted == [offer.attempt_id] * 2
    await kueue.loops["observer"].run_once()
    assert await standing(kueue) == []
    await kueue.loops["scheduler"].run_once()
    again = await kueue.server.database.read(jobs.list_offers)
    assert [(each.number, str(each.job_id)) for each in again] == [(2, job["id"])]


async def delete_by(
    world: World, folder: Path, step: Work, *, force: bool, state: dict[str, Any] | None = None
) -> Answer:
    """Do one step of the deletion of the cluster."""
    server, run_id, name = world.server, new_id(), step.__name__
    keys = SealingKeys(folder / "keys")
    tools = ClusterTools(server.database, server.clock, keys, folder, observe_node)
    stored = await tools.cluster(world.sim)
    leaving = replace(stored, state=ClusterState.DRAINING, run_id=run_id)
    given = {"cluster_id": str(world.sim), "force": force, "wait_s": 0}
    call = StepCall(
        run_id=run_id, step_id=new_id(), key=name, name=name,
        tenant_id=server.admin.tenant_id, project_id=new_id(), idempotency_key=name, attempt=1,
        now=server.clock.now_ms(), input=given, params={}, context={}, scope={}, outputs={},
        state=state,
    )  # fmt: skip
    return await step(tools, leaving, given, call)


async def test_a_cluster_is_drained_only_when_its_offers_are_taken_back(
    kueue: World, tmp_path: Path
) -> None:
    _, offer = await offered(kueue)
    put_away(kueue)
    asleep = await delete_by(kueue, tmp_path, drain, force=False)
    assert isinstance(asleep, Sleeping)
    assert await standing(kueue) == [(offer.attempt_id, "withdrawing")]
    await kueue.loops["dispatcher"].run_once()
    assert isinstance(await delete_by(kueue, tmp_path, drain, force=False), Sleeping)
    await kueue.loops["observer"].run_once()
    assert await standing(kueue) == []
    assert isinstance(await delete_by(kueue, tmp_path, drain, force=False), Completed)


async def test_what_was_offered_to_a_cluster_that_is_forgotten_waits_for_another_or_ends(
    kueue: World, tmp_path: Path
) -> None:

    def be_real(session: Any) -> None:
        clusters.change(session, kueue.sim, {"simulated": False}, "test", 1)
        clusters.grant(session, kueue.sim, kueue.server.admin.tenant_id, "system", 1)

    await kueue.server.database.write("tests.real", be_real)  # only those take what names none
    pinned, _ = await offered(kueue, name="pinned")
    free, _ = await offered(kueue, name="free", cluster=None)
    put_away(kueue).is_away = True
    asleep = await delete_by(kueue, tmp_path, drain, force=True)
    assert isinstance(asleep, Sleeping)
    kueue.server.clock.advance(61)
    done = await delete_by(kueue, tmp_path, drain, force=True, state=dict(asleep.state or {}))
    assert isinstance(done, Completed)
    assert [state for _, state in await standing(kueue)] == ["withdrawing"] * 2
    await delete_by(kueue, tmp_path, forget, force=True)
    assert await standing(kueue) == []
    assert (await kueue.job(pinned["id"]))["status"] == "cancelled"
    await kueue.loops["scheduler"].run_once()
    assert (await kueue.job(free["id"]))["status"] == "queued"
    assert await standing(kueue) == []
    assert await faults(kueue) == []


@pytest.mark.parametrize("node", ["nowhere", ""])
@pytest.mark.parametrize(
    ("code", "word", "status"), [(0, "Completed", "completed"), (3, "NonZeroExit", "failed")]
)
async def test_what_ran_to_its_end_where_nothing_could_be_recorded_ends_its_job_and_runs_once(
    kueue: World, node: str, code: int, word: str, status: str
) -> None:
    job, offer = await offered(kueue, max_retries=0)
    at = kueue.server.clock.now_ms()
    await settle(kueue, seen(offer, node, Phase.EXITED, ended_at=at, exit_code=code, reason=word))
    found = await kueue.job(job["id"])
    assert (found["status"], found["reason"]) == (status, word)
    assert await standing(kueue) == []
    assert await held(kueue) == 0
    (attempt,) = (await kueue.ask("GET", f"/jobs/{job['id']}/attempts"))["items"]
    assert (attempt["number"], attempt["exit_code"]) == (1, code)
    await kueue.loops["scheduler"].run_once()
    assert await standing(kueue) == []
    assert await faults(kueue) == []


async def test_what_completed_while_it_was_taken_back_is_not_run_again(kueue: World) -> None:
    job, offer = await offered(kueue)
    await kueue.server.database.write(
        "tests.withdraw", lambda s: jobs.withdraw_offers(s, [offer.attempt_id])
    )
    at = kueue.server.clock.now_ms()
    done = seen(offer, "", Phase.EXITED, ended_at=at, exit_code=0, reason="Completed")
    await settle(kueue, done)
    assert (await kueue.job(job["id"]))["status"] == "completed"
    assert await faults(kueue) == []


async def test_what_completed_though_its_start_was_refused_is_not_run_again_after_the_delay(
    kueue: World,
) -> None:
    job, offer = await offered(kueue, max_retries=3)
    distant = put_away(kueue)
    distant.refusal = BackendError("StartFailed", "its pods were let go and then refused.")
    await kueue.loops["dispatcher"].run_once()
    assert (await kueue.job(job["id"]))["status"] == "pending"
    at = kueue.server.clock.now_ms()
    done = seen(offer, "", Phase.EXITED, ended_at=at, exit_code=0, reason="Completed")
    await settle(kueue, done)
    found = await kueue.job(job["id"])
    assert (found["status"], found["condition"]) == ("completed", "")
    assert await standing(kueue) == []
    kueue.server.clock.advance(3600)
    await kueue.loops["monitor"].run_once()
    await kueue.loops["scheduler"].run_once()
    assert await standing(kueue) == []
    assert await faults(kueue) == []


async def test_an_offer_that_was_lost_is_taken_back_before_its_job_is_offered_again(
    kueue: World,
) -> None:
    job, offer = await offered(kueue)
    lost = seen(offer, "nowhere", Phase.LOST, reason="EndNotSeen")
    assert (await settle(kueue, lost)).refused == (offer.attempt_id,)
    assert await standing(kueue) == [(offer.attempt_id, "withdrawing")]
    await settle(kueue, lost)
    assert await standing(kueue) == []
    assert (await kueue.job(job["id"]))["status"] == "queued"


async def test_a_cluster_out_of_reach_is_asked_once_a_turn_and_there_is_nothing_more_to_do(
    kueue: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "BATCH", 2)
    made = [(await offered(kueue, name=f"job-{each}"))[1].attempt_id for each in range(3)]
    distant = put_away(kueue)
    distant.is_away = True
    assert await kueue.loops["dispatcher"].run_once() is False
    assert distant.asked == made[:1]
    distant.is_away = False
    assert await kueue.loops["dispatcher"].run_once() is True
    assert await kueue.loops["dispatcher"].run_once() is False
    assert distant.asked[1:] == made


async def test_a_chart_that_is_being_installed_holds_up_no_other_offer(kueue: World) -> None:
    made = [await offered(kueue, name=f"job-{each}") for each in range(2)]
    distant = put_away(kueue)
    distant.refusal = Unavailable(STARTING, "Helm is still installing the chart")
    await kueue.loops["dispatcher"].run_once()
    assert distant.asked == [offer.attempt_id for _, offer in made]
    assert "Helm" not in (await kueue.job(made[0][0]["id"]))["status_message"]


async def test_offers_of_a_cluster_that_is_not_served_here_hold_up_nothing(
    kueue: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "BATCH", 1)
    _, offer = await offered(kueue)
    other = ClusterId(new_id())
    distant = put_away(kueue)
    kueue.registry.backends = {other: distant}
    assert await kueue.loops["dispatcher"].run_once() is False
    assert distant.asked == []
    assert await standing(kueue) == [(offer.attempt_id, "offered")]


async def test_a_cluster_that_hangs_does_not_hold_up_the_offers_of_others(kueue: World) -> None:
    _, here = await offered(kueue, name="here")
    _, there = await offered(kueue, name="there")
    other, is_asked = ClusterId(new_id()), asyncio.Event()

    class Hanging(Distant):
        async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
            await asyncio.wait_for(is_asked.wait(), 30)

    class Answering(Distant):
        async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
            is_asked.set()

    await kueue.server.database.write(
        "tests.elsewhere",
        lambda s: rows.update_offers(s, [there.attempt_id], {"cluster_id": other}),
    )
    kueue.registry.backends = {kueue.sim: Hanging(kueue), other: Answering(kueue)}
    await kueue.loops["dispatcher"].run_once()
    found = await kueue.server.database.read(jobs.list_offers)
    assert {each.attempt_id for each in found if each.ensured_at is not None} == {
        here.attempt_id,
        there.attempt_id,
    }


async def test_attempts_of_a_cluster_that_is_not_served_here_keep_no_loop_awake(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "BATCH", 1)
    job = await world.submit(gpu_count=1, gpu_type=H100)
    await world.loops["scheduler"].run_once()
    assert (await world.job(job["id"]))["status"] == "scheduled"
    backend = world.registry.backends.pop(world.sim)
    assert await world.loops["dispatcher"].run_once() is False
    world.registry.backends[world.sim] = backend
    assert await world.loops["dispatcher"].run_once() is True
    assert await world.loops["dispatcher"].run_once() is False
