"""A file holds one idea, a function fits a screen."""

from __future__ import annotations

import ast

from tests.tidy.sources import PACKAGE, place, python_files, tree_of

FILE_LINES = 600
FUNCTION_LINES = 80
# A revision is a list of statements that is generated, read once and never changed.
REVISIONS = PACKAGE / "db" / "migrations" / "versions"
READ_BY_PEOPLE = [path for path in python_files() if path.parent != REVISIONS]


def test_no_file_is_longer_than_600_lines() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in READ_BY_PEOPLE}
    assert {place(path, 1): n for path, n in lengths.items() if n > FILE_LINES} == {}


def test_no_function_is_longer_than_80_lines() -> None:
    found = {
        f"{place(path, node)} {node.name}": length
        for path in READ_BY_PEOPLE
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    }
    assert found == {}
