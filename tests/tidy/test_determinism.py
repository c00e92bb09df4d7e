"""The core gives the same answer in every process: what imports and lint rules cannot see."""

from __future__ import annotations

import ast

import pytest

from tests.tidy.sets import set_attributes, walks_over_sets
from tests.tidy.sources import place, python_files, tree_of


def calls_of(name: str, tree: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def salted_hashes(tree: ast.AST) -> list[ast.Call]:
    """Return the calls of `hash()` outside `__hash__`, whose value only ever keys a dict."""
    passed_on = {
        call
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for call in calls_of("hash", node)
    }
    return [call for call in calls_of("hash", tree) if call not in passed_on]


def test_no_code_uses_the_built_in_hash_which_is_salted_per_process() -> None:
    found = [
        place(path, call) for path in python_files("src") for call in salted_hashes(tree_of(path))
    ]
    assert found == []


def test_only_a_hash_method_may_call_hash() -> None:
    tree = ast.parse("class C:\n    def __hash__(self):\n        return hash(1)\nx = hash('a')")
    assert [call.lineno for call in salted_hashes(tree)] == [4]


def test_the_core_asks_nobody() -> None:
    found = [
        place(path, call)
        for path in python_files("src/gpuplane/core")
        for name in ("input", "open", "print")
        for call in calls_of(name, tree_of(path))
    ]
    assert found == []


def test_the_core_never_walks_over_a_set() -> None:
    files = python_files("src/gpuplane/core")
    attributes = set_attributes([tree_of(path) for path in files])
    found = [
        place(path, node) for path in files for node in walks_over_sets(tree_of(path), attributes)
    ]
    assert found == [], "sort it first: the order of a set differs between processes"


@pytest.mark.parametrize(
    "code",
    [
        "for x in {1, 2}: pass",
        "def f(a: set[int]) -> list[int]:\n    return [x for x in a]",
        "def f(a: frozenset[int]):\n    return list(a)",
        "a = set(b)\nfor x in a | c: pass",
        "first = next(iter({1, 2}))",
        "','.join({'a', 'b'})",
        "class C:\n    marks: frozenset[str]\ndef f(c: C):\n    return {m: 1 for m in c.marks}",
        "print(*{1, 2})",
        "total = sum(x for x in [y for y in {0.1, 0.2}])",
    ],
)
def test_a_walk_over_a_set_is_found(code: str) -> None:
    tree = ast.parse(code)
    assert len(list(walks_over_sets(tree, set_attributes([tree])))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "for x in sorted({1, 2}): pass",
        "def f(a: set[int]) -> bool:\n    return any(x > 1 for x in a)",
        "def f(a: set[int]) -> set[int]:\n    return {x + 1 for x in a}",
        "def f(a: set[int]) -> list[int]:\n    a = sorted(a)\n    return [x for x in a]",
        "class C:\n    marks: frozenset[str]\ndef f(c: C):\n    return 'a' in c.marks",
    ],
)
def test_asking_a_set_without_its_order_is_fine(code: str) -> None:
    tree = ast.parse(code)
    assert list(walks_over_sets(tree, set_attributes([tree]))) == []
