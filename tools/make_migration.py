"""Writes the next revision from the difference between the declared tables and the last one.

Usage: python tools/make_migration.py 0002 "say what changes"
"""

import sys
import tempfile
from pathlib import Path

from alembic import command

from gpuplane.db.database import Database
from gpuplane.db.schema import alembic_config, head_revision, upgrade_schema
from gpuplane.entry.metadata import load_metadata


def main() -> None:
    """Upgrade an empty database to the last revision and let Alembic write the next."""
    number, message = sys.argv[1], sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'empty.db'}")
        try:
            head_revision()
        except IndexError:
            pass
        else:
            upgrade_schema(database.engine)
        config = alembic_config()
        with database.engine.connect() as connection:
            config.attributes["connection"] = connection
            config.attributes["metadata"] = load_metadata()
            command.revision(config, message=message, autogenerate=True, rev_id=number)
        database.close()


main()
