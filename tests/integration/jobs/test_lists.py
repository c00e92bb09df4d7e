"""Lists of jobs: filters, order, pages, and that every filter is answered from an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Executable, RowMapping, text
from sqlalchemy.dialects import sqlite

from gpuplane.db.sessions import ReadSession
from gpuplane.domains.jobs.repository import listing
from gpuplane.domains.jobs.rules import JobFilter
from gpuplane.kit.access import Role
from gpuplane.kit.pagination import PageRequest
from tests.integration.jobs.worlds import World, runs_for


async def names(world: World, query: str = "") -> list[str]:
    found = await world.ask("GET", f"/jobs?{query}")
    return [each["name"] for each in found["items"]]


async def fill(world: World) -> dict[str, dict[str, Any]]:
    """Submit jobs that differ in everything a list is narrowed by."""
    made: dict[str, dict[str, Any]] = {}
    for name, fields in {
        "alpha": {"labels": {"team": "red", "run": "1"}, "priority": "high"},
        "alpine": {"labels": {"team": "red", "run": "2"}, "job_type": "training"},
        "beta": {"gpu_type": "T4", "gpu_count": 1, "cost_centre": "cc1"},
        "gamma": {"data_classification": "secret", "labels": {"team": "blue"}},
        "delta": {
            "source_type": "pipeline",
            "pipeline_id": "00000000-0000-7000-8000-000000000001",
        },
    }.items():
        world.server.clock.advance(1)
        made[name] = await world.submit(name=name, spec=runs_for(10), **fields)
    return made


async def test_jobs_are_listed_newest_first(world: World) -> None:
    await fill(world)
    assert await names(world) == ["delta", "gamma", "beta", "alpine", "alpha"]
    assert await names(world, "sort=created_at") == ["alpha", "alpine", "beta", "gamma", "delta"]
    assert await names(world, "sort=-name") == ["gamma", "delta", "beta", "alpine", "alpha"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("name=alp", ["alpha", "alpine"]),
        ("name=alp&sort=-created_at", ["alpine", "alpha"]),
        ("label=team=red", ["alpine", "alpha"]),
        ("label=team=red&label=run=2", ["alpine"]),
        ("label=team=green", []),
        ("priority=high", ["alpha"]),
        ("job_type=training", ["alpine"]),
        ("gpu_type=Tesla%20T4", ["beta"]),
        ("cost_centre=cc1", ["beta"]),
        ("data_classification=secret", ["gamma"]),
        ("source_type=pipeline", ["delta"]),
        ("source_id=00000000-0000-7000-8000-000000000001", ["delta"]),
        ("source_type=direct&limit=2", ["gamma", "beta"]),
        ("cluster=sim&limit=1", ["delta"]),
        ("status=completed", []),
        ("status=queued&status=running&label=team=red", ["alpine", "alpha"]),
    ],
)
async def test_a_filter_narrows_the_list(any_world: World, query: str, expected: list[str]) -> None:
    await fill(any_world)
    assert await names(any_world, query) == expected


async def test_a_list_of_a_cluster_that_is_not_there_is_refused_by_field(world: World) -> None:
    refused = await world.ask("GET", "/jobs?cluster=nowhere", 404)
    assert (refused["field"], refused["detail"]) == ("cluster", "There is no cluster 'nowhere'.")
    assert "sim" in refused["fix"]


async def test_a_list_is_narrowed_by_when_jobs_were_created(world: World) -> None:
    made = await fill(world)
    since = made["beta"]["created_at"]
    assert await names(world, f"created_since={since}") == ["delta", "gamma", "beta"]
    assert await names(world, f"created_until={since}") == ["alpine", "alpha"]


@pytest.mark.parametrize(
    "query", ["", "sort=name", "status=queued&status=running", "label=all=yes"]
)
async def test_pages_hold_every_job_once_and_in_order(any_world: World, query: str) -> None:
    world = any_world
    for index in range(7):
        world.server.clock.advance(index % 2)  # some are of the same instant
        await world.submit(name=f"job-{index}", labels={"all": "yes"}, spec=runs_for(10))
    whole = await names(world, query)
    seen: list[str] = []
    cursor = ""
    while True:
        found = await world.ask("GET", f"/jobs?limit=3&{query}{cursor}")
        seen += [each["name"] for each in found["items"]]
        if "next_cursor" not in found or found["next_cursor"] is None:
            break
        cursor = f"&cursor={found['next_cursor']}"
    assert seen == whole
    assert len(seen) == 7


async def test_a_cursor_of_another_order_is_refused(world: World) -> None:
    await fill(world)
    found = await world.ask("GET", "/jobs?limit=2")
    refused = await world.ask("GET", f"/jobs?sort=name&cursor={found['next_cursor']}", 400)
    assert refused["field"] == "cursor"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("label=team", "label"),
        ("status=sleeping", "status[0]"),
        ("gpu_type=H1O0", "gpu_type"),
        ("sort=colour", "sort"),
        ("limit=0", "limit"),
        ("project_id=x", "project_id"),
        ("nonsense=1", "nonsense"),
    ],
)
async def test_a_filter_that_cannot_be_meant_is_refused(
    world: World, query: str, field: str
) -> None:
    answer = await world.http.get(f"/api/v1/jobs?{query}")
    assert answer.status_code in (400, 422)
    assert answer.json()["field"] == field


@pytest.mark.parametrize(
    ("query", "field", "values"),
    [
        ("status=sleeping", "status[0]", ["pending", "queued", "running", "preempted"]),
        ("priority=urgent", "priority", ["critical", "high", "normal", "low", "spot"]),
        ("job_type=cron", "job_type", ["batch", "service", "training"]),
        ("source_type=git", "source_type", ["direct", "pipeline", "usecase"]),
        ("gpu_type=H1O0", "gpu_type", ["nvidia-h100-80gb"]),
    ],
)
async def test_a_value_that_a_filter_cannot_have_is_refused_with_those_it_can(
    world: World, query: str, field: str, values: list[str]
) -> None:
    refused = await world.ask("GET", f"/jobs?{query}", 422)
    assert refused["field"] == field
    told = f"{refused['detail']} {refused['fix']}"
    assert [each for each in values if each not in told] == []


async def test_a_member_sees_the_jobs_of_its_projects_alone(world: World) -> None:
    await fill(world)
    tenant, project = await world.server.make_tenant("team")
    other = await world.server.make_project(tenant, "other")
    for name, place in (("mine", project), ("theirs", other)):
        _, token = await world.server.make_user(f"user-{name}", Role.MEMBER, tenant, place)
        body = {"name": name, "cluster": "sim", "spec": runs_for(10)}
        answer = await world.server.client(token).post("/api/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
    seen = await world.server.client(token).get("/api/v1/jobs")
    assert [each["name"] for each in seen.json()["items"]] == ["theirs"]
    _, both = await world.server.make_user("lead", Role.VIEWER, tenant, project, on="tenant")
    seen = await world.server.client(both).get("/api/v1/jobs")
    assert {each["name"] for each in seen.json()["items"]} == {"mine", "theirs"}


ANY = UUID(int=7)


class Listening(ReadSession):
    """A session that remembers what it was asked, as text."""

    def __init__(self, sql: Connection) -> None:
        super().__init__(sql)
        self.asked: list[str] = []

    def rows(self, statement: Executable) -> Sequence[RowMapping]:
        compiled = statement.compile(
            dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}
        )
        self.asked.append(str(compiled))
        return super().rows(statement)


@pytest.mark.parametrize(
    "wanted",
    [
        JobFilter(),
        JobFilter(statuses=("failed",)),
        JobFilter(job_type="batch"),
        JobFilter(priority="high"),
        JobFilter(cluster_id=ANY),
        JobFilter(tenant_id=ANY),
        JobFilter(project_id=ANY),
        JobFilter(source_type="pipeline"),
        JobFilter(source_id="x"),
        JobFilter(source_type="pipeline", source_id="x"),
        JobFilter(labels=(("a", "b"),)),
        JobFilter(queue="x"),
        JobFilter(gpu_model="x"),
        JobFilter(cost_centre="x"),
        JobFilter(data_classification="x"),
        JobFilter(user_id=ANY),
        JobFilter(user_id=ANY, job_type="batch", statuses=("failed",)),
        JobFilter(created_since=5, created_until=9),
    ],
    ids=repr,
)
async def test_every_filter_is_answered_from_an_index_in_the_order_of_the_list(
    world: World, wanted: JobFilter
) -> None:
    def plan(session: ReadSession) -> list[str]:
        listening = Listening(session.sql)
        listing.list_jobs(listening, wanted, None, PageRequest(50), "-created_at")
        found = session.rows(text(f"EXPLAIN QUERY PLAN {listening.asked[0]}"))
        return [row["detail"] for row in found]

    steps = await world.server.database.read(plan)
    assert not [step for step in steps if "TEMP B-TREE" in step], steps
    assert not [step for step in steps if step.startswith("SCAN") and "INDEX" not in step], steps
