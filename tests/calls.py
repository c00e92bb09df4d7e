"""Every call to a Kubernetes client that source code makes, read from the source.

Finds `….patch(NODE, …)`, `Informer(client, POD, …)` and objects written as `"kind": JOB.kind` or
`"kind": "Job"` in a function that creates, applies or replaces.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERBS = {
    "get": {"get"},
    "find": {"get"},
    "list": {"list"},
    "list_as": {"list"},
    "list_page": {"list"},
    "watch": {"watch"},
    "watch_as": {"watch"},
    "patch": {"patch"},
    "delete": {"delete"},
}
"""Methods that name their kind first, and the verbs of RBAC that they are."""
INFORMER = {"list", "watch"}


@dataclass(frozen=True, order=True)
class Call:
    """One call: the verb of RBAC, the constant of the kind, and the subresource."""

    verb: str
    kind: str
    subresource: str
    where: str


def list_calls(package: Path) -> list[Call]:
    """Return the calls of a package whose kind can be read from the source."""
    found: set[Call] = set()
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                found.update(_calls_of(node, path.stem))
    return sorted(found)


def _calls_of(node: ast.Call, where: str) -> Iterator[Call]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else ""
    if isinstance(function, ast.Name):
        name = function.id
    if name == "Informer" and len(node.args) > 1:
        kind = _constant(node.args[1])
        for verb in INFORMER if kind else ():
            yield Call(verb, kind, "", where)
    elif name in VERBS and node.args and isinstance(function, ast.Attribute):
        kind = _constant(node.args[0])
        for verb in VERBS[name] if kind else ():
            yield Call(verb, kind, _subresource(node), where)


def _constant(node: ast.expr) -> str:
    """Return the name of a constant such as `NODE` or `kinds.NODE`, empty for anything else."""
    name = node.attr if isinstance(node, ast.Attribute) else ""
    if isinstance(node, ast.Name):
        name = node.id
    return name if name.isupper() else ""


def _subresource(node: ast.Call) -> str:
    for keyword in node.keywords:
        if keyword.arg == "subresource" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return ""
