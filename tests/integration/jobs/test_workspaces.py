"""Working directories: uploaded once, checked, and never able to lead out of their folder."""

from __future__ import annotations

import hashlib
import io

import pytest

from tests.integration.jobs.archives import a_device, an_archive
from tests.integration.jobs.worlds import World, runs_for


async def test_the_same_bytes_twice_are_kept_once(world: World) -> None:
    archive = an_archive({"train.py": b"print(1)"}, {"again.py": "train.py"})
    first = await world.ask("POST", "/workspaces", 201, content=archive)
    second = await world.ask("POST", "/workspaces", 201, content=archive)
    assert (first["is_new"], second["is_new"]) == (True, False)
    assert first["digest"] == hashlib.sha256(archive).hexdigest()
    assert len(list(world.workspaces.iterdir())) == 1
    known = await world.ask("GET", f"/workspaces/{first['digest']}")
    assert known["size_bytes"] == len(archive)


async def test_a_job_cannot_use_what_its_tenant_did_not_upload(world: World) -> None:
    refused = await world.submit(422, spec={**runs_for(1), "workspace_digest": "0" * 64})
    assert refused["field"] == "spec.workspace_digest"
    assert (await world.ask("GET", f"/workspaces/{'0' * 64}", 404))["code"] == "workspace_not_found"


async def test_another_digest_than_the_senders_is_refused(world: World) -> None:
    archive = an_archive({"a": b"1"})
    refused = await world.ask("POST", f"/workspaces?digest={'0' * 64}", 422, content=archive)
    assert refused["code"] == "digest_mismatch"
    assert list(world.workspaces.iterdir()) == []


@pytest.mark.parametrize(
    "archive",
    [
        an_archive({"../evil": b"x"}),
        an_archive({"/etc/evil": b"x"}),
        an_archive({"a/../../evil": b"x"}),
        an_archive({}, {"out": "/etc/passwd"}),
        an_archive({}, {"a/out": "../../etc/passwd"}),
        a_device(),
        an_archive({"a": b"1"})[:-10],
        b"no archive at all",
        io.BytesIO().getvalue(),
    ],
    ids=["parent", "absolute", "winding", "link", "deep link", "device", "torn", "text", "empty"],
)
async def test_archives_that_lead_out_or_are_none_are_refused(world: World, archive: bytes) -> None:
    refused = await world.ask("POST", "/workspaces", 422, content=archive)
    assert refused["code"] in ("workspace_unsafe", "workspace_invalid")
    assert list(world.workspaces.iterdir()) == []
