"""What operators do to clusters and nodes, and what it does to jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.kit.access import Role
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.sealing import SealingKeys
from tests.integration.jobs.worlds import World, running_world, runs_for


def later(world: World, seconds: float) -> str:
    return instant_to_text(world.server.clock.now_ms() + int(seconds * 1000))


async def events_of(world: World, kind: str) -> list[dict[str, object]]:
    found = await world.ask("GET", f"/events?kind={kind}")
    items: list[dict[str, object]] = found["items"]
    return items


async def test_clusters_are_listed_with_their_gpus_and_said_to_be_simulated(world: World) -> None:
    found = await world.ask("GET", "/clusters")
    sim = found["items"][0]
    assert (sim["name"], sim["simulated"], sim["state"]) == ("sim", True, "AVAILABLE")
    assert {each["gpu_type"]: each["total"] for each in sim["gpus"]} == {
        "nvidia-h100-80gb": 16,
        "nvidia-t4": 2,
    }
    assert (await world.ask("GET", f"/clusters/{sim['id']}")) == sim


async def test_a_local_cluster_is_seen_only_by_tenants_it_was_granted(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, has_local=True) as world:
        tenant, project = await world.server.make_tenant("other")
        _, token = await world.server.make_user("eve", Role.MEMBER, tenant, project, on="tenant")
        eve = world.server.client(token)
        names = [each["name"] for each in (await eve.get("/api/v1/clusters")).json()["items"]]
        assert names == ["sim"]
        assert (await eve.get("/api/v1/clusters/local")).status_code == 404
        body = {"tenant_id": str(tenant)}
        await world.ask("POST", "/clusters/local/grants", 201, json=body)
        assert (await eve.get("/api/v1/clusters/local")).status_code == 200
        await world.ask("DELETE", f"/clusters/local/grants/{tenant}")
        assert (await eve.get("/api/v1/clusters/local")).status_code == 404
        stranger = {"tenant_id": "00000000-0000-7000-8000-000000000000"}
        refused = await world.ask("POST", "/clusters/local/grants", 422, json=stranger)
        assert refused["field"] == "tenant_id"


async def test_nothing_starts_on_a_frozen_cluster_until_it_is_thawed(world: World) -> None:
    frozen = await world.ask("POST", "/clusters/sim/freeze", json={"reason": "an incident"})
    assert (frozen["frozen"], frozen["frozen_reason"]) == (True, "an incident")
    job = await world.submit(spec=runs_for(10))
    await world.turn(2)
    waiting = await world.job(job["id"])
    assert (waiting["status"], waiting["reason"]) == ("queued", "SchedulingFrozen")
    assert "an incident" in waiting["status_message"]
    await world.ask("POST", "/clusters/sim/thaw")
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "running"


async def test_the_preemption_policy_keeps_what_is_not_changed(world: World) -> None:
    changed = await world.ask(
        "PATCH", "/clusters/sim/preemption-policy", json={"grace_period_s": 60}
    )
    assert (changed["grace_period_s"], changed["max_preemptions_per_hour"]) == (60, 10)
    assert (await world.ask("GET", "/clusters/sim/preemption-policy")) == changed
    for field, value in (("grace_period_s", -1), ("high_cost_progress_ratio", 2), ("grace", 1)):
        refused = await world.ask(
            "PATCH", "/clusters/sim/preemption-policy", 422, json={field: value}
        )
        assert refused["field"] == field


async def test_where_kueue_admits_the_preemption_policy_says_that_it_does_not_count(
    world: World,
) -> None:
    path = "/clusters/sim/preemption-policy"
    set_here = await world.ask("PATCH", path, json={"grace_period_s": 60})
    assert (set_here["is_in_force"], set_here["decided_by"]) == (True, "scheduler")
    await admit_by(world, "kueue")
    there = await world.ask("GET", path)
    assert (there["is_in_force"], there["decided_by"]) == (False, "kueue")
    refused = await world.ask("PATCH", path, 409, json={"enabled": False})
    assert (refused["code"], refused["field"]) == ("preemption_policy_not_in_force", "enabled")
    assert "quotas" in refused["fix"]
    await admit_by(world, "embedded")
    assert await world.ask("GET", path) == set_here


async def admit_by(world: World, admission: str) -> None:
    def change(session: WriteSession) -> None:
        cluster = clusters.get_cluster(session, world.sim)
        wanted = {"config": {**cluster.config, "admission": admission}}
        clusters.change(session, world.sim, wanted, "test", 1)

    await world.server.database.write("tests.admission", change)


async def test_work_that_would_last_into_a_maintenance_does_not_start(world: World) -> None:
    window = await world.ask(
        "POST",
        "/clusters/sim/maintenance-windows",
        201,
        json={"start": later(world, 600), "end": later(world, 1200), "reason": "new cables"},
    )  # fmt: skip - the call reads as one line
    long = await world.submit(estimated_duration_seconds=3600, spec=runs_for(3600))
    short = await world.submit(estimated_duration_seconds=60, spec=runs_for(60))
    await world.turn(2)
    assert (await world.job(short["id"]))["status"] == "running"
    waiting = await world.job(long["id"])
    assert (waiting["status"], waiting["reason"]) == ("queued", "MaintenanceWindow")
    await world.after(601)
    begun = (await world.ask("GET", "/clusters/sim/maintenance-windows"))["items"][0]
    assert begun["has_begun"] is True
    assert len(await events_of(world, "cluster.maintenance_started")) == 1
    await world.ask("DELETE", f"/clusters/sim/maintenance-windows/{window['id']}")
    await world.turn(2)
    assert (await world.job(long["id"]))["status"] == "running"


async def test_a_window_that_is_over_or_upside_down_is_refused(world: World) -> None:
    for start, end in ((-100, -50), (100, 50)):
        body = {"start": later(world, start), "end": later(world, end), "reason": "x"}
        refused = await world.ask("POST", "/clusters/sim/maintenance-windows", 422, json=body)
        assert refused["field"] == "end"


async def test_nothing_new_starts_on_a_cordoned_node(world: World) -> None:
    nodes = (await world.ask("GET", "/clusters/sim/nodes"))["items"]
    assert sorted(len(each["gpus"]) for each in nodes) == [2, 8, 8]
    small = next(each["name"] for each in nodes if len(each["gpus"]) == 2)
    marked = await world.ask("POST", f"/clusters/sim/nodes/{small}/cordon")
    assert marked["cordoned"] is True
    job = await world.submit(gpu_type="T4", gpu_count=1, spec=runs_for(10))
    await world.turn(2)
    waiting = await world.job(job["id"])
    assert (waiting["status"], waiting["reason_counts"]["NodeCordoned"]) == ("queued", 1)
    await world.ask("POST", f"/clusters/sim/nodes/{small}/uncordon")
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "running"


async def test_a_node_that_does_not_exist_is_not_found(world: World) -> None:
    refused = await world.ask("POST", "/clusters/sim/nodes/nowhere/cordon", 404)
    assert refused["code"] == "node_not_found"


async def running_on_t4(world: World, **fields: object) -> tuple[str, str]:
    """Start a job on the only node with a T4; return the job's id and the node's name."""
    job = await world.submit(gpu_type="T4", gpu_count=1, spec=runs_for(36_000), **fields)
    await world.turn(2)
    attempt = (await world.job(job["id"]))["current_attempt"]
    return job["id"], attempt["replicas"][0]["node"]


async def test_a_drained_node_waits_before_it_moves_its_work(world: World) -> None:
    job_id, node = await running_on_t4(world)
    draining = await world.ask("POST", f"/clusters/sim/nodes/{node}/drain", json={"wait_s": 300})
    assert (draining["cordoned"], draining["draining"]) == (True, True)
    await world.after(299)
    assert (await world.job(job_id))["status"] == "running"
    await world.after(2)
    await world.turn(2)
    moved = await world.job(job_id)
    assert moved["status"] == "queued"
    assert moved["retry_count"] == 0
    done = await world.ask("GET", f"/clusters/sim/nodes/{node}")
    assert (done["cordoned"], done["draining"]) == (True, False)
    assert len(await events_of(world, "node.drained")) == 1


async def test_a_drained_job_is_moved_as_soon_as_it_wrote_its_checkpoint(world: World) -> None:
    job_id, node = await running_on_t4(world, job_type="training")
    await world.ask("POST", f"/clusters/sim/nodes/{node}/drain", json={"wait_s": 3000})
    await world.after(1)
    await world.turn(2)
    moved = await world.job(job_id)
    assert (moved["status"], moved["attempt_count"]) == ("queued", 1)
    assert moved["last_checkpoint"]
    kinds = await world.kinds(job_id)
    assert kinds.index("job.checkpointed") < kinds.index("job.stopping")


@pytest.mark.parametrize("verb", ["cordon", "drain", "uncordon"])
async def test_a_tenants_admin_may_not_operate_nodes(world: World, verb: str) -> None:
    tenant, project = await world.server.make_tenant("other")
    _, token = await world.server.make_user("eve", Role.ADMIN, tenant, project, on="tenant")
    node = (await world.ask("GET", "/clusters/sim/nodes"))["items"][0]["name"]
    answer = await world.server.client(token).post(f"/api/v1/clusters/sim/nodes/{node}/{verb}")
    assert answer.status_code == 403


async def test_maintenance_of_a_node_that_is_not_there_is_refused(world: World) -> None:
    asked = {
        "start": later(world, 60),
        "end": later(world, 120),
        "reason": "fans",
        "node": "nobody",
    }
    refused = await world.ask("POST", "/clusters/sim/maintenance-windows", 422, json=asked)
    assert refused["field"] == "node"


async def test_operators_who_mark_a_node_at_once_all_get_through(any_world: World) -> None:
    found = await any_world.ask("GET", "/clusters/sim/nodes")
    node = f"/api/v1/clusters/sim/nodes/{found['items'][0]['name']}"
    verbs = [verb for _ in range(5) for verb in ("cordon", "drain", "uncordon")]
    answers = await asyncio.gather(*(any_world.http.post(f"{node}/{verb}") for verb in verbs))
    assert [answer.status_code for answer in answers] == [200] * len(verbs)
    kinds = {"node.cordoned", "node.draining", "node.uncordoned"}
    events = await any_world.ask("GET", "/events?subject_kind=node&limit=100")
    assert len([each for each in events["items"] if each["kind"] in kinds]) == len(verbs)


async def test_a_node_says_how_many_places_for_work_it_has_in_use_and_left(world: World) -> None:
    before = (await world.ask("GET", "/clusters/sim/nodes"))["items"]
    plain = {each["name"]: (each["total_workers"], each["used_workers"]) for each in before}
    assert all(used == 0 for _, used in plain.values())
    assert all(each["available_workers"] == each["total_workers"] for each in before)
    _, node = await running_on_t4(world)
    found = await world.ask("GET", f"/clusters/sim/nodes/{node}")
    assert (found["used_workers"], found["available_workers"]) == (1, found["total_workers"] - 1)
    assert sorted(gpu["used_percent"] for gpu in found["gpus"])[-1] == 100
    marked = await world.ask("POST", f"/clusters/sim/nodes/{node}/cordon")
    assert (marked["used_workers"], marked["available_workers"]) == (1, 0)


async def test_a_shared_gpu_is_available_until_the_threshold(world: World) -> None:
    job = await world.submit(
        gpu_type="T4", gpu_count=1, resources={"gpu_share": 0.5}, spec=runs_for(36_000)
    )
    await world.turn(2)
    attempt = (await world.job(job["id"]))["current_attempt"]
    node = attempt["replicas"][0]["node"]
    found = await world.ask("GET", f"/clusters/sim/nodes/{node}")
    assert (found["used_workers"], found["available_workers"]) == (1, found["total_workers"])
    assert max(gpu["used_percent"] for gpu in found["gpus"]) == 50
