"""Reads back what replicas printed: a run of bytes of one stream, or both in order as written.

Never changes what the supervisor writes (`supervisor.output` describes the files). Reading is
blocking and small; following wakes by inotify.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from pathlib import Path

from gpuplane.backends.interface import LogChunk, OffsetGone, Stream
from gpuplane.backends.local.supervisor.output import (
    ENTRY,
    INDEX,
    STREAMS,
    list_segments,
    segment_name,
)

CHUNK_BYTES = 65_536
"""Most that one chunk carries: adjacent batches of one stream are joined up to this."""
_ENTRIES_AT_ONCE = 4096


def oldest_offset(folder: Path, stream: Stream) -> int:
    """Return the offset of the first byte that is kept."""
    kept = list_segments(str(folder), stream.value)
    return kept[0] if kept else 0


def read_stream(folder: Path, stream: Stream, offset: int, limit_bytes: int) -> bytes:
    """Return at most limit_bytes of a stream from offset; empty at the end of what there is.

    Raises:
        OffsetGone: If the offset has been rotated away.
    """
    data = b""
    while len(data) < limit_bytes:
        at = offset + len(data)
        kept = list_segments(str(folder), stream.value)
        starts = [start for start in kept if start <= at]
        if not starts:
            if data or not kept:
                return data
            raise OffsetGone(stream, offset, kept[0])
        try:
            piece = _read_at(folder, stream.value, starts[-1], at, limit_bytes - len(data))
        except FileNotFoundError:
            continue  # rotated away between the list and the open: look again
        if not piece:
            return data
        data += piece
    return data


class ReplicaReader:
    """Reads one replica's output in order, from an offset in each stream on."""

    def __init__(self, folder: Path, rank: int, stdout_offset: int, stderr_offset: int) -> None:
        self.folder = folder
        self.rank = rank
        self._next = [stdout_offset, stderr_offset]
        self._entry = 0

    def check(self) -> None:
        """Refuse offsets that are gone; 0 stands for the oldest byte kept.

        Raises:
            OffsetGone: If an offset above 0 has been rotated away.
        """
        for number, name in enumerate(STREAMS):
            stream = Stream(name)
            oldest = oldest_offset(self.folder, stream)
            if 0 < self._next[number] < oldest:
                raise OffsetGone(stream, self._next[number], oldest)

    def read_new(self) -> list[LogChunk]:
        """Return what was written since the last call, in order; empty only when all is read.

        One index segment's worth at most, so a long log comes in several calls.
        """
        chunks: list[LogChunk] = []
        while not chunks and (entries := self._read_entries()):
            chunks += self._chunks(entries)
        return chunks

    def _chunks(self, entries: bytes) -> list[LogChunk]:
        chunks: list[LogChunk] = []
        for piece in _joined(self._new_pieces(entries)):
            offset, data = piece.offset, b""
            try:
                data = read_stream(self.folder, piece.stream, piece.offset, piece.length)
            except OffsetGone as gone:  # the reader is slower than the rotation
                end = piece.offset + piece.length
                offset = min(end, gone.oldest_offset)
                data = read_stream(self.folder, piece.stream, offset, end - offset)
            if data:
                chunks.append(LogChunk(self.rank, piece.stream, offset, data, piece.at_ms))
        return chunks

    def _read_entries(self) -> bytes:
        starts = list_segments(str(self.folder), INDEX)
        if not starts:
            return b""
        at = max(self._entry * ENTRY.size, starts[0])
        segment = max(start for start in starts if start <= at)
        try:
            data = _read_at(self.folder, INDEX, segment, at, _ENTRIES_AT_ONCE * ENTRY.size)
        except FileNotFoundError:
            return b""
        whole = len(data) - len(data) % ENTRY.size
        self._entry = (at + whole) // ENTRY.size
        return data[:whole]

    def _new_pieces(self, entries: bytes) -> Iterator["_Piece"]:
        for at_ms, offset, length, number in ENTRY.iter_unpack(entries):
            # From where we are, not from the entry's start: bytes whose entry is gone come too.
            start, end = self._next[number], offset + length
            if start < end:
                self._next[number] = end
                yield _Piece(Stream(STREAMS[number]), start, end - start, at_ms)


@dataclass(slots=True)
class _Piece:
    stream: Stream
    offset: int
    length: int
    at_ms: int


def merge_ranks(chunks: Sequence[Sequence[LogChunk]]) -> list[LogChunk]:
    """Return the chunks of several ranks in the order of their times."""
    return list(merge(*chunks, key=lambda chunk: chunk.at or 0))


def _joined(pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    last: _Piece | None = None
    for piece in pieces:
        if (
            last is not None
            and last.stream is piece.stream
            and last.offset + last.length == piece.offset
            and last.length + piece.length <= CHUNK_BYTES
        ):
            last.length += piece.length
            last.at_ms = piece.at_ms
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _read_at(folder: Path, stream: str, start: int, at: int, limit: int) -> bytes:
    handle = os.open(folder / segment_name(stream, start), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(handle, limit, at - start)
    finally:
        os.close(handle)
