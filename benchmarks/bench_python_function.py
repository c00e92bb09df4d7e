"""What a user's Python function costs: its process, from the call to the result.

The reference is a bare interpreter that is started and ends: what is beyond it is ours.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time

from benchmarks.figures import print_figure, print_machine
from gpuplane.kit.pythons.running import run_python

CALLS = 60
SOURCE = "def main(a, b): return {'sum': a + b}"


def _cpu_ms() -> float:
    spent = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        spent += usage.ru_utime + usage.ru_stime
    return spent * 1000


async def _one() -> tuple[float, float]:
    wall, cpu = time.perf_counter(), _cpu_ms()
    found = await run_python(SOURCE, {"a": 1, "b": 2})
    assert found.result == {"sum": 3}, found
    return (time.perf_counter() - wall) * 1000, _cpu_ms() - cpu


def _bare() -> tuple[float, float]:
    wall, cpu = time.perf_counter(), _cpu_ms()
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True, env={})
    return (time.perf_counter() - wall) * 1000, _cpu_ms() - cpu


async def _measure() -> None:
    await _one()
    bare, ours = [], []
    for _ in range(CALLS):
        bare.append(_bare())
        ours.append(await _one())
    wall = sorted(each for each, _ in bare)[CALLS // 2]
    cpu = sorted(each for _, each in bare)[CALLS // 2]
    print_figure("function, wall", [each for each, _ in ours], "ms", reference=("bare", wall))
    print_figure("function, CPU", [each for _, each in ours], "ms", reference=("bare", cpu))


def main() -> None:
    """Print what one call takes."""
    print_machine()
    asyncio.run(_measure())


if __name__ == "__main__":
    main()
