"""A control plane that cannot start says so in one sentence and a fix, without a password."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PASSWORD = "Tr0ub4dor"
Done = subprocess.CompletedProcess[str]


def gpuplane(home: Path | str, *words: str, **settings: str) -> Done:
    """Run a command of the server in a process of its own; none gets as far as to serve."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GPUPLANE_")}
    return subprocess.run(
        [sys.executable, "-m", "gpuplane", *words],
        env={**kept, "GPUPLANE_HOME": str(home), "GPUPLANE_PORT": "0", **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refusal(done: Done) -> str:
    """Return the one line that `up` printed before it ended with 1."""
    assert done.returncode == 1, done
    (line,) = done.stderr.splitlines()
    return line


def test_a_postgresql_that_is_away_is_named_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql://u:{PASSWORD}@127.0.0.1:1/x"
    line = refusal(gpuplane(tmp_path / "home", "up", GPUPLANE_DATABASE_URL=url))
    assert line.startswith("gpuplane: The database x of PostgreSQL at 127.0.0.1:1 cannot be used: ")
    assert line.endswith("Start PostgreSQL there, or correct GPUPLANE_DATABASE_URL.")
    assert PASSWORD not in line
    assert PASSWORD not in (tmp_path / "home/log.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("rest", ["127.0.0.1:abc/x", f"127.0.0.1:1/x?sslmode={PASSWORD}"])
def test_a_database_url_that_cannot_be_meant_never_shows_its_password(
    rest: str, tmp_path: Path
) -> None:
    url = f"postgresql://u:{PASSWORD}@{rest}"
    line = refusal(gpuplane(tmp_path / "home", "up", GPUPLANE_DATABASE_URL=url))
    assert "GPUPLANE_DATABASE_URL" in line
    assert PASSWORD not in line


def test_a_database_in_a_folder_that_is_not_there_is_refused_with_the_folder(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/nowhere/x.db"
    line = refusal(gpuplane(tmp_path / "home", "up", GPUPLANE_DATABASE_URL=url))
    assert f"The database {tmp_path}/nowhere/x.db cannot be opened" in line
    assert f"Make the folder {tmp_path}/nowhere, or set GPUPLANE_DATABASE_URL" in line


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"no database at all " * 300)
    before, url = junk.read_bytes(), f"sqlite:///{junk}"
    line = refusal(gpuplane(tmp_path / "home", "up", GPUPLANE_DATABASE_URL=url))
    assert f"The database {junk} cannot be opened: file is not a database." in line
    assert "Move that file away" in line
    for command in ("upgrade", "check"):
        done = gpuplane(tmp_path / "home", "db", command, GPUPLANE_DATABASE_URL=url)
        assert done.stderr.startswith(f"gpuplane: The database {junk} cannot be opened: ")
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 2)
    assert junk.read_bytes() == before


def test_a_home_that_cannot_be_made_is_refused_with_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file", encoding="utf-8")
    for home in (Path("/proc/nope"), tmp_path / "file", tmp_path / "file/home"):
        line = refusal(gpuplane(home, "up"))
        assert line.startswith(f"gpuplane: The home folder {home} cannot be used: ")
        assert line.endswith("Set GPUPLANE_HOME, or --home, to a folder that you may write.")


@pytest.mark.parametrize("text", ["{bad", '[{"issuer": 1}]'])
def test_issuers_that_are_no_list_are_a_usage_error(text: str, tmp_path: Path) -> None:
    done = gpuplane(tmp_path / "home", "up", GPUPLANE_OIDC_ISSUERS=text)
    assert done.returncode == 2
    assert "GPUPLANE_OIDC_ISSUERS is no list of issuers: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_port_that_is_taken_is_named_and_leaves_no_home_behind(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        for _ in range(2):
            line = refusal(gpuplane(tmp_path / "home", "up", GPUPLANE_PORT=port))
            assert line.startswith(f"gpuplane: cannot listen on 127.0.0.1:{port}: ")
            assert "GPUPLANE_PORT" in line
            assert not (tmp_path / "home").exists()


def test_a_certificate_that_cannot_be_read_is_named_with_what_hinders_it(tmp_path: Path) -> None:
    paths = {"GPUPLANE_HTTP_TLS_CERTIFICATE": "/none.crt", "GPUPLANE_HTTP_TLS_KEY": "/none.key"}
    line = refusal(gpuplane(tmp_path / "home", "up", **paths))
    assert line.startswith("gpuplane: the certificate cannot be used: /none.crt with /none.key: No")
    assert not (tmp_path / "home").exists()
