"""Kill -9 of workers at every write point and at random: every step ends, and ends once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.faults.run_walks import Walk

UNITS = """
runs.start runs.register runs.advance runs.beat runs.deliver runs.rerun runs.cancel
""".split()
"""Each is killed before and after its commit."""
HITS = {"runs.advance": (1, 2, 5, 9), "runs.start": (1, 7)}
"""How often a unit has been passed when it is killed; the first time where it is not told."""
SELDOM = {f"runs.{unit}:{side}" for unit in ("retire", "park") for side in ("before", "after")}
"""Passed when a worker ends by itself, or meets what it does not know."""
POINTS = [
    f"{unit}:{side}@{hit}"
    for unit in UNITS
    for side in ("before", "after")
    for hit in HITS.get(unit, (1,))
]
KILLS = 8


@pytest.mark.timeout(300)
def test_every_step_ends_once_when_its_worker_is_killed_at_each_write_point(
    sqlite_migrated_url: str, tmp_path: Path
) -> None:
    walk = Walk(sqlite_migrated_url, tmp_path)
    unreached = [
        point
        for number, point in enumerate(POINTS)
        if not walk.run_to_death(f"load-{number}", point)
    ]
    assert unreached == []
    assert walk.end_of(walk.start()) == 0
    assert walk.deaths == len(POINTS)
    walk.prove()


@pytest.mark.timeout(300)
def test_every_step_ends_once_when_its_worker_is_killed_at_random(
    sqlite_migrated_url: str, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    walk = Walk(sqlite_migrated_url, tmp_path)
    for number in range(KILLS):
        process = walk.start(f"load-{number}")
        process.join(chance.uniform(0.1, 1.5))
        walk.kill(process)
    assert walk.end_of(walk.start()) == 0, f"seed {seed}"
    walk.prove()


@pytest.mark.postgresql
@pytest.mark.timeout(300)
def test_every_step_ends_once_when_one_of_two_workers_is_killed_at_random(
    postgresql_migrated_url: str, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    walk = Walk(postgresql_migrated_url, tmp_path)
    workers = [walk.start("load-a"), walk.start("load-b")]
    for number in range(KILLS):
        place = chance.randrange(2)
        workers[place].join(chance.uniform(0.1, 1.0))
        walk.kill(workers[place])
        workers[place] = walk.start(f"load-{number}")
    for worker in (*workers, walk.start()):
        assert walk.end_of(worker) == 0, f"seed {seed}"
    walk.prove()


@pytest.mark.timeout(300)
def test_steps_of_a_dead_worker_are_taken_over_by_another_within_their_lease(
    postgresql_migrated_url: str, tmp_path: Path
) -> None:
    walk = Walk(postgresql_migrated_url, tmp_path)
    assert walk.run_to_death("load", "runs.advance:after@3")
    died = time.monotonic()
    assert walk.end_of(walk.start()) == 0
    taken_s = time.monotonic() - died
    walk.prove()
    print(f"everything was over {taken_s:.1f} s after the worker died")


def test_every_write_point_that_the_load_passes_is_walked(
    sqlite_migrated_url: str, tmp_path: Path
) -> None:
    walk = Walk(sqlite_migrated_url, tmp_path)
    trace = tmp_path / "trace"
    assert walk.end_of(walk.start("load", trace=str(trace))) == 0
    passed = {name for name in trace.read_text().split() if name.startswith("runs.")}
    known = {f"{unit}:{side}" for unit in UNITS for side in ("before", "after")}
    assert known - passed <= {"runs.beat:before", "runs.beat:after"}, (
        "the load passes these no more"
    )
    assert passed - SELDOM <= known, "add to the points that are walked"
