"""Clusters are served beside one another: one that does not answer slows no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gpuplane.backends.interface import STARTING, AttemptPlan, Unavailable
from gpuplane.backends.simulated.backend import SimulatedBackend
from gpuplane.backends.simulated.loader import parse_fleet
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs.service import Surroundings
from gpuplane.kit.ids import new_id
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.tracing import Tracing
from gpuplane.loops.dispatcher import DispatcherLoop
from tests.integration.jobs.worlds import FLEET, World, runs_for
from tests.waiting import wait_until_async


class Stuck(SimulatedBackend):
    """A cluster that takes calls and does not answer them until it is let go."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.asked = 0
        self.answers = asyncio.Event()

    async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        self.asked += 1
        await self.answers.wait()
        await super().ensure_workload(plan, secrets)


async def add_stuck(world: World, folder: Path) -> Stuck:
    """Add a cluster of one node without GPUs that does not answer."""
    fleet = FLEET.split("    - name: small")[0].replace("{name: sim}", "{name: stuck}")
    fleet = fleet.replace("name: big", "name: far").replace("H100-80GB, count: 8", "L4, count: 1")
    fleet = fleet.replace("      topology: nvswitch-8\n", "")
    clock = world.server.clock
    backend = Stuck(parse_fleet(fleet, "stuck.yaml"), clock, seed=2, state_path=folder / "s.db")
    cluster_id = new_id()

    def unit(session: Any) -> None:
        clusters.ensure_cluster(
            session, cluster_id, name="stuck", kind="simulated", simulated=True, config={},
            now=clock.now_ms(),
        )  # fmt: skip

    await world.server.database.write("tests.cluster", unit)
    world.registry.backends[cluster_id] = backend
    await world.loops["inventory"].run_once()
    return backend


def impatient(world: World, sealing: SealingKeys) -> DispatcherLoop:
    """Return a dispatcher whose turns wait a twentieth of a second for a cluster."""
    around = Surroundings("", str(world.workspaces), "test")
    return DispatcherLoop(
        world.server.database, world.server.clock, world.registry, lambda: around, lambda: 0.0,
        sealing, Tracing(), turn_s=0.05,
    )  # fmt: skip


async def status_of(world: World, job: dict[str, Any]) -> str:
    found: str = (await world.job(job["id"]))["status"]
    return found


async def turn_until_it_runs(world: World, dispatcher: DispatcherLoop, job: dict[str, Any]) -> None:
    """Turn the loops until a job runs: a turn ends before a busy machine has done it all."""

    async def runs() -> bool:
        await world.loops["scheduler"].run_once()
        await dispatcher.run_once()
        await world.loops["observer"].run_once()
        return await status_of(world, job) == "running"

    await wait_until_async(runs, "the job runs", deadline_s=30)


async def test_work_of_others_starts_while_a_cluster_hangs_and_its_own_once_it_answers(
    world: World, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    stuck = await add_stuck(world, tmp_path)
    dispatcher = impatient(world, sealing_keys)
    waiting = await world.submit(cluster="stuck", gpu_count=0, spec=runs_for(3_600))
    try:
        for number in range(3):
            job = await world.submit(name=f"j{number}", gpu_count=0, spec=runs_for(3_600))
            await turn_until_it_runs(world, dispatcher, job)
        assert await status_of(world, waiting) == "scheduled"
        assert stuck.asked == 1
        stuck.answers.set()
        # The task that hung ends by itself; no other is begun for it.
        await turn_until_it_runs(world, dispatcher, waiting)
        assert stuck.asked == 1
    finally:
        await dispatcher.stop()


async def test_stopping_ends_what_hangs_and_the_next_to_start_does_it(
    world: World, tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    stuck = await add_stuck(world, tmp_path)
    waiting = await world.submit(cluster="stuck", gpu_count=0, spec=runs_for(3_600))
    await world.loops["scheduler"].run_once()
    first = impatient(world, sealing_keys)

    async def is_asked() -> bool:
        await first.run_once()
        return stuck.asked == 1

    await wait_until_async(is_asked, "the cluster is asked", deadline_s=30)
    await first.stop()
    assert await status_of(world, waiting) == "scheduled"
    stuck.answers.set()
    await turn_until_it_runs(world, impatient(world, sealing_keys), waiting)
    assert stuck.asked == 2


class Hindered(SimulatedBackend):
    """A cluster that takes nothing on while there is a hindrance."""

    hindrance: Unavailable | None = None

    async def ensure_workload(self, plan: AttemptPlan, secrets: dict[str, str]) -> None:
        if self.hindrance is not None:
            raise self.hindrance
        await super().ensure_workload(plan, secrets)


def hinder(world: World, tmp_path: Path) -> Hindered:
    """Have the simulated cluster be served by a backend that can be hindered."""
    clock = world.server.clock
    backend = Hindered(parse_fleet(FLEET, "sim.yaml"), clock, seed=1, state_path=tmp_path / "h.db")
    world.registry.backends[world.sim] = backend
    return backend


async def test_an_admitted_job_says_what_its_cluster_waits_for_and_starts_once_that_is_there(
    world: World, tmp_path: Path
) -> None:
    backend = hinder(world, tmp_path)
    backend.hindrance = Unavailable("", 'The webhook "x" does not answer.')
    job = await world.submit(gpu_count=1, spec=runs_for(60))
    await world.turn(2)
    why = await world.ask("GET", f"/jobs/{job['id']}/why")
    assert (why["status"], why["reason"]) == ("scheduled", "NotHandedOver")
    assert why["sentence"] == 'The webhook "x" does not answer.'
    assert why["fix"]
    backend.hindrance = None
    await world.turn(2)
    found = await world.job(job["id"])
    assert (found["status"], found["reason"], found["status_message"]) == ("running", "", "")
    assert found["attempt_count"] == 1


async def test_a_start_that_never_comes_ends_with_what_it_waited_for(
    world: World, tmp_path: Path
) -> None:
    backend = hinder(world, tmp_path)
    backend.hindrance = Unavailable("", 'The webhook "x" does not answer.')
    job = await world.submit(gpu_count=1, spec=runs_for(60), max_retries=0)
    await world.turn(2)
    await world.after(601)
    found = await world.job(job["id"])
    assert (found["status"], found["reason"]) == ("failed", "StartTimeout")
    assert 'The webhook "x" does not answer.' in found["status_message"]


async def test_a_start_that_is_under_way_is_no_delay(world: World, tmp_path: Path) -> None:
    backend = hinder(world, tmp_path)
    backend.hindrance = Unavailable(STARTING, "Helm is still installing the chart")
    job = await world.submit(gpu_count=1, spec=runs_for(60))
    await world.turn(2)
    found = await world.job(job["id"])
    assert (found["status"], found["reason"]) == ("scheduled", "")
