"""A Workload that somebody deleted under what runs ends its attempt; it is not started again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuplane.backends.interface import Phase
from gpuplane.domains.jobs.service import Offer
from gpuplane.kube.kinds import WORKLOAD
from gpuplane.loops.kueue.admitting import take_in as take_in_workloads
from gpuplane.loops.kueue.workloads import Followed, follow
from tests.integration.jobs.offers import faults, offered, seen, settle, take_in
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored
from tests.integration.kueue.test_loop import hold, reserved

WORKLOADS = WORKLOAD.at("v1beta2")


async def running(kueue: Kueue, **fields: Any) -> tuple[str, Offer]:
    """Return a job that runs on the cluster, and what it was offered as."""
    job, offer = await offered(kueue.world, **fields)
    sight = seen(offer, "big-01")
    await settle(kueue.world, sight)
    now = kueue.world.server.clock.now_ms()
    await take_in(kueue.world, replace(sight, phase=Phase.RUNNING, started_at=now))
    assert (await kueue.world.job(job["id"]))["status"] == "running"
    return job["id"], offer


def admitted(stored: Stored, name: str) -> Followed:
    """Let a Workload be admitted, and return it."""
    found = stored.get(WORKLOADS, name, "space")
    assert found is not None
    told = {"type": "Admitted", "status": "True", "reason": "Admitted", "message": ""}
    found["status"]["conditions"].append(told)
    return follow(found)


@pytest.mark.parametrize(("retries", "status"), [(0, "failed"), (2, "pending")])
async def test_a_workload_that_was_made_anew_ends_the_attempt_by_its_name_and_never_runs(
    kueue: Kueue, stored: Stored, retries: int, status: str
) -> None:
    job_id, offer = await running(kueue, max_retries=retries)
    reserved(stored, "one", offer.attempt_id, str(kueue.world.sim))
    await kueue.loop.run_once()
    found = await kueue.world.job(job_id)
    assert (found["condition"], found["reason"]) == ("Stopping", "DeletedOnCluster")
    assert hold(stored, "one") == "Pending"
    now = kueue.world.server.clock.now_ms()
    over = seen(offer, "big-01", Phase.EXITED, ended_at=now, exit_code=143, signal=15)
    await take_in(kueue.world, over)
    ended = await kueue.world.job(job_id)
    assert (ended["status"], ended["reason"]) == (status, "DeletedOnCluster")
    assert "job.stopping" in await kueue.world.kinds(job_id)
    assert await faults(kueue.world) == []


async def test_a_workload_of_another_uid_ends_the_attempt_though_it_was_admitted(
    kueue: Kueue, stored: Stored
) -> None:
    job_id, offer = await running(kueue)
    world = kueue.world
    reserved(stored, "one", offer.attempt_id, str(world.sim))
    first = admitted(stored, "one")
    again = replace(first, state=replace(first.state, uid="another"))
    remembered: dict[Any, str] = {}

    async def reread(_: Followed) -> Followed | None:
        return None

    for each, condition in ((first, ""), (first, ""), (again, "Stopping")):
        now = world.server.clock.now_ms()
        await take_in_workloads(
            world.server.database, world.sim, [each], now, remembered, reread, {}, {}
        )
        assert (await world.job(job_id))["condition"] == condition


async def test_a_look_that_lags_behind_the_cluster_ends_nothing(
    kueue: Kueue, stored: Stored
) -> None:
    job_id, offer = await running(kueue)
    world = kueue.world
    reserved(stored, "one", offer.attempt_id, str(world.sim))
    found = stored.get(WORKLOADS, "one", "space")
    assert found is not None
    late = follow(found)
    live = admitted(stored, "one")

    async def reread(_: Followed) -> Followed | None:
        return live

    now = world.server.clock.now_ms()
    await take_in_workloads(world.server.database, world.sim, [late], now, {}, reread, {}, {})
    assert (await world.job(job_id))["condition"] == ""


async def test_what_runs_has_its_check_again_where_it_stays_admitted(
    kueue: Kueue, stored: Stored
) -> None:
    job_id, offer = await running(kueue)
    reserved(stored, "one", offer.attempt_id, str(kueue.world.sim))
    admitted(stored, "one")
    found = stored.get(WORKLOADS, "one", "space")
    assert found is not None
    found["status"]["conditions"][-1]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    await kueue.loop.run_once()
    assert hold(stored, "one") == "Ready"
    assert (await kueue.world.job(job_id))["status"] == "running"


async def test_what_was_preempted_and_has_its_quota_again_before_anybody_looked_stands_in_line(
    kueue: Kueue, stored: Stored
) -> None:
    job_id, offer = await running(kueue)
    reserved(stored, "one", offer.attempt_id, str(kueue.world.sim))
    found = stored.get(WORKLOADS, "one", "space")
    assert found is not None
    back = {
        "type": "Evicted",
        "status": "False",
        "reason": "QuotaReserved",
        "message": "Previously: Preempted to accommodate a workload",
    }
    found["status"]["conditions"].append(back)
    await kueue.loop.run_once()
    shown = await kueue.world.job(job_id)
    assert (shown["condition"], shown["reason"]) == ("Stopping", "Preempted")
    assert hold(stored, "one") == "Pending"
    now = kueue.world.server.clock.now_ms()
    over = seen(offer, "big-01", Phase.EXITED, ended_at=now, exit_code=143, signal=15)
    await take_in(kueue.world, over)
    assert (await kueue.world.job(job_id))["status"] in ("preempted", "queued")
    assert await faults(kueue.world) == []
