"""Which node each strategy takes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gpuplane.operator.names import Strategy
from gpuplane.operator.rules.nodes import Candidate
from gpuplane.operator.rules.strategies import choose_node, compute_stranded, link_score
from tests.unit.operator.builders import a_node

CHEAP = {"gpu-orchestrator/cheap-node": "true"}


def candidate(name: str, free: int, *, mask: int | None = None, **more: Any) -> Candidate:
    node = a_node(name, **more)
    return Candidate(node, "nvidia.com/gpu", free, 8, mask)


def chosen(strategy: Strategy, *candidates: Candidate, gpus: int = 2, chance: int = 0) -> str:
    found = choose_node(strategy, candidates, gpus, chance=chance, mix={1: 1, 4: 2, 8: 1})
    assert found is not None
    return found.node.name


def test_least_loaded_takes_the_node_with_most_free_gpus() -> None:
    assert chosen(Strategy.LEAST_LOADED, candidate("a", 3), candidate("b", 7)) == "b"


def test_least_loaded_takes_the_first_by_name_among_equals() -> None:
    assert chosen(Strategy.LEAST_LOADED, candidate("b", 7), candidate("a", 7)) == "a"


def test_random_takes_what_chance_says_among_all_that_fit() -> None:
    nodes = [candidate(name, 4) for name in "abc"]
    found = {chosen(Strategy.RANDOM, *nodes, chance=chance) for chance in range(3)}
    assert found == {"a", "b", "c"}


def test_cost_optimized_takes_the_least_loaded_cheap_node() -> None:
    nodes = [candidate("a", 8), candidate("b", 2, labels=CHEAP), candidate("c", 3, labels=CHEAP)]
    assert chosen(Strategy.COST_OPTIMIZED, *nodes) == "c"


def test_cost_optimized_falls_back_to_least_loaded() -> None:
    other = {"gpu-orchestrator/cheap-node": "false"}
    nodes = [candidate("a", 3), candidate("b", 8, labels=other)]
    assert chosen(Strategy.COST_OPTIMIZED, *nodes) == "b"


def test_fragmentation_keeps_room_for_what_others_ask_for() -> None:
    # On b two go and nothing of use is lost; a would lose its last place for four, c for eight.
    nodes = [candidate("a", 4), candidate("b", 2), candidate("c", 8)]
    assert chosen(Strategy.FRAGMENTATION, *nodes) == "b"


def test_stranded_gpus_are_those_that_a_typical_request_cannot_use() -> None:
    assert compute_stranded(3, {}) == 0
    assert compute_stranded(3, {4: 1, 1: 1}) == 1_500_000_000
    assert compute_stranded(4, {4: 1, 1: 1}) == 0


def test_topology_takes_the_node_whose_free_gpus_are_linked_best() -> None:
    nvlink = {"gpuplane.io/topology": "nvswitch-8"}
    nodes = [candidate("a", 8), candidate("b", 2, annotations=nvlink)]
    assert chosen(Strategy.TOPOLOGY, *nodes) == "b"


def test_topology_reads_which_gpus_are_free_where_that_is_known() -> None:
    cube = {"gpuplane.io/topology": "nvlink-cube-mesh-8"}
    scores = {link_score(candidate("a", 2, mask=0b11 << shift, annotations=cube), 2)
              for shift in range(7)}  # fmt: skip
    assert len(scores) > 1


def test_a_topology_that_cannot_be_read_claims_nothing() -> None:
    wrong = candidate("a", 8, annotations={"gpuplane.io/topology": "no such thing"})
    assert link_score(wrong, 2) == link_score(candidate("b", 8), 2)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_the_order_of_the_nodes_decides_nothing(strategy: Strategy) -> None:
    nodes = [candidate("a", 5), candidate("b", 5), candidate("c", 2, labels=CHEAP)]
    found = {chosen(strategy, *order, chance=7) for order in itertools.permutations(nodes)}
    assert len(found) == 1


@pytest.mark.parametrize("strategy", list(Strategy))
def test_nothing_is_chosen_among_nothing(strategy: Strategy) -> None:
    assert choose_node(strategy, [], 1, chance=0, mix={}) is None
