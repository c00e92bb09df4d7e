from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuplane.backends.local.reports import read_reports

LIMIT = 1000


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("0.5\n", 0.5),
        ("0.1\n0.2\n", 0.2),
        ('{"ratio": 0.75, "step": 3}\n', 0.75),
        ('{"progress": 1}\n', 1.0),
        ("0.1\n0.", 0.1),
        ("0.3", 0.3),
        ("\n", None),
        ("", None),
    ],
)
def test_the_latest_whole_line_is_the_progress(
    tmp_path: Path, text: str, ratio: float | None
) -> None:
    (tmp_path / "progress").write_text(text)
    reports = read_reports(tmp_path, LIMIT)
    assert (reports.progress_ratio, reports.complaints) == (ratio, ())


@pytest.mark.parametrize(
    "text", ["half", "1.5", "-1", "NaN", "true", "[]", '{"step": 1}', "[" * 900]
)
def test_a_progress_that_is_none_is_complained_about(tmp_path: Path, text: str) -> None:
    (tmp_path / "progress").write_text(text + "\n")
    reports = read_reports(tmp_path, LIMIT)
    assert reports.progress_ratio is None
    assert reports.complaints[0].startswith("progress file: ")


def test_the_latest_checkpoint_is_known_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    path.write_text('/c/1\n{"path": "/c/2"}\n')
    os.utime(path, ns=(0, 1_700_000_000_123_000_000))
    reports = read_reports(tmp_path, LIMIT)
    assert (reports.checkpoint, reports.checkpoint_at) == ("/c/2", 1_700_000_000_123)


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": NaN', "7", '"x"'])
def test_outputs_that_are_no_object_are_complained_about(tmp_path: Path, text: str) -> None:
    (tmp_path / "outputs.json").write_text(text)
    reports = read_reports(tmp_path, LIMIT)
    assert reports.outputs is None
    assert len(reports.complaints) == 1


def test_a_file_that_is_too_long_or_no_text_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "outputs.json").write_text('{"a": "' + "x" * LIMIT + '"}')
    (tmp_path / "progress").write_bytes(b"\xff\xfe\n")
    reports = read_reports(tmp_path, LIMIT)
    assert (reports.outputs, reports.progress_ratio) == (None, None)
    assert "more than the 1000 that are read" in reports.complaints[1]
    assert "UTF-8" in reports.complaints[0]


def test_a_link_or_a_pipe_in_its_place_is_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"key": 1}')
    (tmp_path / "outputs.json").symlink_to(secret)
    os.mkfifo(tmp_path / "progress")
    (tmp_path / "checkpoints").mkdir()
    reports = read_reports(tmp_path, LIMIT)
    assert (reports.outputs, reports.progress_ratio, reports.checkpoint) == (None, None, None)
    assert len(reports.complaints) == 3


def test_no_reports_are_no_complaint(tmp_path: Path) -> None:
    assert read_reports(tmp_path / "missing", LIMIT).complaints == ()
