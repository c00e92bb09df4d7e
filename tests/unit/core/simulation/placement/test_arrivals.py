"""In which order pods arrive, and how many."""

from __future__ import annotations

from collections import Counter

from gpuplane.core.simulation.placement.arrivals import (
    Chance,
    list_file_arrivals,
    list_shuffled_arrivals,
    name_nodes_by_chance,
)
from tests.unit.core.simulation.placement.trace import a_pod, some_nodes

PODS = (a_pod("a", 1, 400), a_pod("b", 4), a_pod("c", 0), a_pod("d", 1))


def test_a_list_repeats_until_the_next_pod_would_pass_the_share() -> None:
    # 400 + 4000 + 0 + 1000 a round: the last pod of the second round would pass 10,000.
    names = [pod.name for pod in list_file_arrivals(PODS, 10_000, 1000)]
    assert names == ["a", "b", "c", "d", "a", "b", "c"]
    assert sum(pod.total_milli for pod in list_file_arrivals(PODS, 10_000, 1000)) == 9800


def test_a_list_without_gpus_arrives_once() -> None:
    only_cpu = (a_pod("a", 0), a_pod("b", 0))
    assert list_file_arrivals(only_cpu, 1000, 1300) == list(only_cpu)
    assert sorted(list_shuffled_arrivals(only_cpu, 1000, 1300, 1), key=lambda p: p.name) == [
        *only_cpu
    ]


def test_missing_demand_is_filled_with_clones_after_all_others() -> None:
    arrivals = list_shuffled_arrivals(PODS, 20_000, 1000, seed=7)
    assert Counter(arrivals[:4]) == Counter(PODS)
    assert len(arrivals) > 4
    # The test of the last clone looks at one of its GPUs, so several may pass the target.
    assert sum(pod.total_milli for pod in arrivals[:-1]) <= 20_000 + 3000


def test_too_much_demand_is_taken_out() -> None:
    arrivals = list_shuffled_arrivals(PODS, 1000, 1500, seed=7)
    assert sum(pod.total_milli for pod in arrivals) <= 1500
    assert set(arrivals) < set(PODS)


def test_a_seed_gives_the_same_pods_whatever_the_order_of_the_list() -> None:
    first = list_shuffled_arrivals(PODS, 20_000, 1300, seed=3)
    assert list_shuffled_arrivals(PODS[::-1], 20_000, 1300, seed=3) == first
    assert list_shuffled_arrivals(PODS, 20_000, 1300, seed=4) != first


def test_chance_is_even() -> None:
    chance = Chance(1, "test")
    drawn = Counter(chance.draw_below(4) for _ in range(4000))
    assert sorted(drawn) == [0, 1, 2, 3]
    assert min(drawn.values()) > 850


def test_nodes_are_renamed_so_that_their_order_is_one_of_chance() -> None:
    nodes = some_nodes(20)
    named = name_nodes_by_chance(nodes, seed=1)
    assert [node.name for node in named] == sorted(node.name for node in named)
    assert sorted(node.name.partition("-")[2] for node in named) == sorted(n.name for n in nodes)
    assert [node.name[8:] for node in named] != [node.name for node in nodes]
    assert named != name_nodes_by_chance(nodes, seed=2)
