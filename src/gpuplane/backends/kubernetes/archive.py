"""Output of replicas on our own disk: offsets that hold whatever the kubelet rotates or deletes.

Kubernetes has no offsets in logs, keeps one rotated file of them and drops all with the pod. So
what is read off a cluster is appended here, once, told apart by the instants that the kubelet
writes before each line. Kubernetes gives both streams as one: all of it is standard output.

Files of an attempt lie in a folder of its own, `<rank>.log` with `<rank>.mark` beside it: up to
where the log was written whole and the instant of its last line, so that a crash in between
repeats a line rather than losing or doubling one. Blocking, but for single small appends.
"""

import contextlib
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpuplane.core.ids import AttemptId

PIECE_BYTES = 16_384
"""Runtimes cut longer lines into pieces of this size, each with its own instant (CRI logs)."""

FULL = b"\n[gpuplane] more output than is kept; what follows is dropped\n"

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d) ?")


class Mark(msgspec.Struct, omit_defaults=True):
    """How far an archived log is whole."""

    size: int = 0
    last: str = ""
    """Instant of the last line: seconds and nine digits, so that text order is time order."""
    same: int = 0
    """Lines of that very instant, which a second reading must skip again."""
    full: bool = False


@dataclass(slots=True)
class RankLog:
    """The archived output of one rank; one writer at a time.

    Args:
        path: Of the log; the mark lies beside it.
        max_bytes: More is dropped, with a line that says so.
    """

    path: Path
    max_bytes: int
    mark: Mark = field(default_factory=Mark)
    _seen_of_last: int = 0
    _rest: bytes = b""

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self.mark = msgspec.json.decode(self._mark_path.read_bytes(), type=Mark)
            with self.path.open("r+b") as file:
                file.truncate(self.mark.size)

    @property
    def _mark_path(self) -> Path:
        return self.path.with_suffix(".mark")

    @property
    def last_second(self) -> str:
        """Return the second of the last line as RFC 3339, empty before there is one."""
        return f"{self.mark.last[:19]}Z" if self.mark.last else ""

    def begin_reading(self) -> None:
        """Begin to take in a log anew, from the second of the last line or before it."""
        self._seen_of_last = 0
        self._rest = b""

    def take(self, chunk: bytes) -> int:
        """Append what is new of a run of a log with instants; return how many bytes that was."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return self._append([line + b"\n" for line in lines])

    def end_reading(self) -> int:
        """Append a last line that has no end; return its bytes."""
        rest, self._rest = self._rest, b""
        return self._append([rest]) if rest else 0

    def _append(self, lines: list[bytes]) -> int:
        fresh = b"".join(filter(None, (self._fresh(line) for line in lines)))
        if not fresh:
            return 0
        if self.mark.full:
            return 0
        room = self.max_bytes - len(FULL) - self.mark.size
        if len(fresh) > room:
            fresh, self.mark.full = fresh[: max(0, room)] + FULL, True
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(fresh)
        self.mark.size += len(fresh)
        temporary = self.path.with_suffix(".mark.new")
        temporary.write_bytes(msgspec.json.encode(self.mark))
        temporary.replace(self._mark_path)
        return len(fresh)

    def _fresh(self, line: bytes) -> bytes:
        found = _STAMP.match(line)
        if found is None:
            return line
        instant = instant_of(found)
        if instant < self.mark.last:
            return b""
        if instant == self.mark.last:
            self._seen_of_last += 1
            if self._seen_of_last <= self.mark.same:
                return b""
            self.mark.same += 1
        else:
            self.mark.last, self.mark.same, self._seen_of_last = instant, 1, 1
        return without_stamps(line)


def instant_of(found: re.Match[bytes]) -> str:
    """Return the instant of a matched stamp so that text order is time order."""
    return f"{found[1].decode()}.{(found[2] or b'').decode():0<9}"


def without_stamps(line: bytes) -> bytes:
    """Return a line without the instants before each of its pieces."""
    found = _STAMP.match(line)
    if found is None:
        return line
    text = line[found.end() :]
    pieces: list[bytes] = []
    while len(text) > PIECE_BYTES and (cut := _STAMP.match(text, PIECE_BYTES)):
        pieces.append(text[:PIECE_BYTES])
        text = text[cut.end() :]
    return b"".join([*pieces, text])


class LogArchive:
    """The archived logs of one cluster."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Make an archive below a folder."""
        self.folder = folder
        self._max_bytes = max_bytes
        self._open: dict[tuple[AttemptId, int], RankLog] = {}

    def rank_log(self, attempt_id: AttemptId, rank: int) -> RankLog:
        """Return the log of a rank, the same object each time: it has one writer."""
        key = (attempt_id, rank)
        if key not in self._open:
            path = self.folder / str(attempt_id) / f"{rank}.log"
            self._open[key] = RankLog(path, self._max_bytes)
        return self._open[key]

    def has(self, attempt_id: AttemptId, rank: int) -> bool:
        """Return whether anything of a rank is archived."""
        return (self.folder / str(attempt_id) / f"{rank}.log").exists()

    def read(self, attempt_id: AttemptId, rank: int, offset: int, limit_bytes: int) -> bytes:
        """Return at most so many bytes of what is archived, from an offset."""
        log = self.rank_log(attempt_id, rank)
        limit = min(limit_bytes, log.mark.size - offset)
        if limit <= 0:
            return b""
        with log.path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)

    def let_go(self, attempt_id: AttemptId) -> None:
        """Hold nothing in memory of an attempt that is over."""
        for key in [key for key in self._open if key[0] == attempt_id]:
            del self._open[key]

    def forget(self, attempt_id: AttemptId) -> None:
        """Delete what is archived of an attempt."""
        self.let_go(attempt_id)
        shutil.rmtree(self.folder / str(attempt_id), ignore_errors=True)
