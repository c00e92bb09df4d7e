"""The `gpuplane` command: help at once, everything else through the table of commands."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from gpuplane.cli.table import Entry, commands_with, help_text

if TYPE_CHECKING:
    from gpuplane.cli.lazy import LazyGroup

COMPLETE = "_GPUPLANE_COMPLETE"
"""Set by a shell that asks for completions; click answers it."""


def build(extra: Mapping[str, Entry] | None = None) -> "LazyGroup":
    """Return the whole command.

    Args:
        extra: Commands of other parts by name, such as the server's own.
    """
    import click

    from gpuplane import __version__
    from gpuplane.cli.lazy import LazyGroup

    group = LazyGroup(
        "gpuplane",
        entries=commands_with(extra or {}),
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    return click.version_option(__version__, prog_name="gpuplane")(group)


def main(extra: Mapping[str, Entry] | None = None, arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    Args:
        extra: Commands of other parts by name.
        arguments: What was written after `gpuplane`; the process's own unless told.
    """
    _open_what_was_closed()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in ([], ["--help"], ["-h"]) and COMPLETE not in os.environ:
        _print_help(help_text(commands_with(extra or {})), to_error=not words)
        sys.exit(0 if words else 2)
    _run(extra, words)


def _open_what_was_closed() -> None:
    """Open nothing in place of the streams that whoever started us closed, as with `>&-`.

    What reads finds nothing, so nobody can be asked; what writes is not read. In the order of
    their descriptors: each open takes the lowest that is free, and no socket may become one.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - for as long as the process lives


def _print_help(text: str, *, to_error: bool) -> None:
    stream = sys.stderr if to_error else sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        _lead_nowhere(stream)


def _lead_nowhere(stream: TextIO) -> None:
    """Lead a stream whose reader is gone to nowhere: Python would complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(extra: Mapping[str, Entry] | None, words: list[str]) -> None:
    import click

    from gpuplane.cli.errors import Exit

    try:
        code = build(extra).main(words, prog_name="gpuplane", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("gpuplane: interrupted", err=True)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output is gone, as with `gpuplane ps | head -1`: no error of ours.
        _lead_nowhere(sys.stdout)
        sys.exit(Exit.OK)
    sys.exit(code if isinstance(code, int) else Exit.OK)
