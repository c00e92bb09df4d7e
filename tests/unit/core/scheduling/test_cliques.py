"""A gang that asks NVLink across nodes stays inside one NVLink clique, such as an NVL72 rack."""

from __future__ import annotations

import pytest

from gpuplane.core.fleet.facts import CLIQUE_LABEL, NodeFacts
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Placed, Waiting
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import NetworkLevel, NetworkMode, NetworkRequest, Spreading
from tests.builders import NOW, WorkloadBuilder, World, a_node, a_workload

GB200 = "nvidia-gb200"


def an_nvl72(name: str, count: int = 18, rack: str = "") -> list[NodeFacts]:
    """Return the nodes of one rack: 18 compute trays of four GPUs in one clique."""
    return [
        a_node(
            f"{name}-{index:02}",
            4,
            model=GB200,
            topology=named_topology("nvl72-node-4", 4),
            labels={CLIQUE_LABEL: f"{name}.1"},
            rack=rack or name,
            block="b1",
        )
        for index in range(count)
    ]


def a_gang(count: int, *, required: bool = True, gpus: int = 4) -> WorkloadBuilder:
    gang = a_workload(f"gang of {count}").gpus(gpus).gang(count, count)
    return gang.links(LinkPreference.NVLINK, required=required)


def decide_on(world: World) -> Placed | Waiting:
    verdict = decide(world.snapshot(), Policy(), NOW, 1).verdicts[0]
    assert isinstance(verdict, (Placed, Waiting))
    return verdict


def cliques_of(placed: Placed | Waiting) -> set[str]:
    assert isinstance(placed, Placed), placed
    return {each.node_name.rsplit("-", 1)[0] for each in placed.replicas}


def test_a_whole_rack_is_eighteen_nodes_of_four_in_one_clique() -> None:
    world = World([*an_nvl72("rack-a"), *an_nvl72("rack-b")], pending=[a_gang(18).build()])
    placed = decide_on(world)
    assert len(cliques_of(placed)) == 1
    assert isinstance(placed, Placed)
    assert sum(len(each.gpu_ids) for each in placed.replicas) == 72
    assert "in NVLink clique rack-" in " ".join(placed.explanation)


def test_a_gang_larger_than_a_clique_is_refused_where_nvlink_is_required() -> None:
    world = World([*an_nvl72("rack-a"), *an_nvl72("rack-b")], pending=[a_gang(19).build()])
    waiting = decide_on(world)
    assert isinstance(waiting, Waiting)
    assert waiting.reason.word is Word.TOPOLOGY


def test_a_gang_larger_than_a_clique_spans_two_where_nvlink_is_only_preferred() -> None:
    gang = a_gang(19, required=False)
    world = World([*an_nvl72("rack-a"), *an_nvl72("rack-b")], pending=[gang.build()])
    assert cliques_of(decide_on(world)) == {"rack-a", "rack-b"}


@pytest.mark.parametrize("required", [True, False])
def test_the_tightest_clique_that_is_enough_is_taken(required: bool) -> None:
    world = World(
        [*an_nvl72("large", 6), *an_nvl72("small", 4), *an_nvl72("tiny", 2)],
        pending=[a_gang(3, required=required).build()],
    )
    assert cliques_of(decide_on(world)) == {"small"}


def test_a_clique_is_kept_to_even_where_the_racks_are_named_otherwise() -> None:
    # Two half-filled cliques in one rack: the rack has room, no clique has.
    nodes = [*an_nvl72("a", 2, rack="r"), *an_nvl72("b", 2, rack="r")]
    waiting = decide_on(World(nodes, pending=[a_gang(3).build()]))
    assert isinstance(waiting, Waiting)
    placed = decide_on(World(nodes, pending=[a_gang(3, required=False).build()]))
    assert cliques_of(placed) == {"a", "b"}


def test_nodes_of_no_clique_promise_nvlink_inside_each_replica_only() -> None:
    nodes = [a_node(f"hgx-{i}", 8, topology=named_topology("nvswitch-8", 8)) for i in range(2)]
    assert cliques_of(decide_on(World(nodes, pending=[a_gang(2, gpus=8).build()]))) == {"hgx"}


def test_a_clique_and_nodes_of_none_are_not_mixed() -> None:
    nodes = [
        *an_nvl72("rack", 2),
        *(a_node(f"hgx-{i}", 4, topology=named_topology("nvlink-4", 4)) for i in range(2)),
    ]
    waiting = decide_on(World(nodes, pending=[a_gang(3).build()]))
    assert isinstance(waiting, Waiting)
    assert waiting.reason.word is Word.TOPOLOGY
    assert cliques_of(decide_on(World(nodes, pending=[a_gang(2).build()]))) == {"rack"}


def test_a_gang_that_asks_nothing_of_the_links_may_span_cliques() -> None:
    gang = a_workload().gpus(4).gang(3, 3)
    nodes = [*an_nvl72("a", 2), *an_nvl72("b", 2)]
    assert cliques_of(decide_on(World(nodes, pending=[gang.build()]))) == {"a", "b"}


def test_a_required_rack_and_a_required_clique_both_hold() -> None:
    asked = NetworkRequest(NetworkLevel.RACK, NetworkMode.REQUIRED)
    split = [*an_nvl72("a", 2, rack="r1"), *an_nvl72("b", 4, rack="r2")]
    gang = a_gang(3).placement(network=asked)
    assert cliques_of(decide_on(World(split, pending=[gang.build()]))) == {"b"}


def test_a_spread_gang_takes_one_node_each_inside_the_clique() -> None:
    gang = a_gang(4, gpus=1).spreading(Spreading.SPREAD)
    placed = decide_on(World([*an_nvl72("a", 3), *an_nvl72("b", 5)], pending=[gang.build()]))
    assert cliques_of(placed) == {"b"}
    assert isinstance(placed, Placed)
    assert len({each.node_id for each in placed.replicas}) == 4
