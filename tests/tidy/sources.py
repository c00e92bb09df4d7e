"""The files that the tidy tests read, parsed once."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "gpuplane"
CODE_FOLDERS = ("src", "tests", "rig", "tools", "benchmarks")


@cache
def tracked_files() -> tuple[Path, ...]:
    """Return every file that is committed or about to be, as git sees it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """Return the Python files under folders given relative to the root."""
    roots = [ROOT / folder for folder in folders or CODE_FOLDERS]
    return tuple(
        path
        for path in tracked_files()
        if path.suffix == ".py" and any(path.is_relative_to(root) for root in roots)
    )


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def place(path: Path, node: ast.AST | int) -> str:
    """Return `file:line`, as editors and terminals link it."""
    line = node if isinstance(node, int) else getattr(node, "lineno", 1)
    return f"{path.relative_to(ROOT)}:{line}"
