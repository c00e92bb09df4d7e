"""Replays of small lists whose outcome can be worked out by hand."""

from __future__ import annotations

import pytest

from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.simulation.placement.ahead import LookAhead, MovingPlacer
from gpuplane.core.simulation.placement.files import TraceNode, TracePod
from gpuplane.core.simulation.placement.reference import ReferencePlacer, ReferencePolicy
from gpuplane.core.simulation.placement.replays import (
    POLICIES,
    Report,
    capacity_of,
    policy_of,
    replay,
)
from tests.unit.core.simulation.placement.trace import a_pod, run, some_nodes


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_fills_a_cluster_that_its_pods_fit_exactly(policy: str) -> None:
    pods = tuple(a_pod(f"pod-{i}") for i in range(8))
    report = run(policy, some_nodes(2, 4), pods, per_mille=1000)
    assert (report.arrived, report.placed, report.allocation_ratio) == (8, 8, 1.0)
    assert report.cpu_milli_left == 2 * 64_000 - 8 * 1000


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_that_does_not_fit_is_dropped_and_counted_by_its_gpus(policy: str) -> None:
    pods = (a_pod("large", 8), a_pod("small", 1, 500), a_pod("blind", 1, models="A10|V100"))
    report = run(policy, some_nodes(2, 4), pods, per_mille=1500)
    assert report.arrived == 3
    assert dict(report.refused) == {8: 1, 1: 1}
    assert (report.placed, report.allocated_milli, report.refused_shares) == (1, 500, 0)


def test_models_joined_by_a_bar_accept_each_of_them() -> None:
    nodes = (TraceNode("a", 64_000, 1024, 1, "T4"), TraceNode("b", 64_000, 65_536, 1, "A10"))
    pods = (a_pod("x", models="V100|A10"), a_pod("y", models="V100|A10"))
    for policy in ("fragmentation", "fgd"):
        report = run(policy, nodes, pods, per_mille=1000)
        assert (report.placed, report.refused[1]) == (1, 1)


def test_checkpoints_and_curve_follow_arrivals() -> None:
    pods = tuple(a_pod(f"pod-{i}") for i in range(10))
    report = run("bestfit", some_nodes(2, 4), pods, per_mille=1250)
    seen = [(each.arrivals_percent, each.allocation_ratio) for each in report.checkpoints]
    full = [(percent, 1.0) for percent in (90, 95, 100, 110, 120)]
    assert seen == [(40, 0.5), (60, 0.625), (80, 0.875), *full]
    assert report.curve[50] == 0.5
    assert report.curve[125] == 1.0


def placer(policy: ReferencePolicy, *nodes: TraceNode) -> ReferencePlacer:
    return ReferencePlacer(nodes, (a_pod(),), policy, seed=1)


def free(made: ReferencePlacer) -> list[list[int]]:
    return [[int(milli) for milli in row] for row in made.nodes.free]


def test_bestfit_takes_the_fuller_node_and_the_fuller_gpu() -> None:
    made = placer(ReferencePolicy.BEST_FIT, *some_nodes(2, 2))
    made.nodes.take(a_pod("old", 1, 600), 1, [1])
    assert made.place(a_pod("new", 1, 300))
    assert free(made) == [[1000, 1000], [1000, 100]]


def test_dotprod_takes_the_node_with_the_least_in_common() -> None:
    small, large = some_nodes(1, 2)[0], TraceNode("x", 128_000, 262_144, 8, "T4")
    made = placer(ReferencePolicy.DOT_PROD, large, small)
    assert made.place(a_pod("new", 2, cpu_milli=32_000))
    assert free(made)[1][:2] == [0, 0]


def test_packing_prefers_a_used_gpu_then_a_used_node_then_an_idle_one() -> None:
    made = placer(ReferencePolicy.GPU_PACKING, *some_nodes(3, 4))
    made.nodes.take(a_pod("old", 1, 600), 2, [0])
    assert made.place(a_pod("share", 1, 400))
    assert free(made)[2][0] == 0
    assert made.place(a_pod("whole", 1))
    assert free(made)[2] == [0, 0, 1000, 1000]
    assert made.place(a_pod("wide", 4))
    assert free(made)[0] == [0, 0, 0, 0]


def test_clustering_keeps_pods_of_one_size_together() -> None:
    made = placer(ReferencePolicy.GPU_CLUSTERING, *some_nodes(3, 4))
    made.nodes.take(a_pod("share", 1, 600), 0, [0])
    made.nodes.take(a_pod("pair", 2), 1, [0, 1])
    assert made.place(a_pod("other", 1, 300))
    assert free(made)[0][0] == 100
    assert made.place(a_pod("second", 2))
    assert free(made)[1] == [0, 0, 0, 0]
    assert made.place(a_pod("wide", 4))
    assert free(made)[2] == [0, 0, 0, 0]


def test_random_depends_on_the_seed_alone() -> None:
    def taken(seed: int) -> list[list[int]]:
        made = ReferencePlacer(some_nodes(8, 4), (a_pod(),), ReferencePolicy.RANDOM, seed)
        assert all(made.place(a_pod(f"p{i}", 1, 500)) for i in range(6))
        return free(made)

    assert taken(1) == taken(1)
    assert taken(1) != taken(2)


def moving(nodes: tuple[TraceNode, ...], pods: tuple[TracePod, ...], moves: int) -> MovingPlacer:
    return MovingPlacer(nodes, pods, policy_of("mostLoaded"), 1, moves)


def test_a_refused_pod_is_placed_after_moves_and_the_moves_are_counted() -> None:
    # Two pods that need much CPU and one that needs two GPUs: wherever the first two went, one
    # of them is in the way.
    nodes = tuple(TraceNode(f"n{i}", 10_000, 65_536, 2, "T4") for i in range(2))
    pods = (
        a_pod("a", cpu_milli=6000),
        a_pod("b", cpu_milli=6000),
        a_pod("c", 0, cpu_milli=4000),
        a_pod("d", 0, cpu_milli=4000),
    )
    placed = moving(nodes, pods, 10)
    assert all(placed.place(pod) for pod in pods)
    assert not placed.place(a_pod("e", 1)), "all CPU is taken: no move can help"
    assert placed.moves == 0


def scattered(moves: int) -> tuple[MovingPlacer, bool]:
    """Spread one-GPU pods over two nodes, then ask for a whole node."""
    nodes = some_nodes(2, 4)
    pods = tuple(a_pod(f"p{i}") for i in range(2))
    made = MovingPlacer(nodes, pods, policy_of("leastLoaded"), 1, moves)
    assert all(made.place(pod) for pod in pods)
    return made, made.place(a_pod("wide", 4))


def test_one_move_makes_room_for_a_pod_of_a_whole_node() -> None:
    made, fits = scattered(moves=1)
    assert fits
    assert made.moves == 1
    assert int(made.fleet.gpu_free_milli.sum()) == 2000


def test_without_moves_it_is_refused() -> None:
    made, fits = scattered(moves=0)
    assert not fits
    assert made.moves == 0


def ahead(window: int, *pods: TracePod) -> tuple[Report, LookAhead, list[str]]:
    nodes = some_nodes(1, 1)
    made = MovingPlacer(nodes, pods, Policy(), 1, 0)
    order: list[str] = []
    looking = LookAhead(pods, made, window)

    def noted() -> list[TracePod]:
        chosen = []
        for pod in looking:
            order.append(pod.name)
            chosen.append(pod)
            yield pod

    return replay(noted(), made, capacity_of(nodes)), looking, order


def test_of_pods_that_are_known_the_one_that_leaves_least_useless_goes_first() -> None:
    pods = (a_pod("wasteful", 1, 810), a_pod("whole", 1))
    blind, _, first = ahead(0, *pods)
    seeing, looking, order = ahead(1, *pods)
    assert first == ["wasteful", "whole"]
    assert order == ["whole", "wasteful"]
    assert (blind.allocated_milli, seeing.allocated_milli) == (810, 1000)
    assert looking.longest_wait == 1


def test_every_pod_is_decided_once_whatever_the_window() -> None:
    pods = tuple(a_pod(f"p{i}", 1, 300 + 70 * (i % 7)) for i in range(40))
    for window in (0, 3, 100):
        report, looking, order = ahead(window, *pods)
        assert sorted(order) == sorted(pod.name for pod in pods)
        assert report.arrived == 40
        assert looking.longest_wait <= max(8 * window + 1, 0)
