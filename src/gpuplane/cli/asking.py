"""The questions that commands ask before they change something, in one way for all of them.

Nobody is asked where standard input is closed or is no terminal: what was written is then not
enough, so the command ends with the code of wrong usage and names `--yes`.
"""

import sys

import click

from gpuplane.cli.errors import CliError, Exit

YES = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def confirm(question: str, *, yes: bool) -> None:
    """Return once somebody agreed, by `--yes` or by the answer.

    Raises:
        CliError: If nobody can be asked, or the answer is no.
    """
    if yes:
        return
    _require_somebody()
    if not click.confirm(question, default=False, err=True):
        raise _refusal()


def confirm_by_name(question: str, name: str, *, yes: bool) -> None:
    """Return once somebody agreed, by `--yes` or by typing the name.

    Raises:
        CliError: If nobody can be asked, or something else was typed.
    """
    if yes:
        return
    _require_somebody()
    if click.prompt(question, default="", show_default=False, err=True) != name:
        raise _refusal()


def _require_somebody() -> None:
    if not sys.stdin.isatty():
        raise CliError(
            "Nobody can be asked here, so nothing was changed.",
            fix="Look at what is written above, then add --yes.",
            code=Exit.USAGE,
        )


def _refusal() -> CliError:
    return CliError("Nothing was changed.", code=Exit.REFUSED)
