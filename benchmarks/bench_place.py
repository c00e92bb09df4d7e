"""What it costs to place, meter, release and total 10,000 attempts on 1,000 nodes of 8 GPUs.

Run from the root: `PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_place`; with `--url` on
another database, which has to be empty.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpuplane.core.ids import AttemptId, ClusterId, JobId, ProjectId, ReplicaId, TenantId
from gpuplane.db.database import Database
from gpuplane.db.sessions import WriteSession
from gpuplane.db.types import Base
from gpuplane.domains.billing import service as billing
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import PlacementOrder, ReplicaOrder
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.service import UsageQuery
from gpuplane.kit.ids import new_id
from tests.integration.ledger.histories import START, a_node

T = TypeVar("T")

PLACE_REFERENCE_S = 2.0
"""At most, of processor time, to place all attempts in one transaction on SQLite."""
GPUS = 8
MINUTE_MS = 60_000


def make_orders(nodes: list[Node], count: int, share: int) -> list[PlacementOrder]:
    """Return single-replica orders; each takes a share of one GPU while there are GPUs."""
    tenant_id, project_id = TenantId(new_id()), ProjectId(new_id())
    per_gpu = 1000 // share
    orders = []
    for number in range(count):
        gpu = number // per_gpu
        node = nodes[gpu // GPUS % len(nodes)]
        gpus = (node.gpus[gpu % GPUS].gpu_id,) if gpu < GPUS * len(nodes) else ()
        replica = ReplicaOrder(ReplicaId(new_id()), 0, node.id, gpus, share, None, 1000, 1024, 1024)
        orders.append(
            PlacementOrder(
                AttemptId(new_id()),
                JobId(new_id()),
                tenant_id,
                project_id,
                node.cluster_id,
                (replica,),
            )
        )
    return orders


def measure(database: Database, attempts: int, count: int, figures: dict[str, list[float]]) -> None:
    """Take one round of figures on a cluster of its own."""
    cluster_id = ClusterId(new_id())
    nodes = [a_node(cluster_id, GPUS, f"node-{number}") for number in range(count)]
    nodes = [replace(each, ephemeral_mib=4_000_000) for each in nodes]
    now = START

    def timed(name: str, work: Callable[[], T]) -> T:
        nonlocal now
        now += MINUTE_MS
        began, worked = time.perf_counter(), time.process_time()
        result = work()
        figures.setdefault(name, []).append(time.perf_counter() - began)
        figures.setdefault(f"{name}, processor", []).append(time.process_time() - worked)
        return result

    def write(name: str, work: Callable[..., T]) -> T:
        return timed(name, lambda: database.write_now("bench", lambda s: work(s, now)))

    def register(session: WriteSession, at: int) -> int:
        return placements.register_devices(session, nodes, at, simulated=True)

    write("register devices", register)
    write("register again, unchanged", register)
    orders = make_orders(nodes, attempts, 500)
    ids = [order.attempt_id for order in orders]
    result = write("place", lambda s, at: placements.place(s, orders, at))
    if len(result.placed) != attempts:
        raise SystemExit(f"placed {len(result.placed)} of {attempts}: {result.refused}")
    write("mark busy", lambda s, at: placements.mark_busy(s, ids, at))
    query = UsageQuery(0, now, ("tenant", "model"))
    timed(
        "usage by tenant and model",
        lambda: database.read_now(lambda s: billing.sum_costs(s, query, now)),
    )
    faults = timed(
        "check", lambda: database.read_now(lambda s: [*placements.check(s), *usage.check(s, now)])
    )
    if faults:
        raise SystemExit(faults[0])
    write("release", lambda s, at: placements.release(s, ids, at))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url")
    asked = parser.parse_args()
    figures: dict[str, list[float]] = {}
    for _ in range(asked.rounds):
        with tempfile.TemporaryDirectory() as folder:
            database = Database(asked.url or f"sqlite:///{Path(folder) / 'bench.db'}")
            Base.metadata.create_all(database.engine)
            measure(database, asked.attempts, asked.nodes, figures)
            database.close()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{platform.machine()} {platform.python_version()}, {asked.attempts} attempts")
    for name, values in figures.items():
        spread = max(values) - min(values)
        print(f"{name:36} median {statistics.median(values):6.2f} s, spread {spread:5.2f} s")
    ratio = statistics.median(figures["place, processor"]) / PLACE_REFERENCE_S
    print(
        f"place / reference of {PLACE_REFERENCE_S} s: {ratio:.2f}; peak memory {peak_mib:.0f} MiB"
    )


if __name__ == "__main__":
    main()
