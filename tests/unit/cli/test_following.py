"""Writing output once, in the right place, whatever is sent again."""

from __future__ import annotations

import io
from typing import Any

from gpuplane.cli.following import LogWriter, read_events, read_frames


def a_chunk(text: str, offset: int = 0, **more: Any) -> dict[str, Any]:
    size = len(text.encode())
    return {"attempt": 1, "rank": 0, "stream": "stdout", "offset": offset,
            "next_offset": offset + size, "text": text, **more}  # fmt: skip


def a_writer(*, ranked: bool = False) -> tuple[LogWriter, io.BytesIO, io.BytesIO]:
    out, err = io.BytesIO(), io.BytesIO()
    return LogWriter(out, err, ranked), out, err


def test_each_stream_goes_where_it_belongs() -> None:
    writer, out, err = a_writer()
    writer.write(a_chunk("one\n"))
    writer.write(a_chunk("two\n", stream="stderr"))
    assert (out.getvalue(), err.getvalue()) == (b"one\n", b"two\n")


def test_what_comes_again_is_written_once() -> None:
    writer, out, _ = a_writer()
    writer.write(a_chunk("hello "))
    writer.write(a_chunk("hello "))
    writer.write(a_chunk("lo world", offset=3))
    assert out.getvalue() == b"hello world"


def test_a_new_attempt_begins_anew() -> None:
    writer, out, _ = a_writer()
    writer.write(a_chunk("first\n"))
    writer.write(a_chunk("second\n", attempt=2))
    assert out.getvalue() == b"first\nsecond\n"


def test_reading_goes_on_where_it_ended_in_the_same_attempt_alone() -> None:
    writer, _, _ = a_writer()
    writer.write(a_chunk("12345"))
    writer.write(a_chunk("12", stream="stderr"))
    assert writer.resume_at(1) == (5, 2)
    assert writer.resume_at(2) == (0, 0)


def test_lines_of_several_replicas_begin_with_their_rank() -> None:
    writer, out, _ = a_writer(ranked=True)
    writer.write(a_chunk("a\nb"))
    writer.write(a_chunk("c\n", offset=3))
    writer.write(a_chunk("d\n", rank=1))
    assert out.getvalue() == b"[0] a\n[0] bc\n[1] d\n"


def test_events_are_read_as_they_are_framed() -> None:
    body = b": ping\n\nevent: log\ndata: {}\n\nevent: end\r\ndata: 1\ndata: 2\r\n\r\n"
    assert list(read_events(io.BytesIO(body))) == [("log", "{}"), ("end", "1\n2")]  # type: ignore[arg-type]  # a file reads like a response


def test_frames_tell_where_a_stream_is_before_anything_happened() -> None:
    body = b"retry: 2000\nid: 41\n\nid: 42\nevent: job.queued\ndata: {}\n\nevent: x\ndata: 1\n\n"
    assert list(read_frames(io.BytesIO(body))) == [  # type: ignore[arg-type]  # a file reads like a response
        ("41", "message", ""), ("42", "job.queued", "{}"), ("42", "x", "1"),
    ]  # fmt: skip
