"""A home that was started once: schema, keys and clusters are there, preemption is quick."""

from __future__ import annotations

import time
from pathlib import Path

from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from tests.faults.planes import Plane

EAGER = {
    "min_runtime_before_preemption_s": 0,
    "max_preemptions_per_hour": 10_000,
    "grace_period_s": 0,
}


async def make_template(home: Path, database_url: str = "") -> Path:
    """Start a control plane once on a home of its own, and return the home to be copied."""
    plane = Plane(home, database_url)
    await plane.start()
    answer = await plane.ask("POST", "/secrets", {"name": "first", "value": "makes the key"})
    assert answer.status_code == 201, answer.text
    await plane.stop()
    database = Database(database_url or f"sqlite:///{home / 'gpuplane.db'}")
    try:
        now = int(time.time() * 1000)
        await database.write(
            "tests.eager",
            lambda s: clusters.patch_preemption_policy(s, "demo", EAGER, "tests", now),
        )
    finally:
        database.close()
    return home
