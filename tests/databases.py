"""Fresh databases for tests: a SQLite file, or a database on a real PostgreSQL server.

A test that takes `database_url` runs once on each. Where no PostgreSQL server can be had those
runs are left out by name, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.postgres import PostgresServer, PostgresUnavailable, running_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for the test run (one for each worker), started when first asked for."""
    try:
        with running_postgres() as server:
            yield server
    except PostgresUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'gpuplane.db'}"


@pytest.fixture
def postgresql_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, dropped after the test."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once for each kind the product supports."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
