from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.backends.interface import Stream
from gpuplane.backends.local.logs import ReplicaReader, merge_ranks, read_stream
from gpuplane.backends.local.supervisor import output
from gpuplane.backends.local.supervisor.output import OutputLog, list_segments

BATCHES = st.lists(st.tuples(st.integers(0, 1), st.binary(min_size=1, max_size=40)), max_size=30)


@given(BATCHES, st.integers(1, 50))
def test_what_is_written_is_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, bytes]], segment_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = OutputLog(str(folder), segment_bytes, 1 << 20)
    for at, (stream, data) in enumerate(batches):
        log.write(stream, data, at)
    log.close()
    chunks = ReplicaReader(folder, 0, 0, 0).read_new()
    for number, stream in enumerate((Stream.STDOUT, Stream.STDERR)):
        written = b"".join(data for which, data in batches if which == number)
        assert b"".join(c.data for c in chunks if c.stream is stream) == written
        assert read_stream(folder, stream, 0, 1 << 20) == written
    assert b"".join(c.data for c in chunks) == b"".join(data for _, data in batches)


def test_a_reader_goes_on_where_it_was(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), 10, 1 << 20)
    reader = ReplicaReader(tmp_path, 3, 0, 0)
    assert reader.read_new() == []
    log.write(0, b"one", 1)
    [first] = reader.read_new()
    log.write(0, b"two", 2)
    log.write(1, b"err", 3)
    second, third = reader.read_new()
    assert (first.rank, first.offset, first.data, first.at) == (3, 0, b"one", 1)
    assert (second.offset, second.data, second.at) == (3, b"two", 2)
    assert (third.stream, third.offset, third.data) == (Stream.STDERR, 0, b"err")


def test_a_reader_slower_than_the_rotation_shows_the_gap(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), 10, 30)
    reader = ReplicaReader(tmp_path, 0, 0, 0)
    log.write(0, b"0123456789", 1)
    assert [chunk.offset for chunk in reader.read_new()] == [0]
    for at in range(2, 8):
        log.write(0, b"0123456789", at)
    chunks = reader.read_new()
    assert chunks[0].offset > 10
    assert sum(len(chunk.data) for chunk in chunks) <= 30
    assert chunks[-1].offset + len(chunks[-1].data) == 70


def test_no_more_than_the_limit_is_kept(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), 100, 500)
    for at in range(200):
        log.write(0, b"x" * 37, at)
    kept = sum(path.stat().st_size for path in tmp_path.glob("stdout.*"))
    assert 400 <= kept <= 500
    assert log.streams[0].end == 200 * 37


def test_old_index_entries_go_too(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), 1 << 20, 1 << 20)
    log.index.segment_bytes = 10 * output.ENTRY.size
    log.index.keep_bytes = 20 * output.ENTRY.size
    for at in range(100):
        log.write(0, b"x", at)
    log.close()
    assert list_segments(str(tmp_path), "index")[0] >= 60 * output.ENTRY.size
    reader = ReplicaReader(tmp_path, 0, 0, 0)
    data = b""
    while chunks := reader.read_new():
        data += b"".join(chunk.data for chunk in chunks)
    assert data == b"x" * 100


def test_output_that_the_disk_does_not_take_is_counted(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path / "log"), 10, 100)
    log.write(0, b"12345", 1)
    (tmp_path / "log").rename(tmp_path / "gone")  # the next segment cannot be made
    log.write(0, b"67890abc", 2)
    assert log.dropped_bytes == 3
    assert log.streams[0].end == 10


def test_the_ranks_of_a_job_are_merged_by_time(tmp_path: Path) -> None:
    readers = []
    for rank in (0, 1):
        log = OutputLog(str(tmp_path / str(rank)), 100, 1000)
        for turn in range(3):
            log.write(turn % 2, b"%d" % turn, 10 * turn + rank)
        readers.append(ReplicaReader(tmp_path / str(rank), rank, 0, 0))
    chunks = merge_ranks([reader.read_new() for reader in readers])
    assert [(chunk.at, chunk.rank) for chunk in chunks] == [
        (0, 0),
        (1, 1),
        (10, 0),
        (11, 1),
        (20, 0),
        (21, 1),
    ]


def test_a_reader_that_begins_late_skips_what_lies_before(tmp_path: Path) -> None:
    log = OutputLog(str(tmp_path), 1000, 1 << 20)
    log.index.segment_bytes = 10 * output.ENTRY.size
    for at in range(100):
        log.write(0, b"x%02d" % at, at)
    [chunk] = ReplicaReader(tmp_path, 0, 295, 0).read_new()
    assert (chunk.offset, chunk.data) == (295, b"98x99")
