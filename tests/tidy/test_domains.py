"""Seen one domain package, seen all; and each keeps to its own tables."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.sources import PACKAGE, place, python_files, tree_of

PARENT = PACKAGE / "domains"
ANATOMY = {"endpoints", "errors", "repository", "rules", "schemas", "service", "tables"}
FURTHER = {"pipelines": {"documents", "expressions", "steps"}}
"""What a domain has between the seven: docs/decisions/0019."""
DOMAINS = sorted({path.parent for path in python_files() if path.parent.parent == PARENT})
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE)\b")
NAMED_TABLE = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+\"?(?:ONLY\s+)?([a-z_]+)", re.IGNORECASE)


def files_of(domain: Path, module: str) -> list[Path]:
    """Return the files of one of the seven: a file, or a package when one file would be long."""
    return [
        path
        for path in python_files("src/gpuplane/domains")
        if path == domain / f"{module}.py" or path.is_relative_to(domain / module)
    ]


def table_names(domain: Path) -> set[str]:
    """Return the tables a domain declares: `__tablename__ = "…"` and `Table("…", …)`."""
    names = set()
    for node in (node for path in files_of(domain, "tables") for node in ast.walk(tree_of(path))):
        match node:
            case ast.Assign(
                targets=[ast.Name(id="__tablename__")], value=ast.Constant(value=str(name))
            ):
                names.add(name)
            case ast.Call(func=ast.Name(id="Table"), args=[ast.Constant(value=str(name)), *_]):
                names.add(name)
    return names


def sql_strings(tree: ast.AST) -> list[ast.Constant]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.search(node.value)
    ]


def tables_named_in(text: str) -> set[str]:
    return {name.lower() for name in NAMED_TABLE.findall(text)}


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda path: path.name)
def test_a_domain_package_has_exactly_the_seven_files(domain: Path) -> None:
    own = [path for path in python_files("src/gpuplane/domains") if path.is_relative_to(domain)]
    names = sorted({path.relative_to(domain).parts[0].removesuffix(".py") for path in own})
    assert names == sorted(ANATOMY | FURTHER.get(domain.name, set()) | {"__init__"})


def test_no_table_belongs_to_two_domains() -> None:
    owners: dict[str, list[str]] = {}
    for domain in DOMAINS:
        for name in table_names(domain):
            owners.setdefault(name, []).append(domain.name)
    assert {name: found for name, found in owners.items() if len(found) > 1} == {}


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda path: path.name)
def test_the_sql_of_a_repository_names_only_its_own_tables(domain: Path) -> None:
    foreign = {name for other in DOMAINS if other != domain for name in table_names(other)}
    found = {
        place(path, text): sorted(names)
        for path in files_of(domain, "repository")
        for text in sql_strings(tree_of(path))
        if (names := tables_named_in(str(text.value)) & foreign)
    }
    assert found == {}


def test_tables_are_found_in_sql() -> None:
    text = 'SELECT * FROM jobs j JOIN "job_attempts" a ON a.job_id = j.id'
    assert tables_named_in(text) == {"jobs", "job_attempts"}
    assert tables_named_in("INSERT INTO events (id) VALUES (1)") == {"events"}
    assert tables_named_in("UPDATE nodes SET state = 'up'") == {"nodes"}


def test_every_domain_that_is_declared_in_the_import_contract_exists() -> None:
    text = (PACKAGE.parents[1] / ".importlinter").read_text(encoding="utf-8")
    section = text.partition("[importlinter:contract:domain-order]")[2].partition("\n[")[0]
    declared = set(re.findall(r"^ {4}\(?([a-z]+)\)?$", section, re.MULTILINE))
    assert declared == {domain.name for domain in DOMAINS}
