"""Lists are read as their endpoints give them: page by page, or whole."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import gpuplane.cli

ROOT = Path(__file__).resolve().parents[3]
READERS = {"items": 0, "find_exactly": 1, "find_one": 1, "_find": 1}
"""What reads page by page: how it is called, and which of its arguments is the path."""


def paths_read_by_page() -> Iterator[tuple[str, str]]:
    """Yield (place, path) of every list that the client reads page by page."""
    folder = Path(gpuplane.cli.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                at = READERS.get(called, len(node.args))
                path = _text(node.args[at]) if at < len(node.args) else ""
                if path.startswith("/"):
                    yield f"{file.name}:{node.lineno}", path


def _text(node: ast.expr) -> str:
    """Return a path that is written out, with `{}` for what is put in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) for each in node.values)
    return "{}"


def paths_that_page() -> set[str]:
    """Return the paths of the API whose lists take `limit`, with `{}` for each parameter."""
    paths = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))["paths"]
    found = set()
    for path, methods in paths.items():
        names = {each["name"] for each in methods.get("get", {}).get("parameters", [])}
        if "limit" in names:
            steps = path.removeprefix("/api/v1").split("/")
            found.add("/".join("{}" if each.startswith("{") else each for each in steps))
    return found


def test_only_a_list_that_takes_a_limit_is_read_page_by_page() -> None:
    read, known = list(paths_read_by_page()), paths_that_page()
    assert {"/jobs", "/tenants", "/runs/{}/steps"} <= {path for _, path in read} & known
    assert [each for each in read if each[1] not in known] == []
