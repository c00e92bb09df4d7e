"""Settings out of an environment and a command line: unknown keys and what cannot hold are errors.

A setting `group.name` is read from `GPUPLANE_GROUP_NAME`; the plain ones at the top from
`GPUPLANE_NAME`. Owns the names of variables, the reading, the checks and what pages tell of them;
which settings there are is said by `entry.settings`.
"""

import dataclasses
import difflib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuplane.entry.described import SettingsError
from gpuplane.entry.settings import Settings

PREFIX = "GPUPLANE_"
NOT_SETTINGS = frozenset(
    {
        "GPUPLANE_URL",
        "GPUPLANE_TOKEN",
        "GPUPLANE_PROJECT",
        "GPUPLANE_PROVISIONING_BINARY",
        "GPUPLANE_PROVISIONING_TIMEOUT",
        "GPUPLANE_DATA",
        "GPUPLANE_FAILPOINTS",
        "GPUPLANE_FAILPOINT_TRACE",
        "GPUPLANE_RIG",
        "GPUPLANE_RIG_CACHE",
        "GPUPLANE_RIG_POD",
        "GPUPLANE_PUBLISHED_CHARTS",
        "GPUPLANE_WALK",
    }
)
"""Variables of the client, the rig and tests: whoever exported them may start a control plane."""
JOB_PREFIXES = (
    "GPUPLANE_JOB_",
    "GPUPLANE_ATTEMPT",
    "GPUPLANE_ARRAY_",
    "GPUPLANE_MOUNT_",
    "GPUPLANE_OUTPUTS",
    "GPUPLANE_PROGRESS",
    "GPUPLANE_CHECKPOINT",
    "GPUPLANE_SEED",
    "GPUPLANE_WORKSPACE",
    "GPUPLANE_TEST_",
)
"""What a job is told; a control plane started inside a job sees them too."""


@dataclass(frozen=True, slots=True)
class Described:
    """One setting as documented."""

    variable: str
    default: str
    unit: str
    reason: str
    values: str
    """What it may be: `0..100`, or the words; empty where only its form is prescribed."""


def describe_settings() -> list[Described]:
    """Return every setting with its variable, default, unit, reason and bounds, in order."""
    rows = []
    for path, each in _leaves(Settings):
        default = each.default
        rows.append(
            Described(
                _variable(path), json.dumps(default) if isinstance(default, bool) else str(default),
                each.metadata["unit"], each.metadata["reason"], _values_of(each),
            )
        )  # fmt: skip
    return rows


def load_settings(environment: Mapping[str, str], **overrides: Any) -> Settings:
    """Return the settings that an environment and the command line make.

    Raises:
        SettingsError: If a variable is unknown or its value cannot hold.
    """
    known = {_variable(path): (path, each) for path, each in _leaves(Settings)}
    values: dict[tuple[str, ...], Any] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or name.startswith(JOB_PREFIXES):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise SettingsError(
                f"{name} is no setting.{hint} `gpuplane up --settings` lists them all."
            )
        path, each = known[name]
        values[path] = _parse(name, text, each)
    for name, value in overrides.items():
        if value is not None:
            values[(name,)] = value
    built = _build(Settings, (), values)
    try:
        home = Path(built.home).expanduser().resolve()
    except RuntimeError as error:
        raise SettingsError(
            f"GPUPLANE_HOME={str(built.home)!r} is no folder: {error}. Write its whole path."
        ) from error
    return _checked(dataclasses.replace(built, home=home))


def _checked(settings: Settings) -> Settings:
    for path, each in _leaves(Settings):
        value: Any = settings
        for name in path:
            value = getattr(value, name)
        _check_value(_variable(path), value, each)
    scheme = settings.sql_url.split(":", 1)[0]
    if scheme not in ("sqlite", "postgresql", "postgresql+psycopg"):
        raise SettingsError(
            f"GPUPLANE_DATABASE_URL starts with {scheme!r}; use sqlite:///PATH or postgresql://…"
        )
    _check_endpoint(settings.telemetry.otlp_endpoint)
    return settings


def _check_endpoint(url: str) -> None:
    """Refuse an endpoint to which no trace could ever be sent; empty means that none are."""
    try:
        parts = urlsplit(url)
        holds = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        holds = False
    if url and not (holds and url.isascii() and url.isprintable() and " " not in url):
        raise SettingsError(
            f"GPUPLANE_TELEMETRY_OTLP_ENDPOINT={url!r} is no http or https URL. Write it like "
            "http://127.0.0.1:4318, or leave it out for no traces."
        )


def _check_value(name: str, value: Any, each: Any) -> None:
    """Refuse a number out of its bounds and a word without a meaning; `nan` lies in no bounds."""
    within, among = each.metadata["within"], each.metadata["among"]
    default = f"Leave it out for the default, {each.default}."
    if within is not None and not (within[0] <= value <= within[1]):
        raise SettingsError(
            f"{name} must lie in {_values_of(each)}, not {value} ({each.metadata['unit']}). "
            f"{default}"
        )
    if among and value not in among:
        near = difflib.get_close_matches(value, among, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise SettingsError(f"{name} must be one of {', '.join(among)}, not {value!r}.{hint} "
                            f"{default}")  # fmt: skip


def _values_of(each: Any) -> str:
    """Return what a setting may be, as people write it."""
    within = each.metadata["within"]
    if within is None:
        return ", ".join(each.metadata["among"])
    low, high = (str(bound) for bound in within)
    return f"{low}..{high}"


def _leaves(group: type, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for each in fields(group):
        if "unit" in each.metadata:
            found.append(((*path, each.name), each))
        else:
            found.extend(_leaves(typing.get_type_hints(group)[each.name], (*path, each.name)))
    return found


def _variable(path: tuple[str, ...]) -> str:
    return PREFIX + "_".join(path).upper()


def _parse(name: str, text: str, each: Any) -> Any:
    kind = each.type if isinstance(each.type, type) else type(each.default)
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if kind in (int, float):
            return kind(text)
        if isinstance(each.default, Path):
            if not text.strip():  # it would be the folder one happens to stand in
                raise SettingsError(f"{name} is set and empty. Name a folder, or leave it out.")
            return Path(text)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise SettingsError(f"{name}={text!r} is not {wanted} ({each.metadata['unit']}).") from None
    return text


def _build(group: Any, path: tuple[str, ...], values: Mapping[tuple[str, ...], Any]) -> Any:
    hints = typing.get_type_hints(group)
    arguments: dict[str, Any] = {}
    for each in fields(group):
        here = (*path, each.name)
        if "unit" not in each.metadata:
            arguments[each.name] = _build(hints[each.name], here, values)
        elif here in values:
            arguments[each.name] = values[here]
    return group(**arguments)
