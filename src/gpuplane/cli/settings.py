"""Which control plane is meant and with which token: the environment, else this machine's own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuplane.cli.errors import CliError, Exit, Unreachable

START_HINT = "Start one with `gpuplane up` (or `make run`), or set GPUPLANE_URL to another."


@dataclass(frozen=True, slots=True)
class Target:
    """The control plane that commands talk to."""

    url: str
    token: str
    project: str | None = None
    """The project meant when a command names none (GPUPLANE_PROJECT)."""


def load_target(environment: Mapping[str, str] | None = None) -> Target:
    """Return the control plane that GPUPLANE_URL and GPUPLANE_TOKEN name, else the local one.

    The local admin token is never sent to an address but the local one.

    Raises:
        Unreachable: If none is named and none runs here.
        CliError: If the token is missing, or a variable is set to nothing or to what cannot be.
    """
    env = os.environ if environment is None else environment
    home = home_of(env)
    local = _read(home / "address")
    url = (_named(env, "GPUPLANE_URL", "an address", "this machine's own") or local).rstrip("/")
    if not url:
        raise Unreachable(f"No control plane runs on {home}.", fix=START_HINT)
    if not url.startswith(("http://", "https://")):
        raise CliError(
            f"GPUPLANE_URL {url!r} is no URL.",
            fix="Write it like http://127.0.0.1:7070.",
            code=Exit.USAGE,
        )
    token = _token(env) or (_read(home / "admin-token") if url == local else "")
    if not token:
        raise CliError(
            f"There is no token for {url}.",
            fix="Set GPUPLANE_TOKEN; `gpuplane tokens create NAME` makes one where you have one.",
            code=Exit.REFUSED,
        )
    return Target(url, token, _named(env, "GPUPLANE_PROJECT", "a project", "your own"))


def _named(env: Mapping[str, str], variable: str, what: str, default: str) -> str | None:
    """Return what a variable names, None where it is not set; set to nothing it names nothing."""
    value = env.get(variable)
    if value is not None and not value.strip():
        raise CliError(
            f"{variable} is set and empty, so nothing is named.",
            fix=f"Give it {what}, or unset it for {default}.",
            code=Exit.USAGE,
        )
    return value


def _token(env: Mapping[str, str]) -> str:
    """Return the token of the environment; one that is set to nothing is not the admin's."""
    token = env.get("GPUPLANE_TOKEN")
    if token is not None and not token.strip():
        raise CliError(
            "GPUPLANE_TOKEN is set and empty, so nobody is named.",
            fix="Give it a token, or unset it to use this machine's own.",
            code=Exit.REFUSED,
        )
    return token or ""


def home_of(environment: Mapping[str, str]) -> Path:
    """Return the home folder of this machine's control plane."""
    named = _named(environment, "GPUPLANE_HOME", "a folder", "~/.gpuplane") or "~/.gpuplane"
    try:
        return Path(named).expanduser()
    except RuntimeError as error:  # ~nobody, or ~ where no home is known
        raise CliError(
            f"GPUPLANE_HOME {named!r} is no folder: {error}",
            fix="Write its whole path.",
            code=Exit.USAGE,
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
