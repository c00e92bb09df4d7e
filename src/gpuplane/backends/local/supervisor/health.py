"""Whether a service answers: an HTTP request or a TCP connection, one at a time, never blocking.

Decides nothing about the process: it reports a verdict, the replica acts on it.
"""

from __future__ import annotations

import errno
import os
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplane.backends.local.supervisor.owner import Watcher

_HOST = "127.0.0.1"
_STATUS_BYTES = 512
READY = "ready"
FAILING = "failing"


class HealthProbe:
    """Asks one port again and again and counts the answers in a row.

    Args:
        path: The path of an HTTP GET; empty means that a connection is enough.
        report: Called with READY at a success and FAILING at `failure_threshold` failures in a
            row once the start period is over or the service has been ready.
    """

    def __init__(
        self,
        owner: Watcher,
        settings: dict[str, float | int | str],
        report: Callable[[str, str], None],
    ) -> None:
        self._owner = owner
        self._path = str(settings["path"])
        self._interval_s = max(0.01, float(settings["interval_s"]))
        self._timeout_s = max(0.01, float(settings["timeout_s"]))
        self._threshold = max(1, int(settings["failure_threshold"]))
        self._start_period_s = float(settings["start_period_s"])
        self._report = report
        self._socket: socket.socket | None = None
        self._handle = -1
        self._answer = b""
        self._sent = False
        self._failures = 0
        self._was_ready = False
        self._port = 0
        self._began = 0.0
        self.due = 0.0

    def begin(self, now: float, port: int) -> None:
        """Start over for a process that has just been started."""
        self._abandon()
        self._failures = 0
        self._was_ready = False
        self._port = port
        self._began = now
        self.due = now

    def end(self) -> None:
        """Stop asking."""
        self._abandon()

    def tick(self, now: float) -> None:
        """Ask when it is time, or give an answer up that takes too long."""
        if now < self.due:
            return
        if self._socket is not None:
            self._conclude(f"no answer within {self._timeout_s:g} s")
        else:
            self._ask(now)

    def _ask(self, now: float) -> None:
        asked = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        asked.setblocking(False)
        self._socket = asked
        self._handle = asked.fileno()
        self._sent = False
        self._answer = b""
        self.due = now + self._timeout_s
        code = asked.connect_ex((_HOST, self._port))
        if code not in (0, errno.EINPROGRESS):
            self._conclude(os.strerror(code))
            return
        self._owner.watch(self._handle, self._go_on, select.POLLOUT)

    def _go_on(self, _handle: int) -> None:
        asked = self._socket
        assert asked is not None
        try:
            if not self._sent:
                self._connected(asked)
                return
            data = asked.recv(_STATUS_BYTES)
        except OSError as error:
            self._conclude(error.strerror or str(error))
            return
        self._answer += data
        if b"\r\n" in self._answer or not data or len(self._answer) >= _STATUS_BYTES:
            self._judge()

    def _connected(self, asked: socket.socket) -> None:
        code = asked.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._conclude(os.strerror(code))
        elif not self._path:
            self._conclude("")
        else:
            path = "/" + self._path.lstrip("/")
            host = f"{_HOST}:{self._port}"
            request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            asked.send(request.encode("ascii", "replace"))
            self._sent = True
            self._owner.unwatch(self._handle)
            self._owner.watch(self._handle, self._go_on)

    def _judge(self) -> None:
        words = self._answer.split(b"\r\n", 1)[0].split()
        code = words[1].decode("ascii", "replace") if len(words) > 1 else ""
        if words and words[0].startswith(b"HTTP/") and code[:1] in ("2", "3"):
            self._conclude("")
        else:
            self._conclude(f"GET {self._path} answered {code or 'no HTTP'}")

    def _conclude(self, failure: str) -> None:
        self._abandon()
        now = self._owner.now()
        self.due = now + self._interval_s
        if not failure:
            self._failures = 0
            self._was_ready = True
            self._report(READY, "")
            return
        if not self._was_ready and now - self._began < self._start_period_s:
            return
        self._failures += 1
        if self._failures >= self._threshold:
            self._report(FAILING, failure)

    def _abandon(self) -> None:
        if self._socket is not None:
            self._owner.unwatch(self._handle)
            self._socket.close()
            self._socket = None


def choose_port() -> int:
    """Return a port of this machine that nobody listens on now.

    Another process may take it before the job does; then the job fails to bind and says so.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
