"""What was said twice in review: output, suppressions, leftovers, addresses."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.tidy.sources import PACKAGE, ROOT, place, python_files, tracked_files, tree_of

# Written in halves so that this file does not find itself.
REGISTRY_HOSTS = re.compile(
    r"pypi\."
    r"org|pythonhosted\."
    r"org|registry\.npmjs|registry\.yarnpkg|(?:proxy|sum)\.golang|crates\."
    r"io|quay\."
    r"io|docker\."
    r"io/"
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
SUPPRESSION = re.compile(r"#\s*(noqa|type:\s*ignore|pragma:\s*no cover)")
RULE_AND_REASON = {
    "noqa": re.compile(r"#\s*noqa:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*\s*(?:-|—|#|\()\s*\w.{3,}"),
    "type": re.compile(r"#\s*type:\s*ignore\[[a-z-]+(?:,\s*[a-z-]+)*\]\s*(?:-|—|#|\()\s*\w.{3,}"),
    "pragma": re.compile(r"#\s*pragma:\s*no cover\s*(?:-|—|#|\()\s*\w.{3,}"),
}
TEXT_LIMIT_BYTES = 2_000_000  # nothing of ours that is read by people is longer


def comments(path: Path) -> list[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return [(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT]


def is_explained(comment: str) -> bool:
    """Return whether every suppression in a comment names a rule and gives a reason."""
    kinds = [found.group(1).split(":")[0] for found in SUPPRESSION.finditer(comment)]
    return all(RULE_AND_REASON[kind].search(comment) for kind in kinds)


def text_of(path: Path) -> str:
    if path.stat().st_size > TEXT_LIMIT_BYTES:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_every_suppression_names_a_rule_and_a_reason() -> None:
    found = [
        f"{place(path, line)} {comment}"
        for path in python_files()
        for line, comment in comments(path)
        if not is_explained(comment)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("comment", "explained"),
    [
        ("# noqa: BLE001 - a loop catches at its edge", True),
        ("# type: ignore[no-untyped-call]  # the library has no types", True),
        ("# noqa" + ": BLE001", False),
        ("# noqa", False),
        ("# type: ignore  # the library has no types", False),
        ("# type: " + "ignore[attr-defined]", False),
        ("# an ordinary comment", True),
    ],
)
def test_a_suppression_without_rule_or_reason_is_found(comment: str, explained: bool) -> None:
    assert is_explained(comment) is explained


def test_only_what_faces_a_terminal_prints() -> None:
    found = [
        place(path, node)
        for path in python_files("src")
        if not any(path.is_relative_to(PACKAGE / part) for part in ("cli", "entry"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert found == []


def test_no_file_names_the_host_of_a_package_registry() -> None:
    found = [
        place(path, number)
        for path in tracked_files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if REGISTRY_HOSTS.search(line)
    ]
    assert found == []


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{place(path, number)} {line.strip()}"
        for path in python_files("src", "rig", "tools", "benchmarks")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def called_name(node: ast.Call) -> str:
    return ast.unparse(node.func)


def test_no_test_sleeps() -> None:
    found = [
        place(path, node)
        for path in python_files("tests")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and called_name(node) in {"time.sleep", "asyncio.sleep", "sleep"}
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]
    assert found == [], "wait on the event, or use tests.waiting"


def test_nothing_waits_in_a_way_that_loses_its_own_cancellation() -> None:
    """Before Python 3.12 `asyncio.wait_for` returns as if it had not been cancelled.

    It does when what it waits for ends in the same moment (github.com/python/cpython/issues/86296).
    """
    found = [
        place(path, node)
        for folder in ("src", "rig")
        for path in python_files(folder)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and called_name(node) == "asyncio.wait_for"
    ]
    assert found == [], "write `async with asyncio.timeout(seconds):`"


def test_no_test_replaces_our_own_functions() -> None:
    found = [
        place(path, node)
        for path in python_files("tests")
        for node in ast.walk(tree_of(path))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unittest"))
        or (isinstance(node, ast.Import) and any(a.name.startswith("unittest") for a in node.names))
    ]
    assert found == [], "fakes we own, reality where it is cheap"


def asserts_something(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call) and re.search(
            r"assert|expect|check|verify|raises|until_|run_state_machine", called_name(node)
        ):
            return True
    return False


def test_every_test_can_fail() -> None:
    found = [
        f"{place(path, node)} {node.name}"
        for path in python_files("tests")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not asserts_something(node)
    ]
    assert found == []


def test_the_settings_of_the_tools_live_in_one_file() -> None:
    strays = {"setup.cfg", "tox.ini", "pytest.ini", "mypy.ini", ".flake8", ".pylintrc"}
    assert [str(p.relative_to(ROOT)) for p in tracked_files() if p.name in strays] == []
