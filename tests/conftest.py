"""What every test gets: the fixtures of the rig, a home of its own, Hypothesis profiles."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["tests.databases", "tests.left_out"]

# A slow machine is no failure, so no deadline. `make soak` looks longer. The explain phase traces
# every line of a failing example, which takes minutes where a database is behind it.
PHASES = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
for name, examples in (("default", 60), ("soak", 2_000)):
    hypothesis.settings.register_profile(
        name, deadline=None, max_examples=examples, print_blob=True, phases=PHASES
    )
hypothesis.settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    # A shell ignores these for what it starts in the background; tests of Ctrl-C need them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
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
