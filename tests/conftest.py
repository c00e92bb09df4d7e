"""What every test gets: the fixtures of the rig, a home of its own, Hypothesis profiles."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from pathlib import Path

import hypothesis
import pytest

from tests.examples import share_of

pytest_plugins = ["tests.databases", "tests.left_out"]

# A slow machine is no failure, so no deadline. `make soak` looks longer. The explain phase traces
# every line of a failing example, which takes minutes where a database is behind it.
PHASES = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
for name, examples in (("default", share_of(60)), ("soak", 2_000)):
    hypothesis.settings.register_profile(
        name, deadline=None, max_examples=examples, print_blob=True, phases=PHASES
    )
hypothesis.settings.load_profile("default")

LONG_S = 300
"""A test that is allowed so long is one of the long ones."""


def pytest_configure(config: pytest.Config) -> None:
    # A shell ignores these for what it starts in the background; tests of Ctrl-C need them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if config.getoption("--soak"):
        hypothesis.settings.load_profile("soak")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin a worker's share a core with long tests, or the last of them runs while the rest wait.

    Shares are what `--dist worksteal` deals out at first: equal parts of the list, in its order.
    Who runs out of work takes from the end of another's share, so the long ones, which start
    control planes all the time, are never more at once than there are cores.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    lanes = min(workers, os.cpu_count() or 1)
    long = [item for item in items if _seconds_allowed(item) >= LONG_S]
    short = iter([item for item in items if _seconds_allowed(item) < LONG_S])
    cuts = [len(items) * place // workers for place in range(workers + 1)]
    items[:] = []
    for place in range(workers):
        first = long[place::lanes] if place < lanes else []
        items += first
        items += itertools.islice(short, max(0, cuts[place + 1] - cuts[place] - len(first)))
    items += short


def pytest_collection_finish() -> None:
    """Keep what was collected out of every later look for garbage.

    Thousands of tests and their modules are half a million objects that stay to the end: to walk
    them takes a second each time, again and again.
    """
    gc.collect()
    gc.freeze()


def _seconds_allowed(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None and marker.args else 0.0


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's settings and home out of every test."""
    for name in [name for name in os.environ if name.startswith("GPUPLANE_")]:
        if name != "GPUPLANE_DATA":
            monkeypatch.delenv(name)
    home: Path = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GPUPLANE_HOME", str(home / ".gpuplane"))
