"""What the simulated backend costs at 10,000 attempts on 1,000 nodes.

Run from the root: `PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_simulated`.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.fleets import uniform_fleet
from gpuplane.backends.interface import AttemptPlan, AttemptRef, ReplicaPlan
from gpuplane.backends.simulated import Fleet, SimulatedBackend, parse_fleet
from gpuplane.core.ids import AttemptId, JobId, ReplicaId, TenantId
from gpuplane.core.workloads import Execution, JobType, ResourceRequest, SimulatedBehaviour
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.ids import new_id

START_REFERENCE_S = 2.0
"""At most, to start all attempts durably, one after the other, on one core."""


def make_plan(fleet: Fleet, number: int) -> AttemptPlan:
    """Return a job of one GPU; the first 8,000 of 1,000 nodes have one each, the rest none."""
    node = fleet.nodes[number // 8 % len(fleet.nodes)]
    gpus = (node.gpus[number % 8].gpu_id,) if number < 8 * len(fleet.nodes) else ()
    return AttemptPlan(
        ref=AttemptRef(AttemptId(new_id()), 1),
        job_id=JobId(new_id()),
        job_name=f"job-{number}",
        tenant_id=TenantId(new_id()),
        tenant_name="default",
        project_name="default",
        attempt_number=1,
        job_type=JobType.BATCH,
        execution=Execution(simulated=SimulatedBehaviour(duration_s=3600.0)),
        resources=ResourceRequest(gpu_count=len(gpus)),
        replicas=(ReplicaPlan(ReplicaId(new_id()), 0, node.name, gpus),),
    )


async def measure(attempts: int, nodes: int, figures: dict[str, list[float]]) -> None:
    """Take one round of figures on a fresh state file."""

    async def timed(name: str, work: Callable[[], Awaitable[object]]) -> None:
        began = time.perf_counter()
        await work()
        figures.setdefault(name, []).append(time.perf_counter() - began)

    fleet = parse_fleet(uniform_fleet(nodes), "bench.yaml")
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "bench.db"
        backend = SimulatedBackend(fleet, SystemClock(), seed=1, state_path=state)
        plans = [make_plan(fleet, number) for number in range(attempts)]

        async def start() -> None:
            for plan in plans:
                await backend.ensure_workload(plan, {})

        await timed("start all, one after the other", start)
        cursor = (await backend.observe_replicas_since("")).cursor
        await timed("observe everything", backend.observe)
        await timed(
            "observe what changed (nothing)", lambda: backend.observe_replicas_since(cursor)
        )
        backend.close()
        began = time.perf_counter()
        backend = SimulatedBackend(fleet, SystemClock(), seed=1, state_path=state)
        figures.setdefault("open again", []).append(time.perf_counter() - began)

        async def stop() -> None:
            for plan in plans:
                await backend.evict(plan.ref, 0, "Cancelled")

        await timed("stop all, one after the other", stop)
        backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    figures: dict[str, list[float]] = {}
    for _ in range(arguments.runs):
        asyncio.run(measure(arguments.attempts, arguments.nodes, figures))
    print(
        f"machine {platform.processor() or platform.machine()}, Python {platform.python_version()}"
    )
    print(f"{arguments.attempts} attempts on {arguments.nodes} nodes, {arguments.runs} runs")
    for name, walls in figures.items():
        median = statistics.median(walls)
        print(f"{name}: median {median:.4f} s, spread {min(walls):.4f}-{max(walls):.4f} s")
    start = statistics.median(figures["start all, one after the other"])
    print(f"start reference {START_REFERENCE_S} s, ratio {start / START_REFERENCE_S:.2f}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
