"""A backend on the rig's cluster, with a cluster id of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from gpuplane.backends.kubernetes.backend import KubernetesBackend
from tests.contract.kubernetes import KubernetesFactory
from tests.kubernetes.rigged import RunningCluster


@pytest_asyncio.fixture
async def factory(rig: RunningCluster, tmp_path: Path) -> AsyncIterator[KubernetesFactory]:
    """What makes and reopens the backend; what a test leaves is deleted."""
    made = KubernetesFactory(tmp_path, rig.connection())
    yield made
    await made.close()


@pytest_asyncio.fixture
async def backend(factory: KubernetesFactory) -> KubernetesBackend:
    """The opened backend."""
    return await factory.open()
