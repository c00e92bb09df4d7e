"""Writes docs/reference/api.md from the committed OpenAPI document."""

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

DOCUMENT = Path("openapi/openapi.json")
PAGE = Path("docs/reference/api.md")
METHODS = ("get", "post", "put", "patch", "delete")

INTRO = """\
# API

Everything the command line does goes through this API. `openapi/openapi.json` describes it whole,
and a running control plane serves the same document at `/api/v1/openapi.json`.

- **Who asks:** `Authorization: Bearer TOKEN`, a token of this product or one of an issuer that
  [OIDC](oidc.md) names. What a token may do is its user's roles cut down to its scopes. The column
  *permission* says what an operation needs; `known` is anybody with a valid token, `public` needs
  none.
- **Repeating a request:** every POST takes an `Idempotency-Key`. The same key with the same body
  gets the same answer, with another body 409 `idempotency_key_reused`.
- **Refusals** are `application/problem+json` with a stable code, the sentence and the fix:
  [errors](errors.md).
- **Lists** answer `items` and, where there is more, `next_cursor`; send it back as `cursor`.
- **Instants** are RFC 3339, money and prices are decimal text, ids are UUIDs.
- **Following:** event streams are Server-Sent Events; `Last-Event-ID` takes up where a reader
  stopped.

This page is made by `python -m tools.make_api_page`; a test compares it.
"""
HEAD = "| operation | what it does | permission | body → answer |\n|---|---|---|---|\n"


class Row(NamedTuple):
    """One operation, as the page shows it."""

    tag: str
    place: int
    path: str
    method: str
    summary: str
    permission: str
    body: str
    answer: str


def load_rows(document: Mapping[str, Any]) -> list[Row]:
    """Return every operation of an OpenAPI document by tag, path and method."""
    rows = [
        Row(
            operation["tags"][0],
            METHODS.index(method),
            path,
            method.upper(),
            " ".join(operation["description"].split("\n\n")[0].split()),
            operation["x-permission"],
            _body(operation),
            _answer(operation),
        )
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if method in METHODS
    ]
    return sorted(rows, key=lambda row: (row.tag, row.path, row.place))


def render(document: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    parts = [INTRO]
    for tag, rows in groupby(load_rows(document), key=lambda row: row.tag):
        parts.append(f"\n## {tag}\n\n{HEAD}" + "".join(map(_line, rows)))
    return "".join(parts)


def _line(row: Row) -> str:
    shape = f"{row.body} → {row.answer}" if row.body else f"→ {row.answer}"
    summary = row.summary.replace("|", "\\|")
    return f"| `{row.method} {row.path}` | {summary} | `{row.permission}` | {shape} |\n"


def _body(operation: Mapping[str, Any]) -> str:
    return _kinds(operation.get("requestBody", {}).get("content", {}))


def _answer(operation: Mapping[str, Any]) -> str:
    for code, response in sorted(operation["responses"].items()):
        if code.startswith("2"):
            kinds = _kinds(response.get("content", {}))
            return f"{code} {kinds}".rstrip()
    return ""


def _kinds(content: Mapping[str, Any]) -> str:
    """Return the schemas of the JSON in a body, and the media types of what is not JSON."""
    found = []
    for media, each in content.items():
        name = _schema(each.get("schema", {})) if media == "application/json" else ""
        found.append(name or f"`{media}`")
    return ", ".join(found)


def _schema(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    choices = schema.get("anyOf") or schema.get("oneOf") or []
    return " or ".join(filter(None, map(_schema, choices)))


if __name__ == "__main__":
    PAGE.write_text(render(json.loads(DOCUMENT.read_text(encoding="utf-8"))), encoding="utf-8")
