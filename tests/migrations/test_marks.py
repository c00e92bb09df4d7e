"""Registered clusters of before the mark are marked where they took work, and only those."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from gpuplane.db.database import Database
from gpuplane.db.schema import alembic_config, upgrade_schema

CASES = {
    "available": ("kubernetes", "AVAILABLE", None, True),
    "away": ("kubernetes", "NOT_AVAILABLE", 5, True),
    "exhausted": ("kubernetes", "ERROR", 5, True),
    "draining": ("kubernetes", "DRAINING", None, True),
    "failed": ("kubernetes", "ERROR", None, False),
    "coming": ("kubernetes", "REGISTERING", None, False),
    "here": ("local", "AVAILABLE", None, False),
}
"""Kind, state, since when it is out of reach, and whether it took work."""


def bring_to(engine: Engine, revision: str) -> None:
    from alembic import command

    config = alembic_config()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()


@pytest.fixture
def database(database_url: str) -> Database:
    """A database of the revision before, with a cluster of each case."""
    found = Database(database_url)
    bring_to(found.engine, "0008")
    with found.engine.begin() as connection:
        for number, (name, (kind, state, since, _)) in enumerate(CASES.items(), 1):
            given = {
                "id": UUID(int=number).hex if "sqlite" in database_url else UUID(int=number),
                "name": name, "kind": kind, "state": state, "since": since,
                "config": json.dumps({"admission": "embedded"}),
            }  # fmt: skip
            connection.execute(
                text(
                    "INSERT INTO clusters_clusters (id, name, kind, simulated, state, state_reason,"
                    " not_available_since, labels, notes, config, frozen, frozen_reason,"
                    " preemption_policy, gpu_shapes, inventory_generation, created_at, updated_at,"
                    " version) VALUES (:id, :name, :kind, false, :state, '', :since, '{}', '[]',"
                    " :config, false, '', '{}', '{}', 0, 0, 0, 1)"
                ),
                given,
            )
    return found


def test_those_that_took_work_are_marked_by_the_upgrade(database: Database) -> None:
    try:
        upgrade_schema(database.engine)
        with database.engine.connect() as connection:
            rows = connection.execute(text("SELECT name, config FROM clusters_clusters")).all()
    finally:
        database.close()
    found = {name: json.loads(kept) if isinstance(kept, str) else kept for name, kept in rows}
    assert {name: kept.get("was_available", False) for name, kept in found.items()} == {
        name: marked for name, (_, _, _, marked) in CASES.items()
    }
    assert {kept["admission"] for kept in found.values()} == {"embedded"}
