"""Which node, which GPUs, and gangs that start whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gpuplane.core.ids import ClusterId
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision, Placed
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy, Snapshot
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import Spreading
from tests.builders import (
    A100,
    NOW,
    WorkloadBuilder,
    World,
    a_fleet,
    a_node,
    a_tree,
    a_workload,
    an_id,
)


def run(world: World, placement: PlacementPolicy = PlacementPolicy.FRAGMENTATION) -> Decision:
    return decide(world.snapshot(), Policy(placement=placement), NOW, 1)


def place(world: World, *pending: WorkloadBuilder, **rest: PlacementPolicy) -> list[Placed]:
    """Place workloads, those named first first, and apply."""
    world.pending = [each.age(1000 - n).build() for n, each in enumerate(pending)]
    decision = run(world, **rest)
    world.apply(decision)
    return list(decision.placed)


def indices(world: World, placed: Placed, rank: int = 0) -> set[int]:
    replica = placed.replicas[rank]
    node = next(each for each in world.nodes if each.node_id == replica.node_id)
    return {gpu.index for gpu in node.gpus if gpu.gpu_id in replica.gpu_ids}


def test_small_work_is_packed_so_that_a_large_job_still_fits() -> None:
    world = World([a_node("a"), a_node("b")])
    small = place(world, *(a_workload(f"s{n}").gpus(2) for n in range(4)))
    assert len({each.replicas[0].node_id for each in small}) == 1
    assert place(world, a_workload("large").gpus(8))


def test_least_loaded_spreads_where_most_loaded_packs() -> None:
    spread = World([a_node("a"), a_node("b")])
    one, two = place(
        spread, a_workload("x"), a_workload("y"), placement=PlacementPolicy.LEAST_LOADED
    )
    assert one.replicas[0].node_id != two.replicas[0].node_id
    packed = World([a_node("a"), a_node("b")])
    one, two = place(
        packed, a_workload("x"), a_workload("y"), placement=PlacementPolicy.MOST_LOADED
    )
    assert one.replicas[0].node_id == two.replicas[0].node_id


def test_cost_optimized_takes_the_cheapest_node_that_fits() -> None:
    world = World(
        [
            a_node("a", price_micro_per_gpu_hour=2_000_001),
            a_node("b", price_micro_per_gpu_hour=2_000_000),
            a_node("c", gpu_count=0),
        ]
    )
    (placed,) = place(world, a_workload(), placement=PlacementPolicy.COST_OPTIMIZED)
    assert placed.replicas[0].node_name == "b"


def test_random_depends_on_the_seed_and_nothing_else() -> None:
    world = World([a_node(f"n{n}") for n in range(8)], pending=[a_workload().build()])
    policy = Policy(placement=PlacementPolicy.RANDOM)
    chosen = {
        decide(world.snapshot(), policy, NOW, seed).placed[0].replicas[0].node_name
        for seed in range(20)
    }
    assert len(chosen) > 2


def test_gpus_that_are_joined_well_are_given_together() -> None:
    world = World([a_node(topology=named_topology("nvlink-cube-mesh-8", 8))])
    (placed,) = place(world, a_workload().gpus(4).links(LinkPreference.NVLINK, required=True))
    assert indices(world, placed) in ({0, 1, 2, 3}, {4, 5, 6, 7})


@pytest.mark.parametrize("policy", [PlacementPolicy.FRAGMENTATION, PlacementPolicy.MOST_LOADED])
def test_a_share_goes_to_the_gpu_that_it_fills_up(policy: PlacementPolicy) -> None:
    world = World([a_node(gpu_count=4)])
    first, second = place(
        world, a_workload("a").share(500), a_workload("b").share(500), placement=policy
    )
    assert indices(world, first) == indices(world, second)


def test_a_share_that_does_not_fit_beside_another_takes_a_fresh_gpu() -> None:
    world = World([a_node(gpu_count=2)])
    first, second = place(world, a_workload("a").share(700), a_workload("b").share(700))
    assert indices(world, first) != indices(world, second)


def test_mig_instances_are_taken_one_by_one_and_named() -> None:
    world = World([a_node(mig={0: [("1g.10gb", 0), ("1g.10gb", 1)]})])
    placed = place(world, *(a_workload(f"m{n}").mig("1g.10gb") for n in range(3)))
    starts = {each.replicas[0].mig.start for each in placed if each.replicas[0].mig}
    assert starts == {0, 1}


def test_work_without_gpus_goes_where_no_gpu_is_idle() -> None:
    world = World([a_node("a"), a_node("cpu", gpu_count=0, cpu_milli=16_000)])
    (placed,) = place(world, a_workload().gpus(0))
    assert placed.replicas[0].node_name == "cpu"


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    world = World([a_node("a", 4), a_node("b", 4)])
    decision_for = a_workload("gang").gpus(3).gang(3)
    assert place(world, decision_for) == []
    verdict = run(world).waiting[0]
    assert verdict.reason.word is Word.GANG
    assert "2 fit now" in verdict.reason.sentence
    assert place(world, a_workload("other").gpus(4))


def test_a_gang_starts_with_its_minimum_when_not_all_fit() -> None:
    world = World([a_node("a", 4), a_node("b", 4)])
    (placed,) = place(world, a_workload().gpus(3).gang(3, minimum=2))
    assert len(placed.replicas) == 2


def test_replicas_that_are_no_gang_start_as_they_fit() -> None:
    world = World([a_node("a", 4)])
    (placed,) = place(world, a_workload().gpus(1).replicas(6))
    assert len(placed.replicas) == 4


def test_a_gang_stays_inside_one_node_if_one_holds_it() -> None:
    world = World([a_node("a", 4), a_node("b", 8), a_node("c", 4)])
    (placed,) = place(world, a_workload().gpus(2).gang(4))
    assert {each.node_name for each in placed.replicas} == {"b"}


def test_a_gang_across_nodes_stays_inside_one_rack_if_one_holds_it() -> None:
    racks = {"a": "r1", "b": "r2", "c": "r1", "d": "r2"}
    world = World([a_node(name, rack=rack) for name, rack in racks.items()])
    place(world, a_workload("first").gpus(8).placement(node_selector={}))
    (placed,) = place(world, a_workload("gang").gpus(8).gang(2))
    assert {racks[each.node_name] for each in placed.replicas} == {"r2"}


def test_same_node_and_spread_are_kept() -> None:
    world = World([a_node("a", 4), a_node("b", 8)])
    (together,) = place(world, a_workload("s").gpus(2).gang(3).spreading(Spreading.SAME_NODE))
    assert {each.node_name for each in together.replicas} == {"b"}
    (apart,) = place(world, a_workload("p").gpus(1).gang(2).spreading(Spreading.SPREAD))
    assert Counter(each.node_name for each in apart.replicas) == {"a": 1, "b": 1}
    assert not place(world, a_workload("q").gpus(0).gang(3).spreading(Spreading.SPREAD))


def test_a_job_is_placed_near_the_one_it_names_and_apart_from_the_other() -> None:
    world = World([a_node("a"), a_node("b"), a_node("c")])
    anchor = a_workload("anchor").gpus(8)
    (placed,) = place(world, anchor)
    away = a_workload("away").gpus(0).placement(separate_from=(an_id("job/anchor"),))
    near = a_workload("near").gpus(0).placement(co_locate_with=(an_id("job/anchor"),))
    by_id = {each.job_id: each for each in place(world, away, near)}
    there = placed.replicas[0].node_id
    assert by_id[near.build().job_id].replicas[0].node_id == there
    assert by_id[away.build().job_id].replicas[0].node_id != there


def test_a_job_waits_for_the_one_it_must_be_near() -> None:
    world = World([a_node("a")])
    place(world, a_workload("near").placement(co_locate_with=(an_id("job/absent"),)))
    assert run(world).waiting[0].reason.word is Word.AFFINITY


def test_the_cluster_that_suits_best_is_chosen_among_those_allowed() -> None:
    h100, a100 = ClusterId(an_id("c1")), ClusterId(an_id("c2"))
    fleets = (
        a_fleet(a_node("x"), cluster_id=h100),
        a_fleet(a_node("y", model=A100), cluster_id=a100),
    )

    def cluster_of(workload: Workload) -> ClusterId:
        snapshot = Snapshot(1, (workload,), (), fleets, a_tree())
        return decide(snapshot, Policy(), NOW, 1).placed[0].cluster_id

    assert cluster_of(a_workload().gpus(1, gpu_model=A100).build()) == a100
    assert cluster_of(replace(a_workload().build(), clusters=(a100,))) == a100
    assert cluster_of(replace(a_workload().build(), clusters=(h100,))) == h100


@pytest.mark.parametrize("policy", list(PlacementPolicy))
def test_every_policy_scores_between_0_and_100(policy: PlacementPolicy) -> None:
    world = World([a_node("a", topology=named_topology("nvswitch-8", 8)), a_node("b", 4)])
    placed = place(
        world,
        a_workload("w").gpus(2).links(LinkPreference.NVLINK),
        a_workload("s").share(300),
        a_workload("c").gpus(0),
        placement=policy,
    )
    assert len(placed) == 3
    assert all(0 <= each.score <= 100 for each in placed)


def test_a_decision_is_the_same_bytes_each_time_and_names_every_kind() -> None:
    world = World(
        [a_node("a", 1)], pending=[a_workload("x").build(), a_workload("y").gpus(1).build()]
    )
    text = run(world).to_json()
    assert text == run(world).to_json()
    assert b'"kind":"Placed"' in text
    assert b'"kind":"Waiting"' in text
    assert b'"word":"InsufficientGpu"' in text


def test_work_goes_where_its_data_is_and_says_so() -> None:
    held = {"data.gpuplane.io/images": "cached", "data.gpuplane.io/text": "stale"}
    world = World([a_node("a"), a_node("b", labels=held)])
    world.pending = [a_workload().placement(data=("images", "text", "images")).build()]
    (placed,) = decide(world.snapshot(), Policy(), NOW, 0).placed
    assert placed.replicas[0].node_name == "b"
    assert "1 of 2 data sets are at hand on b." in placed.explanation


@pytest.mark.parametrize("policy", list(PlacementPolicy))
def test_data_at_hand_never_outweighs_what_a_node_cannot_give(policy: PlacementPolicy) -> None:
    held = {"data.gpuplane.io/images": "cached"}
    world = World([a_node("a"), a_node("b", 2, labels=held)])
    world.pending = [a_workload().gpus(4).placement(data=("images",)).build()]
    (placed,) = decide(world.snapshot(), Policy(placement=policy), NOW, 0).placed
    assert placed.replicas[0].node_name == "a"
    assert 0 <= placed.score <= 100
