"""A clock, a folder and a way to open backends that are closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuplane.backends.simulated import Fleet, SimulatedBackend
from tests.clocks import FakeClock
from tests.unit.backends.simulated.fleets import a_backend, a_fleet

Open = Callable[..., SimulatedBackend]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def fleet() -> Fleet:
    return a_fleet()


@pytest.fixture
def open_backend(clock: FakeClock, tmp_path: Path) -> Iterator[Open]:
    """Open a backend on the test's folder; opening again is the restart of a control plane."""
    opened: list[SimulatedBackend] = []

    def open_one(fleet: Fleet, *, seed: int = 1, speed: float = 1.0) -> SimulatedBackend:
        opened.append(a_backend(fleet, clock, tmp_path, seed=seed, speed=speed))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()
