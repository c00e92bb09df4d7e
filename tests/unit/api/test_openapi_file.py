"""The committed OpenAPI file, which clients are generated from, is what the app says."""

from __future__ import annotations

import json

from tools.openapi import FILE, render_openapi


def test_the_committed_openapi_file_is_what_the_app_says() -> None:
    committed = FILE.read_text(encoding="utf-8")
    assert json.loads(committed) == json.loads(render_openapi()), "run: make openapi"


def test_every_operation_says_what_it_does_and_has_an_id_of_its_own() -> None:
    operations = [
        (f"{verb} {path}", operation)
        for path, verbs in json.loads(render_openapi())["paths"].items()
        for verb, operation in verbs.items()
    ]
    assert operations
    assert [name for name, operation in operations if not operation.get("summary")] == []
    ids = [operation["operationId"] for _, operation in operations]
    assert len(ids) == len(set(ids))
