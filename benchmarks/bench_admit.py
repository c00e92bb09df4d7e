"""10,000 queued jobs that fit on 1,000 simulated nodes: admitted, allocated, events committed."""

from __future__ import annotations

import argparse
import asyncio
import resource
import sqlite3
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Limit, print_figure, print_machine
from benchmarks.fleets import write_uniform_fleet
from gpuplane.core.ids import ClusterId, ProjectId, TenantId, UserId
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.workloads import (
    DeploymentType,
    Execution,
    JobSpec,
    JobType,
    ResourceRequest,
    SimulatedBehaviour,
)
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Submission, SubmitLimits
from gpuplane.entry.checking import find_faults
from gpuplane.entry.control import ControlPlane, build
from gpuplane.entry.environment import load_settings
from gpuplane.entry.home import Home
from gpuplane.kit.ids import new_id

BATCH = 500
ROWS_PER_JOB = 8
"""Written for a job with one GPU: attempt, replica, two allocations, its event, its interval and
holding, and the job itself."""


def spec_of(number: int) -> JobSpec:
    """Return one of ten shapes: whole GPUs and halves, with little or more beside them."""
    return JobSpec(
        name=f"job-{number}",
        job_type=JobType.BATCH,
        deployment_type=DeploymentType.PROCESS,
        resources=ResourceRequest(
            gpu_count=1,
            gpu_milli=500 if number % 2 else 1000,
            cpu_milli=1000 + number % 5 * 500,
            memory_mib=1024,
            ephemeral_mib=100,
        ),
        execution=Execution(simulated=SimulatedBehaviour(duration_s=3600.0)),
    )


async def submit_all(control: ControlPlane, count: int) -> None:
    """Queue so many jobs."""
    read = control.database.read_now
    tenant = read(lambda s: identity.find_tenant_by_name(s, "default"))
    assert tenant is not None
    project = read(lambda s: identity.find_project_in(s, tenant.id, "default"))
    assert project is not None
    now = int(time.time() * 1000)

    def part(session: WriteSession, start: int) -> None:
        for number in range(start, min(count, start + BATCH)):
            submission = Submission(
                spec_of(number), TenantId(tenant.id), ProjectId(project.id),
                UserId(tenant.id), "bench", "bench",
            )  # fmt: skip
            jobs.submit(session, submission, SubmitLimits(), now)

    for start in range(0, count, BATCH):
        await control.database.write("bench.submit", lambda s, start=start: part(s, start))


def plain_rows_s(folder: Path, rows: int) -> float:
    """Return how long so many plain rows take to store, in batches that are durable each."""
    database = sqlite3.connect(folder / "reference.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE rows (id TEXT PRIMARY KEY, other TEXT, body TEXT)")
    database.execute("CREATE INDEX other ON rows (other)")
    began = time.perf_counter()
    for start in range(0, rows, BATCH * ROWS_PER_JOB):
        database.execute("BEGIN IMMEDIATE")
        database.executemany(
            "INSERT INTO rows VALUES (?, ?, ?)",
            [
                (str(new_id()), str(n), "x" * 300)
                for n in range(start, start + BATCH * ROWS_PER_JOB)
            ],
        )
        database.execute("COMMIT")
    took = time.perf_counter() - began
    database.close()
    return took


async def measure(folder: Path, count: int, nodes: int) -> tuple[float, float, dict[str, float]]:
    """Return the seconds and the CPU seconds from queued to committed, and what they went into."""
    settings = load_settings({}, home=folder / "home", port=0)
    home = Home(settings.home)
    home.open()
    control = build(settings, home)
    await control.start()
    await control.runner.stop()  # each loop is turned by hand, so that nothing else is measured
    fleet = write_uniform_fleet(folder / "fleet.yaml", nodes)
    cluster = await control.database.write(
        "bench.cluster",
        lambda s: clusters.ensure_cluster(
            s, ClusterId(new_id()), name="bench", kind="simulated", simulated=True,
            config={"fleet": str(fleet)}, now=int(time.time() * 1000),
        ),
    )  # fmt: skip
    control.backends.add(cluster)
    await control.loops["inventory"].run_once()
    await submit_all(control, count)
    began, cpu = time.perf_counter(), time.process_time()
    while await control.loops["scheduler"].run_once():
        pass
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    admitted = control.database.read_now(lambda s: len(jobs.list_holding_versions(s)))
    left = control.database.read_now(lambda s: len(jobs.list_queued_versions(s)))
    if admitted != count or left:
        raise RuntimeError(f"{admitted} of {count} were admitted, {left} are {JobStatus.QUEUED}")
    parts = {name: times.seconds for name, times in control.database.times.items()}
    began = time.perf_counter()
    faults = control.database.read_now(lambda s: find_faults(s, int(time.time() * 1000)))
    if faults:
        raise RuntimeError(f"broken promises: {faults[:3]}")
    parts["db check"] = time.perf_counter() - began
    await control.stop()
    home.close()
    return took, cpu, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    print_machine()
    walls, cpus = [], []
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as name:
        for run in range(arguments.runs):
            folder = Path(name) / str(run)
            folder.mkdir()
            reference = plain_rows_s(folder, arguments.jobs * ROWS_PER_JOB)
            took, cpu, parts = asyncio.run(measure(folder, arguments.jobs, arguments.nodes))
            walls.append(took)
            cpus.append(cpu)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print_figure(
        f"{arguments.jobs} jobs queued to committed on {arguments.nodes} nodes", walls, "s",
        Limit("at most", 10.0), (f"{ROWS_PER_JOB} plain rows a job", reference),
    )  # fmt: skip
    print_figure("the same in CPU time", cpus, "s")
    print_figure("peak memory", [memory], "MB", Limit("at most", 500.0))
    for part in ("jobs.admit", "db check"):
        print(
            f"  of that {part}: {parts[part]:.2f} s"
            if part != "db check"
            else f"  afterwards db check: {parts[part]:.2f} s"
        )


if __name__ == "__main__":
    main()
