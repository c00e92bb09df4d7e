"""A job that finds no MIG instance has a GPU cut anew, and starts on it; nothing waits for that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuplane.backends.interface import BackendError, MigOrder, Observation
from gpuplane.core.mig.profiles import MigProfile, device_table
from gpuplane.kit.sealing import SealingKeys
from gpuplane.loops.observer import ObserverLoop
from tests.integration.jobs.worlds import World, running_world, runs_for

FLEET = """
apiVersion: gpuplane.io/v1
kind: Fleet
metadata: {name: sim}
spec:
  nodeGroups:
    - name: cut
      count: 1
      gpus: {model: A100-80GB, count: 2}
      mig:
        - gpus: [0, 1]
          layout: [1g.10gb@0, 1g.10gb@1, 1g.10gb@2, 1g.10gb@3, 1g.10gb@4, 1g.10gb@5, 1g.10gb@6]
      cpu: 64
      memory: 512Gi
      ephemeralStorage: 1Ti
  startDelay: {value: 0s}
  stopDelay: {value: 0s}
"""


@pytest.fixture
async def cut_world(
    migrated_url: str, tmp_path: Path, sealing_keys: SealingKeys
) -> AsyncIterator[World]:
    """A world of two GPUs, each cut into seven instances."""
    async with running_world(migrated_url, tmp_path, sealing_keys, fleet=FLEET) as running:
        yield running


async def submit(world: World, profile: str, **more: Any) -> str:
    body = await world.submit(
        gpu_type="A100-80GB", resources={"mig_profile": profile}, spec=runs_for(600), **more
    )
    return str(body["id"])


async def turn(world: World) -> None:
    """Let every loop that has a part in it look once."""
    for name in ("scheduler", "repartitioner", "inventory", "dispatcher", "observer"):
        await world.loops[name].run_once()


async def instances(world: World) -> list[list[tuple[str, int]]]:
    """Return what the product knows of the two GPUs' instances."""
    found = await world.ask("GET", "/clusters/sim/nodes/cut-01")
    return [
        [
            (profile, int(start))
            for profile, start in (each.split("@") for each in gpu["mig_instances"])
        ]
        for gpu in found["gpus"]
    ]


async def test_the_job_waits_with_its_plan_and_then_starts(cut_world: World) -> None:
    job_id = await submit(cut_world, "3g.40gb")
    await cut_world.loops["scheduler"].run_once()
    waiting = await cut_world.job(job_id)
    assert waiting["status"] == "queued"
    why = await cut_world.ask("GET", f"/jobs/{job_id}/why")
    assert why["reason"] == "MigRepartitionNeeded"
    assert "3g.40gb at 4 in place of 1g.10gb at 4, 1g.10gb at 5, 1g.10gb at 6" in why["sentence"]
    await turn(cut_world)
    cut_world.server.clock.advance(3)
    await turn(cut_world)
    await turn(cut_world)
    job = await cut_world.job(job_id)
    assert job["status"] == "running"
    assert ("3g.40gb", 4) in (await instances(cut_world))[0]
    assert "job.repartition_asked" in await cut_world.kinds(job_id)


async def test_others_start_while_a_gpu_is_cut(cut_world: World) -> None:
    large = await submit(cut_world, "7g.80gb")
    small = await submit(cut_world, "1g.10gb")
    await turn(cut_world)
    await turn(cut_world)
    assert (await cut_world.job(small))["status"] == "running"
    assert (await cut_world.job(large))["status"] == "queued"
    cut_world.server.clock.advance(3)
    for _ in range(3):
        await turn(cut_world)
    assert (await cut_world.job(large))["status"] == "running"
    assert (await cut_world.job(small))["status"] == "running"


async def test_the_new_instance_goes_to_who_it_was_made_for(cut_world: World) -> None:
    first = await submit(cut_world, "7g.80gb", priority="low")
    await turn(cut_world)
    cut_world.server.clock.advance(3)
    for name in ("repartitioner", "inventory"):
        await cut_world.loops[name].run_once()
    second = await submit(cut_world, "7g.80gb", priority="high")
    await cut_world.loops["scheduler"].run_once()
    assert (await cut_world.job(first))["status"] == "scheduled"
    assert (await cut_world.job(second))["reason"] == "MigRepartitionNeeded"


async def test_an_order_is_carried_out_after_a_restart(cut_world: World) -> None:
    job_id = await submit(cut_world, "4g.40gb")
    await cut_world.loops["scheduler"].run_once()
    # The backend did it, and the process died before it was written down.
    backend = cut_world.backend
    cut = next(iter(backend.fleet.nodes[0].gpus))
    order = MigOrder(
        "cut-01",
        cut.gpu_id,
        tuple(("1g.10gb", start) for start in range(4)),
        (("4g.40gb", 0),),
    )
    await backend.repartition(order)
    for _ in range(2):
        await turn(cut_world)
    cut_world.server.clock.advance(3)
    for _ in range(3):
        await turn(cut_world)
    assert (await cut_world.job(job_id))["status"] == "running"
    assert sum(("4g.40gb", 0) in each for each in await instances(cut_world)) == 1


async def test_a_cut_that_fails_is_told_and_not_asked_for_again_at_once(
    cut_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Refusing:
        kind = "simulated"

        def __getattr__(self, name: str) -> Any:
            return getattr(cut_world.backend, name)

        async def repartition(self, order: MigOrder) -> None:
            asked.append(order.gpu_id)
            raise BackendError("MigProfileUnavailable", "the driver hangs")

    cut_world.registry.backends[cut_world.sim] = Refusing()
    job_id = await submit(cut_world, "7g.80gb")
    for _ in range(4):
        await turn(cut_world)
    # Each of the two GPUs was tried once.
    assert len(asked) == len(set(asked)) == 2
    why = await cut_world.ask("GET", f"/jobs/{job_id}/why")
    assert why["reason"] == "MigProfileUnavailable"
    told = await cut_world.ask("GET", "/events?kind=gpu.repartition_failed")
    assert "the driver hangs" in told["items"][0]["message"]
    cut_world.server.clock.advance(301)
    for _ in range(2):
        await turn(cut_world)
    assert len(asked) > 2


async def test_a_cancelled_job_leaves_a_gpu_that_is_cut_and_free(cut_world: World) -> None:
    job_id = await submit(cut_world, "7g.80gb")
    await cut_world.loops["scheduler"].run_once()
    await cut_world.ask("DELETE", f"/jobs/{job_id}")
    await turn(cut_world)
    cut_world.server.clock.advance(3)
    for _ in range(2):
        await turn(cut_world)
    assert [("7g.80gb", 0)] in await instances(cut_world)
    other = await submit(cut_world, "7g.80gb")
    await turn(cut_world)
    assert (await cut_world.job(other))["status"] in ("scheduled", "running")


async def test_how_a_device_can_be_cut_is_kept_as_it_tells(cut_world: World) -> None:
    # Halves that begin at 3 alone: no table of the product says so.
    half = MigProfile("3g.40gb", 3, 4, 40, 1, (3,))
    single = MigProfile("1g.10gb", 1, 1, 10, 7, tuple(range(7)))
    table = device_table("nvidia-a100-80gb", (single, half))

    class Telling:
        kind = "simulated"

        def __getattr__(self, name: str) -> Any:
            return getattr(cut_world.backend, name)

        async def observe(self) -> Observation:
            seen = await cut_world.backend.observe()
            nodes = tuple(
                replace(node, gpus=tuple(replace(gpu, mig_table=table) for gpu in node.gpus))
                for node in seen.nodes
            )
            return replace(seen, generation=seen.generation + 1, nodes=nodes)

    cut_world.registry.backends[cut_world.sim] = Telling()
    await cut_world.loops["inventory"].run_once()
    job_id = await submit(cut_world, "3g.40gb")
    await cut_world.loops["scheduler"].run_once()
    why = await cut_world.ask("GET", f"/jobs/{job_id}/why")
    assert "3g.40gb at 3 in place of" in why["sentence"]


async def test_a_cut_that_is_never_seen_is_given_up(cut_world: World) -> None:
    class Forgetful:
        kind = "simulated"

        def __getattr__(self, name: str) -> Any:
            return getattr(cut_world.backend, name)

        async def repartition(self, order: MigOrder) -> None:
            """Take the order on and do nothing."""

    cut_world.registry.backends[cut_world.sim] = Forgetful()
    job_id = await submit(cut_world, "7g.80gb")
    await turn(cut_world)
    await turn(cut_world)
    told = await cut_world.ask("GET", "/events?kind=gpu.repartition_failed")
    assert told["items"] == []
    cut_world.server.clock.advance(300)
    await turn(cut_world)
    told = await cut_world.ask("GET", "/events?kind=gpu.repartition_failed")
    assert "were not seen within 300 s" in told["items"][0]["message"]
    small = await submit(cut_world, "1g.10gb")
    await turn(cut_world)
    assert (await cut_world.job(small))["status"] in ("scheduled", "running")
    assert (await cut_world.job(job_id))["status"] == "queued"


async def test_a_change_of_the_inventory_wakes_who_takes_it_in(cut_world: World) -> None:
    woken: list[str] = []
    database, clock = cut_world.server.database, cut_world.server.clock
    observer = ObserverLoop(
        database, clock, cut_world.registry, lambda text: b"", lambda: 0.0, lambda: None,
        wake_inventory=lambda: woken.append("inventory"),
    )  # fmt: skip
    await observer.run_once()
    await observer.run_once()
    assert woken == []
    gpu_id = cut_world.backend.fleet.nodes[0].gpus[0].gpu_id
    await cut_world.backend.repartition(MigOrder("cut-01", gpu_id, (("1g.10gb", 6),), ()))
    await observer.run_once()
    await observer.stop()
    assert woken == ["inventory"]
