"""A scripted HTTPS server for each test, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.kube.clients import KubeClient
from tests.clocks import FakeClock
from tests.integration.kube.scripted import ScriptedServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ScriptedServer]:
    found = ScriptedServer(tmp_path)
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def client(server: ScriptedServer, clock: FakeClock) -> AsyncIterator[KubeClient]:
    async with KubeClient(server.connection(), clock=clock) as found:
        yield found
