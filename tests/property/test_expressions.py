"""Expressions against the reference implementation of CEL, and against anything at all."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_math, ext_strings
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuplane.domains.pipelines.expressions import (
    ExpressionError,
    Kind,
    check_text,
    evaluate,
    references,
    render,
)
from tests.examples import examples

REFERENCE = cel.NewEnv(
    variables=dict.fromkeys(("a", "b", "m", "l", "s"), cel.Type.DYN),
    extensions=[ext_strings.ExtStrings(), ext_math.ExtMath()],
)
DATA: dict[str, Any] = {
    "a": 7,
    "b": -2.5,
    "m": {"x": 1, "y": {"z": "deep"}, "n": None},
    "l": [1, 2, 3],
    "s": "Hello-World",
}


def _binary(children: st.SearchStrategy[str], signs: str) -> st.SearchStrategy[str]:
    return st.tuples(children, st.sampled_from(signs.split()), children).map(
        lambda each: f"({each[0]} {each[1]} {each[2]})"
    )


INTS = st.recursive(
    st.one_of(
        st.integers(-20, 20).map(lambda n: f"({n})"),
        st.sampled_from(["a", "m.x", "l[1]", "size(l)", "size(s)", "int('12')"]),
    ),
    lambda inner: st.one_of(_binary(inner, "+ - * / %"), inner.map(lambda each: f"(-{each})")),
    max_leaves=8,
)
TEXTS = st.recursive(
    st.one_of(
        st.sampled_from(["s", "m.y.z", "'x'", "''", "string(a)", "s.lowerAscii()", "s[0]"]),
        st.sampled_from(["s.replace('l', 'L')", "s.substring(2)", "s.charAt(1)", "s.trim()"]),
    ),
    lambda inner: _binary(inner, "+"),
    max_leaves=5,
)
TRUTHS = st.recursive(
    st.one_of(
        st.sampled_from(["true", "false", "m.n == null", "has(m.x)", "has(m.q)", "m.q == 1"]),
        _binary(INTS, "== != < <= > >="),
        _binary(TEXTS, "== != < <= > >="),
        st.sampled_from(["a in l", "'x' in m", "s.startsWith('He')", "s.contains('lo')"]),
        st.sampled_from(["s.matches('^H.*d$')", "s.matches('[a-z]{3}')", "s.matches('(o|W)+x')"]),
        st.sampled_from(["l.all(x, x > 0)", "l.exists(x, x == 2)", "l.exists_one(x, x > 1)"]),
        st.sampled_from(["l.all(x, x / (x - 2) > 0)", "l.exists(x, 1 / (x - 1) == 1)"]),
    ),
    lambda inner: st.one_of(
        _binary(inner, "&& ||"),
        inner.map(lambda each: f"(!{each})"),
        st.tuples(inner, inner, inner).map(lambda each: f"({each[0]} ? {each[1]} : {each[2]})"),
    ),
    max_leaves=8,
)
LISTS = st.one_of(
    st.sampled_from(["l", "l.map(x, x * a)", "l.filter(x, x != 2)", "l.map(x, x > 1, x + 1)"]),
    st.sampled_from(["l + [4]", "[a, s, m]", "s.split('-')", "[l, [a]]", "m.y", "{'k': l}"]),
)
ZONES = st.sampled_from(["", "'UTC'", "'+02:00'", "'-09:30'", "'5:45'", "'America/New_York'"])
INSTANTS = st.integers(-2_177_452_800_000, 4_102_444_800_000).map(
    lambda ms: f"(timestamp('1970-01-01T00:00:00Z') + duration('{ms}ms'))"
)
DURATIONS = st.integers(-(10**9), 10**9).map(
    lambda ms: f"duration('{'-' * (ms < 0)}{abs(ms) // 1000}s{abs(ms) % 1000}ms')"
)
FIELDS = ("getFullYear getMonth getDate getDayOfMonth getDayOfWeek getDayOfYear getHours "
          "getMinutes getSeconds getMilliseconds").split()  # fmt: skip
TIMES = st.one_of(
    st.tuples(INSTANTS, st.sampled_from(FIELDS), ZONES).map(lambda x: f"{x[0]}.{x[1]}({x[2]})"),
    st.tuples(DURATIONS, st.sampled_from(FIELDS[-4:])).map(lambda x: f"{x[0]}.{x[1]}()"),
)
BYTES = st.recursive(
    st.one_of(
        st.binary(max_size=4).map(lambda raw: "b'" + "".join(f"\\x{one:02x}" for one in raw) + "'"),
        st.sampled_from([r"b'a\303\277'", "b'é'", r"rb'\x'", "bytes(s)", r"b'\n'"]),
    ),
    lambda inner: _binary(inner, "+"),
    max_leaves=3,
)
BINARY = st.one_of(
    _binary(BYTES, "== != < <= > >="), BYTES.map("size({})".format), BYTES.map("string({})".format),
    st.sampled_from(["int(uint(3))", "uint(-1)", "int(uint('7'))", "int(3u)", "b'a' == 'a'"]),
)  # fmt: skip
EXPRESSIONS = st.one_of(INTS, TEXTS, TRUTHS, LISTS, TIMES, BINARY)


def _reference(source: str) -> tuple[bool, Any]:
    """Return whether the reference evaluates an expression, and to what."""
    try:
        found = REFERENCE.compile(source).eval(data=DATA)
    except RuntimeError:
        return False, None
    if found.type() == cel.Type.ERROR:
        return False, None
    return True, found.plain_value()


@examples(300)
@given(EXPRESSIONS)
def test_whatever_the_reference_evaluates_is_the_same_here(source: str) -> None:
    evaluates, expected = _reference(source)
    assume(evaluates)
    found = evaluate(source, DATA)
    same = found == expected and type(found) is type(expected)
    both_nan = isinstance(found, float) and math.isnan(found) and math.isnan(expected)
    assert same or both_nan, (source, found, expected)


FAULTS = st.recursive(
    st.sampled_from(
        ["m.q", "l[9]", "a / (m.x - 1)", "a % 0", "s + 1", "-s", "m.x.y", "!a", "size(a)", "s < 1",
         "int('x')", "string(b'\\xff')", "uint(-1)", "duration('1s').getFullYear()", "b'a' + 'a'",
         "timestamp('2026-01-01T00:00:00Z').getDate('x')", "b'a' < 'a'",
         "m['q'].r", "l.map(x, x.y)", "[1] + 2", "9223372036854775807+a", "{'k': m.q}"]
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "=="]), INTS).map(" ".join).map("({})".format),
        inner.map("[{}]".format),
        inner.map("string({})".format),
        inner.map("({} ? 1 : 2)".format),
        inner.map("({} && true)".format),
    ),
    max_leaves=4,
)  # fmt: skip


@examples(200)
@given(FAULTS)
def test_what_the_reference_refuses_is_refused_here(source: str) -> None:
    evaluates, _ = _reference(source)
    assert not evaluates
    with pytest.raises(ExpressionError) as caught:
        evaluate(source, DATA)
    assert caught.value.kind in (Kind.MISSING, Kind.TYPE)
    assert 0 <= caught.value.at < len(source)


SIGNS = st.lists(
    st.sampled_from([*"abxlms.()[]'\"|?:,+-*/%!&=<> 019\\\n\té{}~", "{{", "}}"]), max_size=60
).map("".join)
WORDS = st.lists(
    st.sampled_from(
        "{{ }} params . steps step-1 outputs ( ) [ ] | default map filter x , + - * / % == && ||"
        " not in is none defined if else ? : 'a' 1 2.5 true null size { } all has matches".split()
    ),
    max_size=25,
).map(" ".join)


@examples(300)
@given(st.one_of(SIGNS, WORDS, SIGNS.map(lambda text: f"{{{{ {text} }}}}")))
def test_no_text_makes_it_crash(text: str) -> None:
    known = {"params": {"a"}, "steps": {"step-1"}}
    found = check_text(text, known, bare=True)
    assert all(isinstance(each, ExpressionError) and each.at <= len(text) for each in found)
    for work in (
        lambda: render(text, DATA),
        lambda: evaluate(text, DATA),
        lambda: references(text),
    ):
        with contextlib.suppress(ExpressionError):
            work()


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@examples(200)
@given(VALUES, VALUES, st.sampled_from("+ - * / % == != < <= > >= in && ||".split()))
def test_no_operator_crashes_on_any_values(left: object, right: object, sign: str) -> None:
    names = {"left": left, "right": right}
    kinds: list[Kind] = []
    found: object = None
    try:
        found = evaluate(f"left {sign} right", names)
    except ExpressionError as error:
        kinds.append(error.kind)
    assert set(kinds) <= {Kind.TYPE, Kind.BUDGET}
    assert found is None or isinstance(found, bool | int | float | str | list)
