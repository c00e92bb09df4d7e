"""A disk that is full: nothing half-written, nobody told a lie, and everything goes on after."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event, text

from gpuplane.db.database import Database
from gpuplane.db.sessions import WriteSession
from gpuplane.kit.errors import Unavailable
from tests.faults.inside import inside
from tests.waiting import wait_until_async


@contextmanager
def full_disk(database: Database, spare_pages: int) -> Iterator[None]:
    """Let SQLite find no page beyond a few spare ones, in every connection that writes.

    SQLite answers a reached `max_page_count` with the very error of a full disk (SQLITE_FULL).
    """
    used = int(database.read_now(lambda s: s.scalar(text("PRAGMA page_count"))))

    def limit(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={used + spare_pages}")

    def unlimit(connection: Any, *_: Any) -> None:
        connection.execute("PRAGMA max_page_count=4294967294")

    event.listen(database.engine, "connect", limit)
    database.write_now("tests.limit", lambda s: limit(s.sql.connection))
    try:
        yield
    finally:
        event.remove(database.engine, "connect", limit)
        database.write_now("tests.unlimit", lambda s: unlimit(s.sql.connection))


def insert(session: WriteSession, size: int) -> None:
    session.sql.execute(text("INSERT INTO rows (body) VALUES (:body)"), {"body": "x" * size})


async def test_units_committed_with_one_that_fills_the_disk_are_stored_or_told_that_they_are_not(
    tmp_path: Path,
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'small.db'}")
    try:
        await database.write(
            "tests.create",
            lambda s: s.sql.execute(text("CREATE TABLE rows (id INTEGER PRIMARY KEY, body TEXT)")),
        )
        with full_disk(database, 4):
            sizes = [10, 20, 1_000_000, 30, 40]
            answers = await asyncio.gather(
                *(database.write("tests.insert", lambda s, n=n: insert(s, n)) for n in sizes),  # type: ignore[misc]  # n is bound now
                return_exceptions=True,
            )
        told = [size for size, answer in zip(sizes, answers, strict=True) if answer is None]
        stored = database.read_now(
            lambda s: [row["size"] for row in s.rows(text("SELECT length(body) size FROM rows"))]
        )
        assert sorted(stored) == told
        assert 1_000_000 not in told
        refused = [answer for answer in answers if answer is not None]
        assert {type(answer) for answer in refused} == {Unavailable}
        assert {getattr(answer, "code", "") for answer in refused} == {"storage_full"}
    finally:
        database.close()


async def test_a_full_disk_is_said_and_everything_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    async with inside(tmp_path) as plane:
        acknowledged = []
        with full_disk(plane.control.database, 12):
            for number in range(200):
                answer = await plane.submit(f"job-{number}")
                if answer.status_code != 201:
                    break
                acknowledged.append(answer.json()["id"])
            assert answer.status_code == 503, answer.text
            assert answer.json()["code"] == "storage_full"
            assert int(answer.headers["Retry-After"]) > 0
            assert (await plane.client.get("/jobs")).status_code == 200, "reads go on"
            states = plane.control.runner.states.values()
            await wait_until_async(
                lambda: any(state.consecutive_failures for state in states), "a loop met it too"
            )
        later = await plane.submit("after")
        assert later.status_code == 201
        for job_id in [*acknowledged, later.json()["id"]]:
            assert await plane.wait_for(job_id, "completed", "failed") == "completed"
        assert plane.faults() == []
        listed = (await plane.client.get("/jobs?limit=500")).json()["items"]
        assert sorted(job["id"] for job in listed) == sorted([*acknowledged, later.json()["id"]])
