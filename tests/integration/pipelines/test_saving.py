"""Pipelines are kept in versions that never change, apart by tenant, and out of reach of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import yaml
from sqlalchemy import text

from gpuplane.domains.pipelines import service as pipelines
from gpuplane.kit.access import Role
from tests.integration.pipelines.worlds import World, a_pipeline, a_step

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"


async def test_only_a_change_makes_a_version_and_a_rollback_is_one_too(any_world: World) -> None:
    first, second = a_pipeline(a_step("a", expression="1")), a_pipeline(a_step("a", expression="2"))
    made = await any_world.save(first)
    path = f"/pipelines/{made['pipeline']['id']}"
    assert (made["version"], made["created"], made["changed"]) == (1, True, True)
    same = await any_world.save({key: first[key] for key in reversed(first)})
    assert (same["version"], same["changed"]) == (1, False)
    assert (await any_world.save(second))["version"] == 2
    told = await any_world.get(f"{path}/diff?old=1&new=2")
    assert told["changes"] == [
        {"path": "spec.steps[a].config.expression", "kind": "changed", "old": "1", "new": "2"}
    ]
    back = await any_world.post(f"{path}/rollback?version=1")
    assert (back["version"], back["changed"]) == (3, True)
    versions = (await any_world.get(f"{path}/versions"))["items"]
    assert [(each["number"], each["rolled_back_from"]) for each in versions] == [
        (3, 1), (2, None), (1, None)
    ]  # fmt: skip
    assert (await any_world.get(path))["document"] == first
    assert (await any_world.get(f"{path}/versions/2"))["document"] == second
    for version, result in ((2, 2), (3, 1), (2, 2), (1, 1)):
        run = await any_world.post(f"{path}/runs", {"version": version}, 202)
        assert (await any_world.ended(run["id"])).output("a") == {"result": result}
    gone = await any_world.http.post(f"/api/v1{path}/runs", json={"version": 4})
    assert (gone.status_code, gone.json()["field"]) == (404, "version")


async def test_somebody_who_changes_an_older_version_is_told(world: World) -> None:
    await world.save(a_pipeline(a_step("a", expression="1")))
    document = a_pipeline(a_step("a", expression="2"))
    stale = await world.http.put("/api/v1/pipelines?expected_version=7", json=document)
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_version")
    good = await world.http.put("/api/v1/pipelines?expected_version=1", json=document)
    assert good.json()["version"] == 2


async def test_an_export_can_be_imported_again(world: World) -> None:
    document = yaml.safe_load((EXAMPLES / "hello.yaml").read_text())
    saved = await world.save(document)
    answer = await world.http.get(f"/api/v1/pipelines/{saved['pipeline']['id']}/export")
    assert answer.headers["content-type"].startswith("application/yaml")
    again = await world.post("/pipelines/import", {"text": answer.text}, 201)
    assert (again["created"], again["changed"]) == (False, False)
    renamed = answer.text.replace("name: hello\n", "name: other\n", 1)
    assert (await world.post("/pipelines/import", {"text": renamed}, 201))["created"] is True


async def test_an_export_with_every_trigger_and_secret_header_says_the_same_when_imported(
    world: World,
) -> None:
    for name in ("hook", "key"):
        await world.post("/secrets", {"name": name, "value": "hunter2"}, 201)
    headers = {
        "Authorization": {"secret": "key", "prefix": "Bearer "},
        "X-Signed": {"secret": "key"},
        "X-Team": "ml",
    }
    call = a_step("ask", "api_call", url="http://127.0.0.1/?n=1", headers=headers)
    looked = {"endpoint": world.receiver.url, "bucket": "data", "access_key": "key",
              "secret_key": "key", "notifications": {"secret": "hook"}}  # fmt: skip
    document = a_pipeline(
        call,
        a_step("again", "loop", over=[1], steps=[{**call, "id": "inner"}]),
        a_step("work", "job", spec={"command": ["x"], "secrets": [{"name": "key", "env": "A"}]}),
        triggers=[
            {"type": "scheduled", "cron": "0 2 * * *"},
            {"type": "event", "webhook": {"secret": "hook"}},
            {"type": "event", "folder": {"path": str(world.folder)}},
            {"type": "event", "bucket": looked},
            {"type": "pipeline", "pipeline": "other"},
        ],
    )
    saved = await world.save(document)
    answer = await world.http.get(f"/api/v1/pipelines/{saved['pipeline']['id']}/export")
    assert "hunter2" not in answer.text
    told = await world.post("/pipelines/check", yaml.safe_load(answer.text))
    assert (told["would_create"], told["changes"]) == (False, [])
    again = await world.post("/pipelines/import", {"text": answer.text}, 201)
    assert (again["created"], again["changed"]) == (False, False)


async def test_a_secret_in_an_address_is_not_exported(world: World) -> None:
    call = a_step("ask", "api_call", url="http://127.0.0.1/?token=abcSECRET&n=1")
    saved = await world.save(a_pipeline(call))
    answer = await world.http.get(f"/api/v1/pipelines/{saved['pipeline']['id']}/export")
    assert "abcSECRET" not in answer.text
    assert "?token=&n=1" in answer.text


async def test_a_check_tells_what_would_change_and_stores_nothing(world: World) -> None:
    document = a_pipeline(a_step("a", expression="1"))
    told = await world.post("/pipelines/check", document)
    assert (told["would_create"], told["step_count"], told["changes"]) == (True, 1, [])
    assert (await world.get("/pipelines"))["items"] == []


async def test_an_archived_pipeline_starts_nothing_and_one_with_open_runs_stays(
    world: World,
) -> None:
    run_id = await world.start(a_pipeline(a_step("w", "wait", wait_for_event="go")))
    pipeline = (await world.get("/pipelines"))["items"][0]
    path = f"/pipelines/{pipeline['id']}"
    refused = await world.http.delete(f"/api/v1{path}")
    assert (refused.status_code, refused.json()["code"]) == (409, "pipeline_in_use")
    assert (await world.post(f"{path}/archive"))["status"] == "archived"
    answer = await world.http.post(f"/api/v1{path}/runs")
    assert (answer.status_code, answer.json()["code"]) == (409, "pipeline_archived")
    await world.post(f"/runs/{run_id}/cancel")
    await world.ended(run_id)
    assert (await world.http.delete(f"/api/v1{path}")).status_code == 200
    assert (await world.http.get(f"/api/v1{path}")).status_code == 404
    assert (await world.get(f"/runs/{run_id}"))["status"] == "cancelled"


async def test_the_three_ways_to_start_are_one_and_a_key_starts_once(world: World) -> None:
    saved = await world.save(a_pipeline(a_step("a"), parameters={"n": 1}))
    path = f"/api/v1/pipelines/{saved['pipeline']['id']}"
    ids = set()
    for verb in ("runs", "trigger", "execute"):
        answer = await world.http.post(f"{path}/{verb}", json={"parameters": {"n": 2}})
        assert (answer.status_code, answer.json()["params"]) == (202, {"n": 2})
        ids.add(answer.json()["id"])
    assert len(ids) == 3
    headers = {"Idempotency-Key": "once"}
    twice = await asyncio.gather(
        *(world.http.post(f"{path}/runs", json={}, headers=headers) for _ in range(2))
    )
    assert len({each.json()["id"] for each in twice}) == 1
    dedup = [await world.http.post(f"{path}/runs", json={"dedup_id": "d"}) for _ in range(2)]
    assert len({each.json()["id"] for each in dedup}) == 1
    others = {"parameters": {"n": 7}, "dedup_id": "d"}
    answer = await world.http.post(f"{path}/runs", json=others)
    assert (answer.status_code, answer.json()["code"]) == (409, "run_exists")
    assert answer.json()["field"] == "dedup_id"
    listed = await world.get(f"/pipelines/{saved['pipeline']['id']}/runs")
    assert len(listed["items"]) == 5


async def test_wrong_parameters_are_refused_when_the_run_is_started(world: World) -> None:
    saved = await world.save(
        a_pipeline(a_step("a"), parameters={"n": {"type": "integer", "required": True}})
    )
    path = f"/api/v1/pipelines/{saved['pipeline']['id']}/runs"
    answer = await world.http.post(path, json={"parameters": {"n": "x", "m": 1}})
    assert answer.status_code == 422
    assert {each["field"] for each in answer.json()["errors"]} == {"parameters.n", "parameters.m"}
    assert (await world.http.post(path)).status_code == 422


async def test_another_tenant_neither_sees_nor_starts_a_pipeline(world: World) -> None:
    saved = await world.save(a_pipeline(a_step("a")))
    server = await world.server()
    tenant, project = await server.make_tenant("other")
    _, token = await server.make_user("eve", Role.ADMIN, tenant, project)
    transport = httpx2.ASGITransport(world.control.app)
    headers = {"Authorization": f"Bearer {token}"}
    path = f"/api/v1/pipelines/{saved['pipeline']['id']}"
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://gpuplane.test", headers=headers
    ) as eve:
        assert (await eve.get("/api/v1/pipelines")).json()["items"] == []
        for call in (eve.get(path), eve.post(f"{path}/runs"), eve.get(f"{path}/export"),
                     eve.delete(path), eve.post(f"{path}/rollback?version=1")):  # fmt: skip
            assert (await call).status_code == 404


async def test_a_secret_that_the_project_has_not_is_refused_with_its_place(world: World) -> None:
    call = a_step("ask", "api_call", url="https://example.com",
                  headers={"Authorization": {"secret": "absent"}})  # fmt: skip
    work = a_step("work", "job", spec={"command": ["x"], "secrets": [{"name": "gone", "env": "A"}]})
    found = await world.refused(a_pipeline(call, work))
    assert {field: reason for field, (reason, _) in found.items()} == {
        "spec.steps[0].config.headers.Authorization.secret": "The project has no secret 'absent'.",
        "spec.steps[1].config.spec.secrets[0].name": "The project has no secret 'gone'.",
    }


async def test_the_fields_of_a_job_are_checked_when_the_pipeline_is_saved(world: World) -> None:
    found = await world.refused(
        a_pipeline(
            a_step("a", "job", gpu_type="nvidia-nope", gpu_count=1, spec={"command": ["x"]}),
            a_step("b", "job", spec={"command": ["x"], "image": "y"}),
            a_step("c", "job", spec={"command": ["{{ params.x }}"], "env": {"GPUPLANE_X": "1"}}),
            parameters={"x": 1},
        )
    )
    assert set(found) == {
        "spec.steps[0].config.gpu_type",
        "spec.steps[1].config.spec.image",
        "spec.steps[2].config.spec.env",
    }


async def test_the_proof_names_versions_that_changed_and_rows_that_cannot_be_read(
    any_world: World,
) -> None:
    trigger = {"type": "scheduled", "cron": "0 2 * * *"}
    saved = await any_world.save(a_pipeline(a_step("a"), triggers=[trigger]))
    database = any_world.control.database
    assert await database.read(pipelines.check) == []
    pipeline_id = saved["pipeline"]["id"]
    (found,) = (await any_world.get(f"/pipelines/{pipeline_id}"))["triggers"]
    for statement in (
        "UPDATE pipelines_versions SET document = replace(document, 'transform', 'function')",
        "UPDATE pipelines_triggers SET spec = '{\"cut'",
    ):
        await database.write("tests.break", lambda s, t=statement: s.execute(text(t)))
    assert await database.read(pipelines.check) == [
        f"Version 1 of pipeline {pipeline_id} is not what was saved.",
        f"Trigger {found['id']} has spec that cannot be read.",
    ]
