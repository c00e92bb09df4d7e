"""Evaluates the tree of an expression over JSON values, within a budget that is counted."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuplane.domains.pipelines.expressions import nodes
from gpuplane.domains.pipelines.expressions.arguments import wrong
from gpuplane.domains.pipelines.expressions.conversions import to_text
from gpuplane.domains.pipelines.expressions.functions import (
    FUNCTIONS,
    nearest,
)
from gpuplane.domains.pipelines.expressions.nodes import Node
from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.values import (
    NOTHING,
    Meter,
    are_equal,
    is_number,
    kind_of,
    plain,
    whole,
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation: what names mean, and what is left to spend."""

    names: Mapping[str, Any]
    meter: Meter

    def value(self, node: Node) -> Any:
        """Return what a node comes to, null for what a skipped step left.

        Raises:
            ExpressionError: If it comes to nothing; names the place.
        """
        return plain(self._reach(node))

    def _reach(self, node: Node) -> Any:
        """Return what a node comes to; keeps what a skipped step left, so that its fields are."""
        self.meter.spend(node.at)
        match node:
            case nodes.Literal():
                return node.value
            case nodes.Name():
                return self._name(node)
            case nodes.Select():
                return self._field(self._reach(node.target), node.field, node)
            case nodes.Index():
                return self._field(self._reach(node.target), self.value(node.key), node)
            case nodes.Default():
                return self._default(node)
            case nodes.Choice():
                chosen = node.then if self._truth(node.test) else node.other
                return self._reach(chosen)
            case nodes.Junction():
                return self._junction(node)
            case nodes.Call():
                return self._call(node)
        return self._made(node)

    def _made(self, node: Node) -> Any:
        match node:
            case nodes.Items():
                self.meter.make(node.at, 8 * len(node.items))
                return [self.value(item) for item in node.items]
            case nodes.Pairs():
                return self._pairs(node)
            case nodes.Has():
                return self._has(node)
            case nodes.Comprehension():
                return self._comprehension(node)
        raise TypeError(f"{type(node).__name__} is no node")

    def _name(self, node: nodes.Name) -> Any:
        if node.name in self.names:
            return self.names[node.name]
        known = nearest(node.name, self.names) or f"Known are: {', '.join(sorted(self.names))}."
        raise ExpressionError(f"There is no {node.name!r} here.", node.at, Kind.MISSING, known)

    def _field(self, target: Any, key: Any, node: Node) -> Any:
        if target is NOTHING:
            return NOTHING
        if isinstance(target, Mapping):
            if isinstance(key, str | int) and not isinstance(key, bool) and key in target:
                return target[key]
            known = [name for name in target if isinstance(name, str)]
            shown = repr(key)[:100]
            fix = nearest(key, known) if isinstance(key, str) else ""
            raise ExpressionError(f"There is no field {shown}.", node.at, Kind.MISSING, fix)
        if isinstance(target, list) and isinstance(node, nodes.Index):
            return self._item(target, key, node.at)
        what = kind_of(target).removesuffix("_type")
        raise ExpressionError(
            f"{_article(what)} has no field {repr(key)[:100]}.",
            node.at,
            Kind.MISSING if target is None else Kind.TYPE,
            "Use default() where it may be missing." if target is None else "",
        )

    def _item(self, items: list[Any], key: Any, at: int) -> Any:
        if isinstance(key, float) and key == math.floor(key):
            key = int(key)
        if isinstance(key, bool) or not isinstance(key, int):
            raise wrong(at, "A list", key)
        if not 0 <= key < len(items):
            raise ExpressionError(
                f"The list has {len(items)} items and no item {key}.", at, Kind.MISSING
            )
        return items[key]

    def _default(self, node: nodes.Default) -> Any:
        try:
            found = self.value(node.target)
        except ExpressionError as error:
            if error.kind is not Kind.MISSING:
                raise
            found = None
        return self.value(node.other) if found is None else found

    def _has(self, node: nodes.Has) -> bool:
        try:
            found = self._reach(node.target)
        except ExpressionError as error:
            if error.kind is not Kind.MISSING:
                raise
            return False
        return found is not NOTHING

    def _truth(self, node: Node) -> bool:
        found = self.value(node)
        if isinstance(found, bool):
            return found
        what = kind_of(found).removesuffix("_type")
        raise ExpressionError(
            f"true or false is needed here, not {_article(what).lower()}.",
            node.at,
            Kind.TYPE,
            "Compare it: x == 'yes', x != null, size(x) > 0.",
        )

    def _junction(self, node: nodes.Junction) -> bool:
        """Return a conjunction or disjunction; one side that decides outweighs another's error."""
        failed: ExpressionError | None = None
        for argument in node.arguments:
            try:
                if self._truth(argument) is not node.is_and:
                    return not node.is_and
            except ExpressionError as error:
                if error.kind is Kind.BUDGET:
                    raise
                failed = failed or error
        if failed is not None:
            raise failed
        return node.is_and

    def _pairs(self, node: nodes.Pairs) -> dict[Any, Any]:
        self.meter.make(node.at, 16 * len(node.pairs))
        found: dict[Any, Any] = {}
        for key_node, value_node in node.pairs:
            key = self.value(key_node)
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise wrong(key_node.at, "A key", key)
            if key in found:
                raise ExpressionError(f"The key {key!r} is there twice.", key_node.at, Kind.TYPE)
            found[key] = self.value(value_node)
        return found

    def _call(self, node: nodes.Call) -> Any:
        arguments = [self.value(argument) for argument in node.arguments]
        operator = OPERATORS.get(node.function)
        if operator is not None:
            return operator(self.meter, node.at, *arguments)
        return FUNCTIONS[node.function].run(self.meter, node.at, *arguments)

    def _comprehension(self, node: nodes.Comprehension) -> Any:
        range_ = self.value(node.range)
        if not isinstance(range_, list | Mapping):
            raise wrong(node.at, node.macro, range_)
        names = dict(self.names)
        inner = Evaluation(names, self.meter)
        if node.macro in ("map", "filter"):
            return inner._list_made(node, range_, names)
        return inner._quantified(node, range_, names)

    def _list_made(self, node: nodes.Comprehension, range_: Any, names: dict[str, Any]) -> Any:
        found: list[Any] = []
        for item in range_:
            names[node.variable] = item
            if node.macro == "filter":
                if self._truth(node.body):
                    found.append(item)
            elif node.test is None or self._truth(node.test):
                found.append(self.value(node.body))
            self.meter.make(node.at, 8)
        return found

    def _quantified(self, node: nodes.Comprehension, range_: Any, names: dict[str, Any]) -> bool:
        """Return all, exists or exists_one; the first two outweigh errors as && and || do."""
        failed: ExpressionError | None = None
        count = 0
        for item in range_:
            names[node.variable] = item
            try:
                holds = self._truth(node.body)
            except ExpressionError as error:
                if error.kind is Kind.BUDGET or node.macro == "exists_one":
                    raise
                failed = failed or error
                continue
            count += holds
            if node.macro == "all" and not holds:
                return False
            if node.macro == "exists" and holds:
                return True
        if failed is not None:
            raise failed
        return {"all": True, "exists": False, "exists_one": count == 1}[node.macro]


def _article(what: str) -> str:
    return "null" if what == "null" else f"{'An' if what[0] in 'aio' else 'A'} {what}"


def _add(meter: Meter, at: int, left: Any, right: Any) -> Any:
    if is_number(left) and is_number(right):
        return _number(left + right, at)
    if isinstance(left, str) and isinstance(right, str):
        meter.make(at, len(left) + len(right))
        return left + right
    if isinstance(left, bytes) and isinstance(right, bytes):
        meter.make(at, len(left) + len(right))
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        meter.make(at, 8 * (len(left) + len(right)))
        return left + right
    return _moved(at, "+", left, right)


def _moved(at: int, sign: str, left: Any, right: Any) -> Any:
    """Return the sum or difference of instants and durations."""
    moves = {
        ("+", datetime, timedelta): lambda: left + right,
        ("+", timedelta, datetime): lambda: right + left,
        ("+", timedelta, timedelta): lambda: left + right,
        ("-", datetime, timedelta): lambda: left - right,
        ("-", datetime, datetime): lambda: left - right,
        ("-", timedelta, timedelta): lambda: left - right,
    }
    move = moves.get((sign, type(left), type(right)))
    if move is None:
        raise wrong(at, sign, left, right)
    try:
        return move()
    except OverflowError:
        raise ExpressionError("The instant lies too far away.", at, Kind.TYPE) from None


def _number(value: float, at: int) -> int | float:
    return whole(value, at) if isinstance(value, int) else value


def _subtract(meter: Meter, at: int, left: Any, right: Any) -> Any:
    if is_number(left) and is_number(right):
        return _number(left - right, at)
    return _moved(at, "-", left, right)


def _multiply(meter: Meter, at: int, left: Any, right: Any) -> Any:
    if is_number(left) and is_number(right):
        return _number(left * right, at)
    raise wrong(at, "*", left, right)


def _divide(meter: Meter, at: int, left: Any, right: Any) -> Any:
    if not is_number(left) or not is_number(right):
        raise wrong(at, "/", left, right)
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            raise ExpressionError("A number is divided by zero.", at, Kind.TYPE)
        quotient = abs(left) // abs(right)
        return whole(quotient if (left < 0) == (right < 0) else -quotient, at)
    if right == 0:
        if left == 0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    return left / right


def _remainder(meter: Meter, at: int, left: Any, right: Any) -> Any:
    is_whole = all(isinstance(each, int) and not isinstance(each, bool) for each in (left, right))
    if not is_whole:
        raise wrong(at, "%", left, right)
    if right == 0:
        raise ExpressionError("A number is divided by zero.", at, Kind.TYPE)
    return int(math.copysign(1, left)) * (abs(left) % abs(right))


def _negate(meter: Meter, at: int, value: Any) -> Any:
    if not is_number(value):
        raise wrong(at, "-", value)
    return _number(-value, at)


def _not(meter: Meter, at: int, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(at, "not", value)
    return not value


def _concatenate(meter: Meter, at: int, left: Any, right: Any) -> str:
    first, second = to_text(meter, at, left), to_text(meter, at, right)
    meter.make(at, len(first) + len(second))
    return first + second


def _equal(meter: Meter, at: int, left: Any, right: Any) -> bool:
    return are_equal(left, right, meter, at)


def _unequal(meter: Meter, at: int, left: Any, right: Any) -> bool:
    return not are_equal(left, right, meter, at)


_ORDERED = str | bytes | bool | datetime | timedelta


def _ordered(sign: str, holds: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    def run(meter: Meter, at: int, left: Any, right: Any) -> bool:
        numbers = is_number(left) and is_number(right)
        alike = type(left) is type(right) and isinstance(left, _ORDERED)
        if not numbers and not alike:
            raise wrong(at, sign, left, right)
        if isinstance(left, str | bytes):
            meter.spend(at, len(left) // 64)
        return holds(left, right)

    return run


OPERATORS: dict[str, Callable[..., Any]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
    "%": _remainder,
    "~": _concatenate,
    "-_": _negate,
    "!_": _not,
    "==": _equal,
    "!=": _unequal,
    "<": _ordered("<", lambda left, right: left < right),
    "<=": _ordered("<=", lambda left, right: left <= right),
    ">": _ordered(">", lambda left, right: left > right),
    ">=": _ordered(">=", lambda left, right: left >= right),
}
