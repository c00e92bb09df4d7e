"""Types of options: durations, instants, memory, pairs; each refuses with an example.

Owns also the commands whose arguments are numbers, to which a negative one looks like an option.
"""

import json
import re
from typing import Any

import click

from gpuplane.cli.words import parse_duration, parse_gib, parse_instant


class DurationType(click.ParamType[int]):
    """Seconds written as `90`, `15m` or `2h30m`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return seconds."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration(value)
        except ValueError:
            self.fail(f"{value!r} is no duration; write it like 90s, 15m or 2h30m.", param, ctx)


class InstantType(click.ParamType[str]):
    """An instant written as a date and time, or as a distance from now such as `+2h`."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return RFC 3339."""
        try:
            return parse_instant(value)
        except ValueError:
            self.fail(
                f"{value!r} is no instant; write it like 2026-05-01T09:00 or +2h.", param, ctx
            )


class GibType(click.ParamType[float]):
    """Memory written as `8G`, `512M` or a number of GiB."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return GiB."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_gib(value)
        except ValueError:
            self.fail(f"{value!r} is no size; write it like 8G, 512M or 1.5T.", param, ctx)


class PairType(click.ParamType[tuple[str, str]]):
    """A name and a value written as `NAME=VALUE`."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return name and value."""
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not written as NAME=VALUE.", param, ctx)
        return name, text


class NumberCommand(click.Command):
    """A command of which an argument is a number that is never negative."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what is left of the words; a negative number is called one."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            number = next((each for each in words if re.fullmatch(r"-[0-9.]+", each)), None)
            if number is None or not number.startswith(error.option_name):
                raise
            raise click.UsageError(f"The number must not be negative: {number}.", ctx) from error


DURATION = DurationType()
INSTANT = InstantType()
GIB = GibType()
PAIR = PairType()


def parse_value(text: str) -> Any:
    """Return text as the JSON it is, else as it stands."""
    try:
        return json.loads(text)
    except ValueError:
        return text
