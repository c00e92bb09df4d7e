"""Each configuration is loaded by the real binary; providers are not needed for that."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.core.provisioning.specifications import GOLDEN

MADE = sorted(each.name for each in GOLDEN.glob("*.tf.json"))


def load(binary: str, folder: Path, text: str) -> tuple[int, str]:
    """Have the binary load a configuration and name the providers that it wants."""
    (folder / "main.tf.json").write_text(text)
    done = subprocess.run(
        [binary, "providers", "-no-color"], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "TF_DATA_DIR": str(folder / "data"), "NO_COLOR": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def without_backend(name: str) -> str:
    """A backend would have to be initialised first, which fetches providers."""
    document = json.loads((GOLDEN / name).read_text())
    del document["terraform"]["backend"]
    return json.dumps(document)


@pytest.mark.parametrize("name", MADE)
def test_the_binary_takes_the_language_of_a_configuration_and_the_pinned_provider(
    binary: str, tmp_path: Path, name: str
) -> None:
    code, said = load(binary, tmp_path, without_backend(name))
    assert code == 0, said
    ((_, wanted),) = json.loads((GOLDEN / name).read_text())["terraform"][
        "required_providers"
    ].items()
    assert f"{wanted['source']}] {wanted['version']}" in said


def test_the_binary_would_refuse_a_reference_that_is_written_wrongly(
    binary: str, tmp_path: Path
) -> None:
    text = without_backend("train-eu.tf.json").replace("scaling_config[0]", "scaling_config[0")
    code, said = load(binary, tmp_path, text)
    assert (code, "Invalid expression" in said) == (1, True)
