"""Reservations, lent priority, data at hand and dedicated clusters through the whole product."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.recording import decode_recording
from gpuplane.db.leases import LeaseKeeper
from gpuplane.domains.jobs.service import WaitTargets
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.sealing import SealingKeys
from gpuplane.loops.monitor import MonitorLoop
from gpuplane.loops.scheduler.loop import SchedulerLoop
from gpuplane.loops.scheduler.recorder import Recorder
from tests.integration.jobs.worlds import FLEET, World, running_world, runs_for

HOUR_S = 3600
NO_SHOW_S = 600
WHOLE: dict[str, Any] = {"gpu_type": "H100", "gpu_count": 8}


def later(world: World, seconds: float) -> str:
    return instant_to_text(world.server.clock.now_ms() + int(seconds * 1000))


async def reserve(
    world: World, count: int, *, start_s: int = HOUR_S, status: int = 201, **rest: Any
) -> dict[str, Any]:
    """Reserve H100s for two hours."""
    body = {
        "cluster": "sim",
        "model": "H100",
        "count": count,
        "start": later(world, start_s),
        "end": later(world, start_s + 2 * HOUR_S),
        **rest,
    }
    return await world.ask("POST", "/capacity/reservations", status=status, json=body)


async def held(world: World, reservation: dict[str, Any]) -> tuple[str, int]:
    found = await world.ask("GET", f"/capacity/reservations/{reservation['id']}")
    return found["state"], len(found["gpu_ids"])


async def another_project(world: World) -> str:
    made = await world.ask("POST", "/projects", status=201, json={"name": "others"})
    return str(made["id"])


async def test_long_work_of_others_leaves_reserved_gpus_alone_and_short_work_uses_them(
    world: World,
) -> None:
    owner = await another_project(world)
    await reserve(world, 16, project_id=owner)
    hours: dict[str, Any] = {"estimated_duration_seconds": 3 * HOUR_S, "spec": runs_for(3 * HOUR_S)}
    long = await world.submit(**WHOLE, **hours)
    short = await world.submit(
        **WHOLE, estimated_duration_seconds=HOUR_S // 2, spec=runs_for(HOUR_S // 2)
    )
    await world.turn(2)
    waiting = await world.job(long["id"])
    assert (waiting["status"], waiting["reason"]) == ("queued", "ReservedForOthers")
    assert (await world.job(short["id"]))["status"] == "running"
    own = await world.submit(project_id=owner, **WHOLE, **hours)
    await world.turn(2)
    assert (await world.job(own["id"]))["status"] == "running"


async def test_a_reservation_that_nobody_uses_is_given_up_and_one_in_use_is_kept(
    any_world: World,
) -> None:
    world = any_world
    world.loops["monitor"] = MonitorLoop(
        world.server.database,
        world.server.clock,
        world.registry,
        WaitTargets(),
        no_show_s=NO_SHOW_S,
    )  # fmt: skip - the call reads as one line
    owner = await another_project(world)
    absent = await reserve(world, 8, project_id=owner)
    present = await reserve(world, 8)
    await world.after(HOUR_S + 5)
    assert await held(world, absent) == await held(world, present) == ("active", 8)
    job = await world.submit(gpu_type="H100", gpu_count=1, spec=runs_for(60))
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "running"
    await world.after(NO_SHOW_S)
    assert await held(world, absent) == ("ended", 0)
    assert await held(world, present) == ("active", 8)
    await world.after(NO_SHOW_S)
    assert await held(world, present) == ("active", 8)
    events = await world.ask("GET", "/events?kind=reservation.no_show")
    assert [each["subject_id"] for each in events["items"]] == [absent["id"]]


async def test_work_that_nobody_may_stop_limits_what_can_be_reserved(world: World) -> None:
    fixed: dict[str, Any] = {"preemptible": False, "spec": runs_for(30 * HOUR_S)}
    await world.submit(**WHOLE, **fixed)
    await world.submit(**WHOLE, max_duration_seconds=HOUR_S, **fixed)
    await world.turn(2)
    refused = await reserve(world, 16, status=409, start_s=HOUR_S // 2)
    assert refused["code"] == "not_enough_capacity"
    assert "0 of 16" in refused["detail"]
    await reserve(world, 8, start_s=HOUR_S + 60)
    assert "0 of 16" in (await reserve(world, 1, status=409, start_s=HOUR_S + 60))["detail"]


async def test_when_a_reservation_begins_its_gpus_come_from_work_that_may_be_stopped(
    world: World,
) -> None:
    fixed = await world.submit(**WHOLE, preemptible=False, spec=runs_for(9 * HOUR_S))
    soft = await world.submit(**WHOLE, spec=runs_for(9 * HOUR_S))
    await world.turn(2)
    await reserve(world, 8, project_id=await another_project(world))
    await world.after(HOUR_S + 5)
    await world.after(60)
    assert (await world.job(fixed["id"]))["status"] == "running"
    assert (await world.job(soft["id"]))["status"] == "queued"


async def test_a_job_that_a_higher_one_comes_after_goes_before_its_own_class(world: World) -> None:
    filling = [await world.submit(**WHOLE, spec=runs_for(60)) for _ in range(2)]
    await world.turn(2)
    normal = await world.submit(**WHOLE, priority="normal", spec=runs_for(HOUR_S))
    spot = await world.submit(**WHOLE, priority="spot", preemptible=False, spec=runs_for(HOUR_S))
    other = await world.submit(**WHOLE, priority="low", spec=runs_for(HOUR_S))
    await world.submit(
        gpu_type="T4",
        gpu_count=1,
        priority="high",
        after=[{"job_id": spot["id"]}],
        spec=runs_for(1),
    )  # fmt: skip - the call reads as one line
    await world.after(61)
    statuses = [(await world.job(each["id"]))["status"] for each in (spot, normal, other)]
    assert statuses == ["running", "running", "queued"]
    assert (await world.job(filling[0]["id"]))["status"] == "completed"
    why = await world.ask("GET", f"/jobs/{spot['id']}/why")
    assert "Counts as high: a high job waits for it." in why["explanation"]
    told = await world.ask("GET", "/events?kind=job.priority_lent")
    assert [each["subject_id"] for each in told["items"]] == [spot["id"]]
    assert "is spot and counts as high" in told["items"][0]["message"]


@pytest.fixture
async def racks(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> AsyncIterator[World]:
    """A world of two racks; the nodes of the second one have the data set `images`."""
    group = """
    - name: {name}
      count: 2
      gpus: {{model: H100-80GB, count: 4}}
      cpu: 64
      memory: 512Gi
      ephemeralStorage: 2Ti
      racks: [{rack}]
      labels: {labels}"""
    fleet = FLEET[: FLEET.index("  nodeGroups:")] + "  racks:\n    - {name: r1}\n    - {name: r2}"
    fleet += "\n  nodeGroups:" + group.format(name="a", rack="r1", labels="{}")
    fleet += group.format(name="b", rack="r2", labels="{data.gpuplane.io/images: cached}")
    fleet += "\n  startDelay: {value: 0s}\n  stopDelay: {value: 0s}\n"
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, fleet=fleet) as world:
        yield world


async def nodes_of(world: World, job: dict[str, Any]) -> set[str]:
    attempts = await world.ask("GET", f"/jobs/{job['id']}/attempts")
    return {each["node"].split("-")[-2] for each in attempts["items"][-1]["replicas"]}


async def test_work_goes_where_its_data_is_and_its_replicas_into_one_rack(racks: World) -> None:
    first = await racks.submit(gpu_type="H100", gpu_count=1, spec=runs_for(60))
    placement = {"data": ["images"], "network": {"level": "rack", "mode": "required"}}
    reader = await racks.submit(
        gpu_type="H100", gpu_count=1, placement={"data": ["images"]}, spec=runs_for(60)
    )
    gang = await racks.submit(
        gpu_type="H100",
        gpu_count=3,
        replicas={"count": 2},
        placement=placement,
        spec=runs_for(60),
    )  # fmt: skip - the call reads as one line
    assert gang["placement"]["network"] == {"level": "rack", "mode": "required"}
    assert gang["placement"]["data"] == ["images"]
    await racks.turn(2)
    assert await nodes_of(racks, reader) == {"b"}
    assert await nodes_of(racks, gang) == {"b"}
    assert await nodes_of(racks, first) == {"a"}
    large = await racks.submit(
        gpu_type="H100",
        gpu_count=4,
        replicas={"count": 3},
        placement=placement,
        spec=runs_for(60),
    )  # fmt: skip - the call reads as one line
    await racks.after(61)
    waiting = await racks.job(large["id"])
    assert (waiting["status"], waiting["reason"]) == ("queued", "NetworkLevelUnsatisfied")
    why = await racks.ask("GET", f"/jobs/{large['id']}/why?change=true")
    assert (why["change"]["field"], why["change"]["value"]) == (
        "placement.network.mode",
        "preferred",
    )


async def test_restricted_data_waits_for_a_cluster_dedicated_to_its_tenant(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, has_local=True) as world:
        job = await world.submit(
            cluster=None,
            data_classification="restricted",
            cpu_cores=0.1,
            memory_gb=0.1,
            resources={"ephemeral_storage_gb": 0},
            spec={"command": ["true"]},
        )
        await world.loops["scheduler"].run_once()
        waiting = await world.job(job["id"])
        assert (waiting["status"], waiting["reason"]) == ("queued", "DedicatedClusterRequired")
        tenant = {"tenant_id": str(world.server.admin.tenant_id)}
        made = await world.ask("PUT", "/clusters/local/dedication", json=tenant)
        assert made["labels"] == {"gpuplane.io/dedicated-to": tenant["tenant_id"]}
        await world.loops["scheduler"].run_once()
        assert (await world.job(job["id"]))["status"] == "scheduled"
        again = await world.ask("PUT", "/clusters/local/dedication", json={"tenant_id": None})
        assert again["labels"] == {}


async def test_a_cluster_is_dedicated_to_tenants_that_exist(world: World) -> None:
    nobody = {"tenant_id": "00000000-0000-7000-8000-000000000000"}
    refused = await world.ask("PUT", "/clusters/sim/dedication", status=422, json=nobody)
    assert refused["code"] == "grant_invalid"


async def test_a_decision_of_the_scheduler_is_recorded_and_made_again(
    world: World, tmp_path: Path
) -> None:
    loop = world.loops["scheduler"]
    assert isinstance(loop, SchedulerLoop)
    folder = tmp_path / "decisions"
    world.loops["scheduler"] = SchedulerLoop(
        world.server.database,
        world.server.clock,
        LeaseKeeper(world.server.database, world.server.clock, "test"),
        Policy(),
        0,
        world.turns,
        recorder=Recorder(folder, 3),
    )  # fmt: skip - the call reads as one line
    await reserve(world, 4)
    for count in (8, 8, 8):
        await world.submit(gpu_type="H100", gpu_count=count, spec=runs_for(60))
    await world.turn()
    (path,) = folder.iterdir()
    stored, decided = gzip.decompress(path.read_bytes()).splitlines()
    recording = decode_recording(stored)
    assert len(recording.snapshot.reservations) == 1
    assert recording.replay().to_json() == decided
    assert len(recording.replay().placed) == 2
