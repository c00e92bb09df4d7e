"""Kill -9 at every write point and at random moments: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from rig.postgres import PostgresServer
from tests.faults.planes import Template
from tests.faults.templates import make_template
from tests.faults.walks import trace_failpoints, walk_at_random, walk_failpoints

UNITS = """
entry.first_start nodes.sync_inventory events.relay
jobs.submit jobs.admit jobs.note_ensured jobs.take_in jobs.note_waiting jobs.look_at
jobs.learn jobs.cancel jobs.suspend jobs.resume jobs.retry jobs.change_priority
jobs.preempt jobs.preempt_by_hand jobs.note_evict_sent
jobs.report_progress jobs.report_checkpoint
jobs.scale jobs.grow jobs.note_scale_told jobs.end_unstarted
secrets.create_secret secrets.reveal
events.create_webhook events.delete_webhook events.plan_deliveries events.store_deliveries
placements.create_reservation placements.cancel_reservation
nodes.cordon nodes.start_drain nodes.uncordon jobs.drain_node
clusters.freeze clusters.thaw clusters.announce_maintenance clusters.withdraw_maintenance
identity.create_tenant identity.change_tenant identity.delete_tenant
identity.create_project identity.delete_project identity.create_user identity.delete_user
identity.set_membership identity.create_token identity.revoke_token
events.prune events.prune_deliveries jobs.prune_decisions db.prune_answers
pipelines.follow pipelines.prune runs.register runs.prune_leftovers
dispatcher.ensure dispatcher.evict dispatcher.scale
""".split()
"""Each is killed before and after its commit, or its word to the backend."""
STEPS = """
local.ensure.accepted local.ensure.prepared local.ensure.claimed local.launch.spawned
local.launch.handed_over local.evict.recorded simulated.store_attempt simulated.stored_attempt
""".split()
"""Steps inside a backend's own durable writes."""
SELDOM = frozenset(
    {
        "clusters.note_probe:before", "clusters.note_probe:after",
        "identity.touch_token:before", "identity.touch_token:after",
        "jobs.end_never_started:before", "jobs.end_never_started:after",
        "jobs.note_start_failed:before", "jobs.note_start_failed:after",
        "jobs.note_scale_failed:before", "jobs.note_scale_failed:after",
        "jobs.note_starts_delayed:before", "jobs.note_starts_delayed:after",
        "jobs.note_bare:before", "jobs.note_bare:after",
        "jobs.prune:before", "jobs.prune:after",
        "jobs.prune_experience:before", "jobs.prune_experience:after",
        "nodes.note_cordon_failed:before", "nodes.note_cordon_failed:after",
        "local.evict.forbidden", "simulated.store_tombstone", "simulated.delete_attempt",
    }
)  # fmt: skip
"""Passed only when things happen to meet, so that a walk cannot count on them."""
POINTS = [f"{unit}:{side}" for unit in UNITS for side in ("before", "after")] + STEPS
CHAINS = 4
RANDOM_HOMES = 3
KILLS_A_HOME = 5
POSTGRESQL_POINTS = 8
"""Of all write points, chosen anew in each run: what is proved of one database costs half as much
again on the other, and the walk is most of the time that the tests take."""


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """A home that was started once, to be copied."""
    home = tmp_path_factory.mktemp("faults") / "template"
    return Template(asyncio.run(make_template(home)))


@pytest.fixture(scope="session")
def postgresql_home(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer
) -> Template:
    """A home that was started once on PostgreSQL, to be copied with its database."""
    home = tmp_path_factory.mktemp("faults") / "template"
    url = postgres_server.create_database()
    asyncio.run(make_template(home, url))
    name = url.rpartition("/")[2]
    return Template(home, lambda: postgres_server.create_database(name))


def chain_of(number: int) -> list[str]:
    """Return one share of the points, in an order of its own: recoveries meet other points."""
    names = list(itertools.islice(POINTS, number, None, CHAINS))
    random.Random(number).shuffle(names)
    return names


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(CHAINS))
async def test_nothing_is_lost_or_run_twice_when_killed_at_each_write_point(
    number: int, template: Template, tmp_path: Path
) -> None:
    names = chain_of(number)
    walk = await walk_failpoints(template, tmp_path, names)
    assert walk.unreached == [], "the load no longer passes these points"
    assert walk.faults == []
    assert walk.deaths == len(names)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(RANDOM_HOMES))
async def test_nothing_is_lost_or_run_twice_when_killed_at_random(
    number: int, template: Template, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}: python -m tests.faults.soak --seed {seed} --kills {KILLS_A_HOME}")
    walk = await walk_at_random(template, tmp_path, seed, KILLS_A_HOME)
    assert walk.faults == [], f"seed {seed}"
    assert walk.deaths == KILLS_A_HOME


@pytest.mark.postgresql
@pytest.mark.timeout(600)
async def test_nothing_is_lost_or_run_twice_when_killed_at_write_points_on_postgresql(
    postgresql_home: Template, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    points = [f"{unit}:{side}" for unit in UNITS for side in ("before", "after")]
    names = random.Random(seed).sample(points, POSTGRESQL_POINTS)
    walk = await walk_failpoints(postgresql_home, tmp_path, names)
    assert walk.unreached == [], f"seed {seed}: {names}"
    assert walk.faults == [], f"seed {seed}: {names}"
    assert walk.deaths == len(names)


@pytest.mark.postgresql
@pytest.mark.timeout(600)
async def test_nothing_is_lost_or_run_twice_when_killed_at_random_on_postgresql(
    postgresql_home: Template, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    walk = await walk_at_random(postgresql_home, tmp_path, seed, KILLS_A_HOME)
    assert walk.faults == [], f"seed {seed}"
    assert walk.deaths == KILLS_A_HOME


@pytest.mark.timeout(300)
async def test_every_write_point_that_the_load_passes_is_walked(
    template: Template, tmp_path: Path
) -> None:
    passed = await trace_failpoints(template, tmp_path)
    elsewhere = {name for name in passed if name.startswith("runs.")}  # see test_run_kills
    unknown = sorted(passed - elsewhere - set(POINTS) - SELDOM)
    assert not unknown, f"add to the points that are walked: {' '.join(unknown)}"
