"""What commands do that ask first: the same, whoever is there to answer."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import pytest

import gpuplane.cli
from gpuplane.cli.asking import confirm, confirm_by_name
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.main import build, main
from gpuplane.cli.output import Column, Output, show_rows

SOURCE = Path(gpuplane.cli.__file__).parent


class Terminal(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


def test_nobody_is_asked_without_a_terminal_and_the_way_out_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    by_name = partial(confirm_by_name, "Type it", "lab", yes=False)
    for ask in (partial(confirm, "Do it?", yes=False), by_name):
        with pytest.raises(CliError) as refused:
            ask()
        assert refused.value.code is Exit.USAGE
        assert "--yes" in refused.value.fix


@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_whoever_does_not_agree_refuses(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    with pytest.raises(CliError) as refused:
        confirm("Do it?", yes=False)
    assert refused.value.code is Exit.REFUSED
    monkeypatch.setattr(sys, "stdin", Terminal("lav\n"))
    with pytest.raises(CliError) as refused:
        confirm_by_name("Type it", "lab", yes=False)
    assert refused.value.code is Exit.REFUSED


def test_an_answer_or_the_option_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = Terminal("y\nlab\n")
    monkeypatch.setattr(sys, "stdin", typed)
    confirm("Do it?", yes=False)
    confirm_by_name("Type it", "lab", yes=False)
    assert typed.read() == "", "both answers were asked for"
    unread = Terminal("n\n")
    monkeypatch.setattr(sys, "stdin", unread)
    confirm("Do it?", yes=True)
    confirm_by_name("Type it", "lab", yes=True)
    assert unread.read() == "n\n"


def test_standard_input_that_is_closed_reads_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit):
        main(arguments=["--help"])
    with sys.stdin as stdin:
        assert (stdin.isatty(), stdin.read()) == (False, "")


def test_output_that_is_closed_is_written_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as ended:
        main(arguments=["ps", "--no-such-option"])
    assert ended.value.code == Exit.USAGE
    with sys.stdout as stdout, sys.stderr as stderr:
        show_rows([{"name": "lab"}], [Column("NAME", lambda row: row["name"])], Output.TABLE)
        assert (stdout.isatty(), stderr.isatty()) == (False, False)


def test_every_question_is_asked_in_one_place() -> None:
    asking = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        if "click.confirm(" in file.read_text()
    }
    assert asking == {"asking.py"}


def commands(of: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    yield path, of
    if isinstance(of, click.Group):
        context = click.Context(of)
        for name in of.list_commands(context):
            found = of.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}".strip())


def test_every_command_that_deletes_asks_and_takes_yes() -> None:
    deleting = {
        path: {option for each in command.params for option in each.opts}
        for path, command in commands(build())
        if path.endswith((" rm", " offboard", " deprovision"))
    }
    assert len(deleting) > 10
    assert {path for path, options in deleting.items() if not {"--yes", "-y"} <= options} == set()
