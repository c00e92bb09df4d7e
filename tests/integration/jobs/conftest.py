"""A world to try jobs in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.kit.sealing import SealingKeys
from tests.http_app import sealing_keys
from tests.integration.jobs.offers import admit_by_kueue
from tests.integration.jobs.worlds import World, running_world

__all__ = ["any_world", "kueue", "sealing_keys", "world"]


@pytest.fixture
async def world(
    sqlite_migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> AsyncIterator[World]:
    """A world on an empty SQLite file."""
    async with running_world(sqlite_migrated_url, tmp_path, sealing_keys) as running:
        yield running


@pytest.fixture
async def any_world(
    migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> AsyncIterator[World]:
    """A world on each kind of database."""
    async with running_world(migrated_url, tmp_path, sealing_keys) as running:
        yield running


@pytest.fixture
async def kueue(world: World) -> World:
    """A world whose cluster admits by itself, with a queue and a door of the admin's tenant."""
    await admit_by_kueue(world)
    return world
