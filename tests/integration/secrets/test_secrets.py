"""Secrets go in and come out into jobs alone, each time with a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from gpuplane.core.ids import JobId, SecretId
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.events.service import EventFilter, list_events
from gpuplane.domains.secrets import service
from gpuplane.domains.secrets.errors import SecretNotFound
from gpuplane.kit.access import Role
from gpuplane.kit.pagination import PageRequest
from gpuplane.kit.sealing import SealingKeys
from tests.http_app import Server, running_server

PLAIN = "s3cr3t-value-of-the-test"


async def make(server: Server, name: str = "api-key", **more: Any) -> dict[str, Any]:
    answer = await server.http.post("/api/v1/secrets", json={"name": name, "value": PLAIN, **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_a_value_is_in_no_answer_no_row_and_no_event(any_server: Server) -> None:
    made = await make(any_server)
    answers = [
        await any_server.http.get("/api/v1/secrets"),
        await any_server.http.get(f"/api/v1/secrets/{made['id']}"),
        await any_server.http.get("/api/v1/events"),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert PLAIN not in answer.text

    def rows(session: ReadSession) -> bytes:
        return bytes(session.scalar(text("SELECT sealed FROM secrets_secrets")))

    assert PLAIN.encode() not in await any_server.database.read(rows)


async def test_a_value_that_cannot_hold_is_refused_without_being_repeated(
    server: Server,
) -> None:
    answer = await server.http.post("/api/v1/secrets", json={"name": "x", "value": PLAIN * 4_000})
    assert answer.status_code == 422
    assert PLAIN not in answer.text
    answer = await server.http.post("/api/v1/secrets", json={"name": "x", "value": [PLAIN]})
    assert answer.status_code == 422
    assert PLAIN not in answer.text


async def test_a_job_gets_the_newest_value_and_leaves_a_trace(any_server: Server) -> None:
    made = await make(any_server)
    rotated = await any_server.http.put(
        f"/api/v1/secrets/{made['id']}", json={"value": "the newer value"}
    )
    assert rotated.json()["value_version"] == 2
    job_id = JobId(uuid4())
    sealing: SealingKeys = any_server.ports["sealing"]
    revealed = await any_server.database.write(
        "tests.reveal",
        lambda s: service.reveal_for_job(
            s,
            sealing,
            job_id,
            any_server.admin.project_id,
            ["api-key"],
            "dispatcher",
            any_server.clock.now_ms(),
        ),
    )
    assert revealed["api-key"].value == "the newer value"
    assert "newer" not in repr(revealed)
    wanted = EventFilter(kinds=("secret.accessed",), audit=True)
    page = await any_server.database.read(
        lambda s: list_events(s, any_server.admin, wanted, PageRequest())
    )
    (event,) = page.items
    assert event.actor == "dispatcher"
    assert event.data == {
        "job_id": str(job_id),
        "secret_name": "api-key",
        "value_version": 2,
    }


async def test_the_secrets_of_another_project_do_not_exist_for_a_job(server: Server) -> None:
    await make(server)
    _, project = await server.make_tenant("acme")
    sealing: SealingKeys = server.ports["sealing"]
    with pytest.raises(SecretNotFound, match="api-key"):
        await server.database.write(
            "tests.reveal",
            lambda s: service.reveal_for_job(
                s, sealing, JobId(uuid4()), project, ["api-key"], "dispatcher", 1
            ),
        )
    missing = await server.database.read(
        lambda s: service.missing_secrets(s, server.admin.project_id, ["api-key", "other"])
    )
    assert missing == ["other"]


async def test_members_write_secrets_and_viewers_do_not_even_list_them(server: Server) -> None:
    acme, project = await server.make_tenant("acme")
    _, member = await server.make_user("ada", Role.MEMBER, acme, project)
    _, viewer = await server.make_user("eve", Role.VIEWER, acme, project)
    made = await server.client(member).post(
        "/api/v1/secrets", json={"name": "mine", "value": PLAIN}
    )
    assert made.status_code == 201
    assert (await server.client(viewer).get("/api/v1/secrets")).status_code == 403
    theirs = await make(server)
    hidden = await server.client(member).get(f"/api/v1/secrets/{theirs['id']}")
    assert (hidden.status_code, hidden.json()["code"]) == (404, "secret_not_found")
    listed = (await server.client(member).get("/api/v1/secrets")).json()["items"]
    assert [secret["name"] for secret in listed] == ["mine"]


async def test_one_name_stands_for_one_secret_until_it_is_deleted(any_server: Server) -> None:
    made = await make(any_server)
    taken = await any_server.http.post("/api/v1/secrets", json={"name": "api-key", "value": "x"})
    assert (taken.status_code, taken.json()["code"]) == (409, "secret_exists")
    assert (await any_server.http.delete(f"/api/v1/secrets/{made['id']}")).status_code == 200
    await make(any_server)


async def test_values_survive_the_rotation_of_the_sealing_key(
    any_server: Server, tmp_path: Any
) -> None:
    keys = SealingKeys(tmp_path / "keys")
    secret_id = SecretId(UUID(int=7))
    context = service.context_of(secret_id, 1)
    sealed = keys.seal(PLAIN.encode(), context)
    old = keys.current_id
    secret = service.Secret(
        id=secret_id,
        tenant_id=any_server.admin.tenant_id,
        project_id=any_server.admin.project_id,
        name="kept",
        value_version=1,
        created_by="test",
        created_at=1,
        rotated_at=1,
        version=1,
    )
    await any_server.database.write(
        "tests.create", lambda s: service.create_secret(s, any_server.admin, secret, sealed, 1)
    )
    keys.rotate()
    done = await any_server.database.write("secrets.rewrap", lambda s: service.rewrap(s, keys))
    assert done == (1, None)
    keys.retire(old)
    revealed = await any_server.database.write(
        "tests.reveal",
        lambda s: service.reveal_for_job(
            s, keys, JobId(uuid4()), any_server.admin.project_id, ["kept"], "test", 1
        ),
    )
    assert revealed["kept"].value == PLAIN


async def test_an_admin_rotates_the_sealing_key_while_everything_goes_on(
    sqlite_url: str, tmp_path: Path
) -> None:
    keys = SealingKeys(tmp_path / "keys")
    async with running_server(sqlite_url, keys) as server:
        made = await make(server)
        hook = await server.http.post("/api/v1/webhooks", json={"url": "https://example.com/x"})
        assert hook.status_code == 201
        old = keys.current_id
        rotated = await server.http.post("/api/v1/sealing-keys/rotations")
        assert rotated.status_code == 201
        assert rotated.json() == {"key_id": keys.current_id, "rewrapped": 2}
        assert keys.current_id != old
        keys.retire(old)
        revealed = await server.database.write(
            "tests.reveal",
            lambda s: service.reveal_for_job(
                s, keys, JobId(uuid4()), server.admin.project_id, [made["name"]], "test", 1
            ),
        )
        assert revealed[made["name"]].value == PLAIN
        told = await server.http.get("/api/v1/events?kind=sealing_key.rotated")
        assert [event["actor"] for event in told.json()["items"]] == ["admin"]
        _, token = await server.make_user(
            "ada", Role.ADMIN, server.admin.tenant_id, server.admin.project_id, on="tenant"
        )
        refused = await server.client(token).post("/api/v1/sealing-keys/rotations")
        assert refused.status_code == 403
