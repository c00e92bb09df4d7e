"""Runs over HTTP: who sees them, what people do to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplane.core.runs.plans import RunPlan
from gpuplane.domains.runs import service as runs
from gpuplane.kit.access import Role
from gpuplane.kit.sealing import SealingKeys
from tests.http_app import Server, sealing_keys
from tests.integration.runs.worlds import a_step
from tests.whole_app import whole_server

__all__ = ["sealing_keys"]

PREFIX = "/api/v1"


async def start(server: Server, *steps: Any, **more: Any) -> str:
    """Start a run in the admin's project; no loop runs it."""
    admin = server.admin
    told = {
        "kind": "test", "name": "r", "tenant_id": admin.tenant_id, "project_id": admin.project_id
    }  # fmt: skip
    plan = RunPlan(steps=steps or (a_step("a"), a_step("b", "a")), **(told | more))
    now = server.clock.now_ms()
    run = await server.database.write("tests.start", lambda s: runs.start_run(s, plan, now))
    return str(run.id)


@pytest.fixture
async def whole(tmp_path: Path, sealing_keys: SealingKeys) -> Any:
    async with whole_server(tmp_path, sealing_keys) as server:
        yield server


async def test_a_run_and_its_steps_are_shown(whole: Server) -> None:
    run_id = await start(whole, params={"model": "small"})
    run = (await whole.http.get(f"{PREFIX}/runs/{run_id}")).json()
    assert (run["status"], run["left"], run["params"]) == ("pending", 2, {"model": "small"})
    steps = (await whole.http.get(f"{PREFIX}/runs/{run_id}/steps")).json()["items"]
    assert [(step["key"], step["status"]) for step in steps] == [("a", "pending"), ("b", "waiting")]
    one = await whole.http.get(f"{PREFIX}/runs/{run_id}/steps/b")
    assert one.json()["needs"] == [1]
    listed = (await whole.http.get(f"{PREFIX}/runs?status=pending&kind=test")).json()["items"]
    assert [each["id"] for each in listed] == [run_id]


async def test_what_people_do_to_a_run_changes_it_and_is_refused_in_the_wrong_state(
    whole: Server,
) -> None:
    run_id = await start(whole)
    for verb, condition in (("pause", "Paused"), ("resume", ""), ("cancel", "")):
        answer = await whole.http.post(f"{PREFIX}/runs/{run_id}/{verb}")
        assert (answer.status_code, answer.json()["condition"]) == (200, condition)
    assert answer.json()["status"] == "cancelled"
    refused = await whole.http.post(f"{PREFIX}/runs/{run_id}/resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "run_state")
    again = await whole.http.post(f"{PREFIX}/runs/{run_id}/rerun")
    assert (again.status_code, again.json()["status"]) == (200, "running")
    cancelled = await whole.http.post(f"{PREFIX}/runs/{run_id}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    retried = await whole.http.post(f"{PREFIX}/runs/{run_id}/steps/a/retry")
    assert (retried.status_code, retried.json()["left"]) == (200, 2)


async def test_a_verb_with_an_idempotency_key_is_done_once(whole: Server) -> None:
    run_id = await start(whole)
    headers = {"Idempotency-Key": "fork-once"}
    body = {"step": "b"}
    first = await whole.http.post(f"{PREFIX}/runs/{run_id}/fork", json=body, headers=headers)
    second = await whole.http.post(f"{PREFIX}/runs/{run_id}/fork", json=body, headers=headers)
    assert first.status_code == 201
    assert first.json() == second.json()
    assert first.json()["forked_from"] == run_id
    assert len((await whole.http.get(f"{PREFIX}/runs")).json()["items"]) == 2


async def test_an_event_that_nobody_awaits_is_kept_and_one_to_a_run_that_is_over_refused(
    whole: Server,
) -> None:
    run_id = await start(whole)
    sent = await whole.http.post(f"{PREFIX}/runs/{run_id}/events", json={"name": "go"})
    assert (sent.status_code, sent.json()) == (200, {"delivered": 0})
    await whole.http.post(f"{PREFIX}/runs/{run_id}/cancel")
    refused = await whole.http.post(f"{PREFIX}/runs/{run_id}/events", json={"name": "go"})
    assert refused.status_code == 409


async def test_runs_of_another_tenant_are_not_found_and_a_viewer_only_looks(whole: Server) -> None:
    run_id = await start(whole)
    rival, far = await whole.make_tenant("rival")
    _, stranger = await whole.make_user("stranger", Role.ADMIN, rival, far)
    client = whole.client(stranger)
    assert (await client.get(f"{PREFIX}/runs/{run_id}")).status_code == 404
    assert (await client.post(f"{PREFIX}/runs/{run_id}/cancel")).status_code == 404
    assert (await client.get(f"{PREFIX}/runs")).json()["items"] == []
    admin = whole.admin
    _, viewer = await whole.make_user("viewer", Role.VIEWER, admin.tenant_id, admin.project_id)
    client = whole.client(viewer)
    assert (await client.get(f"{PREFIX}/runs/{run_id}/steps")).status_code == 200
    assert (await client.post(f"{PREFIX}/runs/{run_id}/cancel")).status_code == 403


async def test_a_run_that_acts_on_a_cluster_is_changed_only_by_who_may_change_clusters(
    whole: Server,
) -> None:
    run_id, plain = await start(whole, kind="cluster.delete"), await start(whole)
    admin = whole.admin
    _, token = await whole.make_user("lead", Role.ADMIN, admin.tenant_id, admin.project_id)
    client = whole.client(token)
    bodies: dict[str, Any] = {"fork": {"step": "b"}, "events": {"name": "go"}}
    for verb in ("cancel", "pause", "resume", "rerun", "fork", "steps/a/retry", "events"):
        answer = await client.post(f"{PREFIX}/runs/{run_id}/{verb}", json=bodies.get(verb))
        assert (verb, answer.status_code) == (verb, 403)
        assert answer.json()["permission"] == "cluster:manage"
    assert (await client.get(f"{PREFIX}/runs/{run_id}")).json()["status"] == "pending"
    assert (await client.post(f"{PREFIX}/runs/{plain}/cancel")).status_code == 200
    assert (await whole.http.post(f"{PREFIX}/runs/{run_id}/cancel")).status_code == 200
