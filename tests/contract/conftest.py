"""One suite for every backend: what a simulated one may not pass where a real one fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from gpuplane.backends.interface import Backend
from tests.contract.factories import BackendFactory, LocalFactory
from tests.contract.kubernetes import KubernetesFactory
from tests.contract.simulated import SimulatedFactory
from tests.kubernetes.rigged import rig, rig_binaries

__all__ = ["rig", "rig_binaries"]  # fixtures

FACTORIES: dict[str, Callable[[Path, pytest.FixtureRequest], BackendFactory]] = {
    "local": lambda folder, _: LocalFactory(folder),
    "simulated": lambda folder, _: SimulatedFactory(folder),
    "kubernetes": lambda folder, request: KubernetesFactory(
        folder, request.getfixturevalue("rig").connection()
    ),
}


@pytest_asyncio.fixture(params=sorted(FACTORIES))
async def factory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BackendFactory]:
    """Each backend in turn; whatever a test leaves running is ended."""
    made = FACTORIES[request.param](tmp_path, request)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def backend(factory: BackendFactory) -> Backend:
    """The opened backend."""
    return await factory.open()
