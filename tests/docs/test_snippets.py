"""What the pages show is run: commands, manifests, JSON, links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gpuplane.backends.simulated import parse_fleet
from tests.docs.pages import (
    ROOT,
    Block,
    anchors_of,
    blocks,
    blocks_of,
    commands_of,
    links_of,
    name_of,
    pages,
)
from tests.integration.cli.conftest import CommandLine, Done

JSON = blocks("json")
PYTHON = blocks("python")
MANIFESTS = [block for block in blocks("yaml") if "apiVersion: gpuplane.io/v1" in block.text]
SHOWING = [page for page in pages() if any(map(commands_of, blocks_of(page)))]


def run_as_written(cli: CommandLine, words: tuple[str, ...]) -> Done:
    """Run a command of a page; the word JOB stands for a job that waits, else for the newest."""
    if "JOB" not in words:
        return cli(*words)
    listed = cli.ok("ps", "-a", "-o", "json").data
    rows = listed["items"] if isinstance(listed, dict) else listed
    waiting = [row for row in rows if row["status"] == "queued"] or rows
    return cli(*(waiting[0]["id"] if word == "JOB" else word for word in words))


@pytest.mark.parametrize("page", SHOWING, ids=name_of)
def test_the_commands_of_a_page_run_as_shown(cli: CommandLine, page: Path) -> None:
    for block in blocks_of(page):
        for command in commands_of(block) if block.language == "console" else ():
            done = run_as_written(cli, command.words)
            assert done.code == 0, (str(block), command.words, done)
            if command.shown:
                assert done.out.splitlines() == list(command.shown), (str(block), command.words)


@pytest.mark.parametrize("block", MANIFESTS, ids=str)
def test_a_manifest_that_a_page_shows_can_be_applied(cli: CommandLine, block: Block) -> None:
    if yaml.safe_load(block.text)["kind"] == "Fleet":
        assert parse_fleet(block.text, str(block)).nodes
        return
    done = cli("apply", "--dry-run", "-f", "-", stdin=block.text)
    assert done.code == 0, done
    assert "to create" in done.out


@pytest.mark.parametrize("block", JSON, ids=str)
def test_json_that_a_page_shows_is_json(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_that_a_page_shows_compiles(block: Block) -> None:
    assert compile(block.text, str(block), "exec")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    lost = []
    for target in links_of(page):
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and anchor not in anchors_of(place)):
            lost.append(target)
    assert lost == []


def test_the_index_names_every_page_of_the_reference() -> None:
    index = set(links_of(ROOT / "docs" / "README.md"))
    reference = {f"reference/{page.name}" for page in (ROOT / "docs/reference").glob("*.md")}
    assert reference - index == set()


def test_what_is_looked_for_is_found() -> None:
    assert ROOT / "README.md" in SHOWING
    assert all((JSON, PYTHON, MANIFESTS))
