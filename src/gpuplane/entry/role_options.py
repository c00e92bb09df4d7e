"""Options that the roles inside a cluster have in common, each said once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PORT = click.IntRange(0, 65_535)
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

HOST = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
LOG_LEVEL = click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="INFO",
    show_default=True,
    help="What is logged.",
)


def kubeconfig_option(about: str) -> Callable[[F], F]:
    """Return the option that names a cluster; `about` says which, and what holds without it."""
    return click.option("--kubeconfig", type=FILE, help=about)


def certificate_options(about: str) -> Callable[[F], F]:
    """Return the options of a certificate and its key; `about` says what it is for."""

    def both(command: F) -> F:
        command = click.option("--tls-key", type=FILE, help="Its private key.")(command)
        return click.option("--tls-cert", type=FILE, help=about)(command)

    return both
