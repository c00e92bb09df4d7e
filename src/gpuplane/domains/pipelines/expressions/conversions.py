"""Conversions of expressions: between text, numbers, instants, durations and JSON.

Each takes the meter, its place and its argument, and counts what it does before it does it.
"""

import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuplane.domains.pipelines.expressions import binary
from gpuplane.domains.pipelines.expressions.arguments import text_argument, wrong
from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.values import (
    Meter,
    instant_text,
    is_number,
    kind_of,
    number_text,
    to_json,
    whole,
)
from gpuplane.kit.depths import MAX_JSON_DEPTH

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|us|ns|m|s)")
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def to_text(meter: Meter, at: int, value: Any) -> str:
    """Return a value as text: scalars as CEL writes them, lists and maps as JSON."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return number_text(value)
        case datetime():
            return instant_text(value)
        case timedelta():
            return f"{number_text(value.total_seconds())}s"
        case None:
            return "null"
        case bytes():
            return binary.text_of(meter, at, value)
    return to_json_text(meter, at, value)


def to_uint(meter: Meter, at: int, value: Any) -> int:
    """Return a whole number that is not negative: JSON has no kind of its own for them."""
    found = to_int(meter, at, value)
    if found < 0 or isinstance(value, datetime):
        raise ExpressionError(f"{found} is no uint.", at, Kind.TYPE)
    return found


def to_json_text(meter: Meter, at: int, value: Any, indent: Any = None) -> str:
    """Return a value as JSON."""
    width = 2 if indent is not None else None
    text = json.dumps(to_json(value, meter, at), ensure_ascii=False, indent=width)
    meter.make(at, len(text))
    return text


def from_json_text(meter: Meter, at: int, value: Any) -> Any:
    """Return the value that a JSON text is."""
    text = text_argument(at, "fromJson", value)
    meter.make(at, 8 * len(text))
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
        deepest = depth = 0
        for sign in text:
            depth += (sign in "[{") - (sign in "]}")
            deepest = max(deepest, depth)
        if deepest > MAX_JSON_DEPTH:
            raise ExpressionError(f"The JSON is more than {MAX_JSON_DEPTH} deep.", at, Kind.BUDGET)
    try:
        return _checked(json.loads(text, parse_constant=_no_constant), at)
    except (ValueError, RecursionError) as error:
        raise ExpressionError(f"The text is no JSON: {error}.", at, Kind.TYPE) from error


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _checked(value: Any, at: int) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return whole(value, at)
    if isinstance(value, list):
        return [_checked(item, at) for item in value]
    if isinstance(value, dict):
        return {key: _checked(item, at) for key, item in value.items()}
    return value


def to_int(meter: Meter, at: int, value: Any) -> int:
    """Return a value as a whole number: of an instant its seconds."""
    match value:
        case bool():
            pass
        case int():
            return value
        case float() if math.isfinite(value):
            return whole(int(value), at)
        case str() if re.fullmatch(r"-?[0-9]{1,19}", value):
            return whole(int(value), at)
        case datetime():
            return math.floor(value.timestamp())
        case str():
            raise ExpressionError(f"{value[:50]!r} is no whole number.", at, Kind.TYPE)
    raise wrong(at, "int", value)


def to_double(meter: Meter, at: int, value: Any) -> float:
    """Return a value as a number."""
    if is_number(value):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value) if len(value) < 400 and "_" not in value else math.nan
        except ValueError:
            raise ExpressionError(f"{value[:50]!r} is no number.", at, Kind.TYPE) from None
    raise wrong(at, "double", value)


def to_bool(meter: Meter, at: int, value: Any) -> bool:
    """Return a value as true or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("true", "True", "TRUE", "t", "1"):
        return True
    if isinstance(value, str) and value in ("false", "False", "FALSE", "f", "0"):
        return False
    raise wrong(at, "bool", value)


def to_timestamp(meter: Meter, at: int, value: Any) -> datetime:
    """Return an instant, of RFC 3339 or of seconds."""
    if isinstance(value, datetime):
        return value
    try:
        if isinstance(value, str) and "T" in value and len(value) < 40:
            instant = datetime.fromisoformat(value)
            if instant.tzinfo is not None:
                return instant.astimezone(UTC)
        elif isinstance(value, int) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise ExpressionError(
        "An instant is written as RFC 3339 with a zone.",
        at,
        Kind.TYPE,
        "Such as timestamp('2026-05-01T09:00:00Z').",
    )


def to_duration(meter: Meter, at: int, value: Any) -> timedelta:
    """Return a duration, of a text such as `1h30m`."""
    if isinstance(value, timedelta):
        return value
    text = text_argument(at, "duration", value)
    body = text.removeprefix("-")
    parts = _DURATION.findall(body) if len(body) < 60 else []
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ExpressionError("A duration is written like '1h30m'.", at, Kind.TYPE)
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    try:
        return timedelta(seconds=-seconds if text.startswith("-") else seconds)
    except OverflowError:
        raise ExpressionError("The duration is too long.", at, Kind.TYPE) from None


def type_name(meter: Meter, at: int, value: Any) -> str:
    """Return the name of the kind of a value."""
    return kind_of(value)


def is_of_kind(meter: Meter, at: int, value: Any, kind: str) -> bool:
    """Return whether a value is of a kind; `number` is any of two."""
    found = kind_of(value).removesuffix("_type")
    return found == kind or (kind == "number" and found in ("int", "double"))
