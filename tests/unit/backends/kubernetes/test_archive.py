"""Output of pods on our disk: each line once, in order, at an offset that holds."""

from __future__ import annotations

import uuid
from pathlib import Path

from gpuplane.backends.kubernetes.archive import FULL, PIECE_BYTES, LogArchive, without_stamps
from gpuplane.core.ids import AttemptId

ID = AttemptId(uuid.UUID(int=7))
FIRST = b"2026-01-02T03:04:05.1Z first\n2026-01-02T03:04:05.12Z second\n"
SAME = b"2026-01-02T03:04:06Z a\n2026-01-02T03:04:06Z b\n"


def an_archive(folder: Path, max_bytes: int = 10_000) -> LogArchive:
    """Return an archive below a folder."""
    return LogArchive(folder, max_bytes)


def text(archive: LogArchive) -> bytes:
    """Return all that is archived of rank 0."""
    return archive.read(ID, 0, 0, 100_000)


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
