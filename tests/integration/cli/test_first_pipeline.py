"""The first pipeline as a new user meets it: one command, kills on the way, versions, an import."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.integration.cli.conftest import CommandLine, Server, start_server
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
HELLO = "examples/pipelines/hello.yaml"
COMMAND = f"gpuplane pipelines run {HELLO}"
LINE = "line: Hello, world! has 10 letters.\n"
TRIES = 10


def _asked(home: Path, query: str) -> list[tuple[Any, ...]]:
    """Return rows of the home's database, whether or not its server lives."""
    with closing(sqlite3.connect(f"file:{home / 'gpuplane.db'}?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()


def _kill(server: Server, home: Path, when: str) -> bool:
    """Kill the server once a step is as told; return whether its run was not over by then."""
    open_runs = "SELECT 1 FROM runs_runs WHERE status IN ('pending', 'running')"
    over = "SELECT 1 FROM runs_runs WHERE ended_at IS NOT NULL"
    wait_until(lambda: _asked(home, when) or (_asked(home, over) and not _asked(home, open_runs)),
               "the step is there", interval_s=0.002)  # fmt: skip
    server.stop(signal.SIGKILL)
    return bool(_asked(home, open_runs))


def _run_and_kill_twice(server: Server, cli: CommandLine) -> subprocess.Popen[str] | None:
    """Return the command whose run met two ends of its server, or None if it was too fast."""
    of_newest = "run_id = (SELECT id FROM runs_runs ORDER BY id DESC LIMIT 1)"
    moments = ("key = 'greet' AND status IN ('running', 'completed')",
               "key = 'count' AND (status = 'running' OR wait_key IS NOT NULL)")  # fmt: skip
    known = len(_asked(server.home, "SELECT 1 FROM runs_runs"))
    command = cli.start(*COMMAND.split()[1:])
    wait_until(lambda: len(_asked(server.home, "SELECT 1 FROM runs_runs")) > known, "it began",
               interval_s=0.002)  # fmt: skip
    for moment in moments:
        query = f"SELECT 1 FROM runs_steps WHERE {of_newest} AND {moment}"
        was_open = _kill(server, server.home, query)
        server.process = start_server(server.home).process
        if not was_open:
            command.communicate(timeout=60)
            return None
    return command


def test_the_readmes_pipeline_ends_well_though_its_server_is_killed_twice_on_the_way(
    own_server: Server,
) -> None:
    assert COMMAND in (ROOT / "README.md").read_text()
    cli = CommandLine(own_server.home, ROOT)
    command = None
    for _ in range(TRIES):
        command = command or _run_and_kill_twice(own_server, cli)
    assert command is not None, f"{TRIES} runs were over before their server was killed twice"
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (0, LINE), err
    assert "the control plane is back" in err
    run = cli.ok("pipelines", "runs", "hello", "-n", "1", "-o", "json").data["items"][0]
    steps = cli.ok("pipelines", "show", run["id"], "-o", "json").data["steps"]
    assert {step["key"]: (step["status"], step["attempt"]) for step in steps} == dict.fromkeys(
        ("greet", "count", "sum-up", "pipeline-outputs"), ("completed", 1)
    )
    places = _asked(
        own_server.home,
        f"SELECT done_no FROM runs_steps WHERE run_id = '{run['id'].replace('-', '')}'",
    )
    assert sorted(places) == [(1,), (2,), (3,), (4,)]
    jobs = cli.ok("ps", "-a", "-o", "json").data["items"]
    assert [job["status"] for job in jobs if job["source_id"] == steps[1]["id"]] == ["completed"]
    assert cli.ok("db", "check").code == 0


def test_the_first_pipeline_is_changed_rolled_back_and_imported_from_argo(
    cli: CommandLine,
) -> None:
    hello = (ROOT / HELLO).read_text()
    (cli.folder / "hello.yaml").write_text(hello.replace("Hello, {who}", "Good day, {who}"))
    words = ("pipelines", "run", "hello", "-P", "who=moon")
    cli.ok("pipelines", "apply", str(ROOT / HELLO))
    first = cli.ok("pipelines", "versions", "hello", "-o", "json").data["items"][0]["number"]
    cli.ok("pipelines", "apply", "hello.yaml")
    assert cli.ok(*words).out == "line: Good day, moon! has 11 letters.\n"
    rolled = cli.ok("pipelines", "rollback", "hello", str(first)).out
    assert rolled == f"hello has version {first + 2}, the content of {first}\n"
    assert cli.ok(*words).out == "line: Hello, moon! has 9 letters.\n"

    example = str(ROOT / "examples" / "integrations" / "hello-argo.yaml")
    imported = ("pipelines", "import", example, "--name", "hello", "--containers", "process")
    assert "can be imported" in cli.ok(*imported, "--dry-run").err
    cli.ok(*imported)
    run = cli.ok(*words, "-o", "json").data
    assert (run["status"], run["source_version"]) == ("completed", first + 3)
    told = cli.ok("pipelines", "logs", run["id"], "main-sum-up").out
    assert told == "line: Hello, moon! has 9 letters.\n"
    steps = cli.ok("pipelines", "show", run["id"], "-o", "json").data["steps"]
    assert [step["key"] for step in steps] == ["main-greet", "main-count", "main-sum-up"]
