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
import sys
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpuplane.core.ids import AttemptId

PIECE_BYTES = 16_384
"""Runtimes cut longer lines into pieces of this size, each with its own instant (CRI logs)."""

OPEN_BYTES = 4 * PIECE_BYTES
"""A line longer than this is archived in parts before it ends: a program may never end one."""

FULL = b"\n[gpuplane] more output than is kept; what follows is dropped\n"

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d) ?")


class Mark(msgspec.Struct, omit_defaults=True):
    """How far an archived log is whole."""

    size: int = 0
    last: str = ""
    """Instant of the last line: seconds and nine digits, so that text order is time order."""
    same: int = 0
    """Lines of that very instant, which a second reading must skip again."""
    open_bytes: int = 0
    """Archived of the last of these lines if its end is not: a second reading goes on there."""
    full: bool = False


@dataclass(slots=True)
class _Line:
    """A line that is being read, of which parts may have been taken.

    Args:
        skip_bytes: What comes next of its text is archived already.
        is_marked: Whether the mark counts what is archived of it.
    """

    skip_bytes: int = 0
    is_marked: bool = False


@dataclass(slots=True)
class RankLog:
    """The archived output of one rank; one writer at a time.

    After an OSError it is as before the call: the log has to be read anew.

    Args:
        path: Of the log; the mark lies beside it.
        max_bytes: More is dropped, with a line that says so.
    """

    path: Path
    max_bytes: int
    mark: Mark = field(default_factory=Mark)
    _seen_of_last: int = 0
    _held: list[bytes] = field(default_factory=list)
    _held_bytes: int = 0
    _line: _Line | None = None

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
        self._line = None
        self._take_held()

    def take(self, chunk: bytes) -> int:
        """Append what is new of a run of a log with instants; return how many bytes that was.

        Raises:
            OSError: If it cannot be written.
        """
        if self.mark.full:
            return 0
        mark, found = copy(self.mark), []
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = self._take_held() + end + b"\n"
            found.append(self._find_fresh(mark, line, is_end=True))
        self._hold(rest)
        if self._held_bytes > OPEN_BYTES:
            held = self._take_held()
            cut = _end_of_pieces(held)
            found.append(self._find_fresh(mark, held[:cut], is_end=False))
            self._hold(held[cut:])
        return self._append(mark, b"".join(found))

    def end_reading(self) -> int:
        """Append a last line that has no end; return its bytes.

        Raises:
            OSError: If it cannot be written.
        """
        rest, mark = self._take_held(), copy(self.mark)
        if self.mark.full or not rest:
            return 0
        return self._append(mark, self._find_fresh(mark, rest, is_end=False))

    def _hold(self, part: bytes) -> None:
        """Keep a part of a line until there is more of it."""
        if part:
            self._held.append(part)
            self._held_bytes += len(part)

    def _take_held(self) -> bytes:
        held, self._held, self._held_bytes = b"".join(self._held), [], 0
        return held

    def _append(self, mark: Mark, fresh: bytes) -> int:
        """Write what is new, then how far it goes: only then it counts as archived."""
        if fresh:
            room = self.max_bytes - len(FULL) - mark.size
            if len(fresh) > room:
                fresh, mark.full = fresh[: max(0, room)] + FULL, True
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.truncate(mark.size)  # what a write that failed half-way has left
                file.write(fresh)
            mark.size += len(fresh)
            temporary = self.path.with_suffix(".mark.new")
            temporary.write_bytes(msgspec.json.encode(mark))
            temporary.replace(self._mark_path)
        self.mark = mark
        return len(fresh)

    def _find_fresh(self, mark: Mark, part: bytes, *, is_end: bool) -> bytes:
        """Return what is not archived of a line, or of the next part of one, and mark it."""
        line = self._line or self._begin_line(mark, part)
        text = without_stamps(part)
        fresh = text[line.skip_bytes :]
        line.skip_bytes = max(0, line.skip_bytes - len(text))
        if line.is_marked:
            mark.open_bytes = 0 if is_end else mark.open_bytes + len(fresh)
        self._line = None if is_end else line
        return fresh

    def _begin_line(self, mark: Mark, part: bytes) -> _Line:
        """Return how much of a line is archived, told by the instant before it."""
        found = _STAMP.match(part)
        if found is None:
            return _Line()
        instant = instant_of(found)
        if instant < mark.last:
            return _Line(sys.maxsize)
        if instant > mark.last:
            mark.last, mark.same, mark.open_bytes, self._seen_of_last = instant, 0, 0, 0
        self._seen_of_last += 1
        if self._seen_of_last > mark.same:
            mark.same, mark.open_bytes = self._seen_of_last, 0
        elif self._seen_of_last < mark.same or not mark.open_bytes:
            return _Line(sys.maxsize)
        return _Line(mark.open_bytes, is_marked=True)


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


def _end_of_pieces(text: bytes) -> int:
    """Return where the last whole piece of the begin of a line ends, before the next instant."""
    end = at = 0
    while True:
        found = _STAMP.match(text, at)
        at = (found.end() if found else at) + PIECE_BYTES
        if at > len(text):
            return end
        end = at


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
