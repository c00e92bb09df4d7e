"""The functions of expressions: CEL's own, its string and math extensions, and Jinja's filters.

Each takes the meter, its place and its arguments, and counts what it does before it does it.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.domains.pipelines.expressions import binary, instants, patterns
from gpuplane.domains.pipelines.expressions.arguments import (
    index_argument,
    list_argument,
    text_argument,
    wrong,
)
from gpuplane.domains.pipelines.expressions.conversions import (
    from_json_text,
    is_of_kind,
    to_bool,
    to_double,
    to_duration,
    to_int,
    to_json_text,
    to_text,
    to_timestamp,
    to_uint,
    type_name,
)
from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.values import (
    Meter,
    are_equal,
    is_number,
    whole,
)


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


def _size(meter: Meter, at: int, value: Any) -> int:
    if not isinstance(value, str | bytes | list | Mapping):
        raise wrong(at, "size", value)
    return len(value)


def _contains(meter: Meter, at: int, value: Any, part: Any) -> bool:
    text = text_argument(at, "contains", value, part)
    meter.spend(at, len(text) // 16)
    return text_argument(at, "contains", part) in text


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
    return text_argument(at, "startsWith", value).startswith(text_argument(at, "startsWith", part))


def _ends_with(meter: Meter, at: int, value: Any, part: Any) -> bool:
    return text_argument(at, "endsWith", value).endswith(text_argument(at, "endsWith", part))


def _matches(meter: Meter, at: int, value: Any, pattern: Any) -> bool:
    text = text_argument(at, "matches", value)
    return patterns.matches(text, text_argument(at, "matches", pattern), meter, at)


def _lower(meter: Meter, at: int, value: Any) -> str:
    text = text_argument(at, "lowerAscii", value)
    meter.make(at, len(text))
    return "".join(chr(ord(sign) + 32) if "A" <= sign <= "Z" else sign for sign in text)


def _upper(meter: Meter, at: int, value: Any) -> str:
    text = text_argument(at, "upperAscii", value)
    meter.make(at, len(text))
    return "".join(chr(ord(sign) - 32) if "a" <= sign <= "z" else sign for sign in text)


def _lower_all(meter: Meter, at: int, value: Any) -> str:
    text = text_argument(at, "lower", value)
    meter.make(at, 2 * len(text))
    return text.lower()


def _upper_all(meter: Meter, at: int, value: Any) -> str:
    text = text_argument(at, "upper", value)
    meter.make(at, 3 * len(text))
    return text.upper()


def _trim(meter: Meter, at: int, value: Any) -> str:
    text = text_argument(at, "trim", value)
    meter.make(at, len(text))
    return text.strip()


def _replace(meter: Meter, at: int, value: Any, old: Any, new: Any, most: Any = -1) -> str:
    text, old, new = (text_argument(at, "replace", each) for each in (value, old, new))
    limit = index_argument(at, "replace", most)
    meter.spend(at, len(text) // 16)
    count = text.count(old)
    count = min(count, limit) if limit >= 0 else count
    meter.make(at, len(text) + count * len(new))
    return text.replace(old, new, limit)


def _split(meter: Meter, at: int, value: Any, by: Any, most: Any = -1) -> list[str]:
    text, by = text_argument(at, "split", value), text_argument(at, "split", by)
    limit = index_argument(at, "split", most)
    meter.make(at, len(text) + 8 * (text.count(by) + 1))
    if limit == 0:
        return []
    if by == "":
        head = list(text) if limit < 0 else [*text[: limit - 1], text[limit - 1 :]]
        return [part for part in head if part] if text else []
    return text.split(by, limit - 1 if limit > 0 else -1)


def _join(meter: Meter, at: int, value: Any, by: Any = "") -> str:
    parts = [to_text(meter, at, item) for item in list_argument(at, "join", value)]
    by = text_argument(at, "join", by)
    meter.make(at, sum(map(len, parts)) + len(by) * len(parts))
    meter.spend(at, len(parts))
    return str(by).join(parts)


def _substring(meter: Meter, at: int, value: Any, start: Any, end: Any = None) -> str:
    text = text_argument(at, "substring", value)
    first = index_argument(at, "substring", start)
    last = len(text) if end is None else index_argument(at, "substring", end)
    if not 0 <= first <= last <= len(text):
        raise ExpressionError(
            f"The text has {len(text)} characters, and {first} to {last} were asked.", at, Kind.TYPE
        )
    meter.make(at, last - first)
    return text[first:last]


def _char_at(meter: Meter, at: int, value: Any, place: Any) -> str:
    text, index = text_argument(at, "charAt", value), index_argument(at, "charAt", place)
    if not 0 <= index <= len(text):
        raise ExpressionError(f"The text has {len(text)} characters.", at, Kind.TYPE)
    return text[index : index + 1]


def _index_of(meter: Meter, at: int, value: Any, part: Any) -> int:
    text = text_argument(at, "indexOf", value)
    meter.spend(at, len(text) // 16)
    return text.find(text_argument(at, "indexOf", part))


def _last_index_of(meter: Meter, at: int, value: Any, part: Any) -> int:
    text = text_argument(at, "lastIndexOf", value)
    meter.spend(at, len(text) // 16)
    return text.rfind(text_argument(at, "lastIndexOf", part))


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
    items = value if isinstance(value, str) else list_argument(at, "first", value)
    if not items:
        raise ExpressionError("There is no first of none.", at, Kind.MISSING, "Use default().")
    return items[0]


def _last(meter: Meter, at: int, value: Any) -> Any:
    items = value if isinstance(value, str) else list_argument(at, "last", value)
    if not items:
        raise ExpressionError("There is no last of none.", at, Kind.MISSING, "Use default().")
    return items[-1]


def _comparable(meter: Meter, at: int, name: str, value: Any) -> list[Any]:
    items = list(list_argument(at, name, value))
    meter.make(at, 8 * len(items))
    meter.spend(at, len(items) * max(len(items), 2).bit_length())
    if not all(map(is_number, items)) and not all(isinstance(item, str) for item in items):
        raise ExpressionError(f"{name} takes all numbers or all text.", at, Kind.TYPE)
    return items


def _sort(meter: Meter, at: int, value: Any) -> list[Any]:
    return sorted(_comparable(meter, at, "sort", value))


def _unique(meter: Meter, at: int, value: Any) -> list[Any]:
    found: list[Any] = []
    for item in list_argument(at, "unique", value):
        if not any(are_equal(item, known, meter, at) for known in found):
            found.append(item)
    return found


def _total(meter: Meter, at: int, value: Any) -> Any:
    items = list_argument(at, "sum", value)
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
    count = index_argument(at, "lists.range", stop)
    meter.make(at, 8 * max(count, 0))
    return list(range(count))


def _slice_of(meter: Meter, at: int, value: Any, start: Any, end: Any) -> list[Any]:
    items = list_argument(at, "slice", value)
    begin, stop = index_argument(at, "slice", start), index_argument(at, "slice", end)
    if not 0 <= begin <= stop <= len(items):
        raise ExpressionError(f"The list has {len(items)} items.", at, Kind.TYPE)
    meter.make(at, 8 * (stop - begin))
    return list(items[begin:stop])


def _flatten(meter: Meter, at: int, value: Any) -> list[Any]:
    found: list[Any] = []
    for item in list_argument(at, "flatten", value):
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
    "int": Function(to_int, 1, 1),
    "double": Function(to_double, 1, 1),
    "bool": Function(to_bool, 1, 1),
    "uint": Function(to_uint, 1, 1),
    "bytes": Function(binary.to_bytes, 1, 1),
    "base64.encode": Function(binary.to_base64, 1, 1),
    "base64.decode": Function(binary.from_base64, 1, 1),
    "dyn": Function(_same, 1, 1),
    "type": Function(type_name, 1, 1),
    "timestamp": Function(to_timestamp, 1, 1),
    "duration": Function(to_duration, 1, 1),
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
    "toJson": Function(to_json_text, 1, 2),
    "fromJson": Function(from_json_text, 1, 1),
    "json.encode": Function(to_json_text, 1, 1),
    "json.decode": Function(from_json_text, 1, 1),
    "list": Function(_as_list, 1, 1),
    "lists.range": Function(_numbers_to, 1, 1),
    "math.greatest": Function(_greatest, 1, 100),
    "math.least": Function(_least, 1, 100),
    "math.abs": Function(_absolute, 1, 1),
    "math.ceil": Function(_rounded(math.ceil), 1, 1),
    "math.floor": Function(_rounded(math.floor), 1, 1),
    "math.round": Function(_rounded(_half_up), 1, 1),
    "math.trunc": Function(_rounded(math.trunc), 1, 1),
    "is": Function(is_of_kind, 2, 2),
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
