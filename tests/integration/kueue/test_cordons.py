"""Cordons reach the cluster itself, are undone only by whom made them, and come before a drain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpuplane.backends.interface import Observation, Phase
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import NODE
from gpuplane.loops.cordons import MARK
from gpuplane.loops.inventory import InventoryLoop
from tests.integration.jobs.offers import offered, seen, settle, take_in
from tests.integration.jobs.worlds import Registry, World
from tests.integration.kube.scripted import Reply
from tests.integration.kueue.conftest import Kueue
from tests.integration.kueue.stored import Stored

HERE = "/clusters/sim/nodes/big-01"


@dataclass
class Seen:
    """The simulated cluster, with the cordons of the Nodes that the API server keeps."""

    world: World
    client: KubeClient
    stored: Stored

    kind = "simulated"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world.backend, name)

    async def observe(self) -> Observation:
        found = await self.world.backend.observe()
        nodes = tuple(
            replace(each, details=replace(each.details, unschedulable=is_closed(self.stored)))
            if each.name == "big-01"
            else each
            for each in found.nodes
        )
        mark = found.generation + 1000 + is_closed(self.stored)
        return replace(found, nodes=nodes, generation=mark)


def live(stored: Stored) -> dict[str, Any]:
    found = stored.get(NODE, "big-01")
    assert found is not None
    return found


def is_closed(stored: Stored) -> bool:
    return bool((live(stored).get("spec") or {}).get("unschedulable"))


@pytest.fixture
def inventory(kueue: Kueue, client: KubeClient, stored: Stored) -> InventoryLoop:
    """The loop that looks at nodes, over a cluster whose Nodes the API server keeps."""
    metadata = {"name": "big-01", "resourceVersion": "1", "annotations": {"theirs": "stays"}}
    stored.put(NODE, {"metadata": metadata, "spec": {}})
    registry = Registry()
    seen = Seen(kueue.world, client, stored)
    registry.backends[kueue.world.sim] = seen  # type: ignore[assignment]  # all that it is asked
    server = kueue.world.server
    return InventoryLoop(server.database, server.clock, registry, look_s=60.0)


async def test_a_cordon_reaches_the_node_and_is_taken_off_again(
    kueue: Kueue, inventory: InventoryLoop, stored: Stored
) -> None:
    await kueue.world.ask("POST", f"{HERE}/cordon")
    await inventory.run_once()
    assert is_closed(stored)
    annotations = live(stored)["metadata"]["annotations"]
    assert annotations == {"theirs": "stays", MARK: str(kueue.world.sim)}
    await inventory.run_once()
    shown = await kueue.world.ask("GET", HERE)
    assert (shown["cordoned"], shown["unschedulable"]) == (True, True)
    await kueue.world.ask("POST", f"{HERE}/uncordon")
    await inventory.run_once()
    assert not is_closed(stored)
    assert live(stored)["metadata"]["annotations"] == {"theirs": "stays"}


async def test_a_cordon_that_somebody_takes_off_by_hand_is_made_again(
    kueue: Kueue, inventory: InventoryLoop, stored: Stored
) -> None:
    await kueue.world.ask("POST", f"{HERE}/cordon")
    await inventory.run_once()
    live(stored)["spec"] = {}
    await inventory.run_once()
    assert is_closed(stored)


async def test_a_cordon_by_others_is_shown_and_never_undone(
    kueue: Kueue, inventory: InventoryLoop, stored: Stored
) -> None:
    live(stored)["spec"] = {"unschedulable": True}
    await inventory.run_once()
    shown = await kueue.world.ask("GET", HERE)
    assert (shown["cordoned"], shown["unschedulable"]) == (False, True)
    await kueue.world.ask("POST", f"{HERE}/cordon")
    await inventory.run_once()
    await kueue.world.ask("POST", f"{HERE}/uncordon")
    for _ in range(2):
        await inventory.run_once()
    assert is_closed(stored)
    assert MARK not in live(stored)["metadata"]["annotations"]


async def test_a_cordon_that_is_refused_is_told_once_and_made_when_it_may_be(
    kueue: Kueue, inventory: InventoryLoop, stored: Stored
) -> None:
    await kueue.world.ask("POST", f"{HERE}/cordon")
    path = NODE.path(None, "big-01")
    stored.refuse("PATCH", path, Reply(403, {"reason": "Forbidden", "message": "no"}))
    for _ in range(2):
        await inventory.run_once()
    events = (await kueue.world.ask("GET", "/events?kind=node.cordon_failed"))["items"]
    assert len(events) == 1
    assert "may not patch nodes" in events[0]["message"]
    del stored.refused["PATCH", path]
    await inventory.run_once()
    assert is_closed(stored)


async def test_a_drain_moves_nothing_before_the_cluster_has_the_cordon(
    kueue: Kueue, inventory: InventoryLoop, stored: Stored
) -> None:
    world = kueue.world
    job, offer = await offered(world)
    sight = seen(offer, "big-01")
    await settle(world, sight)
    now = world.server.clock.now_ms()
    await take_in(world, replace(sight, phase=Phase.RUNNING, started_at=now))
    await world.ask("POST", f"{HERE}/drain", json={"wait_s": 0})
    for _ in range(2):
        world.server.clock.advance(60)
        await world.loops["monitor"].run_once()
    assert (await world.job(job["id"]))["condition"] == ""
    assert (await world.ask("GET", HERE))["draining"] is True
    for _ in range(2):
        await inventory.run_once()
    world.server.clock.advance(60)
    await world.loops["monitor"].run_once()
    found = await world.job(job["id"])
    assert (found["condition"], found["reason"]) == ("Stopping", "NodeDrained")
    assert is_closed(stored)
