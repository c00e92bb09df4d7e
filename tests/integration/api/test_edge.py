"""Bad input is answered with a sentence, whatever it is; nothing leaks; every answer has an id."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry

from gpuplane.api.app import AppDependencies, create_app
from gpuplane.api.limits import Limits
from gpuplane.db.calls import CallDep
from gpuplane.kit.access import Permission, Role, accepts_upload, counts_as_submit, requires
from gpuplane.kit.bodies import Body, Done
from gpuplane.kit.logs import JsonFormatter
from gpuplane.kit.loops import LoopState
from gpuplane.kit.sealing import SealingKeys
from tests.http_app import Server, running_server


class Thing(Body):
    """A body."""

    name: str
    count: int = 0


def a_router() -> APIRouter:
    router = APIRouter(tags=["things"])

    @router.post("/things")
    @requires(Permission.JOB_WRITE)
    @counts_as_submit
    async def create(call: CallDep, body: Thing) -> Done:
        return Done()

    @router.get("/broken")
    @requires(Permission.PUBLIC)
    async def broken() -> Done:
        raise RuntimeError("password=hunter2 in a private detail")

    @router.get("/trace")
    @requires(Permission.PUBLIC)
    async def trace(call: CallDep) -> dict[str, str | None]:
        return {"traceparent": call.traceparent, "request_id": call.request_id}

    return router


async def a_server(sqlite_url: str, keys: SealingKeys, limits: Limits) -> AsyncIterator[Server]:
    async with running_server(sqlite_url, keys, routers=[a_router()], limits=limits) as server:
        yield server


@pytest.fixture
async def things(sqlite_url: str, sealing_keys: SealingKeys) -> AsyncIterator[Server]:
    limits = Limits(body_bytes=10_000, submits_per_s=2.0, submit_burst=3)
    async for server in a_server(sqlite_url, sealing_keys, limits):
        yield server


async def test_a_request_id_comes_back_and_a_strange_one_is_replaced(server: Server) -> None:
    answer = await server.http.get("/health", headers={"X-Request-Id": "abc-123"})
    assert answer.headers["X-Request-Id"] == "abc-123"
    answer = await server.http.get("/health", headers={"X-Request-Id": "a b{}"})
    assert answer.headers["X-Request-Id"] != "a b{}"
    assert len(answer.headers["X-Request-Id"]) == 36


async def test_an_unknown_path_and_a_wrong_method_are_problems(server: Server) -> None:
    answer = await server.http.get("/api/v1/nothing")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_path")
    assert answer.headers["content-type"] == "application/problem+json"
    answer = await server.http.delete("/health")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET"
    answer = await server.http.put("/api/v1/tenants")
    assert answer.headers["Allow"] == "GET, POST"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b'{"name": NaN}', "invalid_json"),
        (b'{"name": Infinity}', "invalid_json"),
        (b'{"name": "\xff"}', "invalid_encoding"),
        (b'{"name": "\\ud800"}', "invalid_json"),
        (b'{"name": 1e999}', "invalid_json"),
        (b'{"name": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"name": "a\\u0000b"}', "invalid_text"),
        (b'{"a\\u0000b": 1}', "invalid_text"),
        (b"[" * 100 + b"]" * 100, "too_deep"),
        (b'{"a":' * 4000 + b"1" + b"}" * 4000, "too_deep"),
        (b'{"name": "a", "name": "b"}', "duplicate_field"),
        (b'{"a": [{"b": 1, "b": 1}]}', "duplicate_field"),
    ],
)
async def test_what_is_no_json_we_can_mean_is_refused_with_400(
    server: Server, body: bytes, code: str
) -> None:
    answer = await server.http.post(
        "/api/v1/tenants", content=body, headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert answer.json()["fix"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_is_not_said_to_be_json_is_refused(server: Server, kind: str) -> None:
    answer = await server.http.post(
        "/api/v1/tenants", content=b'{"name": "a"}', headers={"Content-Type": kind}
    )
    assert (answer.status_code, answer.json()["code"]) == (415, "wrong_media_type")
    assert answer.json()["fix"]


async def test_a_number_out_of_bounds_is_refused_with_a_fix(server: Server) -> None:
    answer = await server.http.get("/api/v1/tenants", params={"limit": 10**9})
    assert (answer.status_code, answer.json()["field"]) == (422, "limit")
    assert answer.json()["fix"]


async def test_an_empty_body_names_what_is_missing(server: Server) -> None:
    answer = await server.http.post("/api/v1/tenants")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["reason"] == "This field is required."


async def test_an_unknown_field_is_named_with_its_nearest_names(server: Server) -> None:
    answer = await server.http.post("/api/v1/tenants", json={"name": "acme", "display_nam": "Acme"})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {
            "field": "display_nam",
            "reason": "There is no field 'display_nam' here.",
            "fix": "Did you mean display_name?",
        }
    ]
    assert (await server.http.get("/api/v1/tenants")).json()["items"][0]["name"] == "default"


async def test_an_unknown_parameter_is_named_with_its_nearest_names(server: Server) -> None:
    answer = await server.http.get("/api/v1/tenants?limt=3")
    assert answer.status_code == 422
    assert answer.json()["field"] == "limt"
    assert answer.json()["fix"] == "Did you mean limit?"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": 3}, "name"),
        ({"name": None}, "name"),
        ({"name": "../../etc"}, "name"),
        ({"name": "x" * 64}, "name"),
        ({"name": "acme", "display_name": "x" * 1001}, "display_name"),
        ([1], ""),
        ("text", ""),
    ],
)
async def test_a_field_that_cannot_hold_is_named(server: Server, body: object, field: str) -> None:
    answer = await server.http.post("/api/v1/tenants", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/tenants?cursor=zzz",
        "/api/v1/tenants?cursor=WyJuYW1lIl0",
        "/api/v1/tenants?cursor=WyJuYW1lIiwgMSwgMl0",
        "/api/v1/tenants?limit=0",
        "/api/v1/tenants?limit=501",
        "/api/v1/tenants?limit=99999999999999999999999",
        "/api/v1/tenants/not-an-id",
        "/api/v1/tenants/%00",
        "/api/v1/tenants?cursor=%00",
        "/api/v1/tenants?cursor=%ff",
        "/api/v1/tenants/..%2f..%2fetc",
        "/api/v1/events?since=yesterday",
        "/api/v1/events?since=0001-01-01T00:00:00Z",
        "/api/v1/events?kind=DROP%20TABLE",
    ],
)
async def test_a_strange_address_is_the_callers_mistake(server: Server, path: str) -> None:
    answer = await server.http.get(path)
    assert 400 <= answer.status_code < 500
    assert answer.json()["detail"]


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
async def test_a_body_over_the_limit_is_refused_and_the_limit_named(
    things: Server, announced: bool
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * 1000

    content = b" " * 11_000 if announced else chunks()
    answer = await things.http.post("/api/v1/things", content=content)
    assert answer.status_code == 413
    assert answer.json()["limit_bytes"] == 10_000
    assert "10000 bytes" in answer.json()["detail"]


async def test_a_tenant_over_its_submit_limit_is_told_when_to_come_back(things: Server) -> None:
    answers = [await things.http.post("/api/v1/things", json={"name": "a"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[3].json()["code"] == "submit_limit"
    assert answers[3].headers["Retry-After"] == "1"
    things.clock.advance(1)
    again = await things.http.post("/api/v1/things", json={"name": "a"})
    assert again.status_code == 200


async def test_a_failure_of_ours_says_nothing_private(
    things: Server, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await things.http.get("/api/v1/broken")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert answer.json()["request_id"] == answer.headers["X-Request-Id"]
    assert "hunter2" in caplog.text  # with its traceback, for the operator


async def test_a_refusal_with_a_cause_is_logged_without_a_traceback(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpuplane.api")
    answers = [await server.http.post("/api/v1/tenants", json={"name": "twice"}) for _ in range(2)]
    assert answers[1].json()["code"] == "name_taken"
    [told] = [each for each in caplog.records if "name_taken" in each.getMessage()]
    assert told.getMessage() == "answered 409 name_taken because of IntegrityError"
    assert told.exc_info is None


async def test_a_trace_context_is_taken_over_and_a_damaged_one_is_dropped(
    things: Server,
) -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = await things.http.get("/api/v1/trace", headers={"traceparent": good})
    assert answer.json()["traceparent"] == good
    answer = await things.http.get("/api/v1/trace", headers={"traceparent": "00-zz"})
    assert answer.json()["traceparent"] is None


async def test_the_access_log_names_the_request_and_never_the_token(server: Server) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("gpuplane.access")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    try:
        await server.http.get("/api/v1/whoami?x=1", headers={"X-Request-Id": "seen"})
    finally:
        logger.removeHandler(handler)
    line = json.loads(stream.getvalue())
    assert line["request_id"] == "seen"
    assert (line["method"], line["path"], line["status"]) == ("GET", "/api/v1/whoami", 422)
    assert server.admin_token not in stream.getvalue()


async def test_requests_are_measured_by_route(server: Server) -> None:
    await server.http.get(f"/api/v1/tenants/{server.admin.tenant_id}")
    text = (await server.http.get("/metrics")).text
    assert 'route="/api/v1/tenants/{tenant_id}",status="200"' in text


async def test_readiness_names_the_part_that_is_not_ready(
    sqlite_url: str, sealing_keys: SealingKeys
) -> None:
    failing = LoopState("relay", 1.0, turns=5, consecutive_failures=3)
    idle = LoopState("webhooks", 1.0, turns=1)
    states = {"relay": failing, "webhooks": idle}
    async with running_server(
        sqlite_url,
        sealing_keys,
        routers=[],
        adapt=lambda deps: replace(deps, loop_states=states),
    ) as server:
        answer = await server.http.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["not_ready"] == [
            {"part": "loop relay", "reason": "The loop is failing."}
        ]
        assert answer.json()["loops"] == {"relay": "failing", "webhooks": "idle"}
        failing.consecutive_failures = 0
        assert (await server.http.get("/ready")).status_code == 200
        listed = (await server.http.get("/api/v1/loops")).json()["items"]
        assert [one["name"] for one in listed] == ["relay", "webhooks"]


def an_app(server: Server, router: APIRouter) -> object:
    return create_app(
        AppDependencies(
            database=server.database,
            clock=server.clock,
            authenticator=server.authenticator,
            routers=[router],
            registry=CollectorRegistry(),
        )
    )


async def test_a_route_without_a_permission_is_refused_at_start(server: Server) -> None:
    router = APIRouter()

    @router.get("/open")
    async def open_to_all() -> Done:
        return Done()

    with pytest.raises(ValueError, match="/api/v1/open names no permission"):
        an_app(server, router)


async def test_two_endpoints_of_one_address_are_refused_at_start(server: Server) -> None:
    router = a_router()
    router.get("/broken")(requires(Permission.PUBLIC)(a_second_one))
    with pytest.raises(ValueError, match="two endpoints answer GET /api/v1/broken"):
        an_app(server, router)


async def a_second_one() -> Done:
    return Done()


async def test_an_upload_may_be_longer_than_a_json_body_but_not_than_its_own_limit(
    sqlite_url: str, sealing_keys: SealingKeys
) -> None:
    router = APIRouter()

    @router.put("/upload")
    @requires(Permission.JOB_WRITE)
    @accepts_upload(5_000)
    async def upload(call: CallDep, request: Request) -> dict[str, int]:
        return {"size": sum([len(part) async for part in request.stream()])}

    async with running_server(
        sqlite_url, sealing_keys, routers=[router], limits=Limits(body_bytes=100)
    ) as server:
        answer = await server.http.put("/api/v1/upload", content=b"\xff" * 4_000)
        assert answer.json() == {"size": 4_000}
        answer = await server.http.put("/api/v1/upload", content=b"\xff" * 6_000)
        assert answer.status_code == 413


async def test_a_refusal_leaves_one_trace_a_minute(server: Server) -> None:
    acme, project = await server.make_tenant("acme")
    _, token = await server.make_user("ada", Role.VIEWER, acme, project)
    client = server.client(token)
    for _ in range(3):
        assert (await client.post("/api/v1/tenants", json={"name": "x"})).status_code == 403
    found = (await server.http.get("/api/v1/events?kind=access.refused")).json()["items"]
    assert [(one["actor"], one["subject_id"], one["audit"]) for one in found] == [
        ("ada", "POST /api/v1/tenants", True)
    ]
    assert found[0]["tenant_id"] == str(acme)
    server.clock.advance(61)
    await client.post("/api/v1/tenants", json={"name": "x"})
    found = (await server.http.get("/api/v1/events?kind=access.refused")).json()["items"]
    assert len(found) == 2
