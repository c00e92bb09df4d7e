"""The schema of a new home is made by another process, so that its maker is not held in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuplane.db.database import Database
from gpuplane.db.first_schema import make_first_schema
from gpuplane.db.schema import SchemaReport, current_revision, head_revision, upgrade_schema
from tests.integration.cli.conftest import start_server
from tests.waiting import wait_until


def test_a_file_that_is_not_there_is_made_with_the_newest_schema(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new file.db'}"
    assert make_first_schema(url)
    database = Database(url)
    try:
        assert upgrade_schema(database.engine) == SchemaReport(head_revision(), head_revision())
    finally:
        database.close()


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    file.write_bytes(b"")
    assert not make_first_schema(f"sqlite:///{file}")
    assert file.read_bytes() == b""
    assert not make_first_schema("postgresql://nobody@127.0.0.1:1/none")


def test_where_it_cannot_be_made_nothing_is_left_and_the_next_to_open_it_says_why(
    tmp_path: Path,
) -> None:
    file = tmp_path / "no-such-folder" / "x.db"
    assert not make_first_schema(f"sqlite:///{file}")
    assert not file.parent.exists()


def test_a_schema_cut_short_leaves_a_file_that_the_server_takes_as_new(tmp_path: Path) -> None:
    file = tmp_path / "cut.db"
    lines = (
        "import os", "from alembic import op",
        "from gpuplane.db.first_schema import _main",
        "made, left = op.create_table, iter(range(10))",
        "def cut(*args, **more):",
        "    made(*args, **more) if next(left, None) is not None else os._exit(9)",
        "op.create_table = cut", "_main()",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], input=f"sqlite:///{file}".encode(), check=False
    )
    assert done.returncode == 9
    database = Database(f"sqlite:///{file}")
    try:
        assert current_revision(database.engine) is None
        assert upgrade_schema(database.engine).after == head_revision()
    finally:
        database.close()


def loads_alembic(process: int) -> bool:
    """Return whether a process holds Alembic, seen by the one library it brings with it."""
    return "markupsafe" in Path(f"/proc/{process}/maps").read_text()


def test_a_server_on_a_new_home_does_not_hold_what_makes_schemas(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import alembic.command; input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as maker:
        wait_until(lambda: loads_alembic(maker.pid), "it has loaded Alembic", deadline_s=60)
        maker.communicate(b"\n")
    server = start_server(tmp_path / "home")
    try:
        assert not loads_alembic(server.process.pid)
    finally:
        server.stop()
