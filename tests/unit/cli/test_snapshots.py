"""Working directories: the same files make the same digest, and what is ignored stays."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from gpuplane.cli.errors import CliError
from gpuplane.cli.snapshots import pack


def names(folder: Path) -> list[str]:
    snapshot = pack(folder)
    with snapshot.archive, tarfile.open(fileobj=snapshot.archive, mode="r:gz") as tar:
        return [member.name for member in tar]


def a_tree(folder: Path, *paths: str) -> Path:
    for path in paths:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path)
    return folder


def digest(folder: Path) -> str:
    snapshot = pack(folder)
    snapshot.archive.close()
    return snapshot.digest


def test_the_same_files_make_the_same_digest_wherever_and_whenever(tmp_path: Path) -> None:
    one = a_tree(tmp_path / "one", "b.py", "a/c.py")
    two = a_tree(tmp_path / "two", "a/c.py", "b.py")
    os.utime(two / "b.py", (1, 1))
    assert digest(one) == digest(two)


def test_another_content_or_mode_makes_another_digest(tmp_path: Path) -> None:
    folder = a_tree(tmp_path, "run.sh")
    first = digest(folder)
    (folder / "run.sh").chmod(0o755)
    second = digest(folder)
    (folder / "run.sh").write_text("other")
    assert len({first, second, digest(folder)}) == 3


def test_what_the_ignore_file_names_stays_behind(tmp_path: Path) -> None:
    folder = a_tree(tmp_path, "main.py", "data/big.bin", "logs/a.log", "logs/keep.log", "x.pyc")
    (folder / ".gpuplaneignore").write_text("# data\ndata/\n*.log\n!keep.log\n")
    assert names(folder) == [".gpuplaneignore", "logs", "logs/keep.log", "main.py"] or sorted(
        names(folder)
    ) == [".gpuplaneignore", "logs", "logs/keep.log", "main.py"]


def test_git_and_caches_are_never_sent(tmp_path: Path) -> None:
    folder = a_tree(tmp_path, "main.py", ".git/config", "__pycache__/m.pyc", ".venv/bin/python")
    assert names(folder) == ["main.py"]


def test_a_link_inside_is_kept_and_one_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder = a_tree(tmp_path / "src", "real/file.txt")
    (folder / "link").symlink_to("real")
    assert "link" in names(folder)
    assert "link/file.txt" not in names(folder)
    (folder / "out").symlink_to("../elsewhere")
    with pytest.raises(CliError, match="points out"):
        pack(folder)


def test_a_folder_over_the_limit_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "noise.bin").write_bytes(os.urandom(200_000))
    with pytest.raises(CliError) as refused:
        pack(tmp_path, max_bytes=100_000)
    assert ".gpuplaneignore" in refused.value.fix
