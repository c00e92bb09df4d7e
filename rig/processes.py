"""A program of the rig as a process: started with a log of its own, halted, killed, started again.

Every process ends with the process that started it, also when that one is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STOP_S = 10.0  # API server and etcd drain for a moment; nothing here is worth waiting longer
POLL_S = 0.05
LOG_TAIL_CHARACTERS = 3_000
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_prctl = ctypes.CDLL(None).prctl


class RigFailed(Exception):
    """A part of the rig did not start or stopped by itself; the message has the end of its log."""


@dataclass
class Part:
    """One program with its arguments, so that it can be stopped and started again.

    Attributes:
        name: What people call it: `etcd`, `kube-apiserver`, `kueue`.
        command: Program and arguments.
        log: The file its output is appended to.
        folder: Its working directory.
        is_ready: Asked after a start until it says yes.
        ready_s: How long a start may take.
        environment: Variables beside those of the starter.
    """

    name: str
    command: Sequence[str]
    log: Path
    folder: Path
    is_ready: Callable[[], bool]
    ready_s: float = 60.0
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the program without waiting for it; does nothing where it runs."""
        if self.is_running:
            return
        starter = os.getpid()

        def end_with_starter() -> None:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != starter:  # it was killed before the line above
                os._exit(1)

        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                preexec_fn=end_with_starter,
                start_new_session=True,  # Ctrl-C is for the rig, which stops its parts in order
            )

    def wait_ready(self) -> None:
        """Wait until the program answers.

        Raises:
            RigFailed: If it ends or does not answer in time.
        """
        deadline = time.monotonic() + self.ready_s
        while time.monotonic() < deadline:
            if not self.is_running:
                raise RigFailed(f"{self.name} ended at once: {self.log_tail()}")
            if self.is_ready():
                return
            time.sleep(POLL_S)
        raise RigFailed(f"{self.name} is not ready after {self.ready_s:.0f} s: {self.log_tail()}")

    def start_again(self) -> None:
        """Start the program on the same data and ports, and wait until it answers."""
        self.start()
        self.wait_ready()

    def stop(self) -> None:
        """Ask the program to end and insist after a while; safe to call twice."""
        if self.process is None:
            return
        if self.is_running:
            self.process.send_signal(signal.SIGCONT)  # a frozen one could not end
            self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the program as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def freeze(self) -> None:
        """Keep the program from running, as a machine that hangs: its connections stay open."""
        if self.process is not None and self.is_running:
            self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen program run on."""
        if self.process is not None and self.is_running:
            self.process.send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """Return the end of the program's output."""
        if not self.log.exists():
            return "no log"
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


def is_alive(pid: int) -> bool:
    """Return whether a process runs: one that ended and was not waited for does not."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def is_listening(port: int) -> bool:
    """Return whether somebody takes connections on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
