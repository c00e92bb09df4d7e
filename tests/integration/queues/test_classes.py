"""The highest class is granted per role and queue, at submit, at a change and while it waits."""

from __future__ import annotations

from gpuplane.kit.access import Role
from tests.integration.jobs.worlds import World, runs_for
from tests.integration.queues.test_declaring import declare, open_door

OPEN = {"resourceGroups": [], "coversEverything": True}


async def test_a_queue_grants_classes_up_to_its_highest(any_world: World) -> None:
    world = any_world
    made = await declare(world, **OPEN, highestPriority="normal")
    assert made["highestPriority"] == "normal"
    await open_door(world)
    refused = await world.submit(403, priority="high", spec=runs_for(10))
    assert (refused["code"], refused["field"]) == ("priority_not_granted", "priority")
    assert refused["highest_priority"] == "normal"
    job = await world.submit(priority="normal", spec=runs_for(10))
    refused = await world.ask(
        "PUT", f"/jobs/{job['id']}/priority", 403, json={"priority": "critical"}
    )
    assert refused["code"] == "priority_not_granted"
    lowered = await world.ask("PUT", f"/jobs/{job['id']}/priority", json={"priority": "low"})
    assert lowered["priority"] == "low"


async def test_a_local_queue_narrows_what_its_queue_grants(world: World) -> None:
    await declare(world, **OPEN, highestPriority="high")
    door = await open_door(world, highestPriority="low")
    assert door["highestPriority"] == "low"
    await open_door(world, name="vip")
    refused = await world.submit(
        403,
        priority="high",
        spec=runs_for(
            10,
        ),
        queue="main",
    )
    assert "Queue main on sim grants the priority classes up to low" in refused["detail"]
    await world.submit(priority="high", spec=runs_for(10))
    await world.submit(403, priority="critical", spec=runs_for(10))


async def test_an_open_queue_is_no_way_around_the_class_of_a_tenant_with_a_door(
    world: World,
) -> None:
    await declare(world, **OPEN, highestPriority="normal")
    await declare(world, **OPEN, name="open")
    await open_door(world)
    refused = await world.submit(403, priority="high", spec=runs_for(10))
    assert refused["highest_priority"] == "normal"
    job = await world.submit(priority="normal", spec=runs_for(10))
    path = f"/jobs/{job['id']}/priority"
    refused = await world.ask("PUT", path, 403, json={"priority": "high"})
    assert "Queue main on sim grants the priority classes up to normal" in refused["detail"]
    await world.turn(2)
    found = await world.job(job["id"])
    assert (found["status"], found["queue"]) == ("running", "sim/main")


async def test_the_role_still_decides_where_the_queue_grants_everything(world: World) -> None:
    await declare(world, **OPEN, highestPriority="critical")
    await open_door(world)
    admin = world.server.admin
    assert admin.project_id is not None
    _, token = await world.server.make_user("ada", Role.MEMBER, admin.tenant_id, admin.project_id)
    body = {"name": "mine", "cluster": "sim", "priority": "critical", "spec": runs_for(10)}
    answer = await world.server.client(token).post("/api/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "priority_not_granted")
    assert (await world.submit(priority="critical", spec=runs_for(10)))["priority"] == "critical"


async def test_a_job_whose_class_is_granted_no_longer_waits_and_says_so(world: World) -> None:
    await declare(world, **OPEN)
    await open_door(world)
    job = await world.submit(priority="high", spec=runs_for(10))
    body = {**OPEN, "highestPriority": "normal"}
    await world.ask("PUT", "/clusters/sim/quotas/team", json=body)
    await world.turn(2)
    waits = await world.job(job["id"])
    assert (waits["status"], waits["reason"]) == ("queued", "NoQueue")
    assert "jobs of class high" in waits["status_message"]
    await world.ask("PUT", f"/jobs/{job['id']}/priority", json={"priority": "normal"})
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "running"


async def test_no_tenant_loses_work_to_another_unless_an_operator_says_so(world: World) -> None:
    tenant, project = await world.server.make_tenant("other")
    _, token = await world.server.make_user("eve", Role.ADMIN, tenant, project, on="tenant")
    body = {
        "name": "theirs", "cluster": "sim", "priority": "low", "gpu_type": "H100", "gpu_count": 8,
        "replicas": {"count": 2}, "spec": runs_for(36_000),
    }  # fmt: skip
    answer = await world.server.client(token).post("/api/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    await world.turn(2)
    mine = await world.submit(priority="critical", gpu_type="H100", gpu_count=8, spec=runs_for(10))
    await world.after(3600)
    theirs = answer.json()["id"]
    assert (await world.job(theirs))["status"] == "running"
    assert (await world.job(mine["id"]))["status"] == "queued"
    policy = {"withinClusterQueue": "LowerPriority"}
    await declare(world, **OPEN, name="default", preemption=policy)
    await world.after(400)
    await world.turn(4)
    assert (await world.job(mine["id"]))["status"] in ("running", "completed")
    assert "job.preempted" in await world.kinds(theirs)
