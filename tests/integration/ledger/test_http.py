"""The API over the ledger: what was used and costs, what is held and left, reservations."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.core.ids import ClusterId, ProjectId, TenantId
from gpuplane.domains.clusters import service as clusters
from gpuplane.kit.access import Role
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.ids import new_id
from tests.http_app import Server
from tests.integration.ledger.histories import HOUR_MS, MODEL, a_node
from tests.integration.ledger.worlds import World


async def a_world(
    server: Server,
    name: str = "real",
    place: tuple[TenantId, ProjectId] | None = None,
    *,
    simulated: bool = False,
) -> World:
    """Return a registered cluster with one node; its clock stands two hours before now."""
    now = server.clock.now_ms() - 2 * HOUR_MS
    cluster = await server.database.write(
        "tests.cluster",
        lambda s: clusters.ensure_cluster(
            s,
            ClusterId(new_id()),
            name=name,
            kind="local",
            simulated=simulated,
            config={},
            now=now,
        ),
    )
    admin = server.admin
    world = World(
        server.database,
        now=now,
        cluster_id=cluster.id,
        place=place or (admin.tenant_id, admin.project_id),
    )
    if simulated:
        node = a_node(cluster.id, 2, "simulated")
        world.node, world.gpus = node, [gpu.gpu_id for gpu in node.gpus]
        world.register(node, simulated=True)
    return world


def body_of_a_reservation(world: World, **change: Any) -> dict[str, Any]:
    start = world.now + 3 * HOUR_MS
    return {
        "cluster": "real",
        "model": "A100-80GB",
        "count": 2,
        "start": instant_to_text(start),
        "end": instant_to_text(start + HOUR_MS),
        **change,
    }


async def test_use_is_answered_with_its_cost(any_server: Server) -> None:
    world = await a_world(any_server)
    world.price(MODEL, 2_500_000)
    order = world.run(world.replica(world.gpus[0], cpu_milli=0, memory_mib=0))
    world.now += HOUR_MS
    world.release(order)
    answer = await any_server.http.get("/api/v1/usage", params={"group_by": ["job", "model"]})
    assert answer.status_code == 200, answer.text
    (row,) = answer.json()["rows"]
    assert row["keys"] == {"job": str(order.job_id), "model": MODEL}
    assert (row["gpu_busy_s"], row["gpu_idle_s"]) == (3600.0, 0.0)
    assert row["cost"] == {"USD": "2.50"}
    assert row["lines"][0]["hours"] == 1.0
    assert answer.json()["cost"] == {"USD": "2.50"}


async def test_simulated_use_is_labelled_and_left_out_of_the_real_cost(server: Server) -> None:
    world = await a_world(server, "demo", simulated=True)
    world.price(MODEL, 1_000_000)
    order = world.run(world.replica(world.gpus[0], cpu_milli=0, memory_mib=0))
    world.now += HOUR_MS
    world.release(order)
    answer = (await server.http.get("/api/v1/usage")).json()
    assert [row["simulated"] for row in answer["rows"]] == [True]
    assert (answer["cost"], answer["simulated_cost"]) == ({}, {"USD": "1.00"})
    real = (await server.http.get("/api/v1/usage", params={"simulated": "false"})).json()
    assert real["rows"] == []


async def test_a_member_is_told_of_its_own_projects_only(server: Server) -> None:
    tenant_id, project_id = await server.make_tenant("acme")
    world = await a_world(server)
    theirs = world.run(world.replica(world.gpus[0]))
    world.tenant_id, world.project_id = tenant_id, project_id
    mine = world.run(world.replica(world.gpus[1]))
    _, token = await server.make_user("ada", Role.VIEWER, tenant_id, project_id)
    client = server.client(token)
    rows = (await client.get("/api/v1/usage", params={"group_by": "job"})).json()["rows"]
    assert [row["keys"]["job"] for row in rows] == [str(mine.job_id)]
    held = (await client.get("/api/v1/clusters/real/usage")).json()["queues"]
    assert [(row["tenant_id"], row["gpu_milli"]) for row in held] == [(str(tenant_id), 1000)]
    seen = (
        await client.get(
            "/api/v1/clusters/real/timeline", params={"from": instant_to_text(world.now - HOUR_MS)}
        )
    ).json()
    jobs = {
        share["job_id"]
        for device in seen["devices"]
        for interval in device["intervals"]
        for share in interval["shares"]
    }
    assert jobs == {None, str(mine.job_id)}
    foreign = await client.get("/api/v1/usage", params={"tenant_id": str(theirs.tenant_id)})
    assert foreign.status_code == 404
    named = await client.get("/api/v1/clusters/real/usage/default")
    assert named.status_code == 404


async def test_the_states_of_all_devices_add_up(any_server: Server) -> None:
    world = await a_world(any_server)
    world.run(world.replica(world.gpus[0]))
    answer = (await any_server.http.get("/api/v1/usage/devices")).json()
    (cluster,) = answer["clusters"]
    assert answer["adds_up"] is True
    assert sum(cluster["states_ms"].values()) == cluster["wall_clock_ms"]
    assert cluster["states_ms"]["busy"] * 3 == cluster["states_ms"]["free"]


async def test_a_cluster_says_what_is_left_of_it(any_server: Server) -> None:
    world = await a_world(any_server)
    world.run(world.replica(world.gpus[0], milli=400, cpu_milli=4000))
    answer = await any_server.http.get("/api/v1/clusters/real/capacity")
    assert answer.status_code == 200, answer.text
    (model,) = answer.json()["models"]
    counts = {name: model[name] for name in ("total", "free", "reserved", "in_use", "down")}
    assert counts == {"total": 4, "free": 3, "reserved": 0, "in_use": 1, "down": 0}
    assert model["partly_free_milli"] == 600
    assert answer.json()["cpu_milli"] == {"total": 64_000, "free": 60_000}


async def test_a_tenants_use_of_a_cluster_is_found_by_name_or_id(server: Server) -> None:
    world = await a_world(server)
    world.run(world.replica(world.gpus[0]))
    for key in ("default", str(world.tenant_id)):
        answer = await server.http.get(f"/api/v1/clusters/real/usage/{key}")
        assert [row["job_count"] for row in answer.json()["queues"]] == [1]
    assert (await server.http.get("/api/v1/clusters/none/usage")).status_code == 404


async def test_prices_are_added_and_listed_with_their_history(any_server: Server) -> None:
    http = any_server.http
    first = await http.post("/api/v1/prices", json={"item": "H100", "price": "2.10"})
    assert first.status_code == 201, first.text
    assert first.json()["unit"] == "GPU-hour"
    await http.post("/api/v1/prices", json={"item": "h100-80gb", "price": "2.50"})
    listed = (await http.get("/api/v1/prices", params={"item": "H100"})).json()["items"]
    assert [price["price"] for price in listed] == ["2.10", "2.50"]


async def test_the_prices_of_a_cluster_are_told_with_its_name_even_when_it_is_gone(
    server: Server,
) -> None:
    world = await a_world(server)
    await server.http.post("/api/v1/prices", json={"item": "T4", "price": "1", "cluster": "real"})
    listed = (await server.http.get("/api/v1/prices")).json()
    assert listed["cluster_names"] == {str(world.cluster_id): "real"}
    await server.database.write(
        "tests.remove", lambda s: clusters.remove(s, world.cluster_id, world.now)
    )
    listed = (await server.http.get("/api/v1/prices")).json()
    assert listed["cluster_names"] == {str(world.cluster_id): "real (deleted)"}


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"model": "H1000"}, "model", "Nearest models"),
        ({"model": "T4"}, "model", "It has"),
        ({"count": 5}, "count", "at most 4"),
        ({"count": 0}, "count", ""),
        ({"start": "2020-01-01T00:00:00Z"}, "start", "from now on"),
        ({"end": "2020-01-01T00:00:00Z"}, "end", "end after"),
        ({"end": "2199-01-01T00:00:00Z"}, "end", "shorter"),
        ({"start": "soon"}, "start", ""),
        ({"colour": "red"}, "colour", ""),
    ],
)
async def test_a_reservation_that_cannot_hold_is_refused_with_its_field(
    server: Server, change: dict[str, Any], field: str, said: str
) -> None:
    world = await a_world(server)
    body = body_of_a_reservation(world, **change)
    answer = await server.http.post("/api/v1/capacity/reservations", json=body)
    problem = answer.json()
    assert 400 <= answer.status_code < 500
    fields = {problem.get("field"), *(each["field"] for each in problem.get("errors", []))}
    assert field in fields
    assert said in problem["fix"]


async def test_a_reservation_is_made_found_and_given_up(any_server: Server) -> None:
    world = await a_world(any_server)
    http = any_server.http
    key = {"Idempotency-Key": "hold"}
    body = body_of_a_reservation(world)
    made = await http.post("/api/v1/capacity/reservations", json=body, headers=key)
    assert made.status_code == 201, made.text
    again = await http.post("/api/v1/capacity/reservations", json=body, headers=key)
    assert again.json() == made.json()
    assert made.json()["model"] == MODEL
    path = f"/api/v1/capacity/reservations/{made.json()['id']}"
    assert (await http.get(path)).json()["state"] == "scheduled"
    listed = (await http.get("/api/v1/capacity/reservations", params={"cluster": "real"})).json()
    assert [each["id"] for each in listed["items"]] == [made.json()["id"]]
    assert (await http.delete(path)).json()["state"] == "cancelled"
    assert (await http.delete(path)).status_code == 409
    assert (await http.get(f"/api/v1/capacity/reservations/{new_id()}")).status_code == 404


async def test_a_reservation_needs_the_right_on_its_project(server: Server) -> None:
    tenant_id, project_id = await server.make_tenant("acme")
    world = await a_world(server)
    body = body_of_a_reservation(world)
    made = await server.http.post("/api/v1/capacity/reservations", json=body)
    _, member = await server.make_user("ada", Role.MEMBER, tenant_id, project_id)
    refused = await server.client(member).post("/api/v1/capacity/reservations", json=body)
    assert refused.status_code == 403
    _, operator = await server.make_user("bob", Role.OPERATOR, tenant_id, project_id)
    client = server.client(operator)
    mine = await client.post("/api/v1/capacity/reservations", json=body)
    assert mine.json()["project_id"] == str(project_id)
    path = f"/api/v1/capacity/reservations/{made.json()['id']}"
    assert (await client.get(path)).status_code == 404
    assert (await client.delete(path)).status_code == 404
    listed = (await client.get("/api/v1/capacity/reservations")).json()["items"]
    assert [each["id"] for each in listed] == [mine.json()["id"]]


@pytest.mark.parametrize(
    "params",
    [
        {"group_by": "colour"},
        {"label": "no-equals"},
        {"label": 'a"b=c'},
        {"queue": "a\x00b"},
        {"device": "\x00"},
        {"cluster": "\x00"},
        {"from": "yesterday"},
        {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"},
        {"group_by": "day", "from": "2020-01-01T00:00:00Z"},
        {"cluster": "nowhere"},
    ],
)
async def test_a_question_that_cannot_be_answered_is_refused(
    any_server: Server, params: dict[str, str]
) -> None:
    answer = await any_server.http.get("/api/v1/usage", params=params)
    assert 400 <= answer.status_code < 500
    assert answer.json()["detail"]
