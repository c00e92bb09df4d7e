"""A working control plane for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.kit.sealing import SealingKeys
from tests.http_app import sealing_keys
from tests.integration.pipelines.worlds import World, working_world

__all__ = ["sealing_keys"]


@pytest.fixture
async def world(tmp_path: Path, sealing_keys: SealingKeys) -> AsyncIterator[World]:
    """A control plane on a SQLite file."""
    async with working_world(tmp_path, sealing_keys) as working:
        yield working


@pytest.fixture
async def any_world(
    tmp_path: Path, sealing_keys: SealingKeys, database_url: str
) -> AsyncIterator[World]:
    """A control plane on each kind of database."""
    url = "" if database_url.startswith("sqlite") else database_url
    async with working_world(tmp_path, sealing_keys, url) as working:
        yield working
