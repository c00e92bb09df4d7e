"""What must hold on a home's database, whatever was killed when."""

from __future__ import annotations

import time
from pathlib import Path

from gpuplane.db.database import Database
from gpuplane.entry.checking import find_faults


def faults_of(home: Path, database_url: str = "") -> list[str]:
    """Return every broken promise of a home's rows; nobody needs to serve it."""
    database = Database(database_url or f"sqlite:///{home / 'gpuplane.db'}")
    try:
        now = int(time.time() * 1000)
        return database.read_now(lambda session: find_faults(session, now))
    finally:
        database.close()
