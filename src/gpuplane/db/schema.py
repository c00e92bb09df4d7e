"""Brings a database to the newest schema; a SQLite file is copied first.

Alembic is imported only when there is something to do: a start on a current schema reads one row.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, MetaData, Text, inspect, text

from gpuplane.db.types import JsonOf

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """What an upgrade did: from which revision to which, and where the copy lies."""

    before: str | None
    after: str
    copy: Path | None = None


def head_revision() -> str:
    """Return the newest revision this version of the product knows."""
    names = sorted(path.stem for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
    return names[-1].split("_", 1)[0]


def current_revision(engine: Engine) -> str | None:
    """Return the revision a database is at, or None when it is empty."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        row = connection.execute(text("SELECT version_num FROM alembic_version")).first()
        return None if row is None else str(row[0])


def upgrade_schema(engine: Engine) -> SchemaReport:
    """Bring a database to the newest revision; doing it again changes nothing.

    Raises:
        RuntimeError: If the database is newer than this version of the product.
    """
    before, head = current_revision(engine), head_revision()
    if before == head:
        return SchemaReport(before, head)
    if before is not None and before > head:
        raise RuntimeError(
            f"The database is at revision {before}, this version knows {head}: start a version at "
            "least as new as the one that wrote it."
        )
    copy = _copy_first(engine, before)
    from alembic import command

    config = alembic_config()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
    return SchemaReport(before, head, copy)


def find_differences(engine: Engine, metadata: MetaData) -> list[Any]:
    """Return how a migrated database differs from the declared tables; empty when equal."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": _is_other_type})
        return list(compare_metadata(context, metadata))


def _is_other_type(
    _context: Any, _column: Any, _declared: Any, found: Any, wanted: Any
) -> bool | None:
    """Compare our typed JSON by what it is stored as; leave other types to Alembic."""
    return not isinstance(found, Text) if isinstance(wanted, JsonOf) else None


def alembic_config() -> "Config":
    """Return Alembic's configuration without a file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _copy_first(engine: Engine, before: str | None) -> Path | None:
    """Copy a SQLite file that holds something, beside itself, under its revision's name."""
    if engine.dialect.name != "sqlite" or before is None or not engine.url.database:
        return None
    source = Path(engine.url.database)
    copy = source.with_name(f"{source.name}.before-{head_revision()}")
    with engine.connect() as connection:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy2(source, copy)
        connection.exec_driver_sql("BEGIN")
    return copy
