"""A database of each kind with the ledger's tables, and a small world of one cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuplane.db.database import Database
from tests.integration.ledger.histories import open_database
from tests.integration.ledger.worlds import World


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = open_database(database_url)
    yield database
    database.close()


@pytest.fixture
def world(database: Database) -> World:
    """One node with four GPUs, nothing on it."""
    return World(database)
