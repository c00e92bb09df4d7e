"""The functions of expressions: CEL's own, its string and math extensions, and Jinja's filters.

Each takes the meter, its place and its arguments, and counts what it does before it does it.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuplane.domains.pipelines.expressions import binary, instants, patterns
from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.values import (
    Meter,
    are_equal,
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


@dataclass(frozen=True, slots=True)
class Function:
    """A function and how many arguments it takes."""

    run: Callable[..., Any]
    least: int
    most: int


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the fix that offers the nearest of the known words."""
    close = difflib.get_close_matches(word[:100], sorted(set(known)), n=3, cutoff=0.6)
    return f"Did you mean {' or '.join(close)}?" if close else ""


def accepts(name: str, count: int) -> bool:
    """Return whether a function takes so many arguments."""
    return FUNCTIONS[name].least <= count <= FUNCTIONS[name].most


def wrong(at: int, name: str, *arguments: Any) -> ExpressionError:
    """Return the error of a function or operator that does not take these types."""
    kinds = " and ".join(kind_of(each).removesuffix("_type") for each in arguments)
    return ExpressionError(
        f"{name} does not take {kinds}.", at, Kind.TYPE, "Convert with int(), double() or string()."
    )


def _text(at: int, name: str, value: Any, *rest: Any) -> str:
    if not isinstance(value, str):
        raise wrong(at, name, value, *rest)
    return value


def _index(at: int, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(at, name, value)
    return value


def _list(at: int, name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise wrong(at, name, value)
    return value


def _size(meter: Meter, at: int, value: Any) -> int:
    if not isinstance(value, str | bytes | list | Mapping):
        raise wrong(at, "size", value)
    return len(value)


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
    return _to_json_text(meter, at, value)


def _to_uint(meter: Meter, at: int, value: Any) -> int:
    """Return a whole number that is not negative: JSON has no kind of its own for them."""
    found = _to_int(meter, at, value)
    if found < 0 or isinstance(value, datetime):
        raise ExpressionError(f"{found} is no uint.", at, Kind.TYPE)
    return found


def _to_json_text(meter: Meter, at: int, value: Any, indent: Any = None) -> str:
    width = 2 if indent is not None else None
    text = json.dumps(to_json(value, meter, at), ensure_ascii=False, indent=width)
    meter.make(at, len(text))
    return text


def _from_json_text(meter: Meter, at: int, value: Any) -> Any:
    text = _text(at, "fromJson", value)
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


def _to_int(meter: Meter, at: int, value: Any) -> int:
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


def _to_double(meter: Meter, at: int, value: Any) -> float:
    if is_number(value):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value) if len(value) < 400 and "_" not in value else math.nan
        except ValueError:
            raise ExpressionError(f"{value[:50]!r} is no number.", at, Kind.TYPE) from None
    raise wrong(at, "double", value)


def _to_bool(meter: Meter, at: int, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("true", "True", "TRUE", "t", "1"):
        return True
    if isinstance(value, str) and value in ("false", "False", "FALSE", "f", "0"):
        return False
    raise wrong(at, "bool", value)


def _timestamp(meter: Meter, at: int, value: Any) -> datetime:
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


def _duration(meter: Meter, at: int, value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    text = _text(at, "duration", value)
    body = text.removeprefix("-")
    parts = _DURATION.findall(body) if len(body) < 60 else []
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ExpressionError("A duration is written like '1h30m'.", at, Kind.TYPE)
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    try:
        return timedelta(seconds=-seconds if text.startswith("-") else seconds)
    except OverflowError:
        raise ExpressionError("The duration is too long.", at, Kind.TYPE) from None


def _type_name(meter: Meter, at: int, value: Any) -> str:
    return kind_of(value)


def _is_kind(meter: Meter, at: int, value: Any, kind: str) -> bool:
    found = kind_of(value).removesuffix("_type")
    return found == kind or (kind == "number" and found in ("int", "double"))


def _contains(meter: Meter, at: int, value: Any, part: Any) -> bool:
    text = _text(at, "contains", value, part)
    meter.spend(at, len(text) // 16)
    return _text(at, "contains", part) in text


def _member(meter: Meter, at: int, value: Any, container: Any) -> bool:
    """Return whether a list has a value, a map a key, or a text a part (Jinja's)."""
    if isinstance(container, Mapping):
        return isinstance(value, str | int) and not isinstance(value, bool) and value in container
    if isinstance(container, list):
        return any(are_equal(value, item, meter, at) for item in container)
    if isinstance(container, str):
        return _contains(meter, at, container, value)
    raise wrong(at, "in", value, container)


def _starts_with(meter: Meter, at: int, value: Any, part: Any) -> bool:
    return _text(at, "startsWith", value).startswith(_text(at, "startsWith", part))


def _ends_with(meter: Meter, at: int, value: Any, part: Any) -> bool:
    return _text(at, "endsWith", value).endswith(_text(at, "endsWith", part))


def _matches(meter: Meter, at: int, value: Any, pattern: Any) -> bool:
    text = _text(at, "matches", value)
    return patterns.matches(text, _text(at, "matches", pattern), meter, at)


def _lower(meter: Meter, at: int, value: Any) -> str:
    text = _text(at, "lowerAscii", value)
    meter.make(at, len(text))
    return "".join(chr(ord(sign) + 32) if "A" <= sign <= "Z" else sign for sign in text)


def _upper(meter: Meter, at: int, value: Any) -> str:
    text = _text(at, "upperAscii", value)
    meter.make(at, len(text))
    return "".join(chr(ord(sign) - 32) if "a" <= sign <= "z" else sign for sign in text)


def _lower_all(meter: Meter, at: int, value: Any) -> str:
    text = _text(at, "lower", value)
    meter.make(at, 2 * len(text))
    return text.lower()


def _upper_all(meter: Meter, at: int, value: Any) -> str:
    text = _text(at, "upper", value)
    meter.make(at, 3 * len(text))
    return text.upper()


def _trim(meter: Meter, at: int, value: Any) -> str:
    text = _text(at, "trim", value)
    meter.make(at, len(text))
    return text.strip()


def _replace(meter: Meter, at: int, value: Any, old: Any, new: Any, most: Any = -1) -> str:
    text, old, new = (_text(at, "replace", each) for each in (value, old, new))
    limit = _index(at, "replace", most)
    meter.spend(at, len(text) // 16)
    count = text.count(old)
    count = min(count, limit) if limit >= 0 else count
    meter.make(at, len(text) + count * len(new))
    return text.replace(old, new, limit)


def _split(meter: Meter, at: int, value: Any, by: Any, most: Any = -1) -> list[str]:
    text, by = _text(at, "split", value), _text(at, "split", by)
    limit = _index(at, "split", most)
    meter.make(at, len(text) + 8 * (text.count(by) + 1))
    if limit == 0:
        return []
    if by == "":
        head = list(text) if limit < 0 else [*text[: limit - 1], text[limit - 1 :]]
        return [part for part in head if part] if text else []
    return text.split(by, limit - 1 if limit > 0 else -1)


def _join(meter: Meter, at: int, value: Any, by: Any = "") -> str:
    parts = [to_text(meter, at, item) for item in _list(at, "join", value)]
    by = _text(at, "join", by)
    meter.make(at, sum(map(len, parts)) + len(by) * len(parts))
    meter.spend(at, len(parts))
    return str(by).join(parts)


def _substring(meter: Meter, at: int, value: Any, start: Any, end: Any = None) -> str:
    text = _text(at, "substring", value)
    first = _index(at, "substring", start)
    last = len(text) if end is None else _index(at, "substring", end)
    if not 0 <= first <= last <= len(text):
        raise ExpressionError(
            f"The text has {len(text)} characters, and {first} to {last} were asked.", at, Kind.TYPE
        )
    meter.make(at, last - first)
    return text[first:last]


def _char_at(meter: Meter, at: int, value: Any, place: Any) -> str:
    text, index = _text(at, "charAt", value), _index(at, "charAt", place)
    if not 0 <= index <= len(text):
        raise ExpressionError(f"The text has {len(text)} characters.", at, Kind.TYPE)
    return text[index : index + 1]


def _index_of(meter: Meter, at: int, value: Any, part: Any) -> int:
    text = _text(at, "indexOf", value)
    meter.spend(at, len(text) // 16)
    return text.find(_text(at, "indexOf", part))


def _last_index_of(meter: Meter, at: int, value: Any, part: Any) -> int:
    text = _text(at, "lastIndexOf", value)
    meter.spend(at, len(text) // 16)
    return text.rfind(_text(at, "lastIndexOf", part))


def _reverse(meter: Meter, at: int, value: Any) -> Any:
    if not isinstance(value, str | list):
        raise wrong(at, "reverse", value)
    meter.make(at, 8 * len(value))
    return value[::-1]


def _get(meter: Meter, at: int, value: Any, key: Any, other: Any = None) -> Any:
    if not isinstance(value, Mapping):
        raise wrong(at, "get", value)
    return value.get(key, other) if isinstance(key, str | int) else other


def _keys(meter: Meter, at: int, value: Any) -> list[Any]:
    if not isinstance(value, Mapping):
        raise wrong(at, "keys", value)
    meter.make(at, 8 * len(value))
    return list(value)


def _values(meter: Meter, at: int, value: Any) -> list[Any]:
    if not isinstance(value, Mapping):
        raise wrong(at, "values", value)
    meter.make(at, 8 * len(value))
    return list(value.values())


def _first(meter: Meter, at: int, value: Any) -> Any:
    items = value if isinstance(value, str) else _list(at, "first", value)
    if not items:
        raise ExpressionError("There is no first of none.", at, Kind.MISSING, "Use default().")
    return items[0]


def _last(meter: Meter, at: int, value: Any) -> Any:
    items = value if isinstance(value, str) else _list(at, "last", value)
    if not items:
        raise ExpressionError("There is no last of none.", at, Kind.MISSING, "Use default().")
    return items[-1]


def _comparable(meter: Meter, at: int, name: str, value: Any) -> list[Any]:
    items = list(_list(at, name, value))
    meter.make(at, 8 * len(items))
    meter.spend(at, len(items) * max(len(items), 2).bit_length())
    if not all(map(is_number, items)) and not all(isinstance(item, str) for item in items):
        raise ExpressionError(f"{name} takes all numbers or all text.", at, Kind.TYPE)
    return items


def _sort(meter: Meter, at: int, value: Any) -> list[Any]:
    return sorted(_comparable(meter, at, "sort", value))


def _unique(meter: Meter, at: int, value: Any) -> list[Any]:
    found: list[Any] = []
    for item in _list(at, "unique", value):
        if not any(are_equal(item, known, meter, at) for known in found):
            found.append(item)
    return found


def _total(meter: Meter, at: int, value: Any) -> Any:
    items = _list(at, "sum", value)
    meter.spend(at, len(items))
    if not all(map(is_number, items)):
        raise ExpressionError("sum takes numbers.", at, Kind.TYPE)
    result = sum(items)
    return whole(result, at) if isinstance(result, int) else result


def _greatest(meter: Meter, at: int, *given: Any) -> Any:
    return max(_numbers(meter, at, "math.greatest", given))


def _least(meter: Meter, at: int, *given: Any) -> Any:
    return min(_numbers(meter, at, "math.least", given))


def _numbers(meter: Meter, at: int, name: str, given: Sequence[Any]) -> Sequence[Any]:
    items = given[0] if len(given) == 1 and isinstance(given[0], list) else given
    meter.spend(at, len(items))
    if not items or not all(map(is_number, items)):
        raise ExpressionError(f"{name} takes numbers.", at, Kind.TYPE)
    return items


def _absolute(meter: Meter, at: int, value: Any) -> Any:
    if not is_number(value):
        raise wrong(at, "abs", value)
    return whole(abs(value), at) if isinstance(value, int) else abs(value)


def _rounded(how: Callable[[float], float]) -> Callable[..., float]:
    def run(meter: Meter, at: int, value: Any) -> float:
        if not is_number(value):
            raise wrong(at, how.__name__, value)
        return float(how(value)) if math.isfinite(value) else float(value)

    return run


def _half_up(value: float) -> float:
    return math.copysign(math.floor(abs(value) + 0.5), value)


def _numbers_to(meter: Meter, at: int, stop: Any) -> list[int]:
    count = _index(at, "lists.range", stop)
    meter.make(at, 8 * max(count, 0))
    return list(range(count))


def _slice_of(meter: Meter, at: int, value: Any, start: Any, end: Any) -> list[Any]:
    items = _list(at, "slice", value)
    begin, stop = _index(at, "slice", start), _index(at, "slice", end)
    if not 0 <= begin <= stop <= len(items):
        raise ExpressionError(f"The list has {len(items)} items.", at, Kind.TYPE)
    meter.make(at, 8 * (stop - begin))
    return list(items[begin:stop])


def _flatten(meter: Meter, at: int, value: Any) -> list[Any]:
    found: list[Any] = []
    for item in _list(at, "flatten", value):
        parts = item if isinstance(item, list) else [item]
        meter.make(at, 8 * len(parts))
        found += parts
    return found


def _same(meter: Meter, at: int, value: Any) -> Any:
    return value


def _as_list(meter: Meter, at: int, value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, str | Mapping):
        meter.make(at, 8 * len(value))
        return list(value)
    raise wrong(at, "list", value)


FUNCTIONS: dict[str, Function] = {
    "size": Function(_size, 1, 1),
    "string": Function(to_text, 1, 1),
    "int": Function(_to_int, 1, 1),
    "double": Function(_to_double, 1, 1),
    "bool": Function(_to_bool, 1, 1),
    "uint": Function(_to_uint, 1, 1),
    "bytes": Function(binary.to_bytes, 1, 1),
    "base64.encode": Function(binary.to_base64, 1, 1),
    "base64.decode": Function(binary.from_base64, 1, 1),
    "dyn": Function(_same, 1, 1),
    "type": Function(_type_name, 1, 1),
    "timestamp": Function(_timestamp, 1, 1),
    "duration": Function(_duration, 1, 1),
    **{name: Function(instants.field_of(name), 1, 2) for name in instants.NAMES},
    "contains": Function(_contains, 2, 2),
    "startsWith": Function(_starts_with, 2, 2),
    "endsWith": Function(_ends_with, 2, 2),
    "matches": Function(_matches, 2, 2),
    "lowerAscii": Function(_lower, 1, 1),
    "upperAscii": Function(_upper, 1, 1),
    "lower": Function(_lower_all, 1, 1),
    "upper": Function(_upper_all, 1, 1),
    "trim": Function(_trim, 1, 1),
    "strip": Function(_trim, 1, 1),
    "replace": Function(_replace, 3, 4),
    "split": Function(_split, 2, 3),
    "join": Function(_join, 1, 2),
    "substring": Function(_substring, 2, 3),
    "charAt": Function(_char_at, 2, 2),
    "indexOf": Function(_index_of, 2, 2),
    "lastIndexOf": Function(_last_index_of, 2, 2),
    "reverse": Function(_reverse, 1, 1),
    "get": Function(_get, 2, 3),
    "keys": Function(_keys, 1, 1),
    "values": Function(_values, 1, 1),
    "first": Function(_first, 1, 1),
    "last": Function(_last, 1, 1),
    "sort": Function(_sort, 1, 1),
    "distinct": Function(_unique, 1, 1),
    "sum": Function(_total, 1, 1),
    "slice": Function(_slice_of, 3, 3),
    "flatten": Function(_flatten, 1, 1),
    "toJson": Function(_to_json_text, 1, 2),
    "fromJson": Function(_from_json_text, 1, 1),
    "json.encode": Function(_to_json_text, 1, 1),
    "json.decode": Function(_from_json_text, 1, 1),
    "list": Function(_as_list, 1, 1),
    "lists.range": Function(_numbers_to, 1, 1),
    "math.greatest": Function(_greatest, 1, 100),
    "math.least": Function(_least, 1, 100),
    "math.abs": Function(_absolute, 1, 1),
    "math.ceil": Function(_rounded(math.ceil), 1, 1),
    "math.floor": Function(_rounded(math.floor), 1, 1),
    "math.round": Function(_rounded(_half_up), 1, 1),
    "math.trunc": Function(_rounded(math.trunc), 1, 1),
    "is": Function(_is_kind, 2, 2),
    "in": Function(_member, 2, 2),
}
FILTERS = {
    "length": "size", "count": "size", "lower": "lower", "upper": "upper", "trim": "trim",
    "join": "join", "tojson": "toJson", "to_json": "toJson", "fromjson": "fromJson",
    "from_json": "fromJson", "int": "int", "float": "double", "string": "string", "bool": "bool",
    "first": "first", "last": "last", "sort": "sort", "unique": "distinct", "sum": "sum",
    "reverse": "reverse", "replace": "replace", "split": "split", "abs": "math.abs",
    "round": "math.round", "min": "math.least", "max": "math.greatest", "list": "list",
    "keys": "keys", "flatten": "flatten",
}  # fmt: skip
