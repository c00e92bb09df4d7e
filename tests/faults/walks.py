"""Lives of one home: started, loaded, killed, started again, and proved at every death."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.loads import Load
from tests.faults.planes import Died, Plane, Template
from tests.faults.proofs import faults_of

ROUNDS = 3
"""How often the load is run before a failpoint counts as one that it does not reach."""


@dataclass
class Walk:
    """What happened to one home."""

    deaths: int = 0
    """By kills, or by points at which the home was killed."""
    faults: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)


async def walk_failpoints(template: Template, folder: Path, names: Sequence[str]) -> Walk:
    """Kill a home at each named point, whichever is passed first, proving its rows at each death.

    What is left of the points is armed at each start, so that the home also dies while it recovers,
    and no life is longer than to the next of them.
    """
    plane, load, walk = Plane.copy_of(template, folder / "home"), Load(folder), Walk()
    left = list(names)
    try:
        while left:
            trace = folder / f"trace-{len(left)}"
            await plane.start(
                GPUPLANE_FAILPOINTS=",".join(left), GPUPLANE_FAILPOINT_TRACE=str(trace)
            )
            if not await _dies(plane, load):
                walk.unreached = left
                break
            passed = set(trace.read_text().split())
            ends = [name for name in left if name in passed]  # two where threads passed at once
            assert ends, f"it died at none of {left}"
            left = [name for name in left if name not in passed]
            walk.deaths += len(ends)
            walk.faults += [f"after {' and '.join(ends)}: {fault}" for fault in proved(plane)]
        await plane.kill()
        await _settle(plane, load, walk)
    finally:
        await plane.kill()
    return walk


async def walk_at_random(template: Template, folder: Path, seed: int, kills: int) -> Walk:
    """Kill a home so often at moments that a seed chooses, under load or while it recovers."""
    chance = random.Random(seed)
    plane, load, walk = Plane.copy_of(template, folder / "home"), Load(folder), Walk()
    try:
        for number in range(kills):
            await plane.start()
            loading = asyncio.create_task(load.run(plane, fresh=number % 3 == 0))
            await asyncio.wait([loading], timeout=chance.uniform(0.0, 1.5))
            await plane.kill()
            await loading
            walk.deaths += 1
            walk.faults += [f"after kill {number}: {fault}" for fault in proved(plane)]
        await _settle(plane, load, walk)
    finally:
        await plane.kill()
    return walk


async def trace_failpoints(template: Template, folder: Path) -> set[str]:
    """Return every failpoint that the load passes when nothing is killed."""
    plane, load, walk = Plane.copy_of(template, folder / "home"), Load(folder), Walk()
    trace = folder / "trace"
    try:
        await plane.start(GPUPLANE_FAILPOINT_TRACE=str(trace))
        await load.run(plane)
        await load.settle(plane)
    finally:
        await plane.stop()
    assert not walk.faults, walk.faults
    return set(trace.read_text().split())


async def _dies(plane: Plane, load: Load) -> bool:
    """Run the load until the plane is dead; False if it survives several rounds."""
    for _ in range(ROUNDS):
        try:
            await load.run(plane)
            if not plane.is_over():
                await load.settle(plane)
        except Died:
            break
        except AssertionError:
            if not plane.is_over():
                raise
            break
        if plane.is_over():
            break
    else:
        return False
    status = await plane.wait_for_death()
    assert status == -signal.SIGKILL, (
        f"it ended with {status}: {(plane.home / 'printed').read_text()}"
    )
    return True


async def _settle(plane: Plane, load: Load, walk: Walk) -> None:
    await plane.start()
    await load.settle(plane)
    walk.faults += await load.faults(plane)
    await plane.stop()
    walk.faults += [f"at the end: {fault}" for fault in proved(plane)]


def proved(plane: Plane) -> list[str]:
    """Return every broken promise of the rows that a dead plane left behind."""
    return faults_of(plane.home, plane.database_url)
