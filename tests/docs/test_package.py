"""The wheel holds what runs, and starts from a folder that is no checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a wheel, built from a copy of the tree so that the tree stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    for name in ("src", "examples"):
        leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=leftovers)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=tree, check=True, capture_output=True
    )
    [wheel] = folder.glob("gpuplane-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder / "installed"


def test_the_wheel_holds_every_module_of_the_tree(installed: Path) -> None:
    wanted = {path.relative_to(ROOT / "src") for path in (ROOT / "src/gpuplane").rglob("*.py")}
    assert {path for path in wanted if not (installed / path).exists()} == set()


@pytest.mark.parametrize(
    "name", ["py.typed", "data/demo.yaml", "db/migrations/env.py", "db/migrations/script.py.mako"]
)
def test_the_wheel_holds_what_is_no_module(installed: Path, name: str) -> None:
    found = installed / "gpuplane" / name
    assert found.read_bytes() == (ROOT / "src/gpuplane" / name).read_bytes()


def test_the_wheel_makes_its_database_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    make = (
        "from gpuplane.db.database import Database; from gpuplane.db.schema import upgrade_schema;"
        "import gpuplane; d = Database('sqlite:///made.db'); print(upgrade_schema(d.engine).after);"
        "d.close(); print(gpuplane.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", make], cwd=tmp_path, env={"PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    revision, place = done.stdout.split()
    assert revision
    assert place.startswith(str(installed))
