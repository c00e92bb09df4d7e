"""What expressions compute with: JSON's values, instants and durations, and what each costs.

Equality and order are CEL's: numbers compare across kinds, everything else only with its own kind,
and a boolean is no number. Every step and every byte made is counted against a budget, so that the
same expression over the same values is refused everywhere or nowhere.
"""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind

MAX_STEPS = 200_000
"""Steps of one evaluation: about a tenth of a second."""
MAX_BYTES = 4 * 1024 * 1024
"""Characters and items made by one evaluation."""
INT_MIN, INT_MAX = -(2**63), 2**63 - 1


@dataclass(slots=True)
class Meter:
    """What is left of a budget."""

    steps: int = MAX_STEPS
    bytes: int = MAX_BYTES

    def spend(self, at: int, steps: int = 1) -> None:
        """Count steps; ExpressionError when none are left."""
        self.steps -= steps
        if self.steps < 0:
            raise ExpressionError(
                "The expression takes too long.",
                at,
                Kind.BUDGET,
                "Filter before mapping, or do the work in a FUNCTION step.",
            )

    def make(self, at: int, size: int) -> None:
        """Count what is made, before it is; ExpressionError when it is too much."""
        self.bytes -= size
        self.steps -= size // 64
        if self.bytes < 0:
            raise ExpressionError(
                "The expression makes too large a value.",
                at,
                Kind.BUDGET,
                "Do the work in a FUNCTION step.",
            )


class Nothing:
    """The outputs of a skipped step: every field of it is null, however deep."""

    __slots__ = ()


NOTHING = Nothing()


def plain(value: object) -> Any:
    """Return null for what a skipped step left, any other value as it is."""
    return None if value is NOTHING else value


def kind_of(value: object) -> str:
    """Return CEL's word for the type of a value."""
    match value:
        case None | Nothing():
            return "null_type"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "double"
        case str():
            return "string"
        case bytes():
            return "bytes"
        case list() | tuple():
            return "list"
        case Mapping():
            return "map"
        case datetime():
            return "timestamp"
        case timedelta():
            return "duration"
    raise TypeError(f"{type(value).__name__} is no value of an expression")


def is_number(value: object) -> bool:
    """Return whether a value is an int or a double."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def are_equal(left: Any, right: Any, meter: Meter, at: int) -> bool:
    """Return whether two values are equal by CEL's rules."""
    meter.spend(at)
    left, right = plain(left), plain(right)
    if is_number(left) and is_number(right):
        return bool(left == right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return len(left) == len(right) and all(
            key in right and are_equal(left[key], right[key], meter, at) for key in left
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(
            are_equal(one, other, meter, at) for one, other in zip(left, right, strict=True)
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, str | bytes):
        meter.spend(at, len(left) // 64)
    return bool(left == right)


def to_json(value: Any, meter: Meter, at: int) -> Any:
    """Return a value as JSON has it: instants as text, durations in seconds, bytes as base64.

    Counts what it copies: lists may hold the same list many times.
    """
    meter.spend(at)
    match plain(value):
        case str() as text:
            meter.make(at, len(text))
            return text
        case None | bool() | int() as same:
            return same
        case float() as number:
            if not math.isfinite(number):
                raise ExpressionError(f"{number} is no value of JSON.", at, Kind.TYPE)
            return number
        case list() | tuple() as items:
            meter.make(at, 8 * len(items))
            return [to_json(item, meter, at) for item in items]
        case Mapping() as pairs:
            meter.make(at, 16 * len(pairs))
            return {_key(key, at): to_json(item, meter, at) for key, item in pairs.items()}
        case bytes() as data:
            meter.make(at, 2 * len(data))
            return base64.b64encode(data).decode()
        case datetime() as instant:
            return instant_text(instant)
        case timedelta() as duration:
            return duration.total_seconds()
    raise ExpressionError(f"A {type(value).__name__} is no value of JSON.", at, Kind.TYPE)


def _key(key: object, at: int) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int):
        return str(key)
    raise ExpressionError("A key of a map is text or a number.", at, Kind.TYPE)


def whole(value: int, at: int) -> int:
    """Return a whole number that fits into 64 bits; ExpressionError for others."""
    if not INT_MIN <= value <= INT_MAX:
        raise ExpressionError("The number does not fit into 64 bits.", at, Kind.TYPE)
    return value


def instant_text(instant: datetime) -> str:
    """Return an instant as RFC 3339 in UTC."""
    text = instant.astimezone(UTC).isoformat()
    return text.replace("+00:00", "Z")


def number_text(value: float) -> str:
    """Return a number as CEL's string() writes it: 1.0 as 1."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)
