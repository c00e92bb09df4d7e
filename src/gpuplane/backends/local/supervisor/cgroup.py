"""Limits of one replica by cgroup v2, where this user may make one.

An empty path means that there is none: every function then does nothing, and the backend has
said so to people. Never raises: a refused limit must not stop a job that could run.
"""

from __future__ import annotations

import contextlib
import os

SUPERVISORS = "supervisors"
PERIOD_US = 100_000


def make(base: str | None, name: str, cpu_milli: int, memory_mib: int) -> str:
    """Make a cgroup with these limits and return its path, or "" where none can be made."""
    if not base:
        return ""
    path = f"{base}/{name}"
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return ""
    _write(path + "/cpu.max", f"{max(1000, cpu_milli * PERIOD_US // 1000)} {PERIOD_US}")
    _write(path + "/memory.max", str(memory_mib << 20))
    _write(path + "/memory.swap.max", "0")
    # All of a replica or nothing: a training run with one worker killed hangs rather than fails.
    _write(path + "/memory.oom.group", "1")
    return path


def leave_service(base: str | None) -> None:
    """Move this process beside the service it was started from.

    A service manager that stops the control plane ends every process of its cgroup; the
    supervisors are to go on.
    """
    if base:
        with contextlib.suppress(OSError):
            os.makedirs(f"{base}/{SUPERVISORS}", exist_ok=True)
        enter(f"{base}/{SUPERVISORS}", os.getpid())


def enter(path: str, pid: int) -> None:
    """Move a process into a cgroup."""
    if path:
        _write(path + "/cgroup.procs", str(pid))


def kill(path: str) -> None:
    """Kill every process of a cgroup and of those below, at once."""
    if path:
        _write(path + "/cgroup.kill", "1")


def was_out_of_memory(path: str) -> bool:
    """Return whether the kernel killed something in it for want of memory."""
    return _counter(path, "memory.events", "oom_kill") > 0


def is_populated(path: str) -> bool:
    """Return whether a process of it or below lives."""
    return _counter(path, "cgroup.events", "populated") > 0


def cpu_ms(path: str) -> int:
    """Return the processor time that all processes of it have used."""
    return _counter(path, "cpu.stat", "usage_usec") // 1000


def memory_peak_mib(path: str) -> int:
    """Return the most memory that all processes of it have used at once; 0 where unknown."""
    if path:
        with contextlib.suppress(OSError, ValueError), open(path + "/memory.peak") as file:
            return int(file.read()) >> 20
    return 0


def remove(path: str) -> None:
    """Remove an empty cgroup and its children; one that still has processes stays."""
    if not path:
        return
    with contextlib.suppress(OSError):
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                remove(entry.path)
        os.rmdir(path)


def _counter(path: str, file_name: str, name: str) -> int:
    if not path:
        return 0
    with contextlib.suppress(OSError, ValueError), open(f"{path}/{file_name}") as file:
        for line in file:
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError), open(path, "w") as file:
        file.write(text)
