"""Output of pods on our disk: each line once, in order, at an offset that holds."""

from __future__ import annotations

import tracemalloc
import uuid
from pathlib import Path

import pytest

from gpuplane.backends.kubernetes.archive import (
    FULL,
    OPEN_BYTES,
    PIECE_BYTES,
    LogArchive,
    without_stamps,
)
from gpuplane.core.ids import AttemptId

ID = AttemptId(uuid.UUID(int=7))
FIRST = b"2026-01-02T03:04:05.1Z first\n2026-01-02T03:04:05.12Z second\n"
SAME = b"2026-01-02T03:04:06Z a\n2026-01-02T03:04:06Z b\n"
CHUNK_BYTES = 65_536
"""What a stream brings at a time."""


def an_archive(folder: Path, max_bytes: int = 10_000) -> LogArchive:
    """Return an archive below a folder."""
    return LogArchive(folder, max_bytes)


def text(archive: LogArchive) -> bytes:
    """Return all that is archived of rank 0."""
    return archive.read(ID, 0, 0, 10_000_000)


def fed(archive: LogArchive, data: bytes) -> None:
    """Read a log from its begin, as it comes."""
    log = archive.rank_log(ID, 0)
    log.begin_reading()
    for at in range(0, len(data), CHUNK_BYTES):
        log.take(data[at : at + CHUNK_BYTES])


def stamped(line: bytes, second: int = 5) -> bytes:
    """Return a line with an instant before each of its pieces, as older kubelets write it."""
    pieces = [line[at : at + PIECE_BYTES] for at in range(0, len(line), PIECE_BYTES)]
    return b"".join(b"2026-01-02T03:04:%02d.5Z %b" % (second, each) for each in pieces)


def test_lines_are_kept_without_their_instants(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    archive.rank_log(ID, 0).take(FIRST)
    assert text(archive) == b"first\nsecond\n"


def test_a_line_cut_by_a_piece_of_the_stream_is_joined(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    log = archive.rank_log(ID, 0)
    for at in range(0, len(FIRST), 7):
        log.take(FIRST[at : at + 7])
    assert text(archive) == b"first\nsecond\n"


def test_what_is_read_twice_is_kept_once(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    log = archive.rank_log(ID, 0)
    log.take(FIRST + SAME)
    log.begin_reading()
    log.take(FIRST + SAME + b"2026-01-02T03:04:06Z c\n")
    assert text(archive) == b"first\nsecond\na\nb\nc\n"


def test_what_was_kept_outlives_the_process(tmp_path: Path) -> None:
    an_archive(tmp_path).rank_log(ID, 0).take(FIRST)
    again = an_archive(tmp_path)
    again.rank_log(ID, 0).begin_reading()
    again.rank_log(ID, 0).take(FIRST + SAME)
    assert text(again) == b"first\nsecond\na\nb\n"


def test_what_was_written_without_its_mark_is_written_again(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    archive.rank_log(ID, 0).take(FIRST)
    with (tmp_path / str(ID) / "0.log").open("ab") as file:
        file.write(b"half a li")
    again = an_archive(tmp_path)
    again.rank_log(ID, 0).take(SAME)
    assert text(again) == b"first\nsecond\na\nb\n"


def test_a_read_begins_and_ends_where_it_is_told(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    archive.rank_log(ID, 0).take(FIRST)
    assert archive.read(ID, 0, 6, 4) == b"seco"
    assert archive.read(ID, 0, 13, 4) == b""
    assert archive.read(ID, 0, 99, 4) == b""


def test_more_than_is_kept_is_dropped_with_a_word(tmp_path: Path) -> None:
    archive = an_archive(tmp_path, max_bytes=200)
    log = archive.rank_log(ID, 0)
    for second in range(60):
        log.take(b"2026-01-02T03:05:%02dZ twenty bytes of text\n" % second)
    assert len(text(archive)) <= 200
    assert text(archive).endswith(FULL)


def test_a_last_line_without_an_end_is_kept_at_the_end(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    log = archive.rank_log(ID, 0)
    log.take(FIRST + b"2026-01-02T03:04:09Z no end")
    assert text(archive) == b"first\nsecond\n"
    log.end_reading()
    assert text(archive) == b"first\nsecond\nno end"


def test_the_instants_inside_a_long_line_are_taken_out() -> None:
    piece = b"x" * PIECE_BYTES
    stamp = b"2026-01-02T03:04:05.000000001Z "
    assert without_stamps(stamp + piece + stamp + piece + stamp + b"y\n") == piece + piece + b"y\n"


def test_what_is_forgotten_is_gone_from_the_disk(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    archive.rank_log(ID, 0).take(FIRST)
    assert archive.has(ID, 0)
    archive.forget(ID)
    assert not archive.has(ID, 0)
    assert text(archive) == b""


def test_a_line_without_end_is_kept_as_far_as_there_is_room_and_never_in_memory(
    tmp_path: Path,
) -> None:
    archive, chunk = an_archive(tmp_path, max_bytes=4 << 20), b"y" * CHUNK_BYTES
    log = archive.rank_log(ID, 0)
    log.take(b"2026-01-02T03:04:05Z ")
    tracemalloc.start()
    try:
        for _ in range((200 << 20) // CHUNK_BYTES):
            log.take(chunk)
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    log.end_reading()
    kept = text(archive)
    assert len(kept) == 4 << 20
    assert kept == b"y" * (len(kept) - len(FULL)) + FULL


@pytest.mark.parametrize("is_stamped", [True, False])
def test_a_long_line_that_comes_in_parts_is_whole(tmp_path: Path, *, is_stamped: bool) -> None:
    line = b"".join(b"%07d " % number for number in range(50_000))
    raw = stamped(line) if is_stamped else b"2026-01-02T03:04:05.5Z " + line
    archive = an_archive(tmp_path, max_bytes=1 << 20)
    fed(archive, FIRST + raw + b"\n" + SAME)
    assert text(archive) == b"first\nsecond\n" + line + b"\na\nb\n"


@pytest.mark.parametrize("is_stamped", [True, False])
def test_a_line_that_was_kept_in_part_goes_on_where_it_was_when_it_is_read_again(
    tmp_path: Path, *, is_stamped: bool
) -> None:
    line = b"".join(b"%07d " % number for number in range(50_000))
    raw = stamped(line) if is_stamped else b"2026-01-02T03:04:05.5Z " + line
    archive = an_archive(tmp_path, max_bytes=1 << 20)
    before = b"2026-01-02T03:04:05.5Z of the same instant\n"
    fed(archive, before + raw[: OPEN_BYTES + CHUNK_BYTES + 99])
    assert len(text(archive)) > OPEN_BYTES
    again = an_archive(tmp_path, max_bytes=1 << 20)
    for end in (2 * OPEN_BYTES, 5 * OPEN_BYTES + 1, len(raw)):
        fed(again, before + raw[:end])
    fed(again, before + raw + b"\n" + SAME)
    fed(again, before + raw + b"\n" + SAME)
    assert text(again) == b"of the same instant\n" + line + b"\na\nb\n"


def test_a_last_line_without_an_end_that_went_on_is_kept_once(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    log = archive.rank_log(ID, 0)
    for tail in (b"2026-01-02T03:04:09Z no", b"2026-01-02T03:04:09Z no end"):
        log.begin_reading()
        log.take(FIRST + tail)
        log.end_reading()
    assert text(archive) == b"first\nsecond\nno end"


@pytest.mark.parametrize("place", ["0.log", "0.mark.new"])
def test_what_could_not_be_written_is_taken_for_new_the_next_time(
    tmp_path: Path, place: str
) -> None:
    archive = an_archive(tmp_path)
    # The log cannot be written; or it is, and how far it goes is not.
    obstacle = tmp_path / str(ID) / place
    obstacle.mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        fed(archive, FIRST + SAME)
    assert text(archive) == b""
    obstacle.rmdir()
    fed(archive, FIRST + SAME)
    fed(archive, FIRST + SAME)
    assert text(archive) == b"first\nsecond\na\nb\n"
    assert (tmp_path / str(ID) / "0.log").read_bytes() == text(archive)


def test_a_full_disk_loses_no_line(tmp_path: Path) -> None:
    archive = an_archive(tmp_path)
    log = archive.rank_log(ID, 0)
    log.path.parent.mkdir()
    mark = log.path.with_suffix(".mark.new")
    mark.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        fed(archive, FIRST)
    mark.unlink()
    fed(archive, FIRST)
    assert text(archive) == b"first\nsecond\n"
