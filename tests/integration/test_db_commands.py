"""`gpuplane db`: what it proves, copies and puts back, on both databases."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from gpuplane.cli.main import build
from gpuplane.db.database import Database
from gpuplane.db.schema import head_revision
from gpuplane.db.sessions import WriteSession
from gpuplane.entry.checking import find_faults
from gpuplane.entry.home import Home
from gpuplane.entry.main import SERVER_COMMANDS
from gpuplane.kit.clock import SystemClock
from tests.faults.inside import inside

Db = Callable[..., Result]


def db_on(home: Path, url: str) -> Db:
    """Return `gpuplane db` for one home and database."""

    def run(*arguments: str) -> Result:
        options: Sequence[str] = ["db", "--home", str(home), "--database-url", url]
        group = build(SERVER_COMMANDS)
        return CliRunner().invoke(group, [*options, *arguments], standalone_mode=False)

    return run


def code_of(result: Result) -> int:
    """Return how the process would end: commands return their code, refusals raise."""
    error = result.exception
    if error is not None and hasattr(error, "exit_code"):
        return int(error.exit_code)
    return result.return_value if isinstance(result.return_value, int) else result.exit_code


async def some_jobs(folder: Path, url: str) -> None:
    """Leave a home with a job that is over and one that runs."""
    async with inside(folder, url) as plane:
        over = (await plane.submit("over")).json()["id"]
        await plane.wait_for(over, "completed")
        body = {"simulated": {"duration_s": 3600.0}}
        running = (await plane.submit("runs", spec=body)).json()["id"]
        await plane.wait_for(running, "running")


def write(url: str, statement: str) -> None:
    """Change rows behind the product's back."""
    database = Database(url)
    try:
        database.write_now("tests.damage", lambda s: s.sql.execute(text(statement)))
    finally:
        database.close()


DAMAGES = {
    "an attempt is taken away from a running job": (
        "UPDATE jobs_attempts SET state = 'ended' WHERE state <> 'ended'",
        "is running with 0 attempts",
    ),
    "a job is over while its attempt holds devices": (
        "UPDATE jobs_jobs SET status = 'completed' WHERE status = 'running'",
        "has an attempt that is not over",
    ),
    "an allocation is gone": (
        "DELETE FROM placements_allocations WHERE to_at IS NULL AND gpu_id IS NOT NULL",
        "does not hold what its replica",
    ),
    "a guard says less than is held": (
        "UPDATE placements_devices SET allocated_milli = 0",
        "GPU-",
    ),
    "an interval begins too late": (
        "UPDATE usage_intervals SET from_at = from_at + 1 WHERE to_at IS NULL AND state = 'busy'",
        "GPU-",
    ),
    "a status was changed without an event": (
        "UPDATE jobs_jobs SET status = 'cancelled' WHERE status = 'completed'",
        "its history ends with completed",
    ),
}  # fmt: skip


class Undone(Exception):
    """Takes a damage back."""


def faults_after(database: Database, statement: str) -> list[str]:
    """Return what is found wrong after a change that is then taken back."""
    found: list[str] = []

    def damage(session: WriteSession) -> None:
        session.sql.execute(text(statement))
        found.extend(find_faults(session, SystemClock().now_ms()))
        raise Undone

    with pytest.raises(Undone):
        database.write_now("tests.damage", damage)
    return found


async def test_the_check_is_silent_on_sound_rows_and_names_each_damage(
    migrated_url: str, tmp_path: Path
) -> None:
    await some_jobs(tmp_path, migrated_url)
    database = Database(migrated_url)
    try:
        assert await asyncio.to_thread(faults_after, database, "SELECT 1") == []
        for damage, (statement, said) in DAMAGES.items():
            found = await asyncio.to_thread(faults_after, database, statement)
            assert any(said in fault for fault in found), (damage, found)
    finally:
        database.close()


async def test_the_check_ends_with_1_and_the_sentence_when_a_promise_is_broken(
    sqlite_migrated_url: str, tmp_path: Path
) -> None:
    await some_jobs(tmp_path, sqlite_migrated_url)
    db = db_on(tmp_path / "home", sqlite_migrated_url)
    assert code_of(await asyncio.to_thread(db, "check")) == 0
    statement, said = DAMAGES["a job is over while its attempt holds devices"]
    await asyncio.to_thread(write, sqlite_migrated_url, statement)
    broken = await asyncio.to_thread(db, "check")
    assert code_of(broken) == 1
    assert said in broken.output


async def test_a_backup_made_under_load_holds_one_instant_and_can_be_put_back(
    migrated_url: str, tmp_path: Path
) -> None:
    if migrated_url.startswith("postgresql") and shutil.which("pg_dump") is None:
        pytest.skip("pg_dump is not installed")
    db = db_on(tmp_path / "home", migrated_url)
    copy = tmp_path / "copy"
    async with inside(tmp_path, migrated_url) as plane:
        first = (await plane.submit("before")).json()["id"]
        await plane.wait_for(first, "completed")
        made, *_ = await asyncio.gather(
            asyncio.to_thread(db, "backup", str(copy)),
            *(plane.submit(f"meanwhile-{number}") for number in range(10)),
        )
        assert code_of(made) == 0, made.output
        refused = await asyncio.to_thread(db, "restore", str(copy))
        assert code_of(refused) == 4
        assert "already runs on" in str(refused.exception)
        await plane.submit("after")
    put_back = await asyncio.to_thread(db, "restore", str(copy))
    assert code_of(put_back) == 0, (put_back.output, put_back.exception)
    assert "What was there before lies at" in put_back.output
    async with inside(tmp_path, migrated_url) as plane:
        names = {job["name"] for job in (await plane.client.get("/jobs")).json()["items"]}
        assert "before" in names
        assert "after" not in names
        assert plane.faults() == []


def test_a_restore_keeps_the_database_it_replaces(sqlite_migrated_url: str, tmp_path: Path) -> None:
    db = db_on(tmp_path / "home", sqlite_migrated_url)
    copy = tmp_path / "copy"
    assert code_of(db("backup", str(copy))) == 0
    write(sqlite_migrated_url, "CREATE TABLE left_over (id INTEGER)")
    assert code_of(db("restore", str(copy))) == 0
    kept = next(tmp_path.glob("gpuplane.db.replaced-*"))
    names = sqlite3.connect(kept).execute("SELECT name FROM sqlite_master").fetchall()
    assert ("left_over",) in names


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\0" + bytes(900)])
def test_a_file_that_is_no_database_is_not_restored(
    content: bytes, sqlite_migrated_url: str, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(content)
    db = db_on(tmp_path / "home", sqlite_migrated_url)
    assert code_of(db("restore", str(bad))) == 4
    assert code_of(db("check")) == 0


def test_a_backup_never_replaces_a_file(sqlite_migrated_url: str, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert code_of(db_on(tmp_path / "home", sqlite_migrated_url)("backup", str(taken))) == 4
    assert taken.read_text() == "mine"


def test_commands_that_find_no_database_say_where_they_looked(tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    result = db_on(tmp_path / "home", f"sqlite:///{missing}")("check")
    assert code_of(result) == 3
    assert str(missing) in str(result.exception)
    assert not missing.exists()


def test_an_upgrade_makes_the_schema_and_doing_it_again_changes_nothing(
    database_url: str, tmp_path: Path
) -> None:
    if database_url.startswith("sqlite"):
        Path(database_url.removeprefix("sqlite:///")).touch()
    db = db_on(tmp_path / "home", database_url)
    first, again = db("upgrade"), db("upgrade")
    assert code_of(first) == 0, (first.output, first.exception)
    assert f"revision {head_revision()}" in first.output
    assert "nothing is to be done" in again.output


def test_an_upgrade_is_refused_while_a_control_plane_runs(
    sqlite_migrated_url: str, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    home.open()
    try:
        assert code_of(db_on(home.path, sqlite_migrated_url)("upgrade")) == 4
    finally:
        home.close()
