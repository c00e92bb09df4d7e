"""Values of a pipeline under construction: constants, and expressions over steps that may move.

Where a step lies decides how its outputs are reached: beside one by `steps.ID.outputs`, from
outside a loop through the loop's results. So an expression keeps a mark in place of a step's
outputs until it is written.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MARK = re.compile("\x00([^\x00]*)\x00")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPENING = re.compile(r"\{\{|\{%|\{#")
_CEL_WORDS = frozenset({"in", "true", "false", "null", "and", "or", "not", "if", "else", "is"})


@dataclass(frozen=True, slots=True)
class Const:
    """A value that is known when importing."""

    value: Any


@dataclass(frozen=True, slots=True)
class Expr:
    """A value that is known when running: CEL, with marks for steps' outputs."""

    cel: str


Value = Const | Expr


def output_of(step: str, name: str) -> Expr:
    """Return the output of a step."""
    return Expr(f"\x00{step}\x00{member(name)}")


def outputs_of(step: str) -> Expr:
    """Return all outputs of a step."""
    return Expr(f"\x00{step}\x00")


def member(name: str) -> str:
    """Return how a field of that name is reached, after what it is a field of."""
    if _WORD.fullmatch(name) and name not in _CEL_WORDS:
        return f".{name}"
    return f"[{quoted(name)}]"


def quoted(text: str) -> str:
    """Return text as a CEL literal; braces are escaped, for templates are split at them."""
    inner = json.dumps(text)[1:-1].replace("{", "\\x7b").replace("}", "\\x7d").replace("%", "\\x25")
    return f'"{_SURROGATES.sub(_joined, inner)}"'


_SURROGATES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")


def _joined(found: re.Match[str]) -> str:
    high, low = int(found[1], 16), int(found[2], 16)
    return f"\\U{0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00:08x}"


def cel_of(value: Value) -> str:
    """Return a value as CEL, in brackets where it is more than a term."""
    if isinstance(value, Expr):
        simple = re.fullmatch(r"[\x00\w.\"\[\]-]+", value.cel)
        return value.cel if simple else f"({value.cel})"
    return literal(value.value)


def literal(value: Any) -> str:
    """Return a JSON value as CEL."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(literal(each) for each in value)}]"
    if isinstance(value, dict):
        pairs = (f"{quoted(str(key))}: {literal(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return repr(value)


def pairs_of(values: Mapping[str, Value]) -> Expr:
    """Return an object as an expression."""
    pairs = (f"{quoted(name)}: {cel_of(each)}" for name, each in values.items())
    return Expr(f"{{ {', '.join(pairs)} }}")


def joined(parts: Iterable[Value]) -> Value:
    """Return text put together from texts; constants that stand side by side become one."""
    merged: list[Value] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Const) and isinstance(last, Const):
            merged[-1] = Const(f"{last.value}{part.value}")
        elif not (isinstance(part, Const) and part.value == ""):
            merged.append(part)
    if not merged:
        return Const("")
    if len(merged) == 1:
        return merged[0]
    return Expr(" + ".join(
        cel_of(Const(str(each.value))) if isinstance(each, Const) else f"string({each.cel})"
        for each in merged
    ))  # fmt: skip


def all_of(conditions: Iterable[str]) -> str:
    """Return the conjunction of conditions, without repetition; empty if there is none."""
    wanted = list(dict.fromkeys(conditions))
    if len(wanted) == 1:
        return wanted[0]
    return " && ".join(f"({each})" for each in wanted)


def steps_in(cel: str) -> set[str]:
    """Return the steps whose outputs an expression reads."""
    return set(_MARK.findall(cel))


def moved(cel: str, base: Callable[[str], str | None]) -> str:
    """Return an expression in which steps' outputs are reached otherwise.

    Args:
        cel: With marks.
        base: A step's new base, or None if it stays as it is.
    """

    def replace(found: re.Match[str]) -> str:
        return base(found[1]) or found[0]

    return _MARK.sub(replace, cel)


def written(value: Value) -> Any:
    """Return a value as it stands in a document: itself, or `{{ }}` with its expression."""
    if isinstance(value, Const):
        return plain(value.value)
    return "{{ " + _MARK.sub(lambda found: f"steps.{found[1]}.outputs", value.cel) + " }}"


def plain(value: Any) -> Any:
    """Return a constant as it stands in a document: braces in its texts are no expressions."""
    if isinstance(value, str):
        return _OPENING.sub(lambda found: "{{ " + quoted(found[0]) + " }}", value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value
