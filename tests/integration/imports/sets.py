"""The sets of public files that imports are tried on; absent where GPUPLANE_DATA names none."""

from __future__ import annotations

import os
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents

FOLDER = Path(os.environ.get("GPUPLANE_DATA", "../shared/data")) / "imports"
needs_sets = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the sets of imports are not in GPUPLANE_DATA"
)


@lru_cache
def texts_of(name: str) -> dict[str, str]:
    """Return the YAML files of an archive by their path in it."""
    found = {}
    with tarfile.open(FOLDER / name) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None and member.name.endswith((".yaml", ".yml")):
                found[member.name.removeprefix("./")] = file.read().decode()
    return found


def documents_of(text: str) -> list[Any]:
    """Return the documents of a file; none if it is no YAML."""
    try:
        return load_documents(text)
    except UnreadableYaml:
        return []


def steps_of(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return steps and those inside their loops and branches."""
    found = []
    for step in steps:
        config = step["config"]
        inner = [*config.get("steps", []), *(s for b in config.get("branches", []) for s in b)]
        found += [step, *steps_of(inner)]
    return found
