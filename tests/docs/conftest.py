"""One control plane for everything that the pages show, and the command line beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.conftest import CommandLine, start_server


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """The command line in an empty folder, against a control plane of this module's own."""
    yield from _command_line(tmp_path_factory.mktemp("pages"))


@pytest.fixture
def fresh_cli(tmp_path: Path) -> Iterator[CommandLine]:
    """The same for one test: what others ran is learned from, and shows in plans."""
    yield from _command_line(tmp_path)


def _command_line(folder: Path) -> Iterator[CommandLine]:
    server = start_server(folder / "home")
    work = folder / "work"
    work.mkdir()
    yield CommandLine(server.home, work)
    server.stop()
