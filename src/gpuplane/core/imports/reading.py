"""Takes values out of documents that nobody has checked: each with the place it should stand at."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuplane.core.imports.results import Malformed, Table
from gpuplane.core.quantities import SUFFIXES

SHOWN = 80


def mapping(value: Any, place: str) -> Mapping[str, Any]:
    """Return a mapping with text keys; None is an empty one.

    Raises:
        Malformed: If it is none.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(place, f"A mapping should stand here, not {shown(value)}.")
    for key in value:
        if not isinstance(key, str):
            raise Malformed(place, f"The key {shown(key)} is no text.")
    return value


def sequence(value: Any, place: str) -> Sequence[Any]:
    """Return a list; None is an empty one.

    Raises:
        Malformed: If it is none.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Malformed(place, f"A list should stand here, not {shown(value)}.")
    return value


def text(value: Any, place: str) -> str:
    """Return text that is not empty.

    Raises:
        Malformed: If it is none.
    """
    if not isinstance(value, str) or not value:
        raise Malformed(place, f"Text should stand here, not {shown(value)}.")
    return value


def texts(value: Any, place: str) -> list[str]:
    """Return a list of texts; numbers and truth values in it become text as YAML writes them."""
    return [scalar(each, f"{place}[{at}]") for at, each in enumerate(sequence(value, place))]


def scalar(value: Any, place: str) -> str:
    """Return a plain value as text.

    Raises:
        Malformed: If it is a list or a mapping.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if value is None:
        return ""
    raise Malformed(place, f"A plain value should stand here, not {shown(value)}.")


def number(value: Any, place: str) -> float:
    """Return a number, also from text.

    Raises:
        Malformed: If it is none, or not finite.
    """
    try:
        found = float(value) if isinstance(value, str | int | float) else float("nan")
    except (ValueError, OverflowError):
        found = float("nan")
    if isinstance(value, bool) or not abs(found) < 1e15:
        raise Malformed(place, f"A number should stand here, not {shown(value)}.")
    return found


def whole(value: Any, place: str) -> int:
    """Return a whole number, also from text.

    Raises:
        Malformed: If it is none.
    """
    found = number(value, place)
    if found != int(found):
        raise Malformed(place, f"A whole number should stand here, not {shown(value)}.")
    return int(found)


def shown(value: Any) -> str:
    """Return a value for a sentence: short, and never the inside of a structure."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    found = repr(value)
    return found if len(found) <= SHOWN else found[: SHOWN - 1] + "…"


def refuse_others(
    table: Table, found: Mapping[str, Any], known: Iterable[str], place: str, what: str
) -> None:
    """Refuse the fields that an import does not know, each with its place."""
    names = set(known)
    for name in found:
        if name not in names:
            table.refused(
                f"{place}.{name}", name, f"This field of {what} is not known to the import."
            )


def find_seconds(value: Any) -> float | None:
    """Return a duration in seconds: a number, or text such as `30s`, `5m`, `1h30m`; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if 0 <= value < 1e9 else None
    if not isinstance(value, str) or not value or len(value) > 40:
        return None
    factors = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    total, digits, at = 0.0, "", 0
    while at < len(value):
        if value[at] in "0123456789.":
            digits, at = digits + value[at], at + 1
            continue
        unit = "ms" if value.startswith("ms", at) else value[at]
        if unit not in factors or not digits or digits.count(".") > 1 or digits == ".":
            return None
        total, digits, at = total + float(digits) * factors[unit], "", at + len(unit)
    if digits:
        if total or digits.count(".") > 1 or digits == ".":
            return None
        total = float(digits)
    return total if total < 1e9 else None


_QUANTITIES = {name: float(factor) for name, factor in SUFFIXES.items()} | {"K": 1e3}
"""With the large K that people write, and Kubernetes does not."""


def find_quantity(value: Any) -> float | None:
    """Return a quantity as Kubernetes writes it (`500m`, `2Gi`) in its base unit, else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if 0 <= value < 1e18 else None
    if not isinstance(value, str) or len(value) > 40:
        return None
    plain = value.strip()
    digits = plain.rstrip("mkKMGTPEi")
    factor = _QUANTITIES.get(plain[len(digits) :])
    try:
        found = float(digits)
    except ValueError:
        return None
    return found * factor if factor is not None and 0 <= found < 1e18 else None
