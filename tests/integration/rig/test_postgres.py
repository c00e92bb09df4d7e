"""The database fixtures give real, empty, separate databases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from gpuplane.db.schema import current_revision, head_revision
from rig.postgres import PostgresServer, find_binaries
from tests.waiting import wait_until


def test_a_fresh_database_has_no_tables(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    try:
        assert sqlalchemy.inspect(engine).get_table_names() == []
    finally:
        engine.dispose()


def test_a_database_made_from_a_template_has_its_tables(postgres_server: PostgresServer) -> None:
    template = postgres_server.create_database()
    with psycopg.connect(template, autocommit=True) as connection:
        connection.execute("CREATE TABLE marks (n integer)")
    copy = postgres_server.create_database(template.rpartition("/")[2])
    try:
        with psycopg.connect(copy) as connection:
            assert connection.execute("SELECT count(*) FROM marks").fetchone() == (0,)
    finally:
        postgres_server.drop_database(copy)
        postgres_server.drop_database(template)


def test_dropping_a_database_closes_whoever_is_connected(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        postgres_server.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.mark.skipif(find_binaries() is None, reason="no PostgreSQL server on this machine")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_server_started_by_hand_ends_with_its_starter(ending: signal.Signals) -> None:
    root = Path(__file__).parents[3]
    starter = subprocess.Popen(
        [sys.executable, "-m", "rig.postgres"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        url = starter.stdout.readline().strip()
        psycopg.connect(url).close()
        starter.send_signal(ending)

    def refuses() -> bool:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return True
        return False

    wait_until(refuses, "the server of a starter that is gone refuses connections")
    assert starter.returncode == (0 if ending is signal.SIGINT else -signal.SIGKILL)


def test_a_migrated_database_is_at_the_newest_schema(migrated_url: str) -> None:
    engine = sqlalchemy.create_engine(migrated_url)
    try:
        assert current_revision(engine) == head_revision()
    finally:
        engine.dispose()
