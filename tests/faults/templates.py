"""A home that was started once: schema, keys and clusters are there, preemption is quick.

Its simulated cluster is the demo fleet with workloads that start and stop within a blink. Rounds of
load that a kill cut short queue up behind the same two nodes, so a start of two to six seconds each
would make the walks wait for arithmetic.
"""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path

import sqlalchemy as sa

from gpuplane.db.database import Database
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.tables import ClusterRow
from tests.faults.planes import Plane

EAGER = {
    "min_runtime_before_preemption_s": 0,
    "max_preemptions_per_hour": 10_000,
    "grace_period_s": 0,
}
SLOW = (
    "startDelay: {distribution: lognormal, median: 2s, p95: 6s}",
    "stopDelay: {distribution: uniform, min: 200ms, max: 2s}",
)
QUICK = (
    "startDelay: {distribution: lognormal, median: 80ms, p95: 300ms}",
    "stopDelay: {distribution: uniform, min: 5ms, max: 100ms}",
)


async def make_template(home: Path, database_url: str = "") -> Path:
    """Start a control plane once on a home of its own, and return the home to be copied."""
    plane = Plane(home, database_url)
    await plane.start()
    answer = await plane.ask("POST", "/secrets", {"name": "first", "value": "makes the key"})
    assert answer.status_code == 201, answer.text
    await plane.stop()
    fleet = make_quick_fleet(home.parent / "fleet.yaml")
    database = Database(database_url or f"sqlite:///{home / 'gpuplane.db'}")
    now = int(time.time() * 1000)

    def prepare(session: WriteSession) -> None:
        clusters.patch_preemption_policy(session, "demo", EAGER, "tests", now)
        demo = sa.update(ClusterRow).where(ClusterRow.name == "demo")
        session.execute(demo.values(config={"fleet": str(fleet)}))

    try:
        await database.write("tests.prepare", prepare)
    finally:
        database.close()
    return home


def make_quick_fleet(path: Path) -> Path:
    """Write the demo fleet with short delays and return where."""
    text = files("gpuplane").joinpath("data", "demo.yaml").read_text(encoding="utf-8")
    for slow, quick in zip(SLOW, QUICK, strict=True):
        assert slow in text, f"the demo fleet no longer says {slow!r}"
        text = text.replace(slow, quick)
    path.write_text(text, encoding="utf-8")
    return path
