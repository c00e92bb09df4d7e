"""Runs commands beside a replica: in its directory, environment and limits.

A control plane connects, hands over three descriptors and one request, and reads one answer. A
caller that leaves ends its command. What runs here ends with the replica, as in a container.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket

from gpuplane.backends.local.supervisor import cgroup, kernel
from gpuplane.backends.local.supervisor.process import Started, explain_failure, fork_at_gate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuplane.backends.local.supervisor.owner import Owner, Ranked

SOCKET = "commands"
REQUEST_BYTES = 131_072
_STANDARD = 3
_WAITING_CALLERS = 16


class CommandServer:
    """Listens in the attempt's folder; the folder's mode keeps other users out."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._running: dict[int, _Command] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        # A relative name in the working directory: a home's path may be longer than 108 bytes.
        self._listener.bind(SOCKET)
        self._listener.listen(_WAITING_CALLERS)
        owner.watch(self._listener.fileno(), self._accept)

    def ended(self, pid: int, status: int) -> None:
        """Answer the caller whose command this was, if it was one."""
        command = self._running.pop(pid, None)
        if command is not None:
            code = os.waitstatus_to_exitcode(status)
            command.answer(code if code >= 0 else 128 - code)

    def close(self) -> None:
        """Take no more callers; those who wait see the connection end."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        self._owner.unwatch(self._listener.fileno())
        self._listener.close()

    def _accept(self, _handle: int) -> None:
        with contextlib.suppress(BlockingIOError):
            caller, _ = self._listener.accept()
            caller.setblocking(False)
            self._owner.watch(caller.fileno(), lambda _: self._take(caller))

    def _take(self, caller: socket.socket) -> None:
        """Read the one request of a caller and start its command."""
        self._owner.unwatch(caller.fileno())
        handles: list[int] = []
        try:
            data, handles = _receive(caller)
            request = _parse(data)
            replica = self._replica(request.get("rank"))
            command = request.get("command")
            if replica is None or not isinstance(command, list) or len(handles) != _STANDARD:
                _answer(caller, 126, "no such replica runs, or the request is malformed")
                caller.close()
                return
            self._start(caller, replica, [str(word) for word in command], handles)
        except OSError as error:
            _answer(caller, 126, f"cannot be run: {error.strerror}")
            caller.close()
        finally:
            for handle in handles:
                os.close(handle)

    def _start(
        self, caller: socket.socket, replica: Ranked, words: list[str], handles: list[int]
    ) -> None:
        stdin, stdout, stderr = handles
        folder = self._owner.folder_of(replica)
        process = fork_at_gate(words, replica.env, folder, (stdin, stdout, stderr))
        cgroup.enter(self._owner.cgroup_of(replica), process.pid)
        command = _Command(self._owner, caller, process, words, folder)
        self._running[process.pid] = command
        process.release()
        self._owner.watch(caller.fileno(), command.caller_left)

    def _replica(self, rank: object) -> Ranked | None:
        for replica in self._owner.replicas:
            if replica.rank == rank and replica.is_running:
                return replica
        return None


class _Command:
    def __init__(
        self,
        owner: Owner,
        caller: socket.socket,
        process: Started,
        words: list[str],
        folder: str,
    ) -> None:
        self._owner = owner
        self._caller = caller
        self._process = process
        self._words = words
        self._folder = folder

    def caller_left(self, handle: int) -> None:
        """End the command of a caller that closed its connection."""
        self._owner.unwatch(handle)
        kernel.send_group(self._process.pid, signal.SIGKILL)

    def answer(self, code: int) -> None:
        """Tell the caller how it ended."""
        verdict = os.read(self._process.verdict, 1000).decode(errors="replace")
        os.close(self._process.verdict)
        text = explain_failure(verdict, self._words, self._folder) if verdict else ""
        self._owner.unwatch(self._caller.fileno())
        _answer(self._caller, code, text)
        self._caller.close()


def _receive(caller: socket.socket) -> tuple[bytes, list[int]]:
    space = socket.CMSG_SPACE(_STANDARD * array.array("i").itemsize)
    data, ancillary, _flags, _address = caller.recvmsg(REQUEST_BYTES, space)
    handles = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            handles.frombytes(payload[: len(payload) - len(payload) % handles.itemsize])
    for handle in handles:
        os.set_inheritable(handle, False)
    return data, list(handles)


def _parse(data: bytes) -> dict[str, object]:
    import json  # 7 ms, and only attempts that are asked to run a command need it

    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _answer(caller: socket.socket, code: int, text: str) -> None:
    with contextlib.suppress(OSError):
        caller.send(f"{code} {text}".encode())
