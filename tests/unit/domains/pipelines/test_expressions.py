"""Expressions: CEL with the forms of Jinja that the specification uses, typed and budgeted."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpuplane.domains.pipelines.expressions import (
    NOTHING,
    ExpressionError,
    Kind,
    check_text,
    evaluate,
    references,
    render,
    render_json,
)

NAMES: dict[str, Any] = {
    "params": {"n": 1, "f": 0.5, "s": "Hi", "l": [3, 1, 2], "none": None, "yes": True, "a-b": 7},
    "steps": {
        "step-1": {"outputs": {"count": 5, "url": "http://x"}},
        "skipped": {"outputs": NOTHING},
    },
    "components": {"x": {"url": "u"}},
    "services": {"budsim": "http://b"},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ params.n }}", 1),
        (" {{ params.l }} ", [3, 1, 2]),
        ("n={{ params.n }}", "n=1"),
        ("{{ params.n }}{{ params.s }}", "1Hi"),
        ("{{ params.yes }}!", "true!"),
        ("{{ params.l }}!", "[3, 1, 2]!"),
        ("{{ params.none }}!", "!"),
        ("no expression", "no expression"),
        ("{{ 'a}}b' }}", "a}}b"),
        ("{{ {'a': {'b': 1}} }}", {"a": {"b": 1}}),
    ],
)
def test_a_lone_expression_keeps_its_type_and_text_around_it_makes_text(
    text: str, value: object
) -> None:
    found = render(text, NAMES)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("steps.step-1.outputs.count", 5),
        ("steps.step-1.outputs.count-1", 4),
        ("steps['step-1'].outputs.count", 5),
        ("components['x'].url", "u"),
        ("params['a-b']", 7),
        ("params.missing | default('')", ""),
        ("params.missing | default", ""),
        ("params.none | default(3)", 3),
        ("params.n | default(3)", 1),
        ("params.none is none", True),
        ("params.none is not none", False),
        ("params.missing is defined", False),
        ("params.n is not defined", False),
        ("params.n is number and params.s is string", True),
        ("not params.yes or True", True),
        ("not params.n == 2", True),
        ("'a' if params.yes else 'b'", "a"),
        ("params.yes ? 'a' : 'b'", "a"),
        ("params.l | length", 3),
        ("params.l | sort | join('-')", "1-2-3"),
        ("params.s | lower", "hi"),
        ("params.s | upper", "HI"),
        ("params.l | tojson", "[3, 1, 2]"),
        ("2 in params.l and 9 not in params.l", True),
        ("params.s ~ params.n", "Hi1"),
        ("services.budsim + '/optimize'", "http://b/optimize"),
    ],
)
def test_the_forms_of_jinja_mean_the_same_in_cel(source: str, value: object) -> None:
    assert evaluate(source, NAMES) == value


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("params.l.map(x, x * 2)", [6, 2, 4]),
        ("params.l.map(x, x > 1, x)", [3, 2]),
        ("params.l.filter(x, x > 1).size()", 2),
        ("params.l.exists(x, x == 3) && !params.l.all(x, x == 3)", True),
        ("params.l.exists_one(x, x == 3)", True),
        ("params.n + params.f", 1.5),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("-7 % 3", -1),
        ("1 == 1.0 && 1 != 'a' && true != 1", True),
        ("has(params.n) && !has(params.missing)", True),
        ("params.missing == 1 || true", True),
        ("json.decode('{\"a\": [1]}').a[0]", 1),
        ("'abc'.substring(1) + 'abc'.charAt(0)", "bca"),
        ("timestamp('2026-01-01T00:00:00Z') + duration('1h')", "2026-01-01T01:00:00Z"),
        ("'x-12'.matches('^[a-z]-\\\\d+$')", True),
        ("'axb'.matches('a.?b|^c') && !'a'.matches('b+')", True),
    ],
)
def test_cel_means_what_it_says(source: str, value: object) -> None:
    found = evaluate(source, NAMES)
    assert (found, type(found)) == (value, type(value))


def test_bytes_leave_an_expression_as_base64_and_text_as_utf_8() -> None:
    names = {"x": {"data": "AP8="}}
    assert render("{{ base64.decode(x.data) }}", names) == "AP8="
    assert render("{{ [b'\\xff', bytes('é')] }}", names) == ["/w==", "w6k="]
    assert render("{{ base64.encode(b'hi') }} {{ string(b'\\303\\251') }}", names) == "aGk= é"
    with pytest.raises(ExpressionError, match="no UTF-8"):
        render("{{ string(base64.decode(x.data)) }}", names)


def test_a_skipped_step_yields_null_however_deep() -> None:
    assert evaluate("steps.skipped.outputs.url", NAMES) is None
    assert evaluate("steps.skipped.outputs.a.b.c", NAMES) is None
    assert evaluate("steps.skipped.outputs.url | default('d')", NAMES) == "d"
    assert evaluate("steps.skipped.outputs.url == null", NAMES) is True
    assert render("url={{ steps.skipped.outputs.url }}", NAMES) == "url="


@pytest.mark.parametrize(
    ("text", "column", "kind"),
    [
        ("{{ params.missing }}", 11, Kind.MISSING),
        ("ab {{ nothing }}", 7, Kind.MISSING),
        ("{{ params.l[9] }}", 12, Kind.MISSING),
        ("{{ 1 + }}", 8, Kind.SYNTAX),
        ("{{ 'open }}", 1, Kind.SYNTAX),
        ("{{ params.n", 1, Kind.SYNTAX),
        ("{{ 9 ** 9 }}", 6, Kind.SYNTAX),
        ("{{ nope(1) }}", 4, Kind.UNKNOWN),
        ("{{ params.n | nope }}", 15, Kind.UNKNOWN),
        ("{{ 'a' * 3 }}", 8, Kind.TYPE),
        ("{{ params.s && true }}", 11, Kind.TYPE),
        ("{{ 1 / 0 }}", 6, Kind.TYPE),
        ("{{ 9223372036854775807 + 1 }}", 24, Kind.TYPE),
        ("{% if x %}", 1, Kind.SYNTAX),
        (r"{{ b'\u00e9' }}", 4, Kind.SYNTAX),
        ("{{ base64.decode('?') }}", 11, Kind.TYPE),
        ("{{ timestamp('2026-01-01T00:00:00Z').getDate('/etc') }}", 38, Kind.TYPE),
        ("{{ 'a'.matches('(a)\\\\1') }}", 8, Kind.TYPE),
    ],
)
def test_a_mistake_is_told_with_its_column(text: str, column: int, kind: Kind) -> None:
    with pytest.raises(ExpressionError) as caught:
        render(text, NAMES)
    assert (caught.value.column, caught.value.kind) == (column, kind)
    assert caught.value.message.endswith((".", "…"))


@pytest.mark.parametrize(
    "source",
    [
        "['ab']" + ".map(x, x + x)" * 60 + "[0]",
        "[[1]]" + ".map(x, [x, x])" * 60,
        "[[1]]" + ".map(x, [x, x])" * 60 + ".all(x, x == x)",
        "lists.range(9999).map(x, lists.range(9999).map(y, x * y))",
        "lists.range(2000000000)",
        "'a'" + ".replace('a', 'aaaaaaaaaaaaaaaaaaaa')" * 20,
        "string([[[1]]]" + ".map(x, [x, x, x])" * 40 + ")",
        "(" * 100 + "1" + ")" * 100,
        "1" + " + 1" * 500,
        "1 || " * 10_000 + "1",
        "'" + "a" * 60_000 + "'",
        "lists.range(3000).map(x, '" + "a" * 1000 + "'.matches('(a*)*(a*)*b')).size()",
        "'x'.matches('((((a{1,100}){1,100}){1,100}){1,100})')",
        "json.decode('" + "[" * 500 + "]" * 500 + "')",
    ],
)
def test_what_would_explode_is_refused_before_it_does(source: str) -> None:
    began = time.process_time()
    with pytest.raises(ExpressionError) as caught:
        evaluate(source, NAMES)
    assert caught.value.kind in (Kind.BUDGET, Kind.TYPE)
    assert time.process_time() - began < 20  # far above any budget: a hang, not a slow machine


def test_the_budget_is_counted_and_the_same_for_equal_input() -> None:
    def spent(source: str) -> str:
        try:
            return str(evaluate(source, NAMES))[:20]
        except ExpressionError as error:
            return str(error)

    source = "lists.range(1000).map(x, lists.range(1000).map(y, y)).size()"
    assert spent(source) == spent(source)
    assert "too" in spent(source)


def test_mapping_ten_thousand_items_is_ordinary_work() -> None:
    assert evaluate("lists.range(9999).map(x, x + 1).filter(x, x % 2 == 0).size()", {}) == 4999


def test_references_name_the_steps_that_text_reads() -> None:
    text = "{{ steps.step-1.outputs.a + steps['b'].outputs.c }} and {{ params.steps }}"
    assert references(text) == {"step-1", "b"}


def test_checking_finds_what_no_run_could_have() -> None:
    known = {"params": {"n"}, "steps": {"step-1"}, "run": {"id"}, "trigger": None}
    text = "{{ params.m + steps.step-2.outputs.x + foo + run.no + trigger.any }}"
    found = [(each.column, each.message) for each in check_text(text, known)]
    assert found == [
        (11, "There is no parameter 'm'."),
        (21, "There is no step 'step-2'."),
        (40, "There is no 'foo' here."),
        (50, "There is no field of run 'no'."),
    ]
    assert check_text("{{ params.m | default(1) }}{{ [1].map(x, x) }}", known) == []
    assert check_text("{{ steps.other.outputs.x | default(1) }}", known) != []
    assert check_text("{{ steps[params.n].outputs.x }}", known) != []


def test_json_is_filled_in_wherever_text_stands_in_it() -> None:
    given = {"a": ["{{ params.n }}", {"b": "x{{ params.s }}"}], "c": 1}
    assert render_json(given, NAMES) == {"a": [1, {"b": "xHi"}], "c": 1}
