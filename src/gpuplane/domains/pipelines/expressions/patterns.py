"""Regular expressions in time that grows with pattern × text, as CEL asks (RE2's promise).

Python's own parser reads the pattern; matching walks all states at once, so no pattern can make it
hang. What needs backtracking (back-references, look-around) is refused.
"""

import re
import re._constants as ops  # type: ignore[import-not-found]  # typeshed leaves them out
import re._parser as reader  # type: ignore[import-not-found]  # as above
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.values import Meter

MAX_STATES = 5_000
MAX_PATTERN = 1_000


@dataclass(slots=True)
class Machine:
    """States: each is a test of one character, a fork, an anchor, or the end."""

    tests: list[Any] = field(default_factory=list)
    """A compiled one-character pattern, an anchor's name, or None for a fork."""
    exits: list[list[int]] = field(default_factory=list)

    def add(self, test: Any, exits: list[int]) -> int:
        """Return the number of a new state."""
        if len(self.tests) >= MAX_STATES:
            raise ValueError("the pattern is too large")
        self.tests.append(test)
        self.exits.append(exits)
        return len(self.tests) - 1


def matches(text: str, pattern: str, meter: Meter, at: int) -> bool:
    """Return whether a pattern is found anywhere in a text; every step is counted.

    Raises:
        ExpressionError: If the pattern cannot be read, or the budget ends.
    """
    try:
        machine, start, flags = _machine(pattern)
    except (re.error, ValueError, RecursionError, OverflowError) as error:
        raise ExpressionError(
            f"The pattern cannot be read: {error}.", at, Kind.TYPE, "Write it as RE2 takes it."
        ) from error
    states: set[int] = set()
    for place in range(len(text) + 1):
        meter.spend(at, 1 + len(states))
        states.add(start)
        if _follow(machine, states, text, place, flags):
            return True
        if place == len(text):
            return False
        sign = text[place]
        states = {
            exit_
            for state in states
            if isinstance(test := machine.tests[state], re.Pattern) and test.fullmatch(sign)
            for exit_ in machine.exits[state]
        }
    return False


_END = "end"


def _follow(machine: Machine, states: set[int], text: str, place: int, flags: int) -> bool:
    """Add every state reached without a character; return whether the end is among them."""
    waiting = list(states)
    while waiting:
        state = waiting.pop()
        test = machine.tests[state]
        if test == _END:
            return True
        if isinstance(test, re.Pattern) or (
            test is not None and not _holds(test, text, place, flags)
        ):
            continue
        for exit_ in machine.exits[state]:
            if exit_ not in states:
                states.add(exit_)
                waiting.append(exit_)
    return False


def _holds(anchor: Any, text: str, place: int, flags: int) -> bool:
    before = text[place - 1] if place else ""
    after = text[place] if place < len(text) else ""
    by_line = bool(flags & re.MULTILINE)
    if anchor in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
        return place == 0 or (by_line and anchor is ops.AT_BEGINNING and before == "\n")
    if anchor in (ops.AT_END, ops.AT_END_STRING):
        return place == len(text) or (by_line and anchor is ops.AT_END and after == "\n")
    is_edge = _is_word(before) != _is_word(after)
    return is_edge if anchor is ops.AT_BOUNDARY else not is_edge


def _is_word(sign: str) -> bool:
    return sign.isascii() and (sign.isalnum() or sign == "_")


@lru_cache(maxsize=256)
def _machine(pattern: str) -> tuple[Machine, int, int]:
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"it has more than {MAX_PATTERN} characters")
    tree = reader.parse(pattern, re.ASCII if pattern.isascii() else 0)
    flags = tree.state.flags
    machine = Machine()
    end = machine.add(_END, [])
    return machine, _build(machine, list(tree), end, flags), flags


def _build(machine: Machine, parts: list[Any], after: int, flags: int) -> int:
    """Return the state where a sequence of parsed parts begins that goes on at `after`."""
    for part in reversed(parts):
        after = _part(machine, part, after, flags)
    return after


def _part(machine: Machine, part: Any, after: int, flags: int) -> int:
    kind, value = part
    if kind in (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN):
        return machine.add(_one(kind, value, flags), [after])
    if kind is ops.AT:
        return machine.add(value, [after])
    if kind is ops.BRANCH:
        starts = [_build(machine, list(branch), after, flags) for branch in value[1]]
        return machine.add(None, starts)
    if kind is ops.SUBPATTERN:
        _group, more, fewer, inner = value
        return _build(machine, list(inner), after, (flags | more) & ~fewer)
    if kind in (ops.MAX_REPEAT, ops.MIN_REPEAT):
        return _repeat(machine, value, after, flags)
    raise ValueError(f"{str(kind).lower()} needs backtracking")


def _repeat(machine: Machine, value: Any, after: int, flags: int) -> int:
    least, most, inner = value
    parts = list(inner)
    if most is ops.MAXREPEAT:
        fork = machine.add(None, [after])
        machine.exits[fork].append(_build(machine, parts, fork, flags))
        start = fork
    else:
        start = after
        for _ in range(min(most, MAX_STATES) - least):
            start = machine.add(None, [after, _build(machine, parts, start, flags)])
    for _ in range(min(least, MAX_STATES)):
        start = _build(machine, parts, start, flags)
    return start


_CATEGORIES = {
    ops.CATEGORY_DIGIT: r"\d", ops.CATEGORY_NOT_DIGIT: r"\D", ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S", ops.CATEGORY_WORD: r"\w", ops.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip


def _one(kind: Any, value: Any, flags: int) -> re.Pattern[str]:
    """Return a compiled pattern of exactly one character."""
    used = (flags & (re.IGNORECASE | re.DOTALL)) | re.ASCII
    if kind is ops.ANY:
        return re.compile(".", used)
    if kind is ops.LITERAL:
        return re.compile(re.escape(chr(value)), used & ~re.ASCII)
    if kind is ops.NOT_LITERAL:
        return re.compile(f"[^{_escaped(value)}]", used)
    text = ""
    for item, what in value:
        if item is ops.NEGATE:
            text += "^"
        elif item is ops.LITERAL:
            text += _escaped(what)
        elif item is ops.RANGE:
            text += f"{_escaped(what[0])}-{_escaped(what[1])}"
        else:
            text += _CATEGORIES[what]
    return re.compile(f"[{text}]", used)


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"
