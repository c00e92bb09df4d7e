"""Command groups: one whose commands are imported when they are called, one that offers names."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click

from gpuplane.cli.table import Entry, help_text


class NearestGroup(click.Group):
    """A group that offers the nearest names when a command is unknown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; an unknown one is refused with the nearest names."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.list_commands(ctx), 3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"There is no command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


class LazyGroup(NearestGroup):
    """A group made from a table of entries; its help imports none of them."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        """Make a group of the table's commands, listed in its order."""
        super().__init__(*args, **kwargs)
        self.entries = dict(entries)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, or None if the table has none of that name."""
        entry = self.entries.get(cmd_name)
        return None if entry is None else load_command(entry)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help that the table makes."""
        return help_text(self.entries)


def load_command(entry: Entry) -> click.Command:
    """Import and return the command of an entry.

    Raises:
        TypeError: If what lies there is no command.
    """
    module, _, attribute = entry.target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{entry.target} is no command")
    return command
