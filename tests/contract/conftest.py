"""One suite for every backend: what a simulated one may not pass where a real one fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from gpuplane.backends.interface import Backend
from tests.contract.factories import BackendFactory, LocalFactory
from tests.contract.simulated import SimulatedFactory

FACTORIES: dict[str, Callable[[Path], BackendFactory]] = {
    "local": LocalFactory,
    "simulated": SimulatedFactory,
}


@pytest_asyncio.fixture(params=sorted(FACTORIES))
async def factory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BackendFactory]:
    """Each backend in turn; whatever a test leaves running is ended."""
    made = FACTORIES[request.param](tmp_path)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def backend(factory: BackendFactory) -> Backend:
    """The opened backend."""
    return await factory.open()
