"""A database of each kind with the ledger's tables, a small world of one cluster, the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from gpuplane.db.database import Database
from gpuplane.domains.billing import endpoints as billing
from gpuplane.domains.placements import endpoints as placements
from gpuplane.domains.usage import endpoints as usage
from gpuplane.kit.sealing import SealingKeys
from tests.http_app import Server, running_server, sealing_keys
from tests.integration.ledger.histories import open_database
from tests.integration.ledger.worlds import World

__all__ = ["sealing_keys"]

ROUTERS = (usage.router, billing.router, placements.router)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = open_database(database_url)
    yield database
    database.close()


@pytest.fixture
def world(database: Database) -> World:
    """One node with four GPUs, nothing on it."""
    return World(database)


@pytest.fixture
async def server(sqlite_url: str, sealing_keys: SealingKeys) -> AsyncIterator[Server]:
    """The API of the ledger on an empty SQLite file."""
    async with running_server(sqlite_url, sealing_keys, routers=ROUTERS) as running:
        yield running


@pytest.fixture
async def any_server(database_url: str, sealing_keys: SealingKeys) -> AsyncIterator[Server]:
    """The API of the ledger on each kind of database."""
    async with running_server(database_url, sealing_keys, routers=ROUTERS) as running:
        yield running
