"""The world on the rig's cluster with Kueue, and its other cluster as a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpuplane.kit.sealing import SealingKeys
from tests.http_app import sealing_keys
from tests.kubernetes.kueue.dispatching import Worker, dispatching_turn, near_of
from tests.kubernetes.kueue.worlds import KueueWorld, running_kueue_world
from tests.kubernetes.rigged import RunningCluster

__all__ = ["near", "sealing_keys", "world"]


@pytest.fixture
async def world(
    rig: RunningCluster,
    sqlite_url: str,
    tmp_path: Path,
    sealing_keys: SealingKeys,
) -> AsyncIterator[KueueWorld]:
    """A product on the rig's cluster; what it makes there is taken away again."""
    async with running_kueue_world(
        rig.kubeconfig.read_text(), sqlite_url, tmp_path, sealing_keys
    ) as running:
        yield running


@pytest.fixture
async def housed(world: KueueWorld, add_nodes: Callable[..., list[str]]) -> KueueWorld:
    """The world with an L4 node of its own."""
    await world.house(add_nodes)
    return world


@pytest.fixture
async def near(
    world: KueueWorld,
    rig: RunningCluster,
    second_rig: RunningCluster,
    sealing_keys: SealingKeys,
    tmp_path: Path,
) -> AsyncIterator[Worker]:
    """The rig's other cluster as a worker of the first."""
    async with near_of(world, rig, second_rig, sealing_keys, tmp_path) as worker:
        yield worker


@pytest.fixture
async def turn(rig: RunningCluster) -> AsyncIterator[None]:
    """The manager's one list of workers to oneself; `near` has it already."""
    async with dispatching_turn(rig.kubeconfig.parent):
        yield
