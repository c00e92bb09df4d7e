"""Real processes on this machine, through the whole product."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kit.access import Role
from gpuplane.kit.sealing import SealingKeys
from tests.integration.jobs.archives import an_archive
from tests.integration.jobs.worlds import World, running_world
from tests.waiting import wait_until_async

SMALL = {"cpu_cores": 0.1, "memory_gb": 0.1, "resources": {"ephemeral_storage_gb": 0}}


@pytest.fixture
async def local(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> AsyncIterator[World]:
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys, has_local=True) as world:
        yield world


async def reach(world: World, job_id: str, *statuses: str) -> dict[str, Any]:
    """Turn the loops until the job is in one of these statuses."""

    async def turned() -> dict[str, Any] | None:
        await world.turn()
        job = await world.job(job_id)
        return job if job["status"] in statuses else None

    found = await wait_until_async(turned, f"{job_id} is {statuses}")
    assert found is not None
    return found


async def run(world: World, code: str, **spec: Any) -> dict[str, Any]:
    command = [sys.executable, "-u", "-c", code]
    job = await world.submit(
        cluster="local", max_retries=0, spec={"command": command, **spec}, **SMALL
    )  # fmt: skip - the call reads as one line
    return job


async def test_a_real_process_runs_and_its_log_and_exit_code_come_back(local: World) -> None:
    job = await run(local, "import sys; print('hello'); print('oh', file=sys.stderr); sys.exit(3)")
    done = await reach(local, job["id"], "failed", "completed")
    assert (done["status"], done["exit_code"], done["simulated"]) == ("failed", 3, False)
    out = await local.ask("GET", f"/jobs/{job['id']}/logs")
    err = await local.ask("GET", f"/jobs/{job['id']}/logs?stream=stderr")
    assert (out["text"], err["text"]) == ("hello\n", "oh\n")
    end = await local.ask("GET", f"/jobs/{job['id']}/logs?offset={out['next_offset']}")
    assert end["is_over"] is True


async def test_a_log_is_followed_from_before_the_start_to_the_end(local: World) -> None:
    job = await run(local, "print('first'); print('last')")

    async def follow() -> str:
        answer = await local.http.get(f"/api/v1/jobs/{job['id']}/logs?follow=true")
        return answer.text

    reading = asyncio.create_task(follow())
    await reach(local, job["id"], "completed")
    assert await asyncio.wait_for(reading, 20) == "first\nlast\n"


async def test_the_working_directory_and_its_artifacts_travel(local: World) -> None:
    archive = an_archive({"main.py": b"open('out.txt','w').write('made')", "skip/x": b"1"})
    uploaded = await local.ask("POST", "/workspaces", 201, content=archive)
    job = await local.submit(
        cluster="local",
        max_retries=0,
        spec={
            "command": [sys.executable, "main.py"],
            "workspace_digest": uploaded["digest"],
            "artifacts": ["out.txt"],
        },
        **SMALL,
    )  # fmt: skip - the call reads as one line
    await reach(local, job["id"], "completed")
    found = await local.ask("GET", f"/jobs/{job['id']}/artifacts")
    assert found["items"] == [{"path": "out.txt", "size_bytes": 4}]
    answer = await local.http.get(f"/api/v1/jobs/{job['id']}/artifacts/out.txt")
    assert (answer.status_code, answer.content) == (200, b"made")
    for path in ("nothing.txt", "..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd"):
        refused = await local.http.get(f"/api/v1/jobs/{job['id']}/artifacts/{path}")
        assert refused.status_code == 404, path


async def test_a_command_runs_beside_a_job_and_leaves_a_trace(local: World) -> None:
    job = await run(local, "input()", env={"GREETING": "hi"})
    body = {"command": ["sh", "-c", "echo $GREETING; cat; exit 4"], "stdin": "in\n"}
    refused = await local.ask("POST", f"/jobs/{job['id']}/exec", 409, json=body)
    assert refused["code"] == "job_wrong_status"
    job = await run(local, "import time; time.sleep(600)", env={"GREETING": "hi"})
    await reach(local, job["id"], "running")
    found = await local.ask("POST", f"/jobs/{job['id']}/exec", json=body)
    assert (found["exit_code"], found["stdout"]) == (4, "hi\nin\n")
    assert "job.exec" in await local.kinds(job["id"])
    await local.ask("DELETE", f"/jobs/{job['id']}")
    await reach(local, job["id"], "cancelled")


async def test_a_colleague_may_not_run_commands_beside_the_job_of_another(local: World) -> None:
    job = await run(local, "import time; time.sleep(600)")
    await reach(local, job["id"], "running")
    tenant, project = local.server.admin.tenant_id, local.server.admin.project_id
    _, token = await local.server.make_user("bob", Role.MEMBER, tenant, project)
    answer = await local.server.client(token).post(
        f"/api/v1/jobs/{job['id']}/exec", json={"command": ["id"]}
    )
    assert answer.status_code == 403
    await local.ask("DELETE", f"/jobs/{job['id']}")
    await reach(local, job["id"], "cancelled")


async def test_a_job_reports_progress_outputs_and_checkpoints_through_files(local: World) -> None:
    code = (
        "import os, json\n"
        "open(os.environ['GPUPLANE_PROGRESS'], 'w').write('0.5')\n"
        "json.dump({'loss': 0.1, 'api_key': 'sk-1'}, open(os.environ['GPUPLANE_OUTPUTS'], 'w'))\n"
    )
    job = await run(local, code)
    done = await reach(local, job["id"], "completed", "failed")
    text = (await local.ask("GET", f"/jobs/{job['id']}/logs?stream=stderr"))["text"]
    assert done["status"] == "completed", text
    assert done["outputs"] == {"loss": 0.1, "api_key": "********"}
