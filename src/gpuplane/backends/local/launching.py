"""Starts a supervisor and waits until it has claimed its attempt.

Never knows what a supervisor does afterwards. Blocking; called off the event loop.
"""

import contextlib
import fcntl
import os
import select
import sys
from pathlib import Path

from gpuplane.backends.interface import BackendError, Tombstoned
from gpuplane.backends.local.supervisor import plan as payloads
from gpuplane.core.reasons import Word
from gpuplane.kit.failpoints import failpoint

_MAIN = str(Path(__file__).parent / "supervisor" / "main.py")
_FIRST_FREE = 10
"""Descriptors are moved up here, so that none of them is one of those given to the child."""


def launch(values: dict[str, object], folder: Path, gpu_lock: int | None, timeout_s: float) -> None:
    """Start a supervisor on a payload and return once the attempt is claimed by one.

    Raises:
        Tombstoned: If the attempt may never start.
        BackendError: If no supervisor could be started, or it died before it claimed.
    """
    payload = payloads.pack({**values, "has_gpu_lock": gpu_lock is not None})
    plan_end, plan_writer = _pipe()
    answer_reader, answer_end = _pipe()
    log = _moved(os.open(folder / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    child = 0
    given = [plan_end, answer_end, log, *([] if gpu_lock is None else [gpu_lock])]
    try:
        try:
            child = os.posix_spawn(
                sys.executable,
                # Isolated and without site: no user's path, variable or .pth file has a say.
                [sys.executable, "-I", "-S", _MAIN],
                {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, handle, number) for number, handle in enumerate(given)
                ],
            )
        finally:
            for handle in (plan_end, answer_end, log):
                os.close(handle)
        failpoint("local.launch.spawned")
        _write_all(plan_writer, payload)
        os.close(plan_writer)
        plan_writer = -1
        failpoint("local.launch.handed_over")
        answer = _read_answer(answer_reader, timeout_s)
    except OSError as error:
        raise BackendError(Word.START_FAILED, f"no supervisor can be started: {error}") from error
    finally:
        os.close(answer_reader)
        if plan_writer >= 0:
            os.close(plan_writer)
        if child:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)  # it only forks the guard, or has failed
    if answer == "tombstoned":
        raise Tombstoned(Word.CANCELLED, "the attempt was evicted before it started")
    if answer not in ("claimed", "held", "started"):
        detail = answer or (folder / "supervisor.log").read_text(errors="replace")[-500:]
        text = f"the supervisor ended before it claimed the attempt: {detail}"
        raise BackendError(Word.START_FAILED, text)


def _read_answer(handle: int, timeout_s: float) -> str:
    answer = b""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    while not answer.endswith(b"\n"):
        if not poller.poll(int(timeout_s * 1000)):
            return f"no answer within {timeout_s:g} s"
        chunk = os.read(handle, 200)
        if not chunk:
            break
        answer += chunk
    return answer.decode(errors="replace").strip()


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    return _moved(reader), _moved(writer)


def _moved(handle: int) -> int:
    moved = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    os.close(handle)
    return moved
