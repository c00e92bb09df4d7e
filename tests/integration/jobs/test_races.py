"""A person's word and a loop's write in the same moment, on a database with several writers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import text

from gpuplane.backends.interface import AttemptRef, Phase, ReplicaObservation
from gpuplane.core.ids import JobId
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.service import Attempt
from gpuplane.entry.checking import find_faults
from gpuplane.kit.sealing import SealingKeys
from tests.integration.jobs.worlds import World, running_world, runs_for
from tests.waiting import wait_until_async

T = TypeVar("T")


Unit = Callable[[WriteSession], object]


async def in_the_middle_of(world: World, first: Unit, second: Awaitable[T]) -> T:
    """Start something while a unit has written and not committed; it must wait for the unit."""
    written, may_commit = threading.Event(), threading.Event()

    def held(session: WriteSession) -> None:
        first(session)
        written.set()
        may_commit.wait(20)

    def waiters(session: ReadSession) -> int:
        return int(session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")) or 0)

    async def is_waiting() -> bool:
        return await world.server.database.read(waiters) > 0

    writing = asyncio.create_task(world.server.database.write("tests.first", held))
    try:
        await asyncio.to_thread(written.wait, 20)
        asking = asyncio.ensure_future(second)
        await wait_until_async(is_waiting, "the second waits for the first")
    finally:
        may_commit.set()
    await writing
    return await asking


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
    async with running_world(postgresql_migrated_url, tmp_path, sealing_keys) as world:
        job = await world.submit(gpu_type="T4", gpu_count=1, spec=runs_for(600))
        await world.turn(2)
        now = world.server.clock.now_ms()

        def loop(session: WriteSession) -> None:
            found = repository.find_job(session, JobId(job["id"]))
            assert found is not None
            assert repository.update_job(session, found, now, progress_ratio=0.5)

        url = f"/api/v1/jobs/{job['id']}{path}"
        answer = await in_the_middle_of(world, loop, world.http.request(method, url, json=body))
        assert answer.status_code == 200, answer.text
        assert (await world.job(job["id"]))["progress"] == 0.5


def ended(attempt: Attempt, now: int) -> ReplicaObservation:
    ref = AttemptRef(attempt.id, attempt.epoch)
    return ReplicaObservation(
        ref, 0, Phase.EXITED, now, now, exit_code=0, reason=str(Word.COMPLETED)
    )


@pytest.mark.postgresql
async def test_an_attempt_that_ended_meanwhile_is_not_started_again(
    postgresql_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with running_world(postgresql_migrated_url, tmp_path, sealing_keys) as world:
        job = await world.submit(gpu_type="T4", gpu_count=1, spec=runs_for(600))
        await world.loops["scheduler"].run_once()
        database, now = world.server.database, world.server.clock.now_ms()
        (attempt,) = await database.read(jobs.list_open)

        def take_in(session: WriteSession) -> int:
            return jobs.take_in(session, [ended(attempt, now)], str.encode, lambda: 0.0, now)

        await in_the_middle_of(
            world,
            take_in,
            database.write("tests.second", lambda s: jobs.note_ensured(s, [attempt], now)),
        )
        assert (await world.job(job["id"]))["status"] == "completed"
        assert await database.read(jobs.list_open) == []
        assert await database.read(lambda s: find_faults(s, now)) == []


@pytest.mark.postgresql
async def test_a_stop_that_was_asked_meanwhile_is_not_forgotten(
    postgresql_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with running_world(postgresql_migrated_url, tmp_path, sealing_keys) as world:
        job = await world.submit(gpu_type="T4", gpu_count=1, spec=runs_for(600))
        await world.loops["scheduler"].run_once()
        database, now = world.server.database, world.server.clock.now_ms()
        (attempt,) = await database.read(jobs.list_open)
        ref = AttemptRef(attempt.id, attempt.epoch)
        running = ReplicaObservation(ref, 0, Phase.RUNNING, started_at=now)
        await in_the_middle_of(
            world,
            lambda s: jobs.cancel(s, world.server.admin, JobId(job["id"]), now),
            database.write(
                "tests.second", lambda s: jobs.take_in(s, [running], str.encode, lambda: 0.0, now)
            ),
        )
        (stopping,) = await database.read(jobs.list_open)
        assert (stopping.state, str(stopping.stop_intent)) == ("stopping", "cancel")
        await world.turn(3)
        assert (await world.job(job["id"]))["status"] == "cancelled"


@pytest.mark.postgresql
async def test_noting_that_a_backend_was_told_to_stop_waits_for_who_changes_the_job(
    postgresql_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with running_world(postgresql_migrated_url, tmp_path, sealing_keys) as world:
        job = await world.submit(gpu_type="T4", gpu_count=1, spec=runs_for(600))
        await world.turn(2)
        database, now = world.server.database, world.server.clock.now_ms()
        admin, job_id = world.server.admin, JobId(job["id"])
        await database.write(
            "tests.preempt", lambda s: jobs.preempt_by_hand(s, admin, job_id, "", 0, now)
        )
        (preempted,) = await database.read(jobs.list_open)
        await in_the_middle_of(
            world,
            lambda s: repository.hold_jobs(s, [job_id]),
            database.write("tests.second", lambda s: jobs.note_evict_sent(s, [preempted], now)),
        )
        await database.write("tests.cancel", lambda s: jobs.cancel(s, admin, job_id, now))
        (stopping,) = await database.read(jobs.list_open)
        assert (stopping.evict_sent_at, str(stopping.stop_intent)) == (now, "cancel")
