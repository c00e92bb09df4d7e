"""What the pages show is run: commands, manifests, JSON, links."""

from __future__ import annotations

import json
import shutil
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
    comparable,
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


def lay_out_files(cli: CommandLine, page: Path) -> None:
    """Put the examples and a page's manifests where its commands look for them."""
    shutil.copytree(ROOT / "examples", cli.folder / "examples", dirs_exist_ok=True)
    for block in blocks_of(page):
        if block in MANIFESTS:
            name = next(yaml.safe_load_all(block.text))["metadata"]["name"]
            (cli.folder / f"{name}.yaml").write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("page", SHOWING, ids=name_of)
def test_the_commands_of_a_page_run_as_shown(fresh_cli: CommandLine, page: Path) -> None:
    cli = fresh_cli
    lay_out_files(cli, page)
    for block in blocks_of(page):
        for command in commands_of(block):
            done = run_as_written(cli, command.words)
            assert (done.code != 0) is command.is_refused, (str(block), command.words, done)
            shown = list(map(comparable, command.shown))
            out, err = (list(map(comparable, each.splitlines())) for each in (done.out, done.err))
            if shown:
                assert [line for line in shown if line not in out + err] == [], (str(block), done)
                assert [line for line in out if line not in shown] == [], (str(block), done)


@pytest.mark.parametrize("block", MANIFESTS, ids=str)
def test_a_manifest_that_a_page_shows_can_be_applied(cli: CommandLine, block: Block) -> None:
    kinds = {document["kind"] for document in yaml.safe_load_all(block.text)}
    if kinds == {"Fleet"}:
        assert parse_fleet(block.text, str(block)).nodes
        return
    done = cli("apply", "--dry-run", "-f", "-", stdin=block.text)
    assert done.code == 0, done
    assert {kind for kind in kinds if f" {kind} " not in done.out} == set()


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


def test_the_index_names_every_page() -> None:
    docs = ROOT / "docs"
    index = {(docs / link).resolve() for link in links_of(docs / "README.md")}
    found = {page for page in docs.glob("**/*.md") if page.parent.name != "decisions"}
    assert found - index - {docs / "README.md"} == set()


def test_what_is_looked_for_is_found() -> None:
    assert ROOT / "README.md" in SHOWING
    assert all((JSON, PYTHON, MANIFESTS))
