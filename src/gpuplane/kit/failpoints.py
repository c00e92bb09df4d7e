"""Named places where a test can end the process, to prove that nothing half-done stays behind.

Armed only by GPUPLANE_FAILPOINTS (`name` or `name@hit`, comma-separated); unarmed it costs one
dictionary look-up. GPUPLANE_FAILPOINT_TRACE names a file that collects every name passed, so that
a test can walk them one by one.
"""

import os
import signal
from pathlib import Path

_armed: dict[str, int] = {}
_trace: str | None = None
_seen: set[str] = set()


def arm_from_environment() -> None:
    """Read the two variables; called once by the composition root."""
    global _trace
    _armed.clear()
    for item in filter(None, os.environ.get("GPUPLANE_FAILPOINTS", "").split(",")):
        name, _, hit = item.partition("@")
        _armed[name] = int(hit or "1")
    _trace = os.environ.get("GPUPLANE_FAILPOINT_TRACE")


def failpoint(name: str) -> None:
    """End this process with SIGKILL if the named point is armed and its hit has come."""
    if _trace is not None and name not in _seen:
        with Path(_trace).open("a", encoding="utf-8") as file:
            file.write(name + "\n")
        _seen.add(name)  # only now: another thread that passes it may end the process at once
    if not _armed:
        return
    left = _armed.get(name)
    if left is None:
        return
    if left <= 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _armed[name] = left - 1
