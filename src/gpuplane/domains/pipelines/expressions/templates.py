"""Text with `{{ }}` in it, and JSON with such text: read, checked and evaluated.

A lone expression keeps its type; with text around it the whole is text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpuplane.domains.pipelines.expressions.conversions import to_text
from gpuplane.domains.pipelines.expressions.evaluating import Evaluation
from gpuplane.domains.pipelines.expressions.lexing import read_tokens
from gpuplane.domains.pipelines.expressions.nodes import Node
from gpuplane.domains.pipelines.expressions.parsing import parse
from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.values import Meter, to_json
from gpuplane.kit.depths import MAX_JSON_DEPTH

_STATEMENT = re.compile(r"\{%[^{}]*%\}|\{#[^{}]*#\}")
MAX_VALUE_DEPTH = MAX_JSON_DEPTH
"""How deep the JSON around expressions may be."""


@dataclass(frozen=True, slots=True)
class Hole:
    """One expression in a text, and where its source begins."""

    tree: Node
    start: int


@dataclass(frozen=True, slots=True)
class Template:
    """A text as parts: plain text and holes."""

    parts: tuple[str | Hole, ...]

    @property
    def lone(self) -> Hole | None:
        """Return the expression, if nothing but blanks stands around it."""
        holes = [part for part in self.parts if isinstance(part, Hole)]
        rest = "".join(part for part in self.parts if isinstance(part, str))
        return holes[0] if len(holes) == 1 and not rest.strip() else None


@lru_cache(maxsize=4_096)
def read_template(text: str) -> Template:
    """Return a text in parts.

    Raises:
        ExpressionError: If an expression has no end or cannot be read; names the column.
    """
    parts: list[str | Hole] = []
    at = 0
    while (start := text.find("{{", at)) >= 0:
        parts.append(text[at:start])
        begin = start + 2
        end = _end_of(text, begin)
        source = text[begin:end]
        if source.startswith("-"):  # Jinja's sign that trims blanks
            source, begin = source[1:], begin + 1
        source = source.removesuffix("-")
        try:
            parts.append(Hole(parse(source), begin))
        except ExpressionError as error:
            raise error.shifted(begin) from None
        at = end + 2
    statement = _STATEMENT.search(text)
    if statement is not None:
        place = statement.start()
        raise ExpressionError(
            "Statements {% %} and comments {# #} of Jinja mean nothing here.",
            place,
            Kind.SYNTAX,
            "Use a condition, a CONDITION step, or a ? b : c inside {{ }}.",
        )
    parts.append(text[at:])
    return Template(tuple(part for part in parts if part != ""))


def _end_of(text: str, begin: int) -> int:
    """Return where the `}}` stands that ends an expression: not one in quotes or in a map."""
    end = text.find("}}", begin)
    while end >= 0:
        source = text[begin:end]
        try:
            tokens = read_tokens(source.removeprefix("-").removesuffix("-"))
        except ExpressionError as error:
            if "no end" not in error.message:
                raise error.shifted(begin) from None
        else:
            signs = [token.text for token in tokens if token.kind == "sign"]
            if signs.count("{") <= signs.count("}"):
                return end
        end = text.find("}}", end + 1)
    raise ExpressionError("An expression has no end.", begin - 2, Kind.SYNTAX, "Close it with }}.")


def render(text: str, names: Mapping[str, Any], meter: Meter | None = None) -> Any:
    """Return what a text comes to: typed for a lone expression, else text.

    Raises:
        ExpressionError: If an expression comes to nothing; the column is the text's.
    """
    meter = meter or Meter()
    template = read_template(text)
    lone = template.lone
    if lone is not None:
        return _value(lone, names, meter)
    made: list[str] = []
    for part in template.parts:
        if isinstance(part, str):
            made.append(part)
            continue
        found = _value(part, names, meter)
        made.append("" if found is None else to_text(meter, part.start, found))
        meter.make(part.start, len(made[-1]))
    return "".join(made)


def _value(hole: Hole, names: Mapping[str, Any], meter: Meter) -> Any:
    try:
        return to_json(Evaluation(names, meter).value(hole.tree), meter, hole.tree.at)
    except ExpressionError as error:
        raise error.shifted(hole.start) from None


def evaluate(source: str, names: Mapping[str, Any], meter: Meter | None = None) -> Any:
    """Return what an expression comes to, written with or without `{{ }}`.

    Raises:
        ExpressionError: If it cannot be read or comes to nothing.
    """
    if "{{" in source:
        return render(source, names, meter)
    meter = meter or Meter()
    tree = parse(source)
    return to_json(Evaluation(names, meter).value(tree), meter, tree.at)


class PlacedError(Exception):
    """An expression's error with the path of the text it stands in."""

    def __init__(self, path: str, error: ExpressionError) -> None:
        super().__init__(f"{path}: {error}")
        self.path = path
        self.error = error


def render_json(
    value: Any, names: Mapping[str, Any], path: str = "", meter: Meter | None = None
) -> Any:
    """Return JSON with every expression in it evaluated, on one budget.

    Raises:
        PlacedError: At the first that comes to nothing.
    """
    meter = meter or Meter()
    if isinstance(value, str):
        if "{{" not in value:
            return value
        try:
            return render(value, names, meter)
        except ExpressionError as error:
            raise PlacedError(path, error) from error
    if isinstance(value, list):
        return [
            render_json(item, names, f"{path}[{place}]", meter) for place, item in enumerate(value)
        ]
    if isinstance(value, dict):
        return {
            key: render_json(item, names, f"{path}.{key}" if path else str(key), meter)
            for key, item in value.items()
        }
    return value


def find_texts(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield every text in JSON with its path.

    Raises:
        PlacedError: If the JSON is too deep.
    """
    if depth > MAX_VALUE_DEPTH:
        raise PlacedError(
            path[:300],
            ExpressionError(f"The value is more than {MAX_VALUE_DEPTH} deep.", 0, Kind.BUDGET),
        )
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from find_texts(item, f"{path}[{place}]", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from find_texts(item, f"{path}.{key}" if path else str(key), depth + 1)


def trees_of(text: str) -> Iterator[tuple[Node, int]]:
    """Yield each expression of a text and where its source begins."""
    for part in read_template(text).parts:
        if isinstance(part, Hole):
            yield part.tree, part.start


def canonical(value: Any) -> str:
    """Return JSON as text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
