"""Makes the schema of a SQLite file that is not there yet, in a process of its own.

What makes schemas, Alembic and every migration, would stay in the memory of the server that needed
it once: a tenth of all it takes when idle. As a module to be run it reads a database's URL from
its standard input.
"""

import subprocess
import sys
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from gpuplane.db.database import Database
from gpuplane.db.schema import upgrade_schema

TIMEOUT_S = 60.0
"""How long the other process may take; a second where the machine is calm."""


def make_first_schema(url: str) -> bool:
    """Make the schema of a SQLite file that is not there; False if that was not done.

    A failure is no error here: the schema is one transaction, so nothing is left behind, and
    whoever opens the database next makes the schema itself or says why it cannot.
    """
    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        return False
    if parts.get_backend_name() != "sqlite" or not parts.database or Path(parts.database).exists():
        return False
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=url.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _main() -> None:
    database = Database(sys.stdin.read())
    try:
        upgrade_schema(database.engine)
    finally:
        database.close()


if __name__ == "__main__":
    _main()
