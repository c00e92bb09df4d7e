"""What a manifest would change: an action, the fields that differ, and how to carry it out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from gpuplane.cli.manifests import Document

SHOWN_CHARS = 60
"""Of a value on a line of a difference."""
CONTEXT_CHARS = 12
"""Shown of what both values have before the place at which they differ."""


class Action(StrEnum):
    """What becomes of one thing."""

    CREATE = "create"
    CHANGE = "change"
    REPLACE = "replace"
    """It cannot be changed in place: the old one ends and a new one begins."""
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs: what it is and what it will be."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Change:
    """What one manifest would change.

    Args:
        document: The manifest.
        action: What becomes of the thing.
        differences: The fields that differ, for people.
        carry_out: Makes it so and returns a word on the result; idempotent.
        notes: Lines for people, such as the plan of a job.
        elsewhere: The project it lies in, for people; empty if that is the caller's own.
    """

    document: Document
    action: Action
    differences: Sequence[Difference] = ()
    carry_out: Callable[[], str] = lambda: ""
    notes: Sequence[str] = ()
    elsewhere: str = ""


def differences_of(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """Return the fields of `wanted` that `found` does not have so; nested fields are dotted."""
    differ = []
    for path, new in flat(wanted).items():
        old: Any = found
        for part in path.split("."):
            old = old.get(part) if isinstance(old, Mapping) else None
        if not is_same(old, new):
            differ.append(Difference(path, old, new))
    return differ


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as dotted fields; lists stay whole."""
    fields: dict[str, Any] = {}
    for name, each in value.items():
        path = f"{prefix}{name}"
        if isinstance(each, Mapping) and each:
            fields.update(flat(each, f"{path}."))
        else:
            fields[path] = each
    return fields


def is_same(old: Any, new: Any) -> bool:
    """Return whether two values mean the same, however a number or an instant is written."""
    if old == new or (old in (None, "", [], {}) and new in (None, "", [], {})):
        return True
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(is_same, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        # What the server adds to a part of a list are its defaults.
        return all(is_same(old.get(name), each) for name, each in new.items())
    if isinstance(old, bool) or isinstance(new, bool):
        return False
    return _number(old, new) or _instant(old, new) or _model(old, new)


def narrowed(difference: Difference) -> list[Difference]:
    """Return the innermost parts of a difference that differ, each under its path."""
    field, old, new = difference.field, difference.old, difference.new
    parts: list[Difference] = []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        parts = [
            Difference(f"{field}.{name}", old.get(name), each)
            for name, each in new.items()
            if not is_same(old.get(name), each)
        ]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        parts = [
            Difference(f"{field}[{index}]", was, each)
            for index, (was, each) in pairs
            if not is_same(was, each)
        ]
    return [inner for part in parts for inner in narrowed(part)] or [difference]


def texts_of(difference: Difference) -> tuple[str, str]:
    """Return the old and the new value as text: where they are long, what differs of them."""
    old, new = _text(difference.old), _text(difference.new)
    if max(len(old), len(new)) <= SHOWN_CHARS:
        return old, new
    pairs = zip(old, new, strict=False)
    shortest = min(len(old), len(new))
    first = next((at for at, (a, b) in enumerate(pairs) if a != b), shortest)
    left = max(0, first - CONTEXT_CHARS)
    return _window(old, left), _window(new, left)


def _text(value: Any) -> str:
    return "(none)" if value is None else str(value)


def _window(text: str, left: int) -> str:
    """Return a text from a place on, with an ellipsis where something is left out."""
    head = "…" if left else ""
    rest = text[left:]
    return head + (rest if len(rest) <= SHOWN_CHARS else rest[: SHOWN_CHARS - 1] + "…")


def _number(old: Any, new: Any) -> bool:
    try:
        return Decimal(str(old)) == Decimal(str(new))
    except InvalidOperation:
        return False


def _instant(old: Any, new: Any) -> bool:
    try:
        return datetime.fromisoformat(str(old)) == datetime.fromisoformat(str(new))
    except (ValueError, TypeError):
        return False


def _model(old: Any, new: Any) -> bool:
    """Return whether a name and the server's spelling of it agree: `H100`, `nvidia-h100-80gb`."""
    if not isinstance(old, str) or not isinstance(new, str) or not old.startswith("nvidia-"):
        return False
    return new.lower().removeprefix("nvidia-") in old
