"""Work that would block the loop, done in a forked child: unpacking, collecting artifacts.

The child runs one function and reports a sentence, empty when all went well. Killed with the
supervisor like every other child.
"""

from __future__ import annotations

import os
import signal

from gpuplane.backends.local.supervisor import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplane.backends.local.supervisor.owner import Watcher

_REPORT_BYTES = 65_536


class Aside:
    """One function at work in a child.

    Args:
        work: Runs in the child; what it returns is handed to `done`, as is an OSError's text.
        done: Called on the loop when the child has ended, except after `cancel`.
    """

    def __init__(
        self, owner: Watcher, work: Callable[[], str], done: Callable[[str], None]
    ) -> None:
        self._owner = owner
        self._done = done
        self._report = b""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _work(work, writer, parent)
        os.close(writer)
        os.set_blocking(reader, False)
        owner.watch(reader, self._read)
        self._reader = reader

    def cancel(self) -> None:
        """End the work; its report is not wanted any more."""
        if self._reader >= 0:
            kernel.send(self._pid, signal.SIGKILL)
            self._close()

    def _read(self, handle: int) -> None:
        data = os.read(handle, _REPORT_BYTES)
        self._report += data
        if not data:
            self._close()
            report = self._report.decode(errors="replace")
            self._done(report[1:] if report.startswith("=") else "the work was killed")

    def _close(self) -> None:
        self._owner.unwatch(self._reader)
        os.close(self._reader)
        self._reader = -1


def _work(work: Callable[[], str], writer: int, parent: int) -> None:
    """Run in the child; never returns."""
    try:
        kernel.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() == parent:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                text = work()
            except OSError as error:
                text = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            os.write(writer, b"=" + text.encode(errors="replace")[: _REPORT_BYTES // 2])
    except BaseException:  # noqa: BLE001 - a forked child must never run the parent's code
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)
