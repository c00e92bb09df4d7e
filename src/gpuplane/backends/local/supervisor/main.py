"""Entry of the supervisor: read the plan, leave the control plane, claim the attempt, run it.

Three processes: the one started reads the plan and ends; its child, the *guard*, holds the
attempt's lock and adopts; the guard's child is the *supervisor*. When the supervisor dies, every
descendant becomes the guard's and is killed before the lock is let go. When the guard dies, the
supervisor is told by the kernel and ends the attempt. Only both killed at one moment leave that
to the next look of the control plane.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

# Run as a file with an empty environment and no site: the package's own root is not known yet.
sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 5)[0])

from gpuplane.backends.local.supervisor import cgroup, kernel, records
from gpuplane.backends.local.supervisor.loop import Supervisor
from gpuplane.backends.local.supervisor.plan import Plan, read_plan

CLAIMED = b"claimed\n"
HELD = b"held\n"
STARTED_BEFORE = b"started\n"
TOMBSTONED = b"tombstoned\n"

_ANSWER = 1
_GPU_LOCK = 3
"""Held while the attempt lives when it has GPUs; given after plan, answer and errors."""


def main() -> None:
    """Take the plan from standard input; answers on standard output in one line."""
    _close_inherited()
    plan = read_plan(0)
    if plan is None:
        return
    if plan.has_gpu_lock:
        os.set_inheritable(_GPU_LOCK, False)  # this process's alone, not its jobs'
    else:
        with contextlib.suppress(OSError):
            os.close(_GPU_LOCK)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir(plan.folder)
    guard(plan)


def guard(plan: Plan) -> None:
    """Hold the lock, start the supervisor and outlive it until its last descendant is gone."""
    if records.take_lock(records.LOCK) is None:
        _answer(HELD)
        return
    cgroup.leave_service(plan.cgroup)
    kernel.become_subreaper()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            supervise(plan, me)
        except BaseException:  # noqa: BLE001 - the last edge: the reason goes to supervisor.log
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    kernel.name_process("gpuplane-guard")
    _silence()
    while os.waitpid(-1, 0)[0] != pid:
        pass
    limits = f"{plan.cgroup}/{plan.attempt_id}" if plan.cgroup else ""
    cgroup.kill(limits)
    kernel.reap_all(me)
    cgroup.remove(limits)
    state = kernel.read_text(records.STATE) or ""
    if os.path.exists(records.FATE) and '"is_over":true' not in state:
        lost = {"format": records.FORMAT, "at": time.time_ns() // 1_000_000}
        with contextlib.suppress(OSError):
            records.create_once(f"{plan.folder}/{records.LOST}", lost)
    records.announce(plan.changes)


def supervise(plan: Plan, guard_pid: int) -> None:
    """Claim the attempt for ever, then run it; never returns."""
    kernel.become_subreaper()
    kernel.name_process("gpuplane-super")
    with contextlib.suppress(FileExistsError):
        os.mkfifo(records.CONTROL, 0o600)
    # Opened for both directions: a pipe whose last writer left would be readable for ever.
    control = os.open(records.CONTROL, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    claim = {
        "format": records.FORMAT,
        "fate": records.START,
        "attempt_id": plan.attempt_id,
        "epoch": plan.epoch,
        "boot_id": kernel.boot_id(),
        "supervisor_pid": os.getpid(),
        "supervisor_ticks": kernel.start_ticks(os.getpid()),
        "guard_pid": guard_pid,
        "ranks": [replica.rank for replica in plan.replicas],
    }
    if not records.create_once(f"{plan.folder}/{records.FATE}", claim):
        text = kernel.read_text(records.FATE) or ""
        _answer(TOMBSTONED if f'"fate":"{records.NEVER}"' in text else STARTED_BEFORE)
        os._exit(0)
    _answer(CLAIMED)
    Supervisor(plan, control, guard_pid).run()
    os._exit(0)


def _answer(line: bytes) -> None:
    """Tell the control plane, which may be gone by now."""
    with contextlib.suppress(OSError):
        os.write(_ANSWER, line)
    _silence()


def _silence() -> None:
    """Let go of the control plane's pipes."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def _close_inherited() -> None:
    """Close what the control plane's libraries may have left open across exec."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > _GPU_LOCK:
            with contextlib.suppress(OSError):
                os.close(int(name))


if __name__ == "__main__":
    main()
