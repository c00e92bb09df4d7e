"""Replicas in racks and blocks: required, preferred, balanced, and all before some."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gpuplane.core.fleet.facts import CLIQUE_LABEL
from gpuplane.core.ids import ClusterId
from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    ResourceGroup,
    ResourceQuota,
)
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import (
    NetworkLevel,
    NetworkMode,
    NetworkRequest,
    ReplicaRequest,
    Spreading,
)
from tests.builders import NOW, World, a_fleet, a_node, a_tree, a_workload, an_id

RACK, BLOCK = NetworkLevel.RACK, NetworkLevel.BLOCK
REQUIRED, PREFERRED, BALANCED = NetworkMode.REQUIRED, NetworkMode.PREFERRED, NetworkMode.BALANCED


def racks(**sizes: int) -> World:
    """Return a world with one node of so many GPUs in each rack; a rack's block is its letter."""
    nodes = [
        a_node(f"node-{rack}-{index}", 4, rack=rack, block=rack[0])
        for rack, count in sizes.items()
        for index in range(count // 4)
    ]
    return World(nodes)


def run(
    world: World, count: int, gpus: int, level: NetworkLevel, mode: NetworkMode, **rest: Any
) -> Decision:
    replicas = ReplicaRequest(count, rest.pop("minimum", 1), count, gang=rest.pop("gang", True))
    asked = a_workload().gpus(gpus, cpu_milli=100, memory_mib=100, ephemeral_mib=0)
    asked = asked.placement(network=NetworkRequest(level, mode), **rest)
    world.pending = [asked.having(replicas=replicas).build()]
    return decide(world.snapshot(), Policy(), NOW, 0)


def in_racks(world: World, decision: Decision) -> Counter[str]:
    rack_of = {node.node_id: node.rack for node in world.nodes}
    return Counter(rack_of[each.node_id] for each in decision.placed[0].replicas)


def test_a_required_rack_holds_all_replicas_and_the_tightest_is_taken() -> None:
    world = racks(a1=16, a2=12, b1=8)
    assert in_racks(world, run(world, 3, 4, RACK, REQUIRED)) == {"a2": 3}


def test_work_that_no_rack_holds_waits_for_one_and_is_told_so() -> None:
    world = racks(a1=8, a2=8, b1=8)
    waiting = run(world, 3, 4, RACK, REQUIRED).waiting[0]
    assert waiting.reason.word is Word.NETWORK
    assert "preferred" in waiting.reason.fix


def test_preferred_spills_over_as_few_racks_as_possible_within_the_block_first() -> None:
    world = racks(a1=4, a2=8, b1=8, b2=8)
    # No rack holds three of four GPUs; block a and block b do, and a is the tighter one.
    assert in_racks(world, run(world, 3, 4, RACK, PREFERRED)) == {"a1": 1, "a2": 2}


def test_a_gang_too_large_for_every_block_takes_the_fewest_racks() -> None:
    world = racks(a1=4, a2=4, b1=8, c1=8, d1=4)
    assert set(in_racks(world, run(world, 4, 4, RACK, PREFERRED))) == {"b1", "c1"}


def test_a_required_block_may_span_its_racks() -> None:
    world = racks(a1=8, a2=8, b1=12)
    assert in_racks(world, run(world, 4, 4, BLOCK, REQUIRED)) == {"a1": 2, "a2": 2}


@pytest.mark.parametrize(
    ("count", "expected"), [(4, [4]), (6, [6]), (7, [3, 4]), (9, [4, 5]), (13, [4, 4, 5])]
)
def test_balanced_puts_equally_many_into_as_few_racks_as_possible(
    count: int, expected: list[int]
) -> None:
    world = racks(a1=16, b1=20, c1=24)
    found = in_racks(world, run(world, count, 4, RACK, BALANCED))
    assert sorted(found.values()) == expected


def test_balanced_work_that_cannot_be_balanced_still_runs() -> None:
    world = racks(a1=4, b1=16)
    assert in_racks(world, run(world, 5, 4, RACK, BALANCED)) == {"a1": 1, "b1": 4}


def test_replicas_that_are_no_gang_follow_the_level_they_ask_for() -> None:
    world = racks(a1=8, b1=8)
    assert len(in_racks(world, run(world, 2, 4, RACK, REQUIRED, gang=False))) == 1


def test_all_replicas_start_across_racks_before_some_start_in_one() -> None:
    world = racks(a1=8, b1=8)
    assert sum(in_racks(world, run(world, 4, 4, RACK, PREFERRED, minimum=2)).values()) == 4
    assert sum(in_racks(world, run(world, 4, 4, RACK, REQUIRED, minimum=2)).values()) == 2


@pytest.mark.parametrize("level", [RACK, BLOCK])
def test_where_not_all_fit_the_part_of_a_required_level_that_takes_most_is_chosen(
    level: NetworkLevel,
) -> None:
    """The tightest for the minimum would be `a1`; among equals the tightest still goes first."""
    world = racks(a1=8, b1=20, c1=16, d1=28)
    assert in_racks(world, run(world, 6, 4, level, REQUIRED, minimum=2)) == {"d1": 6}
    assert in_racks(world, run(world, 5, 4, level, REQUIRED, minimum=2)) == {"b1": 5}
    assert in_racks(world, run(world, 9, 4, level, REQUIRED, minimum=2)) == {"d1": 7}


@pytest.mark.parametrize("spreading", [Spreading.ANY, Spreading.SAME_NODE])
def test_where_not_all_fit_on_one_node_the_one_that_takes_most_is_chosen(
    spreading: Spreading,
) -> None:
    world = World([a_node("a", 4), a_node("b", 6), a_node("c", 5)])
    decision = run(world, 9, 1, RACK, REQUIRED, minimum=2, spreading=spreading)
    assert {each.node_name for each in decision.placed[0].replicas} == {"b"}
    assert len(decision.placed[0].replicas) == 6


def test_where_not_all_fit_anywhere_as_many_start_as_fit_and_not_the_minimum() -> None:
    world = racks(a1=8, b1=12)
    for mode in (PREFERRED, BALANCED):
        assert in_racks(world, run(world, 9, 4, RACK, mode, minimum=2)) == {"a1": 2, "b1": 3}


def test_where_not_all_fit_the_clique_that_takes_most_is_chosen() -> None:
    cliques = {"a": "c1", "b": "c2", "c": "c2", "d": "c3", "e": "c3", "f": "c3"}
    matrix = named_topology("nvl72-node-4", 4)
    nodes = [
        a_node(name, 4, labels={CLIQUE_LABEL: each}, topology=matrix)
        for name, each in cliques.items()
    ]
    replicas = ReplicaRequest(5, 2, 5, gang=True)
    asked = a_workload().gpus(4).links(LinkPreference.NVLINK, required=True)
    world = World(nodes, pending=[asked.having(replicas=replicas).build()])
    placed = decide(world.snapshot(), Policy(), NOW, 0).placed[0]
    assert [each.node_name for each in placed.replicas] == ["d", "e", "f"]


def test_of_several_clusters_the_one_where_most_replicas_start_is_chosen() -> None:
    near, far = ClusterId(an_id("c1")), ClusterId(an_id("c2"))
    fleets = (a_fleet(a_node("x", 3), cluster_id=near), a_fleet(a_node("y"), cluster_id=far))
    for order in (fleets, fleets[::-1]):
        workload = a_workload().gpus(1).gang(6, minimum=2).build()
        snapshot = Snapshot(1, (workload,), (), order, a_tree())
        placed = decide(snapshot, Policy(), NOW, 0).placed[0]
        assert (placed.cluster_id, len(placed.replicas)) == (far, 6)


def test_no_more_replicas_start_than_the_quota_admits() -> None:
    quota = {FlavorResource("any", GPU): ResourceQuota(5000)}
    queue = ClusterQueueSpec("default", None, (ResourceGroup((GPU,), ("any",)),), quota)
    replicas = ReplicaRequest(8, 2, 8, gang=True)
    world = World([a_node()], [queue], [a_workload().having(replicas=replicas).build()])
    placed = decide(world.snapshot(), Policy(), NOW, 0).placed[0]
    assert len(placed.replicas) == 5
    assert [use.amount for use in placed.usage] == [5000]
