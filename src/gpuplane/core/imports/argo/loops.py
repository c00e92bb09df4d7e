"""What Argo's loops go over: `withItems`, `withParam` and `withSequence`."""

import re
from collections.abc import Mapping
from typing import Any

from gpuplane.core.imports.argo.expressions import Lookup, resolved
from gpuplane.core.imports.reading import mapping, scalar, sequence
from gpuplane.core.imports.results import Malformed
from gpuplane.core.imports.values import Const, Expr, Value, cel_of

MAX_ITEMS = 10_000
NAMES = ("withItems", "withParam", "withSequence")
_FORMAT = re.compile(r"([^%]*)%(0?\d*)([dxX])([^%]*)")


def find_items(call: Mapping[str, Any], lookup: Lookup, place: str) -> Value | None:
    """Return what a call is repeated for, or None if it is not.

    Raises:
        Malformed: If that cannot be told.
    """
    if "withItems" in call:
        items = sequence(call["withItems"], f"{place}.withItems")
        flat = [part for each in items for part in (each if isinstance(each, list) else [each])]
        return _resolved_items(flat, lookup, f"{place}.withItems")
    if "withParam" in call:
        value = resolved(scalar(call["withParam"], place), lookup, f"{place}.withParam")
        return Expr(f"json.decode({cel_of(value)})")
    if "withSequence" in call:
        return _numbers(mapping(call["withSequence"], f"{place}.withSequence"), lookup, place)
    return None


def _resolved_items(items: list[Any], lookup: Lookup, place: str) -> Value:
    made: list[Value] = []
    for at, each in enumerate(items):
        if isinstance(each, str):
            made.append(resolved(each, lookup, f"{place}[{at}]"))
        elif isinstance(each, dict):
            pairs = {name: resolved(scalar(part, place), lookup, place)
                     if isinstance(part, str) else Const(part)
                     for name, part in each.items()}  # fmt: skip
            if all(isinstance(part, Const) for part in pairs.values()):
                made.append(Const(each))
            else:
                inner = ", ".join(f'"{name}": {cel_of(part)}' for name, part in pairs.items())
                made.append(Expr(f"{{ {inner} }}"))
        else:
            made.append(Const(each))
    if all(isinstance(each, Const) for each in made):
        return Const([each.value for each in made if isinstance(each, Const)])
    return Expr(f"[{', '.join(cel_of(each) for each in made)}]")


def _numbers(found: Mapping[str, Any], lookup: Lookup, place: str) -> Value:
    where = f"{place}.withSequence"
    ends = {name: resolved(scalar(found[name], where), lookup, where)
            for name in ("count", "start", "end") if found.get(name) is not None}  # fmt: skip
    pattern = _FORMAT.fullmatch(str(found.get("format") or "%d"))
    if pattern is None or ("count" in ends) == ("end" in ends):
        raise Malformed(where, "A sequence has a count or an end, and a format such as %d.")
    plain: dict[str, int] = {}
    for name, value in ends.items():
        if isinstance(value, Const):
            try:
                plain[name] = int(str(value.value))
            except ValueError:
                raise Malformed(where, f"{name} is no whole number.") from None
    start = plain.get("start", 0)
    if len(plain) == len(ends):
        last = start + plain["count"] - 1 if "count" in plain else plain["end"]
        if abs(last - start) > MAX_ITEMS:
            raise Malformed(where, f"A loop has at most {MAX_ITEMS} iterations.")
        step = 1 if last >= start or "count" in plain else -1
        numbers = range(start, last + step, step)
        width = "%" + pattern[2] + pattern[3]
        return Const([pattern[1] + width % each + pattern[4] for each in numbers])
    if pattern[0] != "%d":
        raise Malformed(where, "A format other than %d needs numbers that are known.")
    first = cel_of(ends["start"]) if "start" in ends else "0"
    if "count" in ends:
        size = f"int({cel_of(ends['count'])})"
    else:
        size = f"(int({cel_of(ends['end'])}) - int({first}) + 1)"
    return Expr(f"lists.range({size}).map(n, string(n + int({first})))")
