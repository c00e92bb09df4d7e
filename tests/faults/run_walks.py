"""Workers of runs that are killed, and what must hold of the runs afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from sqlalchemy import text

from gpuplane.db.database import Database
from gpuplane.domains.runs import service as runs
from gpuplane.kit.pagination import PageRequest
from tests.faults.run_worker import ENDS, Order, main

DEADLINE_S = 150  # runs that may only go one after another take a minute on a busy machine
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.faults.run_worker"])

WATCH_SQLITE = """
CREATE TABLE test_ends (step TEXT, generation INTEGER, status TEXT);
CREATE TRIGGER test_watch AFTER UPDATE OF status ON runs_steps
WHEN NEW.status <> OLD.status AND NEW.status IN ('completed', 'failed', 'skipped', 'cancelled')
BEGIN INSERT INTO test_ends VALUES (NEW.id, NEW.generation, NEW.status); END;
"""
WATCH_POSTGRESQL = """
CREATE TABLE test_ends (step TEXT, generation INTEGER, status TEXT);
CREATE FUNCTION test_watch() RETURNS trigger AS $$ BEGIN
IF NEW.status <> OLD.status AND NEW.status IN ('completed', 'failed', 'skipped', 'cancelled') THEN
INSERT INTO test_ends VALUES (replace(NEW.id::text, '-', ''), NEW.generation, NEW.status);
END IF; RETURN NEW; END $$ LANGUAGE plpgsql;
CREATE TRIGGER test_watch AFTER UPDATE OF status ON runs_steps
FOR EACH ROW EXECUTE FUNCTION test_watch();
"""


@dataclass
class Walk:
    """Workers on one database, one after the other or side by side."""

    url: str
    folder: Path
    tags: list[str] = field(default_factory=list)
    deaths: int = 0

    def __post_init__(self) -> None:
        """Have the database itself note every end of a step."""
        database = Database(self.url)
        try:
            raw = database.engine.raw_connection()
            cursor = raw.cursor()
            if database.is_sqlite:
                cursor.executescript(WATCH_SQLITE)
            else:
                cursor.execute(WATCH_POSTGRESQL)
            raw.commit()
            raw.close()
        finally:
            database.close()

    @property
    def log(self) -> Path:
        return self.folder / "done"

    def start(self, tag: str = "", failpoints: str = "", trace: str = "") -> BaseProcess:
        """Start a worker, with a load of its own if it has a tag, else with all there are."""
        if tag:
            self.tags.append(tag)
        tags = (tag,) if tag else tuple(self.tags)
        order = Order(self.url, str(self.log), tags, failpoints, trace)
        process = _context.Process(target=main, args=(order,), daemon=True)
        process.start()
        return process

    def run_to_death(self, tag: str, failpoints: str) -> bool:
        """Start a worker that is to be killed at a point; whether it was."""
        process = self.start(tag, failpoints)
        status = self.end_of(process)
        self.deaths += status == -signal.SIGKILL
        return status == -signal.SIGKILL

    def end_of(self, process: BaseProcess) -> int:
        """Return the exit status of a worker that ends by itself."""
        process.join(DEADLINE_S)
        if process.exitcode is None:
            faults = self.faults()
            self.kill(process)
            raise AssertionError(f"a worker does not end: {self.ends()} {faults}")
        return process.exitcode

    def kill(self, process: BaseProcess) -> None:
        """Kill a worker as the kernel does when memory runs out."""
        if process.pid is not None and process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
        process.join(DEADLINE_S)
        self.deaths += process.exitcode == -signal.SIGKILL

    def ends(self) -> Counter[tuple[str, str]]:
        """Return how many runs of each name have which status."""
        database = Database(self.url)
        try:
            page = PageRequest(10_000)
            found = database.read_now(lambda s: runs.list_runs(s, None, runs.RunFilter(), page))
            return Counter((run.name, run.status.value) for run in found.items)
        finally:
            database.close()

    def faults(self) -> list[str]:
        """Return every broken promise about runs now."""
        database = Database(self.url)
        try:
            return database.read_now(runs.check)
        finally:
            database.close()

    def prove(self) -> None:
        """Check that every run ended as it must and every step once, with its effect."""
        assert self.faults() == []
        expected = Counter({(name, status): len(self.tags) for name, status in ENDS.items()})
        assert self.ends() == expected
        database = Database(self.url)
        try:
            told = database.read_now(
                lambda s: s.rows(
                    text("SELECT step, generation, status FROM test_ends WHERE status='completed'")
                )
            )
            keys = database.read_now(
                lambda s: s.rows(
                    text(
                        "SELECT run_id, key, generation, handler, status FROM runs_steps "
                        "WHERE handler NOT LIKE 'runs.%'"
                    )
                )
            )
        finally:
            database.close()
        ended = Counter((row["step"], row["generation"]) for row in told)
        twice = [each for each, count in ended.items() if count > 1]
        assert twice == [], f"completed more than once: {twice}"
        lines = [line.split() for line in self.log.read_text(encoding="utf-8").splitlines()]
        did = {line[1] for line in lines if line[0] == "did"}
        stopped = {line[1] for line in lines if line[0] == "stopped"}
        for row in keys:
            run_id = str(row["run_id"]).replace("-", "")
            name = f"{_dashed(run_id)}/{row['key']}#{row['generation']}"
            if row["status"] == "completed":
                assert name in did, f"{name} completed without its effect"
            if row["handler"] == "job" and row["status"] == "cancelled":
                assert name in stopped, f"{name} was not told to stop"


def _dashed(text_: str) -> str:
    return "-".join((text_[:8], text_[8:12], text_[12:16], text_[16:20], text_[20:]))
