"""Buckets that tell of new objects: signed or by token, filtered, and once beside looking."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from gpuplane.kit.signatures import sign
from tests.integration.pipelines.test_triggers import LISTING, _object, _runs, _until_runs
from tests.integration.pipelines.worlds import World, a_pipeline, a_step
from tests.waiting import wait_until_async

SECRET = "told-by-the-bucket"


def a_record(
    key: str, etag: str = "1", name: str = "ObjectCreated:Put", bucket: str = "data"
) -> Any:
    return {
        "eventVersion": "2.1", "eventSource": "aws:s3", "eventName": name,
        "eventTime": "2026-01-02T03:04:05.000Z",
        "s3": {"bucket": {"name": bucket}, "object": {"key": key, "size": 7, "eTag": etag}},
    }  # fmt: skip


async def a_trigger(world: World, **bucket: Any) -> str:
    """Save a pipeline that a bucket starts; return where it is told."""
    for name, value in (("hook", SECRET), ("id", "id-value"), ("key", "key-value")):
        await world.post("/secrets", {"name": name, "value": value}, 201)
    part = {"bucket": "data", "prefix": "in/", "suffix": ".csv",
            "notifications": {"secret": "hook"}, **bucket,
            "parameters": {"path": "{{ object.path }}"}}  # fmt: skip
    saved = await world.save(
        a_pipeline(a_step("a"), name="arrivals", parameters={"path": ""},
                   triggers=[{"type": "event", "bucket": part}])
    )  # fmt: skip
    (trigger,) = (await world.get(f"/pipelines/{saved['pipeline']['id']}"))["triggers"]
    return str(trigger["path"])


async def tell(
    world: World, path: str, body: Any, how: str = "signed", secret: str = SECRET
) -> httpx2.Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    at_s = world.control.parts.clock.now_ms() // 1000
    headers = {
        "signed": {"Gpuplane-Signature": f"t={at_s},v1={sign(secret.encode(), at_s, raw)}"},
        "old": {"Gpuplane-Signature": f"t=1,v1={sign(secret.encode(), 1, raw)}"},
        "token": {"Authorization": f"Bearer {secret}"},
        "bare token": {"Authorization": secret},
        "nothing": {},
    }[how]
    headers = {**headers, "Content-Type": "application/json"}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(world.control.app), base_url="http://bucket.test"
    ) as stranger:
        return await stranger.post(path, content=raw, headers=headers)


@pytest.mark.parametrize("how", ["signed", "token", "bare token"])
async def test_new_objects_that_pass_the_filters_start_a_run_each(
    any_world: World, how: str
) -> None:
    path = await a_trigger(any_world)
    records = [
        a_record("in/a+b%C3%A4.csv"),
        a_record("in/c.csv", name="s3:ObjectCreated:CompleteMultipartUpload"),  # as MinIO writes it
        a_record("in/c.txt"), a_record("out/c.csv"), a_record("in/d.csv", bucket="other"),
        a_record("in/e.csv", name="ObjectRemoved:Delete"),
    ]  # fmt: skip
    answer = await tell(any_world, path, {"EventName": "s3:ObjectCreated:Put", "Records": records},
                        how)  # fmt: skip
    assert (answer.status_code, len(answer.json()["run_ids"])) == (202, 2), answer.text
    found = await _until_runs(any_world, "arrivals", 2)
    paths = {each["params"]["path"] for each in found}
    assert paths == {"s3://data/in/a bä.csv", "s3://data/in/c.csv"}
    again = await tell(any_world, path, {"Records": records}, how)
    assert (again.status_code, again.json()) == (202, {"run_id": None, "run_ids": []})
    changed = await tell(any_world, path, {"Records": [a_record("in/c.csv", "2")]}, how)
    assert len(changed.json()["run_ids"]) == 1


async def test_an_object_that_is_told_of_and_found_starts_one_run(world: World) -> None:
    pages = [_object("in/old.csv", "0")]
    pages.append(pages[0] + _object("in/a.csv", "1") + _object("in/a.txt", "1"))
    pages.append(pages[1] + _object("in/b.csv", "1"))
    listings = [(200, LISTING.format(each).encode()) for each in pages]
    world.receiver.answers = listings[:1]
    path = await a_trigger(world, endpoint=world.receiver.url, access_key="id", secret_key="key",
                           every_seconds=1)  # fmt: skip
    await _until_seen(world, 1)
    told = await tell(world, path, {"Records": [a_record("in/a.csv")]})
    assert len(told.json()["run_ids"]) == 1
    world.receiver.answers = [listings[2]] * 20
    found = await _until_runs(world, "arrivals", 2)
    late = await tell(world, path, {"Records": [a_record("in/b.csv"), a_record("in/a.csv")]})
    assert late.json()["run_ids"] == []
    paths = sorted(each["params"]["path"] for each in found)
    assert paths == ["s3://data/in/a.csv", "s3://data/in/b.csv"]
    assert len(await _runs(world, "arrivals")) == 2


async def _until_seen(world: World, count: int) -> None:
    await wait_until_async(lambda: len(world.receiver.seen) >= count, "the bucket was looked into")


@pytest.mark.parametrize("how", ["signed", "token", "old", "nothing"])
async def test_calls_without_the_secret_are_refused(world: World, how: str) -> None:
    path = await a_trigger(world)
    body = {"Records": [a_record("in/a.csv")]}
    answer = await tell(world, path, body, how, "another" if how != "old" else SECRET)
    assert (answer.status_code, answer.json()["code"]) == (403, "bad_signature")
    assert await _runs(world, "arrivals") == []


async def test_a_webhook_takes_no_token_in_place_of_a_signature(world: World) -> None:
    await world.post("/secrets", {"name": "hook", "value": SECRET}, 201)
    trigger = {"type": "event", "webhook": {"secret": "hook"}}
    saved = await world.save(a_pipeline(a_step("a"), name="arrivals", triggers=[trigger]))
    (shown,) = (await world.get(f"/pipelines/{saved['pipeline']['id']}"))["triggers"]
    answer = await tell(world, shown["path"], {}, "token")
    assert answer.json()["code"] == "bad_signature"
    broken = await tell(world, shown["path"], b"\xff{", "signed")
    assert broken.status_code in (400, 422), broken.text


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "Records"), ([], "Records"), ({"Records": {}}, "Records"),
        ({"Records": [1]}, "Records[0].eventName"),
        ({"Records": [{"eventName": "ObjectCreated:Put"}]}, "Records[0].s3"),
        ({"Records": [a_record("in/a.csv"), {"eventName": "x", "s3": {"bucket": {"name": "b"}}}]},
         "Records[1].s3.object"),
        ({"Records": [a_record("in/a.csv") | {"eventTime": 7}]}, "Records[0].s3.object"),
        ({"Records": [a_record("x")] * 1_001}, "Records"),
    ],
)  # fmt: skip
async def test_what_is_no_notification_is_refused_with_the_place(
    world: World, body: Any, place: str
) -> None:
    path = await a_trigger(world)
    answer = await tell(world, path, body)
    assert (answer.status_code, answer.json()["field"]) == (400, place)
    assert await _runs(world, "arrivals") == []
    test = await tell(world, path, {"Service": "Amazon S3", "Event": "s3:TestEvent"})
    assert (test.status_code, test.json()["run_ids"]) == (202, [])


async def test_a_bucket_that_is_neither_looked_into_nor_tells_is_refused(world: World) -> None:
    found = await world.refused(
        a_pipeline(a_step("a"), triggers=[{"type": "event", "bucket": {"bucket": "data"}}])
    )
    ((field, (reason, _)),) = found.items()
    assert field.startswith("spec.triggers[0]")
    assert "tells of new objects" in reason
    secret = {"bucket": "data", "notifications": {"secret": "absent"}}
    found = await world.refused(
        a_pipeline(a_step("a"), triggers=[{"type": "event", "bucket": secret}])
    )
    assert list(found) == ["spec.triggers[0].bucket.notifications.secret"]
