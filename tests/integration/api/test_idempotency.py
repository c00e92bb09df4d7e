"""One key, one effect: the same request gets the same answer, another one is refused."""

from __future__ import annotations

import asyncio

from sqlalchemy import text

from gpuplane.db.sessions import ReadSession
from gpuplane.kit.access import Role
from tests.http_app import Server


async def test_the_same_request_gets_the_same_answer(any_server: Server) -> None:
    key = {"Idempotency-Key": "one"}
    first = await any_server.http.post("/api/v1/tenants", json={"name": "acme"}, headers=key)
    second = await any_server.http.post("/api/v1/tenants", json={"name": "acme"}, headers=key)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert "Idempotent-Replayed" not in first.headers
    assert second.headers["Idempotent-Replayed"] == "true"


async def test_another_request_with_the_key_is_refused(any_server: Server) -> None:
    key = {"Idempotency-Key": "one"}
    await any_server.http.post("/api/v1/tenants", json={"name": "acme"}, headers=key)
    other = await any_server.http.post("/api/v1/tenants", json={"name": "other"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    elsewhere = await any_server.http.post("/api/v1/projects", json={"name": "acme"}, headers=key)
    assert elsewhere.status_code == 409


async def test_racing_requests_with_one_key_have_one_effect(any_server: Server) -> None:
    client = any_server.http
    key = {"Idempotency-Key": "race"}
    answers = await asyncio.gather(
        *(client.post("/api/v1/tenants", json={"name": "acme"}, headers=key) for _ in range(12))
    )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1


async def test_a_refused_request_may_be_mended_under_the_same_key(server: Server) -> None:
    key = {"Idempotency-Key": "one"}
    refused = await server.http.post("/api/v1/tenants", json={"name": "Bad Name"}, headers=key)
    assert refused.status_code == 422
    mended = await server.http.post("/api/v1/tenants", json={"name": "good"}, headers=key)
    assert mended.status_code == 201


async def test_nobody_reads_anothers_answer_through_a_key(server: Server) -> None:
    _, token = await server.make_user(
        "second", Role.ADMIN, server.admin.tenant_id, server.admin.project_id, on="platform"
    )
    key = {"Idempotency-Key": "shared"}
    mine = await server.http.post("/api/v1/tokens", json={"name": "t"}, headers=key)
    theirs = await server.client(token).post("/api/v1/tokens", json={"name": "t"}, headers=key)
    assert theirs.status_code == 201
    assert theirs.json()["token"] != mine.json()["token"]


async def test_an_answer_with_a_secret_is_kept_sealed(any_server: Server) -> None:
    key = {"Idempotency-Key": "secret"}
    first = await any_server.http.post("/api/v1/tokens", json={"name": "t"}, headers=key)
    second = await any_server.http.post("/api/v1/tokens", json={"name": "t"}, headers=key)
    assert second.json() == first.json()

    def kept(session: ReadSession) -> str:
        return str(session.scalar(text("SELECT body FROM db_idempotency")))

    body = await any_server.database.read(kept)
    assert body.startswith("sealed:")
    assert first.json()["token"] not in body


async def test_a_key_has_a_limit(server: Server) -> None:
    for key in ("k" * 256, "two words", ""):
        answer = await server.http.post(
            "/api/v1/tenants", json={"name": "acme"}, headers={"Idempotency-Key": key}
        )
        assert (answer.status_code, answer.json()["field"]) == (400, "Idempotency-Key")
