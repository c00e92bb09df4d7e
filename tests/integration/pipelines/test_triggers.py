"""Triggers fire once for each time, call, file, object and run; what was missed is caught up."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gpuplane.db.leases import LeaseKeeper
from gpuplane.domains.pipelines import service
from gpuplane.domains.runs.service import RunPolicy
from gpuplane.entry.assembling import step_tools_of
from gpuplane.kit.sealing import SealingKeys
from gpuplane.loops.triggers.loop import TriggersLoop
from tests.clocks import FakeClock
from tests.integration.pipelines.worlds import World, a_pipeline, a_step, working_world
from tests.waiting import wait_until_async

HOUR = 3_600_000


async def _runs(world: World, name: str) -> list[dict[str, Any]]:
    found = (await world.get("/runs?limit=500"))["items"]
    return [each for each in found if each["name"] == name]


def _loop(world: World, clock: FakeClock, owner: str) -> TriggersLoop:
    """Return a loop of triggers that stands apart from the world's own."""
    database = world.control.database
    return TriggersLoop(
        database,
        clock,
        LeaseKeeper(database, clock, owner),
        step_tools_of(world.control.parts),
        RunPolicy(),
        1.0,
    )


@pytest.mark.parametrize(("policy", "count"), [("none", 1), ("last", 1), ("all", 4)])
async def test_times_that_were_missed_are_caught_up_as_the_policy_says(
    any_world: World, policy: str, count: int
) -> None:
    trigger = {"type": "scheduled", "cron": "0 * * * *", "catch_up": policy,
               "parameters": {"at": "{{ scheduled_at }}"}}  # fmt: skip
    await any_world.save(
        a_pipeline(a_step("a"), name="hourly", triggers=[trigger], parameters={"at": ""})
    )
    start = any_world.control.parts.clock.now_ms()
    clock = FakeClock(start + 4 * HOUR - (start % HOUR))  # on the hour, the fourth from now
    loop = _loop(any_world, clock, "a")
    await loop.run_once()
    found = await _runs(any_world, "hourly")
    assert len(found) == count
    assert {each["trigger"] for each in found} == {"scheduled"}
    assert len({each["params"]["at"] for each in found}) == count
    await loop.run_once()
    assert len(await _runs(any_world, "hourly")) == count


async def test_two_processes_that_both_believe_they_hold_the_lease_fire_a_time_once(
    any_world: World,
) -> None:
    trigger = {"type": "scheduled", "cron": "0 * * * *"}
    await any_world.save(a_pipeline(a_step("a"), name="hourly", triggers=[trigger]))
    database = any_world.control.database
    now = any_world.control.parts.clock.now_ms() + 2 * HOUR
    due = await database.read(lambda s: service.list_due(s, now, 10))
    names = {"scheduled_at": "x"}
    fired = [
        await database.write(
            "tests.fire",
            lambda s: service.fire(s, due[0], "1", names, names, RunPolicy(), now),
        )
        for _ in range(2)
    ]
    assert [each.is_new for each in fired] == [True, False]
    assert len(await _runs(any_world, "hourly")) == 1


def _signed(secret: str, body: bytes, at_s: int) -> dict[str, str]:
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return {
        "Gpuplane-Signature": f"t={at_s},v1={digest}",
        "Content-Type": "application/json",
        "Authorization": "",
        "X-Ref": "main",
    }


async def test_a_signed_call_starts_one_run_with_mapped_parameters(world: World) -> None:
    await world.post("/secrets", {"name": "hook", "value": "s3"}, 201)
    mapped = {"n": "{{ body.items.size() }}", "ref": "{{ headers['x-ref'] }}"}
    trigger = {"type": "event", "webhook": {"secret": "hook", "parameters": mapped}}
    saved = await world.save(
        a_pipeline(a_step("a", expression="trigger.body.items"), name="hooked",
                   triggers=[trigger], parameters={"n": 0, "ref": ""})
    )  # fmt: skip
    shown = await world.get(f"/pipelines/{saved['pipeline']['id']}")
    path = shown["triggers"][0]["path"]
    body = b'{"items": [1, 2]}'
    now_s = int(time.time())
    good = _signed("s3", body, now_s)
    first = await world.http.post(path, content=body, headers=good)
    assert first.status_code == 202, first.text
    ended = await world.ended(first.json()["run_id"])
    assert ended.run["params"] == {"n": 2, "ref": "main"}
    assert ended.output("a") == {"result": [1, 2]}
    again = await world.http.post(path, content=body, headers=good)
    assert (again.status_code, again.json()) == (202, {"run_id": None, "run_ids": []})
    for headers in (
        _signed("other", body, now_s),
        _signed("s3", body + b" ", now_s),
        _signed("s3", body, now_s - 1_000),
        _signed("s3", body, now_s + 1_000),
        {"Content-Type": "application/json"},
        {"Gpuplane-Signature": "t=x,v1=y", "Content-Type": "application/json"},
        {
            b"Gpuplane-Signature": f"t={now_s},v1={'é' * 64}".encode("latin-1"),
            b"Content-Type": b"application/json",
        },
    ):
        refused = await world.http.post(path, content=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "bad_signature")
    assert len(await _runs(world, "hooked")) == 1


async def test_a_signed_call_whose_parameters_do_not_fit_is_refused_with_the_reasons_once(
    world: World,
) -> None:
    await world.post("/secrets", {"name": "hook", "value": "s3"}, 201)
    mapped = {"n": "{{ body.n }}", "m": "{{ body.m }}"}
    trigger = {"type": "event", "webhook": {"secret": "hook", "parameters": mapped}}
    whole = {"n": {"type": "integer"}, "m": {"type": "string"}}
    saved = await world.save(
        a_pipeline(a_step("a"), name="hooked", triggers=[trigger], parameters=whole)
    )
    shown = await world.get(f"/pipelines/{saved['pipeline']['id']}")
    path, now_s = shown["triggers"][0]["path"], int(time.time())
    wrong, absent = b'{"n": "x", "m": 1}', b'{"n": 1}'
    first = await world.http.post(path, content=wrong, headers=_signed("s3", wrong, now_s))
    assert (first.status_code, first.json()["code"]) == (422, "invalid_parameters"), first.text
    assert {each["field"]: each["reason"] for each in first.json()["errors"]} == {
        "parameters.n": "This must be a whole number.",
        "parameters.m": "This must be text.",
    }
    again = await world.http.post(path, content=wrong, headers=_signed("s3", wrong, now_s))
    assert (again.status_code, again.json()["run_ids"]) == (202, [])
    other = await world.http.post(path, content=absent, headers=_signed("s3", absent, now_s))
    assert (other.status_code, other.json()["field"]) == (422, "parameters.m"), other.text
    events = (await world.get("/events?kind=pipeline.trigger_failed"))["items"]
    assert len(events) == 2
    assert await _runs(world, "hooked") == []


async def test_new_files_of_a_folder_start_a_run_each_and_old_ones_none(world: World) -> None:
    folder = world.folder / "in"
    folder.mkdir()
    _write(folder / "old.csv")
    trigger = {"type": "event", "folder": {"path": str(folder), "pattern": "*.csv",
               "every_seconds": 1, "parameters": {"file": "{{ object.name }}"}}}  # fmt: skip
    saved = await world.save(
        a_pipeline(a_step("a"), name="files", triggers=[trigger], parameters={"file": ""})
    )
    await _first_look(world, saved)
    _write(folder / "new.txt")
    _write(folder / "new.csv")
    first = await _until_runs(world, "files", 1)
    assert [each["params"]["file"] for each in first] == ["new.csv"]
    _write(folder / "new.csv", b"more")
    second = await _until_runs(world, "files", 2)
    assert [each["params"]["file"] for each in second] == ["new.csv"] * 2


def _write(path: Path, content: bytes = b"x") -> None:
    """Write a file that looks an hour old, so that it is known to be whole."""
    aside = path.with_suffix(".part")
    aside.write_bytes(content)
    at = time.time() - 3_600 + len(content)
    os.utime(aside, (at, at))
    aside.rename(path)


async def _first_look(world: World, saved: dict[str, Any]) -> None:
    """Wait until a trigger has seen what is there at its beginning."""
    pipeline_id = UUID(saved["pipeline"]["id"])
    database, admin = world.control.database, await world.admin()

    async def looked() -> bool:
        found = await database.read(lambda s: service.list_triggers(s, admin, pipeline_id))
        return found[0].state is not None

    await wait_until_async(looked, "the first look")


async def _until_runs(world: World, name: str, count: int) -> list[dict[str, Any]]:
    async def there() -> list[dict[str, Any]] | None:
        found = await _runs(world, name)
        return found if len(found) >= count else None

    return await wait_until_async(there, f"{count} runs of {name}")


async def test_a_folder_that_the_server_does_not_allow_is_refused(world: World) -> None:
    trigger = {"type": "event", "folder": {"path": "/etc"}}
    found = await world.refused(a_pipeline(a_step("a"), triggers=[trigger]))
    assert "GPUPLANE_PIPELINES_FOLDERS" in found["spec.triggers[0].folder.path"][1]


LISTING = """<?xml version="1.0"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated>
{}</ListBucketResult>"""


def _object(key: str, tag: str) -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{tag}</ETag><Size>3</Size></Contents>"
    )


async def test_new_objects_of_a_bucket_start_a_run_each(world: World) -> None:
    for name in ("id", "key"):
        await world.post("/secrets", {"name": name, "value": f"{name}-value"}, 201)
    pages = [_object("in/a", "1"), _object("in/a", "1") + _object("in/b", "2")]
    world.receiver.answers = [(200, LISTING.format(each).encode()) for each in pages]
    bucket = {"endpoint": world.receiver.url, "bucket": "data", "prefix": "in/",
              "access_key": "id", "secret_key": "key", "every_seconds": 1,
              "parameters": {"path": "{{ object.path }}"}}  # fmt: skip
    await world.save(
        a_pipeline(a_step("a"), name="objects", parameters={"path": ""},
                   triggers=[{"type": "event", "bucket": bucket}])
    )  # fmt: skip
    found = await _until_runs(world, "objects", 1)
    assert [each["params"]["path"] for each in found] == ["s3://data/in/b"]
    request = world.receiver.seen[0]
    assert request.path == "/data?list-type=2&prefix=in%2F"
    assert "Credential=id-value/" in request.headers["authorization"]


async def test_the_end_of_a_run_starts_those_that_wait_for_it(any_world: World) -> None:
    trigger = {"type": "pipeline", "pipeline": "first", "statuses": ["COMPLETED"],
               "parameters": {"got": "{{ upstream.outputs.x }}"}}  # fmt: skip
    await any_world.save(
        a_pipeline(a_step("b"), name="second", triggers=[trigger], parameters={"got": 0})
    )
    first = a_pipeline(
        a_step("a", expression="params.x / params.y"), name="first",
        parameters={"x": 6, "y": 2}, outputs={"x": "{{ steps.a.outputs.result }}"},
    )  # fmt: skip
    assert (await any_world.run(first, y=0)).status == "failed"
    assert (await any_world.run(first)).status == "completed"

    found = await _until_runs(any_world, "second", 1)
    assert [(each["trigger"], each["params"]) for each in found] == [("pipeline", {"got": 3})]


async def test_the_specifications_form_names_the_pipeline_that_is_waited_for_by_its_id(
    world: World,
) -> None:
    first = await world.save(a_pipeline(a_step("a"), name="first"))
    head = {"name": "second", "trigger_type": "PIPELINE",
            "triggered_by_pipeline_id": first["pipeline"]["id"]}  # fmt: skip
    await world.save({"pipeline": head, "steps": [a_step("b")]})
    assert (await world.run(a_pipeline(a_step("a"), name="first"))).status == "completed"
    found = await _until_runs(world, "second", 1)
    assert [each["trigger"] for each in found] == ["pipeline"]


async def test_a_firing_that_cannot_start_is_told_as_an_event(world: World) -> None:
    trigger = {"type": "scheduled", "cron": "0 * * * *"}
    await world.save(
        a_pipeline(a_step("a"), name="needy", triggers=[trigger],
                   parameters={"x": {"type": "string", "required": True}})
    )  # fmt: skip
    clock = FakeClock(world.control.parts.clock.now_ms() + 2 * HOUR)
    await _loop(world, clock, "d").run_once()
    events = (await world.get("/events?kind=pipeline.trigger_failed"))["items"]
    assert ["required" in each["message"] for each in events] == [True]
    assert await _runs(world, "needy") == []


async def test_a_version_that_leaves_a_trigger_out_ends_it_and_others_keep_their_place(
    world: World,
) -> None:
    kept = {"type": "scheduled", "cron": "0 * * * *"}
    gone = {"type": "scheduled", "cron": "30 * * * *"}
    saved = await world.save(a_pipeline(a_step("a"), triggers=[kept, gone]))
    path = f"/pipelines/{saved['pipeline']['id']}"
    before = {each["id"] for each in (await world.get(path))["triggers"]}
    await world.save(a_pipeline(a_step("a", expression="2"), triggers=[kept]))
    after = {each["id"] for each in (await world.get(path))["triggers"]}
    assert (len(before), len(after), after < before) == (2, 1, True)


async def test_triggers_survive_a_restart(tmp_path: Path, sealing_keys: SealingKeys) -> None:
    trigger = {"type": "pipeline", "pipeline": "first"}
    async with working_world(tmp_path, sealing_keys) as world:
        await world.save(a_pipeline(a_step("b"), name="second", triggers=[trigger]))
        run_id = await world.start(
            a_pipeline(a_step("w", "wait", wait_for_event="go"), name="first")
        )
        await world.until_step(run_id, "w", lambda step: step["condition"] == "AwaitingEvent")
    async with working_world(tmp_path, sealing_keys) as world:
        await world.post(f"/runs/{run_id}/events", {"name": "go"})
        assert (await world.ended(run_id)).status == "completed"
        assert len(await _until_runs(world, "second", 1)) == 1
