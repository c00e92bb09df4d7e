"""YAML that anybody may have written is read within limits, or refused in a sentence."""

from __future__ import annotations

import pytest

from gpuplane.kit import yaml_texts
from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)
REFUSED = {
    "a bomb of aliases": (LAUGHS, "more than 500000 values"),
    "an alias inside itself": ("a: &a [*a]", "names what it stands in"),
    "a merge with itself": ("a: &a {<<: *a}", "names what it stands in"),
    "brackets without end": ("[" * 3_000, "nested too deeply"),
    "depth": ("[" * 70 + "]" * 70, "more than 60 deep"),
    "a tag of Python": ("!!python/object/apply:os.system [ls]", "could not determine"),
    "bytes": ("a: !!binary aGVsbG8=", "bytes"),
    "a set": ("a: !!set {b}", "set"),
    "no number": ("a: .nan", "infinite, or none"),
    "a number of 70 bits": (f"a: {2**70}", "more than 64 bits"),
    "a number without end": ("a: " + "9" * 5_000, "cannot be read"),
    "half a character": ('a: "\\ud800"', "half characters"),
    "a zero byte": ("a: \x00", "not allowed"),
    "a key that is a list": ("? [1, 2]\n: 3", "unhashable"),
    "a key that stands twice": (
        "a: 1\nb: {c: 1,\n  d: 2, c: 3}",
        r"'c' stands twice.* line 2 .line 3",
    ),
    "two keys that JSON knows as one": ("1: x\n'1': y", "'1' stands twice, first in line 1"),
    "two merges": ("a: &a {x: 1}\nb: {<<: *a, <<: *a}", "'<<' stands twice"),
    "an open quote": ("a: 'b", "found unexpected end"),
    "too many documents": ("--- a\n" * 300, "more than 200 documents"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_plain_document_is_refused_in_a_sentence(what: str) -> None:
    text, reason = REFUSED[what]
    with pytest.raises(UnreadableYaml, match=reason) as told:
        load_documents(text)
    assert str(told.value).endswith(".")


def test_a_text_that_is_too_long_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_texts, "MAX_BYTES", 10)
    with pytest.raises(UnreadableYaml, match="longer than 10"):
        load_documents("a: [1, 2, 3, 4]")


def test_documents_are_json_values_and_instants_stay_text() -> None:
    text = "a: &a [1, 2.5, yes, ~, 2020-01-02]\nb: *a\n1: x\n---\n---\n- last\n"
    row = [1, 2.5, True, None, "2020-01-02"]
    assert load_documents(text) == [{"a": row, "b": row, "1": "x"}, ["last"]]


def test_what_a_merge_brings_may_be_written_anew_however_it_is_nested() -> None:
    text = "d: {c: &c {<<: &b {<<: &a {x: 1, y: 1}, x: 2}, x: 3}}\ne: {<<: *c}\n"
    assert load_documents(text)[0]["e"] == {"x": 3, "y": 1}


def test_a_lone_equals_sign_is_text_as_in_the_charts_of_operators() -> None:
    assert load_documents("enum:\n- '!='\n- =\n- =~\n=: x") == [
        {"enum": ["!=", "=", "=~"], "=": "x"}
    ]
