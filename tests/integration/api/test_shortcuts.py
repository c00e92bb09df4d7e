"""A request that takes a shortcut is answered as the framework's own way would answer it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from gpuplane.api.app import guarded_routes
from tests.http_app import Server


@pytest.fixture
async def whole_way(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    """The same app without its shortcuts."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await FastAPI.__call__(server.app, scope, receive, send)

    headers = {"Authorization": f"Bearer {server.admin_token}"}
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://gpuplane.test", headers=headers, timeout=30
    ) as client:
        yield client


def told(answer: httpx2.Response) -> tuple[int, Mapping[str, str], Any]:
    """Return what an answer says, without what differs from one request to the next."""
    headers = {name: each for name, each in answer.headers.items() if name != "x-request-id"}
    body = answer.json()
    body.pop("request_id", None)
    return answer.status_code, headers, body


@pytest.mark.parametrize(
    "request_of",
    [
        {"json": {"name": "Bad Name"}},
        {"json": {"nmae": "x"}},
        {"json": []},
        {"content": b"{", "headers": {"Content-Type": "application/json"}},
        {"content": b"x", "headers": {"Content-Type": "text/plain"}},
        {},
        {"json": {"name": "x"}, "headers": {"Authorization": "Bearer nobody"}},
        {"json": {"name": "x"}, "headers": {"Authorization": ""}},
        {"json": {"name": "x"}, "params": {"colour": "red"}},
        {"json": {"name": "x", "tenant_id": "00000000-0000-7000-8000-000000000000"}},
    ],
)
async def test_a_refusal_is_the_same_either_way(
    server: Server, whole_way: httpx2.AsyncClient, request_of: dict[str, Any]
) -> None:
    short = await server.http.post("/api/v1/projects", **request_of)
    whole = await whole_way.post("/api/v1/projects", **request_of)
    assert told(short) == told(whole)
    assert short.status_code >= 400


async def test_what_is_made_is_told_the_same_either_way(
    server: Server, whole_way: httpx2.AsyncClient
) -> None:
    key = {"Idempotency-Key": "either"}
    short = await server.http.post("/api/v1/projects", json={"name": "lab"}, headers=key)
    whole = await whole_way.post("/api/v1/projects", json={"name": "lab"}, headers=key)
    assert (short.status_code, short.json()) == (201, whole.json())
    assert whole.headers["Idempotent-Replayed"] == "true"
    assert len(short.headers["x-request-id"]) == 36


async def test_a_shortcut_is_counted_under_its_route(server: Server) -> None:
    await server.http.post("/api/v1/projects", json={"name": "counted"})
    text = (await server.http.get("/metrics")).text
    name = (
        'gpuplane_http_request_seconds_count{method="POST",route="/api/v1/projects",status="201"}'
    )
    assert f"{name} 1.0" in text


def test_shortcuts_are_for_plain_endpoints_of_fixed_addresses_alone(server: Server) -> None:
    shortcuts = getattr(server.app, "shortcuts")  # noqa: B009 - the app's own type is private
    taken = {
        (method, route.path)
        for route in guarded_routes(server.app)
        for method in route.methods
        if shortcuts.are_for({"type": "http", "method": method, "path": route.path})
    }
    assert ("POST", "/api/v1/projects") in taken
    assert [path for _, path in taken if "{" in path] == []
    mounted = {"type": "http", "method": "POST", "path": "/api/v1/projects", "root_path": "/x"}
    assert not shortcuts.are_for(mounted)
