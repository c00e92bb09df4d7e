"""The table of commands: every entry leads somewhere, and help imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from gpuplane.cli.lazy import load_command
from gpuplane.cli.main import build
from gpuplane.cli.table import COMMANDS, HELP_WIDTH, Entry, commands_with, help_text
from gpuplane.entry.main import SERVER_COMMANDS

HEAVY = {"click", "rich", "yaml", "httpx2", "http.client", "numpy", "sqlalchemy", "fastapi"}


@pytest.mark.parametrize("name", [*COMMANDS, *SERVER_COMMANDS])
def test_every_entry_leads_to_a_command_with_a_help(name: str) -> None:
    command = load_command({**COMMANDS, **SERVER_COMMANDS}[name])
    assert command.help
    inside = command.commands.values() if isinstance(command, click.Group) else ()
    assert [each.name for each in inside if not each.help] == []


def test_every_option_of_every_command_says_what_it_is_for() -> None:
    silent = []
    for name, entry in COMMANDS.items():
        command = load_command(entry)
        for each in command.commands.values() if isinstance(command, click.Group) else [command]:
            silent += [
                f"{name} {each.name} {param.name}"
                for param in each.params
                if isinstance(param, click.Option) and not param.help
            ]
    assert silent == []


def test_the_help_lists_every_command_and_fits_the_width() -> None:
    text = help_text(commands_with(SERVER_COMMANDS))
    assert [name for name in (*COMMANDS, *SERVER_COMMANDS) if f"\n  {name} " not in text] == []
    assert max(map(len, text.splitlines())) <= HELP_WIDTH


def test_help_imports_nothing_that_takes_its_time() -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpuplane", "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "gpuplane.cli.table" in imported
    assert imported & HEAVY == set()
    assert ended.stdout.startswith("Usage: gpuplane")


def test_an_unknown_command_is_offered_the_nearest() -> None:
    with pytest.raises(click.UsageError, match="Did you mean timeline"):
        build().main(["timelin"], standalone_mode=False)


def test_commands_of_other_parts_come_first_in_their_section() -> None:
    found = commands_with({"up": Entry("gpuplane.entry.commands:up", "Start.", "Start")})
    assert next(iter(found)) == "up"
