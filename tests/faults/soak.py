"""Kills control planes at random for long, and says what came of it.

`python -m tests.faults.soak --kills 300` prints a summary for docs/status.md and ends with 1 when
a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

from tests.faults.planes import Template
from tests.faults.templates import make_template
from tests.faults.walks import walk_at_random

KILLS_A_HOME = 15


async def soak(kills: int, seed: int) -> int:
    """Kill so often, on a new home each few kills; returns the exit code."""
    started = time.monotonic()
    deaths = homes = 0
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpuplane-soak-") as name:
        folder = Path(name)
        template = Template(await make_template(folder / "template"))
        while deaths < kills:
            home = folder / str(homes)
            home.mkdir()
            own = seed + homes
            walk = await walk_at_random(template, home, own, min(KILLS_A_HOME, kills - deaths))
            deaths, homes = deaths + walk.deaths, homes + 1
            faults += [f"seed {own}: {fault}" for fault in walk.faults]
            print(f"{deaths}/{kills} kills, {len(faults)} faults", flush=True)
    minutes = (time.monotonic() - started) / 60
    print(
        f"{deaths} kills of {homes} homes under a mixed load (seed {seed}, {minutes:.1f} min): "
        f"{len(faults)} broken promises."
    )
    for fault in faults:
        print(f"  {fault}")
    return 1 if faults else 0


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    raise SystemExit(asyncio.run(soak(options.kills, options.seed)))


if __name__ == "__main__":
    main()
