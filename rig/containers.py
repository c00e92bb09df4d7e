"""One container of a process node: a process with its log, its record and its end.

The record (<pod folder>/<container>.json) is what the streaming server reads for logs and exec.
"""

from __future__ import annotations

import asyncio
import ctypes
import datetime
import json
import os
import signal
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rig.podspecs import Command

PR_SET_PDEATHSIG = 1  # linux/prctl.h
LINE_BYTES = 16_384  # the CRI splits longer lines
DRAIN_S = 2.0  # for output of children that outlive the container's first process
START_ERROR = 128  # containerd's exit code for a program that does not start
MEMORY_CHECK_S = 1.0
MESSAGE_BYTES = 4096  # the kubelet's limits for a termination message, and for one from the log
MESSAGE_LOG_BYTES = 2048
MESSAGE_LINES = 80
MARK = "GPUPLANE_RIG_POD"
"""A variable in every process of a pod, by which a later rig finds what was left behind."""

_prctl = ctypes.CDLL(None).prctl


@dataclass
class Ended:
    """How a container's process ended."""

    exit_code: int
    reason: str
    started_at: str
    finished_at: str
    message: str = ""

    def state(self, container_id: str) -> dict[str, Any]:
        """Return it as `state.terminated` of a container status."""
        terminated: dict[str, Any] = {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
            "containerID": container_id,
        }
        if self.message:
            terminated["message"] = self.message
        return {"terminated": terminated}


@dataclass
class Container:
    """One container over all its restarts.

    Attributes:
        name: Its name in the pod.
        folder: The pod's folder.
        command: What is run, once it is known.
        restarts: How often it was started again.
        last: How it ended before this run.
        state: What its container status says at this moment.
        ready: Whether its readiness probe says so.
        memory_limit: Bytes its processes may hold, None for any.
    """

    name: str
    folder: Path
    command: Command | None = None
    restarts: int = 0
    last: Ended | None = None
    state: dict[str, Any] = field(
        default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}}
    )
    ready: bool = False
    started: bool = False
    memory_limit: int | None = None
    started_at: str = ""
    killed_because: str = ""
    process: asyncio.subprocess.Process | None = None
    has_started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def container_id(self) -> str:
        return f"process://{self.name}-{self.restarts}"

    @property
    def log(self) -> Path:
        return self.folder / "logs" / self.name / f"{self.restarts}.log"

    async def start(self) -> Ended | None:
        """Start the process; returns how it failed where it cannot start."""
        assert self.command is not None
        self.started_at = instant()
        self.killed_because = ""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.command.message.write_bytes(b"")
        self.log.touch()
        kubelet = os.getpid()

        def end_with_kubelet() -> None:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != kubelet:
                os._exit(START_ERROR)

        environment = self.command.environment | {MARK: str(self.folder)}
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command.words,
                cwd=self.command.folder,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_BYTES,
                start_new_session=True,
                preexec_fn=end_with_kubelet,
            )
        except OSError as error:
            self.write_record(running=False)
            message = f'exec: "{self.command.words[0]}": {error.strerror}'
            return Ended(START_ERROR, "StartError", self.started_at, instant(), message)
        self.state = {"running": {"startedAt": self.started_at}}
        self.write_record(running=True)
        return None

    async def wait(self) -> Ended:
        """Copy the output to the log until the first process ends, then end all others."""
        assert self.process is not None
        with self.log.open("ab", buffering=0) as log:
            readers = asyncio.gather(
                _copy(self.process.stdout, b"stdout", log.write),
                _copy(self.process.stderr, b"stderr", log.write),
            )
            watch = asyncio.ensure_future(self._watch_memory())
            code = await self.process.wait()
            watch.cancel()
            self.signal_all(signal.SIGKILL)
            await _within(DRAIN_S, readers)
        self.write_record(running=False)
        exit_code = 128 - code if code < 0 else code
        reason = self.killed_because or ("Completed" if code == 0 else "Error")
        message = self._message(failed=exit_code != 0)
        return Ended(exit_code, reason, self.started_at, instant(), message)

    def _message(self, *, failed: bool) -> str:
        """Return the termination message: what the process left, or the end of a failure's log."""
        assert self.command is not None
        try:
            text = self.command.message.read_bytes()[:MESSAGE_BYTES]
        except OSError:
            text = b""
        if not text and failed and self.command.log_is_message:
            lines = self.log.read_bytes().splitlines()[-MESSAGE_LINES:]
            text = b"\n".join(line.split(b" ", 3)[3] for line in lines)[-MESSAGE_LOG_BYTES:]
        return text.decode(errors="replace")

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to every process of the container."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    async def end(self, grace_s: float) -> None:
        """Ask the process to end, and end it after the grace period."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()  # the first process alone, as a container runtime does
        await _within(grace_s, process.wait())
        self.signal_all(signal.SIGKILL)

    def write_record(self, *, running: bool) -> None:
        """Tell the streaming server where the container's log, folder and environment are."""
        previous = self.log.with_name(f"{self.restarts - 1}.log")
        command = self.command
        record = {
            "log": str(self.log),
            "previous": str(previous) if self.restarts else "",
            "folder": str(command.folder) if command else "",
            "env": [f"{k}={v}" for k, v in command.environment.items()] if command else [],
            "running": running,
        }
        if not self.folder.exists():  # the pod was taken away meanwhile
            return
        path = self.folder / f"{self.name}.json"
        fresh = path.with_suffix(".new")
        fresh.touch(mode=0o600)  # an environment may hold secrets
        fresh.write_text(json.dumps(record))
        fresh.replace(path)

    async def _watch_memory(self) -> None:
        """End the container as the kernel's OOM killer would once it holds more than its limit."""
        assert self.process is not None
        while self.memory_limit is not None:
            await asyncio.sleep(MEMORY_CHECK_S)
            if MEMORY.of_group(self.process.pid) > self.memory_limit:
                self.kill_for_memory()
                return

    def kill_for_memory(self) -> None:
        """End the container and call it OOMKilled."""
        self.killed_because = "OOMKilled"
        self.signal_all(signal.SIGKILL)


def instant() -> str:
    """Return this moment as Kubernetes writes it: RFC 3339, whole seconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _copy(stream: asyncio.StreamReader | None, name: bytes, write: Any) -> None:
    """Write a stream line by line in the CRI's log format."""
    assert stream is not None
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            line = await stream.readexactly(error.consumed)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                write(_log_line(name, b"P", error.partial))
            return
        whole = line.endswith(b"\n")
        write(_log_line(name, b"F" if whole else b"P", line.removesuffix(b"\n")))


def _log_line(stream: bytes, tag: bytes, text: bytes) -> bytes:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()
    return b" ".join((now, stream, tag, text)) + b"\n"


async def _within(seconds: float, awaited: Awaitable[Any]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await awaited


class MemoryByGroup:
    """Memory of all process groups, read once a turn however many containers ask."""

    def __init__(self) -> None:
        self._read_at = 0.0
        self._bytes: dict[int, int] = {}

    def of_group(self, group: int) -> int:
        """Return the bytes that a group's processes hold beside what they share with others."""
        now = time.monotonic()
        if now - self._read_at > MEMORY_CHECK_S / 2:
            self._read_at, self._bytes = now, _read_memory()
        return self._bytes.get(group, 0)


MEMORY = MemoryByGroup()


def _read_memory() -> dict[int, int]:
    found: dict[int, int] = {}
    page = os.sysconf("SC_PAGE_SIZE")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            group = int((entry / "stat").read_text().rpartition(")")[2].split()[2])
            _, resident, shared, *_ = (entry / "statm").read_text().split()
            found[group] = found.get(group, 0) + (int(resident) - int(shared)) * page
    return found
