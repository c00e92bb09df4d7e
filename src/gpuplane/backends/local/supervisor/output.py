"""Keeps what a replica prints: two streams in segments, and one index that orders them.

A segment's name carries the offset of its first byte, so dropping old segments renumbers
nothing. Each batch read from a pipe adds one index entry after its bytes are in the segment; the
index alone gives the order of standard output and standard error and the time of each batch. It
is the order of arrival: what lies in both pipes at the same look has none, and goes output first.
Never loses a byte silently: what the disk refuses is counted.
"""

from __future__ import annotations

import contextlib
import os
import struct

ENTRY = struct.Struct("<qQIB3x")
"""One index entry: milliseconds since the epoch, first byte's offset, length, stream."""

STREAMS = ("stdout", "stderr")
INDEX = "index"
ENTRIES_PER_SEGMENT = 65_536
INDEX_SEGMENTS = 16
"""At most 16 x 65,536 entries (25 MB) a replica: a chatty job may not fill the disk with times."""


def segment_name(stream: str, start: int) -> str:
    """Return the file name of the segment whose first byte (or entry) has this number."""
    return f"{stream}.{start:020d}"


def list_segments(folder: str, stream: str) -> list[int]:
    """Return the first offsets of a stream's segments that are kept, oldest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    prefix = stream + "."
    return sorted(int(name[len(prefix) :]) for name in names if name.startswith(prefix))


class SegmentedFile:
    """An append-only file in segments, of which the oldest are dropped."""

    def __init__(self, folder: str, stream: str, segment_bytes: int, keep_bytes: int) -> None:
        self.folder = folder
        self.stream = stream
        self.segment_bytes = segment_bytes
        self.keep_bytes = keep_bytes
        self.end = 0
        self._starts: list[int] = []
        self._handle = -1

    def append(self, data: bytes) -> int:
        """Write bytes at the end and return how many the segment and the disk took."""
        try:
            if self._handle < 0 or self.end - self._starts[-1] >= self.segment_bytes:
                self._open_next()
            space = self._starts[-1] + self.segment_bytes - self.end
            written = os.write(self._handle, data[:space] if len(data) > space else data)
        except OSError:
            return 0
        self.end += written
        return written

    def append_whole(self, data: bytes) -> bool:
        """Write all bytes at the end or none; False when the disk has no place for them."""
        before = self.end
        if self.append(data) == len(data):
            return True
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, before - self._starts[-1])
        self.end = before
        return False

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open_next(self) -> None:
        handle = os.open(
            f"{self.folder}/{segment_name(self.stream, self.end)}",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        self.close()
        self._handle = handle
        if not self._starts or self._starts[-1] != self.end:
            self._starts.append(self.end)
        while len(self._starts) > 1 and self.end - self._starts[1] >= self.keep_bytes:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.folder}/{segment_name(self.stream, self._starts[0])}")
            del self._starts[0]


class OutputLog:
    """Both streams of one replica and their common index."""

    def __init__(self, folder: str, segment_bytes: int, max_bytes: int) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # The newest segment may be full before the oldest goes, so that one less is kept whole.
        keep = max(0, max_bytes - segment_bytes)
        self.streams = [SegmentedFile(folder, name, segment_bytes, keep) for name in STREAMS]
        size = ENTRY.size * ENTRIES_PER_SEGMENT
        self.index = SegmentedFile(folder, INDEX, size, size * (INDEX_SEGMENTS - 1))
        self.dropped_bytes = 0

    def write(self, stream: int, data: bytes, at_ms: int) -> None:
        """Keep one batch read from a pipe; a full disk costs output, never the job."""
        target = self.streams[stream]
        while data:
            start = target.end
            written = target.append(data)
            if not written:
                self.dropped_bytes += len(data)
                return
            if not self.index.append_whole(ENTRY.pack(at_ms, start, written, stream)):
                self.dropped_bytes += written
            data = data[written:]

    def close(self) -> None:
        for file in (*self.streams, self.index):
            file.close()
