"""The attempt folder as the control plane sees it: fates, epochs, commands, forgetting.

Sound against itself in two processes and against the supervisor: what must happen once is a
file created once (`supervisor.records.create_once`), what must be alone holds a lock that the
kernel drops when its holder dies. Blocking; called off the event loop.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuplane.backends.interface import AttemptRef, StaleEpoch
from gpuplane.backends.local.supervisor import kernel, records
from gpuplane.core.ids import AttemptId
from gpuplane.core.reasons import Word

DOOR = "door"
ATTEMPTS = "attempts"
FORGOTTEN = "forgotten"
CHANGES = "changes"
TRASH = "trash"


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a record, or None when it is absent or unreadable."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


class AttemptFolder:
    """One attempt's folder, which may not exist yet."""

    def __init__(self, root: Path, attempt_id: AttemptId) -> None:
        self.root = root
        self.attempt_id = attempt_id
        self.path = root / ATTEMPTS / str(attempt_id)

    @property
    def changes(self) -> Path:
        """The file that is touched whenever there is news of this attempt."""
        return self.root / CHANGES / str(self.attempt_id)

    def exists(self) -> bool:
        return self.path.is_dir()

    def replica(self, rank: int) -> Path:
        """Return the folder of one rank."""
        return self.path / str(rank)

    def was_forgotten(self) -> bool:
        return (self.root / FORGOTTEN / str(self.attempt_id)).exists()

    def accept(self, ref: AttemptRef) -> bool:
        """Remember the newest epoch and refuse an older one; True when it is a new one.

        Raises:
            StaleEpoch: If a newer epoch of this attempt is known.
        """
        with self._door():
            known = self.epoch()
            if known is not None and ref.epoch < known:
                text = f"epoch {ref.epoch} of attempt {self.attempt_id} is older than {known}"
                raise StaleEpoch(Word.CANCELLED, text)
            if known != ref.epoch:
                records.write_whole(str(self.path / records.EPOCH), f"{ref.epoch}\n")
            return known != ref.epoch

    def epoch(self) -> int | None:
        """Return the newest epoch that a verb has named."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.path / records.EPOCH).read_text(encoding="ascii"))
        return None

    def fate(self) -> dict[str, Any] | None:
        """Return whether the attempt was started or forbidden, once and for ever."""
        return read_json(self.path / records.FATE)

    def ranks(self) -> list[int]:
        """Return the ranks of the attempt; rank 0 when it was evicted before its plan was known."""
        for name in (records.FATE, records.PLAN):
            found = (read_json(self.path / name) or {}).get("ranks")
            if found:
                return [int(rank) for rank in found]
        return [0]

    def forbid_start(self, reason: str, at_ms: int) -> bool:
        """Forbid a start; False when it was started already."""
        fate = {"format": records.FORMAT, "fate": records.NEVER, "reason": reason, "at": at_ms}
        if records.create_once(str(self.path / records.FATE), fate):
            return True
        known = self.fate()
        return known is not None and known.get("fate") == records.NEVER

    def ask_to_stop(self, grace_s: float, reason: str, now_ms: int) -> float:
        """Record when the attempt is to be over; return by how many seconds that is past.

        The first reason stays and the earliest end: to ask again never gives more time.
        """
        path = self.path / records.STOP
        end_ms = now_ms + max(0, int(grace_s * 1000))
        with contextlib.suppress(OSError, ValueError):
            _, known_end, known_reason = path.read_text(encoding="utf-8").strip().split(" ", 2)
            if int(known_end) <= end_ms:
                return (now_ms - int(known_end)) / 1000
            reason = known_reason
        records.write_whole(str(path), f"{max(0, end_ms - now_ms)} {end_ms} {reason}\n")
        return 0.0

    def kill_supervisor(self) -> None:
        """Kill a supervisor that does not react; its guard then ends all that it runs."""
        fate = self.fate() or {}
        pid, ticks = fate.get("supervisor_pid"), fate.get("supervisor_ticks")
        if isinstance(pid, int) and isinstance(ticks, int) and kernel.is_alive(pid, ticks):
            kernel.send(pid, signal.SIGKILL)

    def is_held(self) -> bool:
        """Return whether a supervisor or its guard still holds the attempt's lock."""
        return records.is_locked(str(self.path / records.LOCK))

    def command(self, line: str) -> bool:
        """Send the supervisor one line; False when none listens."""
        try:
            handle = os.open(
                self.path / records.CONTROL, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return False
            raise
        try:
            os.write(handle, line.encode() + b"\n")
        except BlockingIOError:
            return False
        finally:
            os.close(handle)
        return True

    def make(self) -> None:
        """Make the folder, readable by this user alone."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.changes.touch()

    def forget(self) -> None:
        """Remove everything but the id, which still forbids a late start."""
        forgotten = self.root / FORGOTTEN
        forgotten.mkdir(mode=0o700, parents=True, exist_ok=True)
        (forgotten / str(self.attempt_id)).touch()
        trash = self.root / TRASH
        trash.mkdir(mode=0o700, parents=True, exist_ok=True)
        grave = trash / f"{self.attempt_id}.{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)
        self.changes.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _door(self) -> Iterator[None]:
        self.make()
        handle = os.open(self.path / DOOR, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def list_attempts(root: Path) -> list[AttemptFolder]:
    """Return every attempt folder, in the order of the ids (which is the order of time)."""
    try:
        names = sorted(entry.name for entry in os.scandir(root / ATTEMPTS))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        with contextlib.suppress(ValueError):
            found.append(AttemptFolder(root, AttemptId(uuid.UUID(name))))
    return found


def clean_up(root: Path, forgotten_s: float, now_s: float) -> None:
    """Empty the trash of an interrupted `forget` and drop ids that are long forgotten."""
    shutil.rmtree(root / TRASH, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(root / FORGOTTEN):
            if now_s - entry.stat().st_mtime > forgotten_s:
                Path(entry.path).unlink(missing_ok=True)
