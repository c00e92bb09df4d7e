"""Clusters and nodes that tell of the same GPUs: each is of one of them, and its time tiles."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.placements import service as placements
from gpuplane.entry.checking import checks_at
from gpuplane.kit.ids import new_id
from gpuplane.loops.clusters.loop import ClustersLoop
from gpuplane.loops.inventory import store_nodes
from tests.integration.clusters.fleets import MINUTE, Fleet, running_fleet


@pytest.fixture
async def fleet(database_url: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A database without a cluster."""
    async with running_fleet(database_url, tmp_path) as fleet:
        yield fleet


async def test_the_time_of_a_deleted_clusters_gpus_ends_with_it(fleet: Fleet) -> None:
    east = await fleet.cluster_of("east")
    await fleet.look(east, "GPU-a", "GPU-b")
    await fleet.pass_(5)
    await fleet.remove(east)
    await fleet.pass_(10)
    assert await fleet.minutes() == {east.id: 10}
    # A look that was under way when it was deleted brings nothing back.
    await fleet.look(east, "GPU-a", "GPU-b")
    await fleet.pass_(10)
    assert await fleet.minutes() == {east.id: 10}
    assert await fleet.gpus(east) == set()


async def test_the_time_that_a_deleted_cluster_left_open_is_found_and_ended_where_it_should_have(
    fleet: Fleet,
) -> None:
    east, west = await fleet.cluster_of("east"), await fleet.cluster_of("west")
    await fleet.look(east, "GPU-a", "GPU-b", "GPU-c")
    await fleet.pass_(5)
    # As it was deleted before its devices' time was ended with it.
    await fleet.do(store_nodes, east.id, (), new_id, fleet.now)
    await fleet.do(clusters.remove, east.id, fleet.now)
    await fleet.look(west, "GPU-c")
    await fleet.pass_(10)
    promise = "the time of a deleted cluster's devices ended with it"
    look = checks_at(fleet.now)[promise]
    (fault,) = await fleet.database.read(look)
    assert "was deleted and 2 of its devices still count as down" in fault
    assert await fleet.minutes() == {east.id: 3 * 5 + 2 * 10, west.id: 10}

    for _ in range(2):
        loop = ClustersLoop(fleet.tools())
        await loop.run_once()
        await loop.stop()
        assert await fleet.database.read(look) == []
        await fleet.pass_()
    assert (await fleet.minutes())[east.id] == 3 * 5
    # One that is seen again is the other's from then on; nobody had it meanwhile.
    await fleet.look(west, "GPU-a", "GPU-c")
    await fleet.pass_()
    assert await fleet.gpus(west) == {"GPU-a", "GPU-c"}


async def test_a_gpu_that_comes_back_was_the_other_clusters_meanwhile(fleet: Fleet) -> None:
    east, west = await fleet.cluster_of("east"), await fleet.cluster_of("west")
    await fleet.look(east, "GPU-a", "GPU-b")
    await fleet.pass_(1)
    for count in range(1, 4):
        await fleet.look(east, "GPU-b")
        await fleet.look(west, "GPU-a")
        await fleet.pass_(2)
        assert await fleet.gpus(east) == {"GPU-b"}
        await fleet.look(west)
        await fleet.look(east, "GPU-a", "GPU-b")
        await fleet.pass_(3)
        assert await fleet.gpus(east) == {"GPU-a", "GPU-b"}
        assert await fleet.minutes() == {east.id: 2 + 8 * count, west.id: 2 * count}


async def test_a_gpu_is_the_first_clusters_until_it_is_gone_there(fleet: Fleet) -> None:
    east, west = await fleet.cluster_of("east"), await fleet.cluster_of("west")
    await fleet.look(east, "GPU-a", "GPU-b")
    for _ in range(3):
        await fleet.look(west, "GPU-a", "GPU-b", "GPU-c")
        await fleet.look(east, "GPU-a", "GPU-b")
        await fleet.pass_()
        assert await fleet.gpus(east) == {"GPU-a", "GPU-b"}
        assert await fleet.gpus(west) == {"GPU-c"}
    said = (
        "Not taken: GPUs 0, 1 (east): another cluster has the same GPU UUIDs, "
        "and keeps them until they are gone there."
    )
    assert (await fleet.message(west), await fleet.message(east)) == (said, "")
    assert await fleet.told("gpu.elsewhere") == [(west.id, f"n1: {said}")]
    assert await fleet.minutes() == {east.id: 6, west.id: 3}
    await fleet.look(east, "GPU-b")
    await fleet.pass_()
    await fleet.look(west, "GPU-a", "GPU-b", "GPU-c")
    assert await fleet.gpus(west) == {"GPU-a", "GPU-c"}
    assert await fleet.told("gpu.moved") == [(west.id, "GPU 0 of n1 moved here from cluster east.")]
    await fleet.pass_()
    assert await fleet.minutes() == {east.id: 9, west.id: 6}
    await fleet.look(east, "GPU-a", "GPU-b")
    assert (await fleet.message(east)).startswith("Not taken: GPU 0 (west)")
    assert await fleet.gpus(east) == {"GPU-b"}
    await fleet.pass_()


async def test_the_gpus_of_a_deleted_cluster_are_the_others_when_it_tells_of_them(
    fleet: Fleet,
) -> None:
    east, west = await fleet.cluster_of("east"), await fleet.cluster_of("west")
    await fleet.look(east, "GPU-a", "GPU-b")
    await fleet.look(west, "GPU-a", "GPU-b")
    await fleet.pass_(5)
    await fleet.remove(east)
    await fleet.look(west, "GPU-a", "GPU-b")
    await fleet.pass_(10)
    assert await fleet.gpus(west) == {"GPU-a", "GPU-b"}
    assert await fleet.message(west) == ""
    assert await fleet.minutes() == {east.id: 10, west.id: 20}


async def test_a_gpu_with_work_on_it_stays_though_it_is_gone_there(fleet: Fleet) -> None:
    east, west = await fleet.cluster_of("east"), await fleet.cluster_of("west")
    await fleet.look(east, "GPU-a", "GPU-b")
    order = await fleet.place(east, "GPU-a")
    await fleet.pass_()
    await fleet.look(east)
    await fleet.look(west, "GPU-a", "GPU-b")
    assert await fleet.gpus(west) == {"GPU-b"}
    await fleet.pass_()
    await fleet.do(placements.release, [order], fleet.now)
    await fleet.look(west, "GPU-a", "GPU-b")
    assert await fleet.gpus(west) == {"GPU-a", "GPU-b"}
    await fleet.pass_()


async def test_two_nodes_of_one_cluster_that_tell_of_a_gpu_leave_it_to_the_first(
    fleet: Fleet,
) -> None:
    east = await fleet.cluster_of("east")
    # The first look tells of both: a fleet of cloned machines is registered as it is.
    for _ in range(3):
        told = {"n2": ["GPU-c", "GPU-a"], "n1": ["GPU-a", "GPU-b"]}
        assert await fleet.look_at(east, told), "no look that finds the same again changes that"
        assert await fleet.by_node(east) == {"n1": {"GPU-a", "GPU-b"}, "n2": {"GPU-c"}}
        await fleet.pass_()
    said = (
        "Not taken: GPU 1 (node n1): another node has the same GPU UUIDs, "
        "and keeps them until they are gone there."
    )
    assert (await fleet.message(east), await fleet.message(east, "n2")) == ("", said)
    assert await fleet.told("gpu.elsewhere", "n2") == [(east.id, f"n2: {said}")]
    assert await fleet.minutes() == {east.id: 9}
    await fleet.look_at(east, {"n2": ["GPU-c", "GPU-a"], "n1": ["GPU-b"]})
    assert await fleet.by_node(east) == {"n1": {"GPU-b"}, "n2": {"GPU-a", "GPU-c"}}
    moved = (east.id, "GPU 1 of n2 moved here from node n1.")
    assert await fleet.told("gpu.moved", "n2") == [moved]
    await fleet.look_at(east, {"n1": ["GPU-a", "GPU-b"], "n2": ["GPU-c", "GPU-a"]})
    assert (await fleet.message(east)).startswith("Not taken: GPU 0 (node n2): another node")
    await fleet.pass_()
    assert await fleet.minutes() == {east.id: 12}


async def test_a_gpu_with_work_on_it_stays_with_its_node_until_the_work_is_over(
    fleet: Fleet,
) -> None:
    east = await fleet.cluster_of("east")
    await fleet.look_at(east, {"n1": ["GPU-a"], "n2": ["GPU-b"]})
    order = await fleet.place(east, "GPU-a")
    await fleet.pass_()
    assert not await fleet.look_at(east, {"n1": [], "n2": ["GPU-b", "GPU-a"]})
    assert await fleet.by_node(east) == {"n1": set(), "n2": {"GPU-b"}}
    await fleet.pass_()
    await fleet.do(placements.release, [order], fleet.now)
    assert await fleet.look_at(east, {"n1": [], "n2": ["GPU-b", "GPU-a"]})
    assert await fleet.by_node(east) == {"n1": set(), "n2": {"GPU-a", "GPU-b"}}
    await fleet.pass_()
    assert await fleet.minutes() == {east.id: 6}


async def test_what_another_cluster_keeps_and_a_node_that_tells_of_a_gpu_twice_is_told_at_once(
    fleet: Fleet,
) -> None:
    east, west = await fleet.cluster_of("east"), await fleet.cluster_of("west")
    await fleet.look(east, "GPU-a")
    assert not await fleet.look_at(west, {"n1": ["GPU-a", "GPU-b", "GPU-b"]})
    assert await fleet.gpus(west) == {"GPU-b"}
    assert await fleet.message(west) == (
        "Not taken: GPU 0 (east), GPU 2 (node n1): another cluster or node has the same GPU UUIDs, "
        "and keeps them until they are gone there."
    )
    await fleet.pass_()


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_clusters_tell_of_equal_gpus_their_time_tiles(
    fleet: Fleet, seed: int
) -> None:
    chance = random.Random(seed)
    here = [await fleet.cluster_of(name) for name in ("east", "west", "north")]
    names = ["GPU-a", "GPU-b", "GPU-c"]
    for turn in range(25):
        if turn % 10 == 9:
            gone = here.pop(chance.randrange(len(here)))
            await fleet.remove(gone)
            here.append(await fleet.cluster_of(f"again-{turn}"))
        told = {name: chance.choices(names, k=chance.randrange(4)) for name in ("n1", "n2")}
        await fleet.look_at(chance.choice(here), told)
        found = [await fleet.by_node(cluster) for cluster in here]
        taken = [gpu for by_node in found for gpus in by_node.values() for gpu in sorted(gpus)]
        assert len(taken) == len(set(taken))
        fleet.now += chance.randrange(3) * MINUTE
        assert await fleet.faults() == []
    await fleet.minutes()
