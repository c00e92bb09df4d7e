"""Files that people name: read, or refused with a sentence and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.files import read_named, unwritable


def refusal_of(path: Path) -> CliError:
    with pytest.raises(CliError) as refused:
        read_named(str(path), field="-f")
    assert (refused.value.code, refused.value.field) == (Exit.USAGE, "-f")
    assert refused.value.fix
    return refused.value


def test_a_file_that_cannot_be_read_is_refused_with_a_sentence_and_a_fix(tmp_path: Path) -> None:
    missing = refusal_of(tmp_path / "no.yaml")
    assert missing.message == f"There is no file {tmp_path / 'no.yaml'}."
    assert refusal_of(tmp_path).message == f"{tmp_path} is a folder."
    packed = tmp_path / "packed.yaml"
    packed.write_bytes(b"a: \xff\xfe")
    assert refusal_of(packed).message == f"{packed} is not text in UTF-8: byte 3 is not."
    looped = tmp_path / "loop"
    looped.symlink_to(looped)
    assert "cannot be read" in refusal_of(looped).message
    assert "Errno" not in refusal_of(looped).message


def test_a_file_is_read_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes("é: 1".encode())
    assert read_named(str(file)) == "é: 1"


def test_a_file_that_cannot_be_written_is_refused_without_an_error_number() -> None:
    refused = unwritable("/no/out.yaml", FileNotFoundError(2, "No such file or directory"))
    assert refused.message == "/no/out.yaml cannot be written: No such file or directory."
    assert refused.fix
