"""Fresh databases for tests: a SQLite file, or a database on a real PostgreSQL server.

A test that takes `database_url` (empty) or `migrated_url` (at the newest schema) runs once on
each. The schema is made once a run and copied for each test. Where no PostgreSQL server can be
had those runs are left out by name, with the reason.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpuplane.db.database import Database
from gpuplane.db.schema import upgrade_schema
from gpuplane.db.types import Base
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


BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once for each kind the product supports."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def make_tables(database: Database) -> None:
    """Make the tables of every imported domain on an empty database, without what migrations note.

    Statements are compiled once a process and sent together: most tests begin with this. One that
    migrations have brought to the newest schema has them already.
    """
    dialect = database.engine.dialect.name
    if sa.inspect(database.engine).has_table("db_leases"):
        return
    script = _script_of_tables(dialect, frozenset(Base.metadata.tables))
    raw = database.engine.raw_connection()
    try:
        cursor = raw.cursor()
        if dialect == "sqlite":
            cursor.executescript(f"BEGIN IMMEDIATE; {script}; COMMIT;")
        else:
            cursor.execute(script)
            raw.commit()
    finally:
        raw.close()


@cache
def _script_of_tables(dialect: str, _names: frozenset[str]) -> str:
    """Return the statements that make these tables and their indexes."""
    statements: list[str] = []

    def take(statement: sa.schema.ExecutableDDLElement, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)).strip())

    url = "sqlite://" if dialect == "sqlite" else "postgresql+psycopg://"
    engine = sa.create_mock_engine(url, take)
    Base.metadata.create_all(engine, checkfirst=False)
    return ";\n".join(statements)


def _upgrade(url: str) -> None:
    database = Database(url)
    try:
        upgrade_schema(database.engine)
    finally:
        database.close()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file at the newest schema, to be copied."""
    path = tmp_path_factory.mktemp("template") / "gpuplane.db"
    _upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgresql_template(postgres_server: PostgresServer) -> str:
    """The name of a PostgreSQL database at the newest schema, to be copied."""
    url = postgres_server.create_database()
    _upgrade(url)
    return url.rpartition("/")[2]


@pytest.fixture
def sqlite_migrated_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a SQLite file at the newest schema."""
    path = tmp_path / "gpuplane.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgresql_migrated_url(
    postgres_server: PostgresServer, postgresql_template: str
) -> Iterator[str]:
    """The URL of a PostgreSQL database at the newest schema, dropped after the test."""
    url = postgres_server.create_database(postgresql_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=BOTH)
def migrated_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database at the newest schema without rows, once for each kind."""
    url: str = request.getfixturevalue(f"{request.param}_migrated_url")
    return url
