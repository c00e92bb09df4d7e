"""Writes docs/reference/errors.md from the classes and the calls that make errors.

Reads the source without running it, so that a code in a branch that is seldom taken is found too.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "gpuplane"
PAGE = Path("docs/reference/errors.md")
ROOT = "ProductError"
MEANINGS = {
    "artifacts_gone": "The artifacts were pruned with the attempt's folder.",
    "exec_failed": "The command could not be run beside the replica; the sentence says why.",
    "internal": "A fault of the server; it is logged under the `request_id`.",
    "invalid_field": "A field is unknown, of the wrong type or out of its limits; `errors` names "
    "each.",
    "logs_unavailable": "The cluster that holds the log does not answer just now.",
    "workspace_unsafe": "A member of the archive leads out of it or is no file, folder or link.",
}
"""Codes whose sentence comes from elsewhere when they are answered."""

INTRO = """\
# Errors

Every refusal of the API is `application/problem+json`: `type`, `title`, `status`, `code`, `detail`
(the sentence), `fix`, and where they say something `field`, `errors` (each with `field`, `reason`
and `fix`) and `request_id`. Programs read `code`: it does not change between releases. Sentences
may. 429 and 503 carry `Retry-After` where the instant is known.

```json
{
  "type": "urn:gpuplane:problem:unknown_path",
  "title": "Not Found",
  "status": 404,
  "code": "unknown_path",
  "detail": "There is nothing at this address.",
  "fix": "See /api/v1/openapi.json for every address."
}
```

The command line shows the sentence and the fix, and ends with 1 (failed), 2 (wrong usage), 3 (not
found), 4 (refused) or 5 (no server).

In a sentence, `…` stands for what is named in the answer. This page is made by
`python -m tools.make_errors_page`; a test compares it.

| code | status | meaning | where |
|---|---|---|---|
"""


class Kind(NamedTuple):
    """One class of the tree: where it stands, what it inherits, what it says."""

    name: str
    place: str
    bases: tuple[str, ...]
    status: int | None
    code: str | None
    sentence: str


class Row(NamedTuple):
    """One code with what it means and the part that answers it."""

    status: int
    code: str
    sentence: str
    place: str


def load_trees(source: Path = SOURCE) -> dict[str, ast.Module]:
    """Return the syntax tree of every module by its name below the package."""
    return {
        ".".join(path.relative_to(source).with_suffix("").parts): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for path in sorted(source.rglob("*.py"))
    }


def rows_of(trees: Mapping[str, ast.Module]) -> list[Row]:
    """Return every code by status and name: those of classes, and those given in calls."""
    kinds = _error_kinds(trees)
    rows = {
        Row(_status(kind, kinds), _code(kind, kinds), kind.sentence, kind.place)
        for kind in kinds.values()
    }
    for place, tree in trees.items():
        rows |= set(_rows_of_calls(place, tree, kinds))
    return sorted(rows)


def render(trees: Mapping[str, ast.Module]) -> str:
    """Return the page that the package's trees make."""
    merged: dict[tuple[int, str], list[Row]] = {}
    for row in rows_of(trees):
        merged.setdefault((row.status, row.code), []).append(row)
    return INTRO + "".join(_line(status, code, rows) for (status, code), rows in merged.items())


def _line(status: int, code: str, rows: Sequence[Row]) -> str:
    told = " ".join(dict.fromkeys(row.sentence for row in rows))
    sentences = MEANINGS.get(code, told).replace("|", "\\|")
    places = ", ".join(f"`{place}`" for place in sorted({row.place for row in rows}))
    return f"| `{code}` | {status} | {sentences} | {places} |\n"


def _error_kinds(trees: Mapping[str, ast.Module]) -> dict[str, Kind]:
    """Return the classes that descend from the root, by name."""
    classes = [
        _kind(place, node)
        for place, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    found: dict[str, Kind] = {}
    while True:
        more = {
            kind.name: kind
            for kind in classes
            if kind.name not in found and (kind.name == ROOT or found.keys() & set(kind.bases))
        }
        if not more:
            return found
        found |= more


def _kind(place: str, node: ast.ClassDef) -> Kind:
    values: dict[str, object] = {}
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                values |= _assigned(target, statement.value)
    bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
    status, code = values.get("status"), values.get("code")
    return Kind(
        node.name,
        place,
        bases,
        status if isinstance(status, int) else None,
        code if isinstance(code, str) else None,
        (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " "),
    )


def _assigned(target: ast.expr, value: ast.expr) -> dict[str, object]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return {
            name: found
            for one, other in zip(target.elts, value.elts, strict=True)
            for name, found in _assigned(one, other).items()
        }
    if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
        return {target.id: value.value}
    return {}


def _status(kind: Kind, kinds: Mapping[str, Kind]) -> int:
    if kind.status is not None:
        return kind.status
    return next(_status(kinds[base], kinds) for base in kind.bases if base in kinds)


def _code(kind: Kind, kinds: Mapping[str, Kind]) -> str:
    if kind.code is not None:
        return kind.code
    return next(_code(kinds[base], kinds) for base in kind.bases if base in kinds)


def _rows_of_calls(place: str, tree: ast.Module, kinds: Mapping[str, Kind]) -> Iterator[Row]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                kind = kinds.get(call.func.id)
                if kind is not None:
                    yield from _rows_of_call(place, call, kind, kinds, node)


def _rows_of_call(
    place: str, call: ast.Call, kind: Kind, kinds: Mapping[str, Kind], function: ast.AST
) -> Iterator[Row]:
    given = next((each.value for each in call.keywords if each.arg == "code"), None)
    if given is None or not call.args:
        return
    status = _status(kind, kinds)
    if kind.name == ROOT:
        status = _status_set_in(function) or status
    codes, sentences = _choices(given), _choices(call.args[0])
    for position, code in enumerate(codes):
        told = sentences[position] if len(sentences) == len(codes) else sentences[0]
        meaning = told if told.strip("…. ") else kind.sentence
        yield Row(status, code, meaning, place)


def _status_set_in(function: ast.AST) -> int | None:
    """Return the status that a function gives to the error it has just made."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            target = node.targets[0]
            if isinstance(target, ast.Attribute) and target.attr == "status":
                return int(str(node.value.value))
    return None


def _choices(value: ast.expr) -> list[str]:
    """Return the texts that an expression may be; what is only known when it runs is `…`."""
    if isinstance(value, ast.IfExp):
        return [*_choices(value.body), *_choices(value.orelse)]
    if isinstance(value, ast.Constant):
        return [str(value.value)]
    if isinstance(value, ast.JoinedStr):
        parts = [
            str(each.value) if isinstance(each, ast.Constant) else "…" for each in value.values
        ]
        return ["".join(parts)]
    return ["…"]


if __name__ == "__main__":
    PAGE.write_text(render(load_trees()), encoding="utf-8")
