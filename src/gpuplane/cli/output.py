"""How answers reach the terminal: tables, wide tables, JSON, YAML; colours only where they show.

Owns the `-o` option. Data goes to standard output and everything else to standard error, so that
a pipe gets data alone.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import click

from gpuplane.cli.words import first_line

F = TypeVar("F", bound=Callable[..., Any])
GAP = 2
"""Blanks between two columns."""
PLAIN_WIDTH = 100_000
"""A table that goes into a pipe is not cut."""


class Output(StrEnum):
    """The forms of an answer."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        """Return whether it is for programs."""
        return self in (Output.JSON, Output.YAML)


STATUS_STYLES = {
    "running": "green",
    "completed": "blue",
    "scheduled": "cyan",
    "queued": "yellow",
    "pending": "yellow",
    "preempted": "magenta",
    "failed": "red",
    "cancelled": "bright_black",
    "ready": "green",
    "active": "green",
    "busy": "green",
    "down": "red",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Args:
        title: Its heading.
        value: What a row shows there.
        wide: Whether only the wide table has it.
        right: Whether it is aligned to the right.
        status: Whether its words have the colours of statuses.
        spare: Whether a narrow terminal may do without it; the last one goes first.
    """

    title: str
    value: Callable[[dict[str, Any]], object]
    wide: bool = False
    right: bool = False
    status: bool = False
    spare: bool = False


def output_option(function: F) -> F:
    """Add `-o` to a command that reads."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([each.value for each in Output]),
        default=Output.TABLE.value,
        callback=lambda _context, _parameter, value: Output(value),
        help="How the answer is shown.",
        show_default=True,
    )(function)


def declared_option(function: F) -> F:
    """Add `-o` to a command that shows something as it is declared or stored, so as data."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([each.value for each in Output]),
        default=Output.YAML.value,
        callback=lambda _context, _parameter, value: Output(value),
        help="How it is shown.",
        show_default=True,
    )(function)


def show_data(value: Any, output: Output) -> None:
    """Write a value as JSON or YAML to standard output."""
    if output is Output.YAML:
        import yaml

        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)
        click.echo(text, nl=False)
    else:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_rows(
    rows: Iterable[dict[str, Any]],
    columns: Sequence[Column],
    output: Output,
    *,
    empty: str = "Nothing here.",
) -> None:
    """Write rows as a table, or as `{"items": [...]}` for programs."""
    found = list(rows)
    if output.is_data:
        show_data({"items": found}, output)
        return
    if not found:
        note(empty)
        return
    shown = [each for each in columns if output is Output.WIDE or not each.wide]
    if output is Output.TABLE and sys.stdout.isatty():
        shown = fitting(shown, found, terminal_width())
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in shown:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in found:
        cells = []
        for column in shown:
            text = first_line(_cell(column.value(row)))
            cells.append(Text(text, style=STATUS_STYLES.get(text, "") if column.status else ""))
        table.add_row(*cells)
    _print(table)


def fitting(columns: Sequence[Column], rows: Sequence[dict[str, Any]], width: int) -> list[Column]:
    """Return the columns that fit a line, without spare ones from the last on as far as needed."""
    shown = list(columns)
    widths = {
        each.title: max(
            [len(each.title), *(len(first_line(_cell(each.value(row)))) for row in rows)]
        )
        for each in shown
    }
    for spare in [each for each in reversed(shown) if each.spare]:
        if sum(widths[each.title] + GAP for each in shown) - GAP <= width:
            break
        shown.remove(spare)
    return shown


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Write names and values of one thing, aligned; empty values are left out."""
    rows = [(name, _cell(value)) for name, value in fields if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        lines = value.splitlines() or [""]
        click.echo(f"{paint(f'{name}:', 'bold')}{' ' * (width - len(name) + 2)}{lines[0]}")
        for line in lines[1:]:
            click.echo(" " * (width + 3) + line)


def show_one(value: dict[str, Any], fields: Iterable[tuple[str, object]], output: Output) -> None:
    """Write one thing: its fields for people, all of it for programs."""
    if output.is_data:
        show_data(value, output)
    else:
        show_fields(fields)


def note(text: str) -> None:
    """Say something beside the data, on standard error."""
    click.echo(text, err=True)


def has_colour(*, err: bool = False) -> bool:
    """Return whether colours are wanted: a terminal, and no NO_COLOR."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, style: str, *, err: bool = False) -> str:
    """Return text in a style where colours are wanted."""
    if not style or not has_colour(err=err):
        return text
    if style == "bold":
        return click.style(text, bold=True)
    if style == "dim":
        return click.style(text, dim=True)
    return click.style(text, fg=style)


def paint_status(status: str, *, err: bool = False) -> str:
    """Return a status in its colour."""
    return paint(status, STATUS_STYLES.get(status, ""), err=err)


def _print(table: Any) -> None:
    """Write a table; into a pipe it is neither cut nor coloured nor padded."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console(highlight=False, no_color=not has_colour()).print(table)
        return
    text = io.StringIO()
    Console(file=text, width=PLAIN_WIDTH, highlight=False, no_color=True).print(table)
    for line in text.getvalue().splitlines():
        click.echo(line.rstrip())


def terminal_width(default: int = 100) -> int:
    """Return how many characters fit in a line."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return default


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        told = {name: each for name, each in value.items() if each is not None and each != []}
        return ",".join(f"{name}={_cell(each)}" for name, each in told.items())
    if isinstance(value, list | tuple):
        return ",".join(_cell(each) for each in value)
    return str(value)
