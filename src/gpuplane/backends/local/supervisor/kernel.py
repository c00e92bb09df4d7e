"""What the supervisor asks of the Linux kernel: death signals, adoption, who descends from whom.

Never keeps state; every answer is read from `/proc` when asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send this process a signal when its parent dies."""
    _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def become_subreaper() -> None:
    """Adopt descendants whose parent dies, so that a double fork does not escape."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def name_process(name: str) -> None:
    """Set the short name that `ps` and `top` show."""
    _libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def read_text(path: str) -> str | None:
    """Return a small file's text, or None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def boot_id() -> str:
    """Return the id of this boot; a process id means nothing under another one."""
    return (read_text("/proc/sys/kernel/random/boot_id") or "").strip()


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of `/proc/PID/stat` after the command's name, or None when it is gone."""
    text = read_text(f"/proc/{pid}/stat")
    if not text:
        return None
    return text[text.rfind(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; with the id it names a process."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def is_alive(pid: int, ticks: int | None) -> bool:
    """Return whether exactly this process still runs (a zombie does not)."""
    fields = stat_fields(pid)
    if not fields or fields[0] in "ZX":
        return False
    return ticks is None or int(fields[19]) == ticks


def list_processes() -> dict[int, int]:
    """Return the parent of every process that is not a zombie."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_fields(int(name))
            if fields and fields[0] not in "ZX":
                found[int(name)] = int(fields[1])
    return found


def list_descendants(root: int) -> list[int]:
    """Return every living process below root, nearest first."""
    children: dict[int, list[int]] = {}
    for pid, parent in list_processes().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    frontier = [root]
    while frontier:
        frontier = [child for pid in frontier for child in children.get(pid, ())]
        found += frontier
    return found


def has_marker(pid: int, marker: bytes) -> bool:
    """Return whether a process was started with this `NAME=value` in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return marker in file.read().split(b"\0")
    except OSError:
        return False


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    for line in (read_text(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(group: int, number: int) -> None:
    """Send a signal to a process group that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def reap_all(me: int) -> None:
    """Kill and reap every descendant; returns when none is left.

    As a subreaper this process inherits every orphan, so the loop ends only when the whole tree
    is gone, double forks included.
    """
    while True:
        for pid in list_descendants(me):
            send(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
