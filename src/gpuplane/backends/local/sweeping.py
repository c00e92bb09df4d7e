"""Makes sure that nothing of an attempt without a supervisor runs on.

Needed only when supervisor and guard were killed at one moment: otherwise the guard has done it.
"""

import contextlib
import os
import select
import signal
import time
from typing import Any

from gpuplane.backends.local.folders import AttemptFolder
from gpuplane.backends.local.supervisor import cgroup, kernel

PATIENCE_S = 2.0
"""How long killed processes may take to leave before the attempt is called unreachable."""
_PAUSE_S = 0.005
"""A killed cgroup empties in a millisecond, and there is no descriptor to wait on without one."""


def sweep(folder: AttemptFolder, record: dict[str, Any]) -> list[int]:
    """Kill what is left of an attempt and return the processes that did not go.

    A process belongs to the attempt when its environment says so. One that has replaced its
    environment and left the tree is found only where there is a cgroup; `Probe.notes` says so.
    """
    limits = str(record.get("cgroup") or "")
    marker = f"GPUPLANE_ATTEMPT_ID={folder.attempt_id}".encode()
    end = time.monotonic() + PATIENCE_S
    while True:
        cgroup.kill(limits)
        left = [pid for pid in kernel.list_processes() if kernel.has_marker(pid, marker)]
        is_populated = cgroup.is_populated(limits)
        if time.monotonic() > end or not (left or is_populated):
            cgroup.remove(limits)
            return left or ([0] if is_populated else [])
        for pid in left:
            _kill_and_wait(pid, end)
        if is_populated and not left:
            time.sleep(_PAUSE_S)


def _kill_and_wait(pid: int, end: float) -> None:
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            poller.poll(int(max(0.0, end - time.monotonic()) * 1000))
        finally:
            os.close(handle)
