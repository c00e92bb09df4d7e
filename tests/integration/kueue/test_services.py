"""Services under Kueue, which admits each pod: replicas join, end and are paid one by one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gpuplane.backends.interface import AttemptRef, Phase, ReplicaObservation, ScaleObservation
from gpuplane.core.reasons import Word
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.domains.placements import service as placements
from gpuplane.kube.kinds import WORKLOAD
from tests.integration.jobs.offers import faults, held, offered, settle, take_in
from tests.integration.jobs.test_bound_offers import ran_for
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Object, Stored

WORKLOADS = WORKLOAD.at("v1beta2")
NODE = "big-01"


def pod(
    offer: Offer, rank: int, phase: Phase = Phase.RUNNING, *, node: str = NODE, **more: Any
) -> ReplicaObservation:
    """Return what is seen of a pod that Kueue admitted, or waits where it has no node."""
    ref = AttemptRef(offer.attempt_id, offer.number)
    return ReplicaObservation(ref, rank, phase, node_name=node, by_pod=True, **more)


def now_of(kueue: Kueue) -> int:
    return kueue.world.server.clock.now_ms()


async def serving(kueue: Kueue, *ranks: int, **fields: Any) -> tuple[dict[str, Any], Offer]:
    """Return a service of which these ranks run, two GPUs each."""
    asked = {"job_type": "service", "replicas": {"count": 3, "min": 1, "max": 4}}
    job, offer = await offered(kueue.world, **{**asked, **fields})
    began = now_of(kueue)
    sights = [pod(offer, rank, started_at=began) for rank in ranks]
    assert (await settle(kueue.world, *sights)).bound == (offer.attempt_id,)
    await take_in(kueue.world, *sights)
    return job, offer


async def ranks(kueue: Kueue, job: dict[str, Any]) -> list[int]:
    found = await kueue.world.job(job["id"])
    return [each["rank"] for each in found["current_attempt"]["replicas"]]


async def paid(kueue: Kueue, job: dict[str, Any]) -> int:
    """Return the GPU-seconds to be paid for, in tens: the clock moves with the machine's too."""
    return await ran_for(kueue.world, job["id"]) // 10 * 10


async def want(kueue: Kueue, offer: Offer, wanted: int) -> None:
    seen = [ScaleObservation(AttemptRef(offer.attempt_id, offer.number), wanted)]
    unit = partial(jobs.note_scales, seen=seen, now=now_of(kueue))
    await kueue.world.server.database.write("tests.scales", unit)


async def test_a_service_runs_with_its_first_replica_and_the_others_join_as_they_are_bound(
    kueue: Kueue,
) -> None:
    job, offer = await serving(kueue, 0)
    shown = await kueue.world.job(job["id"])
    scale = shown["current_attempt"]["scale"]
    assert (shown["status"], scale["wanted"], scale["ready"]) == ("running", 3, 1)
    kueue.world.server.clock.advance(60)
    began = now_of(kueue)
    await take_in(kueue.world, pod(offer, 0, started_at=1), pod(offer, 1, started_at=began))
    assert await ranks(kueue, job) == [0, 1]
    assert await held(kueue.world) == 4
    assert (await kueue.world.job(job["id"]))["attempt_count"] == 1
    kueue.world.server.clock.advance(40)
    assert await paid(kueue, job) == 2 * (100 + 40)
    assert "job.grown" in await kueue.world.kinds(job["id"])
    assert await faults(kueue.world) == []


async def test_a_service_waits_for_a_bound_pod_and_tells_nothing_of_those_that_have_no_node(
    kueue: Kueue,
) -> None:
    job, offer = await offered(kueue.world, job_type="service", replicas={"count": 2})
    told = await settle(kueue.world, pod(offer, 0, Phase.STARTING, node=""))
    assert (told.bound, told.refused) == ((), ())
    assert (await kueue.world.job(job["id"]))["status"] == "queued"
    sights = (pod(offer, 0, Phase.STARTING), pod(offer, 1, Phase.STARTING, node=""))
    assert (await settle(kueue.world, *sights)).bound == (offer.attempt_id,)
    await take_in(kueue.world, *sights)
    assert await ranks(kueue, job) == [0]
    assert (await kueue.world.job(job["id"]))["status"] == "scheduled"
    assert await faults(kueue.world) == []


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Word.SCALED_DOWN, "job.shrunk"),
        (Word.PREEMPTED, "job.replica_preempted"),
        (Word.EVICTED, "job.replica_ended"),
    ],
)
async def test_a_replica_that_ends_gives_back_what_it_held_and_its_service_goes_on(
    kueue: Kueue, reason: Word, kind: str
) -> None:
    job, offer = await serving(kueue, 0, 1)
    began = now_of(kueue)
    kueue.world.server.clock.advance(30)
    over = pod(offer, 1, Phase.EXITED, ended_at=now_of(kueue), reason=str(reason), exit_code=143)
    kueue.world.server.clock.advance(30)
    await take_in(kueue.world, pod(offer, 0, started_at=began), over)
    assert await ranks(kueue, job) == [0]
    assert await held(kueue.world) == 2
    assert await paid(kueue, job) == 2 * (60 + 30)
    assert kind in await kueue.world.kinds(job["id"])
    await take_in(kueue.world, over)
    assert await held(kueue.world) == 2
    await take_in(kueue.world, pod(offer, 2, started_at=now_of(kueue)))
    assert await ranks(kueue, job) == [0, 2]
    shown = await kueue.world.job(job["id"])
    assert (shown["status"], shown["attempt_count"]) == ("running", 1)
    assert await faults(kueue.world) == []


async def test_a_service_goes_on_with_no_replica_at_all_and_grows_again(kueue: Kueue) -> None:
    job, offer = await serving(kueue, 0)
    await want(kueue, offer, 0)
    await take_in(
        kueue.world,
        pod(offer, 0, Phase.EXITED, ended_at=now_of(kueue), reason=str(Word.SCALED_DOWN)),
        pod(offer, 1, Phase.STARTING, node=""),
    )
    shown = await kueue.world.job(job["id"])
    assert (shown["status"], shown["replicas_wanted"]) == ("running", 0)
    assert await held(kueue.world) == 0
    await want(kueue, offer, 1)
    await take_in(kueue.world, pod(offer, 1, started_at=now_of(kueue)))
    assert await ranks(kueue, job) == [1]
    assert await faults(kueue.world) == []


async def test_what_joined_and_ended_while_nobody_looked_is_paid_for_the_time_that_it_ran(
    kueue: Kueue,
) -> None:
    job, offer = await serving(kueue, 0, replicas={"count": 2})
    started = now_of(kueue)
    kueue.world.server.clock.advance(20)
    ended = now_of(kueue)
    kueue.world.server.clock.advance(80)
    gone = {"started_at": started, "ended_at": ended, "reason": str(Word.PREEMPTED)}
    await take_in(kueue.world, pod(offer, 1, Phase.EXITED, **gone))
    assert await ranks(kueue, job) == [0]
    assert await paid(kueue, job) == 2 * (100 + 20)
    assert await faults(kueue.world) == []


async def test_ranks_join_in_their_order_and_wait_for_one_that_cannot_be_booked(
    kueue: Kueue,
) -> None:
    job, offer = await serving(kueue, 0)
    began = now_of(kueue)
    sights = [pod(offer, 1, node="new-node", started_at=began), pod(offer, 2, started_at=began)]
    await take_in(kueue.world, *sights)
    assert await ranks(kueue, job) == [0]
    unjoined = partial(jobs.list_unjoined, seen=sights)
    assert await kueue.world.server.database.read(unjoined) == {offer.attempt_id}
    await take_in(kueue.world, replace(sights[0], node_name="big-02"), sights[1])
    assert await ranks(kueue, job) == [0, 1, 2]
    assert await kueue.world.server.database.read(unjoined) == set()
    assert await faults(kueue.world) == []


async def test_one_that_somebody_deleted_on_the_cluster_ends_by_that_name_and_gives_all_back(
    kueue: Kueue,
) -> None:
    job, offer = await serving(kueue, 0, 1, max_retries=0)
    lost = {"ended_at": now_of(kueue), "reason": str(Word.DELETED), "message": "deleted"}
    await take_in(kueue.world, *(pod(offer, each, Phase.LOST, **lost) for each in (0, 1)))
    shown = await kueue.world.job(job["id"])
    assert (shown["status"], shown["reason"]) == ("failed", "DeletedOnCluster")
    assert await held(kueue.world) == 0
    assert await faults(kueue.world) == []


async def test_a_deleted_service_without_replicas_is_stopped_too(kueue: Kueue) -> None:
    job, offer = await serving(kueue, 0)
    await take_in(
        kueue.world,
        pod(offer, 0, Phase.EXITED, ended_at=now_of(kueue), reason=str(Word.SCALED_DOWN)),
    )
    lost = {"ended_at": now_of(kueue), "reason": str(Word.DELETED), "message": "deleted"}
    await take_in(kueue.world, pod(offer, 1, Phase.LOST, node="", **lost))
    shown = await kueue.world.job(job["id"])
    assert (shown["condition"], shown["reason"]) == ("Stopping", "DeletedOnCluster")


def put(stored: Stored, kueue: Kueue, offer: Offer, name: str, at: int, *, admitted: bool) -> None:
    """Keep the Workload of a pod, as Kueue makes it: without the labels of the pod."""
    variables = [
        {"name": "GPUPLANE_ATTEMPT_ID", "value": str(offer.attempt_id)},
        {"name": "GPUPLANE_CLUSTER_ID", "value": str(kueue.world.sim)},
    ]
    template = {"spec": {"containers": [{"name": "main", "env": variables}]}}
    conditions = [{"type": "QuotaReserved", "status": str(admitted), "reason": "Pending",
                   "message": f"couldn't assign flavors to {name}"}]  # fmt: skip
    status: Object = {"conditions": conditions}
    if admitted:
        at_once = {"message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}
        told = {"type": "Admitted", "status": "True", "reason": "Admitted"}
        conditions.append(told | at_once)
        assigned = {"name": "main", "count": 1, "flavors": {"nvidia.com/gpu": "h100"},
                    "resourceUsage": {"nvidia.com/gpu": "1"}}  # fmt: skip
        status["admission"] = {"clusterQueue": "q", "podSetAssignments": [assigned]}
    stored.put(
        WORKLOADS,
        {
            "metadata": {
                "name": name,
                "namespace": "space",
                "creationTimestamp": f"2026-01-02T03:04:{at:02}Z",
                "ownerReferences": [{"kind": "Pod", "name": name, "uid": f"pod-{name}"}],
            },
            "spec": {
                "queueName": "main",
                "priority": 10,
                "podSets": [{"name": "main", "count": 1, "template": template}],
            },
            "status": {
                **status,
                "admissionChecks": [{"name": "gpuplane-hold", "state": "Pending"}],
            },
        },
    )


def hold(stored: Stored, name: str) -> str:
    found = stored.get(WORKLOADS, name, "space")
    assert found is not None
    return str(found["status"]["admissionChecks"][0]["state"])


async def test_what_kueue_says_of_each_pod_is_told_at_the_service_and_more_of_it_may_start(
    kueue: Kueue, stored: Stored
) -> None:
    job, offer = await serving(kueue, 0, 1)
    for at, name in enumerate(("pod-a", "pod-b")):
        put(stored, kueue, offer, name, at, admitted=True)
    put(stored, kueue, offer, "pod-c", 3, admitted=False)
    await kueue.loop.run_once()
    scale = (await kueue.world.job(job["id"]))["current_attempt"]["scale"]
    assert scale["reason"] == "WaitingForAdmission"
    assert scale["message"] == "couldn't assign flavors to pod-c"
    why = await kueue.world.ask("GET", f"/jobs/{job['id']}/why")
    assert "1 of 3 replicas waits: couldn't assign flavors to pod-c" in why["sentence"]
    used = await kueue.world.server.database.read(
        lambda s: [each.quota_usage for each in jobs.list_running_on(s, kueue.world.sim)]
    )
    assert used == [(("h100", "nvidia.com/gpu", 2000),)]

    put(stored, kueue, offer, "pod-c", 3, admitted=True)
    await kueue.loop.stop()  # it reads the cluster afresh
    await kueue.loop.run_once()
    assert hold(stored, "pod-c") == "Ready"
    assert (await kueue.world.job(job["id"]))["current_attempt"]["scale"]["reason"] == ""
    assert (await kueue.world.job(job["id"]))["condition"] == ""


def priority(stored: Stored, name: str) -> int:
    found = stored.get(WORKLOADS, name, "space")
    assert found is not None
    return int(found["spec"]["priority"])


async def test_a_class_is_raised_where_replicas_run_first_and_never_lowered_under_them(
    kueue: Kueue, stored: Stored
) -> None:
    job, offer = await serving(kueue, 0)
    put(stored, kueue, offer, "runs", 1, admitted=True)
    put(stored, kueue, offer, "waits", 2, admitted=False)
    seen = []
    for wanted in ("high", "high", "low"):
        path = f"/jobs/{job['id']}/priority"
        await kueue.world.ask("PUT", path, json={"priority": wanted})
        await kueue.loop.stop()  # it reads the cluster afresh
        await kueue.loop.run_once()
        seen.append((priority(stored, "runs"), priority(stored, "waits")))
    assert seen == [(100, 10), (100, 100), (100, 100)]


async def test_nothing_more_of_a_service_that_stops_may_start(kueue: Kueue, stored: Stored) -> None:
    job, offer = await serving(kueue, 0)
    await kueue.world.ask("DELETE", f"/jobs/{job['id']}")
    put(stored, kueue, offer, "pod-b", 1, admitted=False)
    found = stored.get(WORKLOADS, "pod-b", "space")
    assert found is not None
    found["status"]["conditions"][0]["status"] = "True"
    await kueue.loop.run_once()
    assert hold(stored, "pod-b") == "Pending"
    rows = await kueue.world.server.database.read(placements.list_open)
    assert rows, "what runs keeps what it holds until it is over"


async def test_replicas_that_must_lie_together_are_refused_by_what_kueue_does(
    kueue: Kueue,
) -> None:
    network = {"network": {"level": "rack", "mode": "required"}}
    asked = {"gpu_count": 1, "gpu_type": "NVIDIA-H100-80GB", "placement": network}
    job = await kueue.world.submit(job_type="service", replicas={"count": 2}, **asked)
    await kueue.world.loops["scheduler"].run_once()
    found = await kueue.world.job(job["id"])
    assert (found["status"], found["reason"]) == ("queued", "NetworkLevelUnsatisfied")
    assert "each replica of a service by itself" in found["status_message"]
