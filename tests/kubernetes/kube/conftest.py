"""A client of the rig's API server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gpuplane.kube.clients import KubeClient
from tests.kubernetes.rigged import RunningCluster


@pytest.fixture
async def client(rig: RunningCluster) -> AsyncIterator[KubeClient]:
    async with KubeClient(rig.connection()) as found:
        yield found
