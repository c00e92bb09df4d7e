"""Starting one process: fork, wait at a gate, then exec.

The child waits until its start record is on disk, so there is never a process that no record
names; if the supervisor dies before it opens the gate, nothing is executed.
"""

from __future__ import annotations

import errno
import os
import signal

from gpuplane.backends.local.supervisor import kernel

_ABANDONED = 125
_NOT_EXECUTED = 127
_RESET = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)


class Started:
    """A child at its gate, and the supervisor's ends of its pipes.

    Args:
        verdict: Readable when exec is decided: nothing to read means it happened, text tells
            why not (see `explain_failure`).
    """

    __slots__ = ("gate", "pid", "stderr", "stdout", "verdict")

    def __init__(self, pid: int, gate: int, verdict: int) -> None:
        self.pid = pid
        self.stdout = -1
        self.stderr = -1
        self.gate = gate
        self.verdict = verdict

    def release(self) -> None:
        """Open the gate: the child executes its command."""
        os.write(self.gate, b"1")
        os.close(self.gate)


def fork_logged(command: list[str], env: dict[str, str], folder: str) -> Started:
    """Return a child at its gate whose output arrives in pipes of the supervisor.

    Raises:
        OSError: If the machine has no process or descriptor left.
    """
    handles: list[int] = []
    try:
        for _ in range(2):
            handles += os.pipe2(os.O_CLOEXEC)
        stdout, stdout_end, stderr, stderr_end = handles
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        handles.append(null)
        started = fork_at_gate(command, env, folder, (null, stdout_end, stderr_end))
    except OSError:
        for handle in handles:
            os.close(handle)
        raise
    for handle in (null, stdout_end, stderr_end):
        os.close(handle)
    for handle in (stdout, stderr):
        os.set_blocking(handle, False)
    started.stdout, started.stderr = stdout, stderr
    return started


def fork_at_gate(
    command: list[str], env: dict[str, str], folder: str, standard: tuple[int, int, int]
) -> Started:
    """Return a new child in a session of its own that waits for `release`.

    Args:
        standard: What becomes its standard input, output and error; the caller closes them.

    Raises:
        OSError: If the machine has no process or descriptor left.
    """
    handles: list[int] = []
    try:
        for _ in range(2):
            handles += os.pipe2(os.O_CLOEXEC)
        gate_end, gate, verdict, verdict_end = handles
        supervisor = os.getpid()
        pid = os.fork()
    except OSError:
        for handle in handles:
            os.close(handle)
        raise
    if pid == 0:
        os.close(gate)
        _become(command, env, folder, standard, gate_end, verdict_end, supervisor)
    os.close(gate_end)
    os.close(verdict_end)
    os.set_blocking(verdict, False)
    return Started(pid, gate, verdict)


def explain_failure(verdict: str, command: list[str], folder: str) -> str:
    """Return the sentence for a verdict such as `exec 2`."""
    step, _, number = verdict.partition(" ")
    code = int(number) if number.isdigit() else 0
    text = os.strerror(code) if code else verdict
    if step == "folder":
        return f"the working directory cannot be entered: {os.path.basename(folder)}: {text}"
    if code in (errno.ENOENT, errno.ENOTDIR):
        return f"command not found: {command[0]}"
    if code == errno.ENOEXEC:
        return f"{command[0]} is neither a program nor a script that begins with #!"
    return f"{command[0]} cannot be executed: {text}"


def _become(
    command: list[str],
    env: dict[str, str],
    folder: str,
    standard: tuple[int, int, int],
    gate: int,
    verdict: int,
    supervisor: int,
) -> None:
    """Turn this child into the command; never returns."""
    step = "exec"
    try:
        os.setsid()
        kernel.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before the kernel was asked to watch
            os._exit(_ABANDONED)
        for number, handle in enumerate(standard):
            os.dup2(handle, number)
        if os.read(gate, 1) != b"1":
            os._exit(_ABANDONED)
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        step = "folder"
        os.chdir(folder)
        step = "exec"
        os.execvpe(command[0], command, env)
    except OSError as error:
        os.write(verdict, f"{step} {error.errno}".encode())
    except BaseException as error:  # noqa: BLE001 - a forked child must never run the parent's code
        os.write(verdict, f"{step}: {error}".encode(errors="replace")[:500])
    finally:
        os._exit(_NOT_EXECUTED)
