"""One control plane for everything that the pages show, and the command line beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.cli.conftest import CommandLine, start_server


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """The command line in an empty folder, against a control plane of this module's own."""
    folder = tmp_path_factory.mktemp("pages")
    server = start_server(folder / "home")
    work = folder / "work"
    work.mkdir()
    yield CommandLine(server.home, work)
    server.stop()
