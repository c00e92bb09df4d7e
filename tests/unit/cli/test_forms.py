"""Whatever can be read can be read in every form: table, wide table, JSON and YAML."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click

from gpuplane.cli.output import Output
from gpuplane.cli.table import COMMANDS

OTHER_FORMS = {
    "apply": ["text", "json", "yaml"],
    "tokens create": ["text", "json", "yaml"],
}
"""What changes things: `apply` tells what it would change, and a new token is one line."""


def commands() -> Iterator[tuple[str, click.Command]]:
    for name, entry in COMMANDS.items():
        module, _, attribute = entry.target.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        yield from within(name, found)


def within(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        assert found is not None
        yield from within(f"{name} {each}", found)


def test_every_answer_comes_in_all_four_forms() -> None:
    offered = {
        name: list(parameter.type.choices)
        for name, command in commands()
        for parameter in command.params
        if parameter.name == "output" and isinstance(parameter.type, click.Choice)
    }
    assert len(offered) > 50
    every = [str(form) for form in Output]
    assert {name: forms for name, forms in offered.items() if forms != every} == OTHER_FORMS


def test_every_command_that_lists_or_shows_has_the_option() -> None:
    reads = {
        name: command
        for name, command in commands()
        if name.split()[-1] in ("ls", "show", "ps", "queue", "usage", "events", "why", "timeline")
    }
    assert len(reads) > 20
    without = [
        name
        for name, command in reads.items()
        if not any(parameter.name == "output" for parameter in command.params)
    ]
    assert without == []
