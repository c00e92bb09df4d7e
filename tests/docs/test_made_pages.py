"""The pages that are made from the product are as the product is."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tools import make_api_page, make_errors_page

ROOT = Path(__file__).parents[2]
DOCUMENT = json.loads((ROOT / make_api_page.DOCUMENT).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return make_errors_page.load_trees()


def test_the_page_of_the_api_is_the_one_its_document_makes() -> None:
    page = (ROOT / make_api_page.PAGE).read_text(encoding="utf-8")
    assert page == make_api_page.render(DOCUMENT), "run `python -m tools.make_api_page`"


def test_every_operation_is_on_the_page_with_its_permission() -> None:
    rows = make_api_page.load_rows(DOCUMENT)
    assert len(rows) == sum(len(operations) for operations in DOCUMENT["paths"].values())
    assert [row for row in rows if not (row.permission and row.summary and row.tag)] == []


def test_the_page_of_errors_is_the_one_the_source_makes(trees: dict[str, ast.Module]) -> None:
    page = (ROOT / make_errors_page.PAGE).read_text(encoding="utf-8")
    assert page == make_errors_page.render(trees), "run `python -m tools.make_errors_page`"


def test_a_code_keeps_one_status(trees: dict[str, ast.Module]) -> None:
    found: dict[str, set[int]] = {}
    for row in make_errors_page.rows_of(trees):
        found.setdefault(row.code, set()).add(row.status)
    assert {code: statuses for code, statuses in found.items() if len(statuses) > 1} == {}


def test_meanings_written_by_hand_belong_to_codes_that_exist(trees: dict[str, ast.Module]) -> None:
    codes = {row.code for row in make_errors_page.rows_of(trees)}
    assert set(make_errors_page.MEANINGS) - codes == set()
