"""Worlds for tests of runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.runs.handlers import Stage
from tests.integration.runs.worlds import World, running_world


@pytest.fixture
async def world(sqlite_migrated_url: str) -> AsyncIterator[World]:
    """A world on a SQLite file."""
    async with running_world(sqlite_migrated_url) as running:
        yield running


@pytest.fixture
async def any_world(migrated_url: str) -> AsyncIterator[World]:
    """A world on each kind of database."""
    async with running_world(migrated_url) as running:
        yield running


@pytest.fixture
def stage(world: World) -> Stage:
    """Handlers that the test steers, known to the world on SQLite."""
    return Stage(world.handlers)


@pytest.fixture
def any_stage(any_world: World) -> Stage:
    """The same on each kind of database."""
    return Stage(any_world.handlers)
