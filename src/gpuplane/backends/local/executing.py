"""Runs a command beside a replica through its supervisor, and reads what it printed.

The descriptors travel over a Unix socket in the attempt's folder, so neither input nor output
touches the disk. Blocking, each in a thread of its own pool: a long command holds up nobody.
"""

import array
import contextlib
import errno
import json
import os
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from gpuplane.backends.interface import BackendError, ExecResult
from gpuplane.backends.local.supervisor.commands import REQUEST_BYTES, SOCKET
from gpuplane.core.reasons import Word

TIMED_OUT_CODE = 124
"""What `timeout(1)` exits with."""
_READ_BYTES = 65_536
_ANSWER_BYTES = 4096


class _Pipes:
    """Our ends of the three pipes; a closed one is None."""

    def __init__(self) -> None:
        stdin_end, self.stdin = os.pipe2(os.O_CLOEXEC)
        self.stdout, stdout_end = os.pipe2(os.O_CLOEXEC)
        self.stderr, stderr_end = os.pipe2(os.O_CLOEXEC)
        self.given = [stdin_end, stdout_end, stderr_end]
        self.ours = {self.stdin, self.stdout, self.stderr}
        for handle in self.ours:
            os.set_blocking(handle, False)

    def give(self, caller: socket.socket, request: bytes) -> None:
        """Send the request with the other ends, which then belong to the command alone."""
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self.given))
        caller.sendmsg([request], [rights])
        self.close_given()

    def close_given(self) -> None:
        while self.given:
            os.close(self.given.pop())

    def close(self, handle: int) -> None:
        if handle in self.ours:
            self.ours.discard(handle)
            os.close(handle)

    def close_all(self) -> None:
        self.close_given()
        for handle in tuple(self.ours):
            self.close(handle)


def run_command(
    folder: Path,
    rank: int,
    command: Sequence[str],
    stdin: bytes,
    timeout_s: float,
    max_bytes: int,
    cancelled: int,
) -> ExecResult:
    """Run a command in a replica's directory and environment and return its result.

    Args:
        max_bytes: Most that is kept of each stream; a command that prints more is ended.
        cancelled: A descriptor that becomes readable when nobody wants the result any more.

    Raises:
        BackendError: If nothing runs there, or the request is longer than 128 KiB.
    """
    request = json.dumps({"rank": rank, "command": list(command)}).encode()
    if not command or len(request) > REQUEST_BYTES:
        raise BackendError(Word.START_FAILED, "the command is empty or longer than 128 KiB")
    caller = _connect(folder)
    try:
        pipes = _Pipes()
        try:
            pipes.give(caller, request)
            return _converse(caller, pipes, stdin, timeout_s, max_bytes, cancelled)
        finally:
            pipes.close_all()
    finally:
        caller.close()


def _connect(folder: Path) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # Through a descriptor: a home's path may be longer than the 108 bytes of an address.
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            caller.connect(f"/proc/self/fd/{handle}/{SOCKET}")
        finally:
            os.close(handle)
    except OSError as error:
        caller.close()
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
            raise BackendError(Word.START_FAILED, "the attempt does not run") from error
        raise
    return caller


def _converse(
    caller: socket.socket,
    pipes: _Pipes,
    stdin: bytes,
    timeout_s: float,
    max_bytes: int,
    cancelled: int,
) -> ExecResult:
    end = time.monotonic() + timeout_s
    output = {pipes.stdout: b"", pipes.stderr: b""}
    left = memoryview(stdin)
    if not left:
        pipes.close(pipes.stdin)
    answer: str | None = None
    poller = select.poll()
    poller.register(caller, select.POLLIN)
    poller.register(cancelled, select.POLLIN)
    for handle in pipes.ours:
        poller.register(handle, select.POLLOUT if handle == pipes.stdin else select.POLLIN)
    while answer is None or pipes.ours & output.keys():
        wait_s = end - time.monotonic()
        ready = [handle for handle, _ in poller.poll(max(0.0, wait_s) * 1000)]
        note = _why_ended(ready, wait_s, cancelled, output, max_bytes)
        if note:
            # The supervisor ends the command when this connection closes.
            return ExecResult(TIMED_OUT_CODE, output[pipes.stdout], output[pipes.stderr] + note)
        for handle in ready:
            if handle == caller.fileno():
                answer = caller.recv(_ANSWER_BYTES).decode(errors="replace")
                poller.unregister(caller)
                # What is left of the command dies with it; its pipes end by themselves.
            elif handle == pipes.stdin:
                left = _feed(pipes, left, poller)
            elif handle in output:
                output[handle] += _drain(pipes, handle, poller)
    code, _, text = answer.partition(" ")
    if not code.isdigit():
        raise BackendError(Word.SUPERVISOR_LOST, "the attempt ended while the command ran")
    stderr = output[pipes.stderr] + (text + "\n").encode() if text else output[pipes.stderr]
    return ExecResult(int(code), output[pipes.stdout], stderr)


def _why_ended(
    ready: list[int], wait_s: float, cancelled: int, output: dict[int, bytes], max_bytes: int
) -> bytes:
    if cancelled in ready:
        return b"the command was ended: nobody waits for it\n"
    if wait_s <= 0:
        return b"the command was ended: it took too long\n"
    if any(len(data) > max_bytes for data in output.values()):
        return f"the command was ended: it printed more than {max_bytes} bytes\n".encode()
    return b""


def _feed(pipes: _Pipes, left: memoryview, poller: select.poll) -> memoryview:
    try:
        left = left[os.write(pipes.stdin, left[:_READ_BYTES]) :]
    except BrokenPipeError:  # the command does not read it, which is its right
        left = left[:0]
    if not left:
        poller.unregister(pipes.stdin)
        pipes.close(pipes.stdin)
    return left


def _drain(pipes: _Pipes, handle: int, poller: select.poll) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        data = os.read(handle, _READ_BYTES)
        if not data:
            poller.unregister(handle)
            pipes.close(handle)
    return data
