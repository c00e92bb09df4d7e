"""A person's word and a loop's write in the same moment, on a database with several writers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from gpuplane.core.ids import JobId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.kit.sealing import SealingKeys
from tests.integration.jobs.worlds import running_world, runs_for
from tests.waiting import wait_until_async


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "", None),
        ("PUT", "/priority", {"priority": "low"}),
        ("POST", "/preempt", {"grace_s": 0}),
    ],
)
async def test_a_persons_word_does_not_lose_against_a_loop(
    method: str,
    path: str,
    body: dict[str, object] | None,
    postgresql_migrated_url: str,
    tmp_path: Path,
    sealing_keys: SealingKeys,
) -> None:
    written, may_commit = threading.Event(), threading.Event()
    async with running_world(postgresql_migrated_url, tmp_path, sealing_keys) as world:
        job = await world.submit(gpu_type="T4", gpu_count=1, spec=runs_for(600))
        await world.turn(2)
        now = world.server.clock.now_ms()

        def loop(session: WriteSession) -> None:
            found = repository.find_job(session, JobId(job["id"]))
            assert found is not None
            assert repository.update_job(session, found, now, progress_ratio=0.5)
            written.set()
            may_commit.wait(20)

        def waiters(session: ReadSession) -> int:
            return int(session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")) or 0)

        writing = asyncio.create_task(world.server.database.write("tests.loop", loop))
        try:
            await asyncio.to_thread(written.wait, 20)
            url = f"/api/v1/jobs/{job['id']}{path}"
            asking = asyncio.create_task(world.http.request(method, url, json=body))

            async def is_held() -> bool:
                return await world.server.database.read(waiters) > 0

            await wait_until_async(is_held, "the request waits for the loop")
        finally:
            may_commit.set()
        await writing
        answer = await asking
        assert answer.status_code == 200, answer.text
        assert (await world.job(job["id"]))["progress"] == 0.5
