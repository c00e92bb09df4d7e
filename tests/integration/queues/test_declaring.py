"""Quotas, queues and cohorts over HTTP, and what they do to jobs."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.core.ids import ClusterId
from gpuplane.domains.clusters import service as clusters
from gpuplane.kit.access import Role
from gpuplane.kit.ids import new_id
from tests.integration.jobs.worlds import World, runs_for

H100 = "nvidia-h100-80gb"
NOMINAL = "resourceGroups[0].flavors[0].resources[0].nominalQuota"


def gpus(nominal: object, flavor: str = H100, **limits: object) -> list[dict[str, Any]]:
    """Return resource groups with a quota of GPUs alone."""
    quota = {"name": "nvidia.com/gpu", "nominalQuota": nominal, **limits}
    return [
        {
            "coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": flavor, "resources": [quota]}],
        }
    ]


async def declare(world: World, status: int = 201, **fields: Any) -> dict[str, Any]:
    body = {"name": "team", "resourceGroups": gpus(2), **fields}
    return await world.ask("POST", "/clusters/sim/quotas", status, json=body)


async def open_door(world: World, status: int = 201, **fields: Any) -> dict[str, Any]:
    body = {"name": "main", "tenant": "default", "clusterQueue": "team", **fields}
    return await world.ask("POST", "/clusters/sim/queues", status, json=body)


async def test_a_cluster_without_queues_shows_the_one_that_covers_everything(world: World) -> None:
    found = await world.ask("GET", "/clusters/sim/quotas")
    only = found["items"][0]
    assert (only["name"], only["isDefault"], only["coversEverything"]) == ("default", True, True)


async def test_a_declared_quota_is_shown_as_it_was_written(any_world: World) -> None:
    world = any_world
    made = await declare(
        world,
        cohort="research",
        resourceGroups=gpus("7500m", borrowingLimit=4, lendingLimit=2),
        preemption={"reclaimWithinCohort": "Any"},
        fairSharing={"weight": 2.5},
    )
    found = await world.ask("GET", "/clusters/sim/quotas")
    assert found["items"] == [made]
    quota = made["resourceGroups"][0]["flavors"][0]["resources"][0]
    assert quota == {
        "name": "nvidia.com/gpu",
        "nominalQuota": "7500m",
        "borrowingLimit": "4",
        "lendingLimit": "2",
    }
    assert (made["cohort"], made["fairSharing"]) == ("research", {"weight": 2.5})


async def test_memory_is_declared_with_the_suffixes_of_kubernetes(world: World) -> None:
    quota = {"name": "memory", "nominalQuota": "64Gi"}
    groups = [{"coveredResources": ["memory"], "flavors": [{"name": "any", "resources": [quota]}]}]
    made = await declare(world, resourceGroups=groups)
    assert made["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] == "64Gi"
    groups[0]["flavors"][0]["resources"][0]["nominalQuota"] = "100"  # type: ignore[index]  # nested
    refused = await world.ask(
        "PUT", "/clusters/sim/quotas/team", 422, json={"resourceGroups": groups}
    )
    assert "whole MiB" in refused["detail"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"resourceGroups": gpus(1, "a100")}, "resourceGroups"),
        ({"resourceGroups": gpus(1, "h1000")}, "resourceGroups"),
        ({"resourceGroups": gpus(1, borrowingLimit=2)}, "resourceGroups"),
        ({"cohort": "c", "resourceGroups": gpus(1, lendingLimit=2)}, "resourceGroups"),
        ({"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}}, "preemption"),
        ({"resourceGroups": gpus(-1)}, "resourceGroups[0].flavors[0].resources[0].nominalQuota"),
        (
            {"resourceGroups": gpus("much")},
            "resourceGroups[0].flavors[0].resources[0].nominalQuota",
        ),
        ({"cohortName": "c"}, "cohortName"),
    ],
)
async def test_what_kueue_refuses_is_refused_with_the_field(
    world: World, fields: dict[str, Any], field: str
) -> None:
    refused = await declare(world, 422, **fields)
    assert refused["field"] == field
    assert (await world.ask("GET", "/clusters/sim/quotas"))["items"][0]["isDefault"] is True


async def test_a_gpu_model_that_does_not_exist_is_refused_with_the_nearest(world: World) -> None:
    quota = {"resourceGroups": gpus(4, "h1000")}
    cohort = {"name": "all", **quota}
    await declare(world)
    for method, path, body in (
        ("POST", "quotas", {"name": "other", **quota}),
        ("PUT", "quotas/team", quota),
        ("POST", "cohorts", cohort),
    ):
        refused = await world.ask(method, f"/clusters/sim/{path}", 422, json=body)
        assert "There is no GPU model 'h1000'" in refused["detail"]
        assert "nvidia-h100-80gb" in refused["fix"]
    await declare(world, name="open", resourceGroups=gpus(4, "any"))


async def test_one_name_is_declared_once(world: World) -> None:
    await declare(world)
    assert (await declare(world, 409))["code"] == "queue_exists"


async def test_a_change_of_another_version_than_the_one_read_is_refused(world: World) -> None:
    made = await declare(world)
    path = "/clusters/sim/quotas/team"
    body = {"resourceGroups": gpus(4), "resourceVersion": made["resourceVersion"]}
    changed = await world.ask("PUT", path, json=body)
    assert changed["resourceVersion"] == made["resourceVersion"] + 1
    assert (await world.ask("PUT", path, 409, json=body))["code"] == "queue_changed"


async def test_a_quota_holds_jobs_back_until_others_end(world: World) -> None:
    await declare(world)
    await open_door(world)
    first = await world.submit(gpu_type="H100", gpu_count=2, spec=runs_for(100))
    second = await world.submit(gpu_type="H100", gpu_count=1, spec=runs_for(100))
    await world.turn(2)
    assert (await world.job(first["id"]))["queue"] == "sim/main"
    waiting = await world.job(second["id"])
    assert (waiting["status"], waiting["reason"]) == ("queued", "QuotaExceeded")
    await world.after(101)
    assert (await world.job(second["id"]))["status"] == "running"


async def test_a_job_that_asks_to_be_refused_rather_than_queued_is_refused(world: World) -> None:
    await declare(world)
    await open_door(world)
    await world.submit(gpu_type="H100", gpu_count=2, spec=runs_for(100))
    await world.turn(2)
    body: dict[str, Any] = {
        "name": "job",
        "cluster": "sim",
        "gpu_type": "H100",
        "gpu_count": 1,
        "spec": runs_for(10),
        "when_exceeded": "refuse",
    }  # fmt: skip - the body reads as one line
    answer = await world.http.post("/api/v1/jobs", json=body)
    assert answer.status_code == 429
    assert answer.json()["code"] == "quota_exceeded"
    assert int(answer.headers["retry-after"]) > 0
    assert len((await world.ask("GET", "/jobs"))["items"]) == 1


async def test_a_tenant_without_a_door_waits_with_that_reason(world: World) -> None:
    await declare(world)
    job = await world.submit(gpu_type="H100", gpu_count=1, spec=runs_for(100))
    await world.turn()
    assert (await world.job(job["id"]))["reason"] == "NoQueue"


async def test_a_door_for_a_job_type_comes_before_one_for_all(world: World) -> None:
    await declare(world)
    await declare(world, name="train", resourceGroups=gpus(4))
    await open_door(world)
    await open_door(world, name="training", clusterQueue="train", jobTypes=["training"])
    job = await world.submit(job_type="training", gpu_type="H100", gpu_count=4, spec=runs_for(100))
    await world.turn(2)
    assert (await world.job(job["id"]))["queue"] == "sim/training"


async def test_the_limit_of_a_door_holds_besides_the_quota(world: World) -> None:
    await declare(world, resourceGroups=gpus(8))
    limit = {"flavor": H100, "resource": "nvidia.com/gpu", "limit": 1}
    await open_door(world, limits=[limit])
    await world.submit(gpu_type="H100", gpu_count=1, spec=runs_for(100))
    second = await world.submit(gpu_type="H100", gpu_count=1, spec=runs_for(100))
    await world.turn(2)
    assert (await world.job(second["id"]))["reason"] == "LocalQueueLimitReached"


async def test_a_queue_borrows_in_its_cohort_up_to_its_limit(world: World) -> None:
    await declare(world, resourceGroups=gpus(2))
    await declare(world, name="idle", resourceGroups=gpus(4))
    cohort = await world.ask(
        "POST", "/clusters/sim/cohorts", 201, json={"name": "all", "members": ["team", "idle"]}
    )
    assert cohort["members"] == ["idle", "team"]
    await open_door(world)
    job = await world.submit(gpu_type="H100", gpu_count=5, spec=runs_for(100))
    await world.turn(2)
    assert (await world.job(job["id"]))["status"] == "running"
    alone = await world.ask("PUT", "/clusters/sim/cohorts/all", json={"members": ["idle"]})
    assert alone["members"] == ["idle"]


async def test_what_is_used_cannot_be_deleted(world: World) -> None:
    await declare(world, cohort="all")
    await world.ask("POST", "/clusters/sim/cohorts", 201, json={"name": "all"})
    await open_door(world)
    assert (await world.ask("DELETE", "/clusters/sim/quotas/team", 409))["code"] == "queue_in_use"
    assert (await world.ask("DELETE", "/clusters/sim/cohorts/all", 409))["code"] == "queue_in_use"
    job = await world.submit(gpu_type="H100", gpu_count=1, spec=runs_for(100))
    await world.turn(2)
    await declare(world, name="other")
    door = {"tenant": "default", "clusterQueue": "other"}
    await world.ask("PUT", "/clusters/sim/queues/main", json=door)
    refused = await world.ask("DELETE", "/clusters/sim/quotas/team", 409)
    assert "1 job holds devices" in refused["detail"]
    refused = await world.ask("DELETE", "/clusters/sim/queues/main?tenant=default", 409)
    assert refused["detail"] == (
        f"1 job holds devices or waits through LocalQueue main of default on sim: {job['name']}."
    )
    await world.ask("DELETE", f"/jobs/{job['id']}")
    await world.after(1)
    await world.ask("DELETE", "/clusters/sim/queues/main?tenant=default")
    await world.ask("DELETE", "/clusters/sim/quotas/team")
    await world.ask("DELETE", "/clusters/sim/cohorts/all")


async def test_a_circle_of_cohorts_is_refused(world: World) -> None:
    await world.ask("POST", "/clusters/sim/cohorts", 201, json={"name": "a", "parent": "b"})
    refused = await world.ask(
        "POST", "/clusters/sim/cohorts", 422, json={"name": "b", "parent": "a"}
    )
    assert (refused["field"], "cycle" in refused["detail"]) == ("parent", True)


async def test_a_tenant_sees_its_own_queues_and_changes_none(world: World) -> None:
    await declare(world)
    await open_door(world)
    tenant, project = await world.server.make_tenant("other")
    await open_door(world, name="theirs", tenant="other")
    _, token = await world.server.make_user("eve", Role.ADMIN, tenant, project, on="tenant")
    eve = world.server.client(token)
    seen = (await eve.get("/api/v1/clusters/sim/queues")).json()
    assert [each["name"] for each in seen["items"]] == ["theirs"]
    events = (await eve.get("/api/v1/events?kind=queue.created")).json()["items"]
    assert ["the local queue theirs of other on sim." in each["message"] for each in events] == [
        True
    ]
    answer = await eve.post("/api/v1/clusters/sim/quotas", json={"name": "mine"})
    assert answer.status_code == 403


async def test_use_of_quota_is_told_by_queue_cohort_and_door(world: World) -> None:
    await declare(world, cohort="all", resourceGroups=gpus(2))
    await declare(world, name="idle", cohort="all", resourceGroups=gpus(4))
    await open_door(world)
    await world.submit(gpu_type="H100", gpu_count=3, spec=runs_for(100))
    await world.turn(2)
    found = await world.ask("GET", "/clusters/sim/queue-usage")
    team = next(each for each in found["clusterQueues"] if each["name"] == "team")
    row = team["resources"][0]
    assert (row["nominal"], row["used"], row["borrowed"], row["available"]) == ("2", "3", "1", "3")
    assert team["jobs"] == 1
    door = found["localQueues"][0]
    assert (door["tenant"], door["resources"][0]["used"]) == ("default", "3")
    cohort = found["cohorts"][0]
    assert (cohort["name"], cohort["resources"][0]["used"]) == ("all", "3")


async def test_a_cohort_that_is_merely_named_is_refused_by_who_names_it(world: World) -> None:
    await declare(world, cohort="co")
    refused = await world.ask("DELETE", "/clusters/sim/cohorts/co", 409)
    assert (refused["code"], refused["detail"]) == ("queue_in_use", "team is in co.")
    await world.ask("DELETE", "/clusters/sim/cohorts/absent", 404)


async def test_the_event_of_a_price_tells_it_in_units_of_its_currency(world: World) -> None:
    price = {"item": "cpu", "price": "2.5", "currency": "USD"}
    await world.ask("POST", "/prices", 201, json=price)
    found = await world.ask("GET", "/events?limit=200")
    said = [each["message"] for each in found["items"] if each["kind"] == "price.added"]
    assert said[-1:] == ["cpu costs 2.50 USD an hour."]


async def test_a_tenant_that_there_is_not_is_refused_with_those_that_there_are(
    world: World,
) -> None:
    await declare(world)
    await world.ask("POST", "/tenants", 201, json={"name": "acme"})
    refused = await open_door(world, 422, tenant="nosuch")
    assert refused["detail"].endswith("There is no tenant 'nosuch'.")
    assert refused["fix"] == "Known: acme, default. `gpuplane tenants ls` lists them."


async def test_names_of_32_hexadecimal_digits_are_no_ids(world: World) -> None:
    name = "d41d8cd98f00b204e9800998ecf8427e"
    await world.ask("POST", "/tenants", 201, json={"name": name})
    await world.ask("POST", "/projects", 201, json={"name": name})
    await world.server.database.write(
        "tests.lab",
        lambda s: clusters.ensure_cluster(
            s, ClusterId(new_id()), name=name, kind="kubernetes", simulated=False, config={}, now=1
        ),
    )
    await world.ask("GET", f"/clusters/{name}")
    body = {"name": "team", "resourceGroups": gpus(2)}
    await world.ask("POST", f"/clusters/{name}/quotas", 201, json=body)
    for tenant in (name, "default"):
        door = {"name": "main", "tenant": tenant, "clusterQueue": "team"}
        await world.ask("POST", f"/clusters/{name}/queues", 201, json=door)
    await world.ask("GET", f"/clusters/{name}/usage/{name}")
    assert (await world.submit(project=name, gpu_type="H100", gpu_count=1))["project"] == name
