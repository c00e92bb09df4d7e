"""A real control plane in a process of its own, and the command line as people call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

COMMAND = [sys.executable, "-m", "gpuplane"]
TIMEOUT_S = 60


@dataclass
class Server:
    """A control plane on a home of its own."""

    home: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return (self.home / "address").read_text().strip()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(TIMEOUT_S)


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """Calls `gpuplane` against one server."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.folder = folder

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GPUPLANE_")}
        return {**kept, "GPUPLANE_HOME": str(self.home), "COLUMNS": "120", **more}

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *words],
            env=self.environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def __call__(
        self, *words: str, stdin: str | None = None, env: dict[str, str] | None = None
    ) -> Done:
        done = subprocess.run(
            [*COMMAND, *words],
            env=self.environment(**(env or {})),
            cwd=self.folder,
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str, **more: Any) -> Done:
        done = self(*words, **more)
        assert done.code == 0, done
        return done

    def job(self, key: str) -> dict[str, Any]:
        return dict(self.ok("jobs", "show", key, "-o", "json").data)

    def wait_for(self, key: str, *statuses: str) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            found = self.job(key)
            return found if found["status"] in statuses else None

        found = wait_until(
            reached, f"{key} is {' or '.join(statuses)}", deadline_s=60, interval_s=0.1
        )
        assert found is not None
        return found


def start_server(home: Path, **settings: str) -> Server:
    home.mkdir(parents=True, exist_ok=True)
    (home / "address").unlink(missing_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GPUPLANE_")}
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [*COMMAND, "up", "--home", str(home), "--port", "0"],
            env={**kept, **settings},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    server = Server(home, process)
    wait_until(
        lambda: (home / "address").exists() or process.poll() is not None,
        "the control plane is up",
        deadline_s=60,
        interval_s=0.05,
    )
    assert process.poll() is None, (home / "server.log").read_text()
    return server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = start_server(tmp_path_factory.mktemp("control") / "home")
    yield started
    started.stop()


@pytest.fixture
def cli(server: Server, tmp_path: Path) -> CommandLine:
    return CommandLine(server.home, tmp_path)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that a test may stop, kill or freeze."""
    started = start_server(tmp_path / "home")
    yield started
    if started.process.poll() is None:
        started.stop()


def simulated(*more: str, duration: str = "30m", name: str = "job") -> Sequence[str]:
    """Return the words that submit a job to the simulated cluster and leave."""
    return ["run", "-d", "--cluster", "demo", "--sim-duration", duration, "-n", name, *more]
