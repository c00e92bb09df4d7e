"""What the product imports is declared, and what is declared is pinned by hash."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions

import pytest

from tests.tidy.sources import ROOT, python_files, tree_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Parts of a declared dependency that have a distribution of their own.
PARTS = {"httpcore2": "httpx2", "pydantic-core": "pydantic", "starlette": "fastapi"}
NAME = re.compile(r"[A-Za-z0-9._-]+")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str | None = None) -> set[str]:
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return {plain(found.group()) for line in lines if (found := NAME.match(line))}


def imported_packages() -> Iterator[str]:
    for path in python_files("src"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                yield node.module.partition(".")[0]


def test_everything_the_product_imports_is_declared() -> None:
    distributions = packages_distributions()
    outside = set(imported_packages()) - set(sys.stdlib_module_names) - {"gpuplane"}
    owners = {name: {plain(owner) for owner in distributions.get(name, [name])} for name in outside}
    undeclared = {
        name: sorted(found)
        for name, found in owners.items()
        if not {PARTS.get(owner, owner) for owner in found} & declared()
    }
    assert undeclared == {}


@pytest.mark.parametrize(("file", "extras"), [("runtime", ["build"]), ("dev", ["build", "dev"])])
def test_every_declared_dependency_is_pinned_with_hashes(file: str, extras: list[str]) -> None:
    text = (ROOT / "requirements" / f"{file}.txt").read_text(encoding="utf-8")
    pins = re.findall(
        r"^([a-z0-9._-]+)(?:\[[a-z0-9,-]+\])?==\S+ \\\n    --hash=sha256:", text, re.M
    )
    wanted = declared().union(*(declared(extra) for extra in extras))
    assert wanted - {plain(name) for name in pins} == set()


def test_the_image_has_no_root_and_installs_by_hash() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1].split(":")[0] not in {"0", "root"}
    assert any("pip install --require-hashes" in line for line in lines)
