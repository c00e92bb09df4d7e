"""The schema that revisions make is the one that the tables declare, on both databases."""

import pytest
from sqlalchemy import text

from gpuplane.db.database import Database
from gpuplane.db.schema import current_revision, find_differences, head_revision, upgrade_schema
from gpuplane.entry.metadata import load_metadata


def test_an_empty_database_is_brought_to_the_newest_revision(database_url: str) -> None:
    database = Database(database_url)
    try:
        report = upgrade_schema(database.engine)
        assert (report.before, report.after) == (None, head_revision())
        assert current_revision(database.engine) == head_revision()
    finally:
        database.close()


def test_revisions_make_exactly_the_declared_tables(migrated_url: str) -> None:
    database = Database(migrated_url)
    try:
        assert find_differences(database.engine, load_metadata()) == []
    finally:
        database.close()


def test_upgrading_again_changes_nothing_and_copies_nothing(migrated_url: str) -> None:
    database = Database(migrated_url)
    try:
        report = upgrade_schema(database.engine)
        assert (report.before, report.after, report.copy) == (
            head_revision(),
            head_revision(),
            None,
        )
    finally:
        database.close()


def test_a_database_of_a_newer_version_is_refused_with_both_revisions(migrated_url: str) -> None:
    database = Database(migrated_url)
    try:
        with database.engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(RuntimeError, match=f"9999, this version knows {head_revision()}"):
            upgrade_schema(database.engine)
    finally:
        database.close()
