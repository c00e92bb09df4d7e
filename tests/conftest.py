"""What every test gets: the fixtures of the rig, a home of its own, Hypothesis profiles."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["tests.databases", "tests.left_out"]

# A slow machine is no failure, so no deadline. `make soak` looks longer.
hypothesis.settings.register_profile("default", deadline=None, max_examples=60, print_blob=True)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--soak"):
        hypothesis.settings.load_profile("soak")


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's settings and home out of every test."""
    for name in [name for name in os.environ if name.startswith("GPUPLANE_")]:
        if name != "GPUPLANE_DATA":
            monkeypatch.delenv(name)
    home: Path = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GPUPLANE_HOME", str(home / ".gpuplane"))
