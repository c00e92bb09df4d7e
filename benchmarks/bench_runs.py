"""The engine of durable runs: a chain, a fan-out, a large DAG, many runs at once, sleeping runs.

Built-in handlers only, so that what is measured is the engine. Wall time is what the figures are
about; process CPU time is printed beside it because a machine that others use changes the former.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import uvloop
from prometheus_client import CollectorRegistry

from benchmarks.figures import Limit, print_figure, print_machine, quantile
from gpuplane.core.runs.plans import Answer, Completed, RunPlan, StepCall, StepPlan
from gpuplane.db.database import Database
from gpuplane.db.schema import upgrade_schema
from gpuplane.db.sessions import WriteSession
from gpuplane.db.units import Gathered
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import RunView
from gpuplane.kit.clock import SystemClock
from gpuplane.kit.loops import LoopRunner
from gpuplane.loops.runs.loop import RunsLoop
from gpuplane.loops.runs.meters import RunMeters
from rig.postgres import PostgresUnavailable, running_postgres

PLACE = UUID(int=9 << 64)
CHAIN, WORK_S = 40, 0.010
OPEN = ("pending", "running")
LOOK_S = 0.02


def start_all(
    session: WriteSession, items: Sequence[tuple[RunPlan, int]]
) -> list[RunView | Exception]:
    """Start what was asked for at the same time in one transaction."""
    return runs.start_runs(session, [plan for plan, _ in items], items[0][1])


START = Gathered("runs.start", start_all)


@dataclass
class Bench:
    """A database with a worker."""

    database: Database
    clock: SystemClock
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    async def work(self, call: StepCall) -> Answer:
        """Take ten milliseconds, and note when that began and ended."""
        self.began.append(time.perf_counter())
        await asyncio.sleep(WORK_S)
        self.ended.append(time.perf_counter())
        return Completed()

    async def start(self, steps: Sequence[StepPlan]) -> UUID:
        plan = RunPlan("bench", "bench", PLACE, PLACE, steps)
        run = await self.database.write_gathered(START, (plan, self.clock.now_ms()))
        return run.id

    async def until_idle(self) -> None:
        """Wait until no run is open."""
        while await self.database.read(runs.count_open_runs):  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(LOOK_S)


def a_step(key: str, *needs: str, handler: str = "runs.nothing") -> StepPlan:
    return StepPlan(key=key, handler=handler, needs=needs)


@contextlib.asynccontextmanager
async def benching(url: str) -> AsyncIterator[Bench]:
    """Open a database and start a worker on it."""
    database = Database(url)
    upgrade_schema(database.engine)
    bench = Bench(database, SystemClock())
    handlers = runs.Handlers()
    handlers.add("work", bench.work, reads_outputs=True)
    loop = RunsLoop(database, bench.clock, handlers, RunMeters(CollectorRegistry()))
    runner = LoopRunner(bench.clock)
    runner.add(loop)
    database.on_commit(runner.wake)
    runner.start()
    try:
        yield bench
    finally:
        await runner.stop()
        await loop.stop()
        database.close()


async def chain(bench: Bench, kind: str, samples: int) -> None:
    """What a step costs that depends on the one before: from its end to the next one's begin."""
    gaps: list[float] = []
    cpu: list[float] = []
    for _ in range(samples):
        bench.began.clear()
        bench.ended.clear()
        spent = time.process_time()
        await bench.start(
            [a_step(f"s{n}", *([f"s{n - 1}"] if n else []), handler="work") for n in range(CHAIN)]
        )
        while len(bench.ended) < CHAIN:  # noqa: ASYNC110 - asking the database would disturb it
            await asyncio.sleep(5 * LOOK_S)
        await bench.until_idle()
        cpu.append((time.process_time() - spent) * 1000 / CHAIN)
        pairs = zip(bench.ended, bench.began[1:], strict=False)
        gaps += [(began - ended) * 1000 for ended, began in pairs]
    print_figure(
        f"{kind} control cost of a dependent step, chain of {CHAIN}", gaps, "ms",
        Limit("at most", 3.0), ("a durable commit alone", await commit_ms(bench)),
    )  # fmt: skip
    print(f"  p90 {quantile(gaps, 0.9):.2f} ms; process CPU a step {min(cpu):.2f} ms")


async def commit_ms(bench: Bench) -> float:
    """Return how long a unit takes that changes one row."""
    times = []
    for _ in range(CHAIN):
        began = time.perf_counter()
        await bench.database.write(
            "bench.commit", lambda s: runs.beat(s, "nobody", bench.clock.now_ms(), 10_000)
        )
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def timed(bench: Bench, steps: Sequence[StepPlan]) -> tuple[float, float]:
    """Return wall and CPU seconds of a run from its start to its end."""
    began, cpu = time.perf_counter(), time.process_time()
    await bench.start(steps)
    await bench.until_idle()
    return time.perf_counter() - began, time.process_time() - cpu


async def shape(
    bench: Bench, kind: str, name: str, steps: Sequence[StepPlan], limit_s: float, samples: int
) -> None:
    """How long one run takes."""
    walls, cpus = [], []
    for _ in range(samples):
        wall, cpu = await timed(bench, steps)
        walls.append(wall)
        cpus.append(cpu)
    print_figure(f"{kind} {name}", walls, "s", Limit("at most", limit_s))
    print(f"  process CPU {min(cpus):.2f} s")


def fan(width: int) -> list[StepPlan]:
    """Return one step, so many that need it, and one that needs them all."""
    leaves = [f"f{n}" for n in range(width)]
    return [a_step("a"), *(a_step(key, "a") for key in leaves), a_step("z", *leaves)]


def dag(nodes: int) -> list[StepPlan]:
    """Return a DAG in layers of a hundred; each node needs up to three of the layer before."""
    return [
        a_step(f"n{n}", *(sorted({f"n{n - 100 + offset}" for offset in (0, n % 7, -(n % 11))})
                          if n >= 111 else ()))
        for n in range(nodes)
    ]  # fmt: skip


async def many(bench: Bench, kind: str, count: int, limit: float, samples: int) -> None:
    """How many runs of five steps are over in a second when so many are started at once."""
    rates, cpu_rates = [], []
    steps = [a_step(f"s{n}", *([f"s{n - 1}"] if n else [])) for n in range(5)]
    for _ in range(samples):
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(bench.start(steps) for _ in range(count)))
        await bench.until_idle()
        rates.append(count / (time.perf_counter() - began))
        cpu_rates.append(count / (time.process_time() - cpu))
    print_figure(f"{kind} {count} runs of 5 steps at once", rates, "runs/s",
                 Limit("at least", limit))  # fmt: skip
    print(f"  by process CPU {max(cpu_rates):.0f} runs/s")


async def sleeping(bench: Bench, kind: str, count: int, seconds: float) -> None:
    """What runs cost that sleep for a day."""
    plan = RunPlan(
        "bench", "nap", PLACE, PLACE,
        [StepPlan("nap", "runs.sleep", {"ms": 86_400_000}), a_step("after", "nap")],
    )  # fmt: skip
    for _ in range(0, count, 500):
        now = bench.clock.now_ms()
        await bench.database.write(
            "runs.start", lambda s, n=now: runs.start_runs(s, [plan] * 500, n)
        )
    names = ["runs.sleep"]
    while await bench.database.read(lambda s: runs.next_look(s, names) or 0) < now:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.5)
    await asyncio.sleep(3)
    shares = []
    for _ in range(3):
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        shares.append(100 * (time.process_time() - cpu) / (time.perf_counter() - began))
    print_figure(f"{kind} {count} sleeping runs", shares, "% of a core", Limit("at most", 1.0))


async def measure(url: str, kind: str, arguments: argparse.Namespace) -> None:
    """Take every figure on one database."""
    samples = arguments.samples
    async with benching(url) as bench:
        await chain(bench, kind, samples)
        await shape(bench, kind, "fan-out of 1,000 no-ops", fan(1_000), 0.5, samples)
        await many(bench, kind, 1_000, 500.0 if kind == "SQLite" else 300.0, samples)
        await shape(bench, kind, "DAG of 10,000 nodes", dag(10_000), 10.0, min(samples, 2))
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print_figure(f"{kind} memory at most so far", [rss], "MB", Limit("at most", 300.0))
        if arguments.sleeping:
            await sleeping(bench, kind, arguments.sleeping, arguments.seconds)


@contextlib.contextmanager
def databases(only: str) -> Iterator[list[tuple[str, str]]]:
    """Yield (url, name) of the databases to measure on."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found = []
        if only in ("", "sqlite"):
            found.append((f"sqlite:///{Path(folder) / 'bench.db'}", "SQLite"))
        if only in ("", "postgresql"):
            try:
                server = stack.enter_context(running_postgres())
                found.append((server.create_database(), "PostgreSQL"))
            except PostgresUnavailable as error:
                print(f"left out: PostgreSQL ({error})")
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--only", choices=["sqlite", "postgresql"], default="")
    parser.add_argument("--sleeping", type=int, default=100_000, help="runs; 0 for none")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one sample of those")
    arguments = parser.parse_args()
    print_machine()
    with databases(arguments.only) as found:
        for url, kind in found:
            uvloop.run(measure(url, kind, arguments))


if __name__ == "__main__":
    main()
