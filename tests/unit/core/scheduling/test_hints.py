"""What a prediction adds to a node's score: each part, its bound, and that it is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.prediction.classes import WorkloadClass
from gpuplane.core.prediction.durations import Basis, Durations
from gpuplane.core.prediction.hints import Length, PlacementHint
from gpuplane.core.scheduling.bench import NOT_FIT, Bench
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Placed
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.hints import PARTS, compute_hint_points
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.recording import Recording, decode_recording, encode_recording
from gpuplane.core.topology.named import named_topology
from tests.builders import NOW, WorkloadBuilder, World, a_node, a_workload
from tests.examples import examples

T4 = "nvidia-t4"
SHORT = PlacementHint(WorkloadClass.INTERACTIVE, Length.SHORT)
LONG = PlacementHint(WorkloadClass.TRAINING, Length.LONG)
TIES = Policy(placement=PlacementPolicy.COST_OPTIMIZED)
"""All nodes cost nothing, so that only fragments and hints decide."""


def points(world: World, asked: WorkloadBuilder, bound: int = 10) -> list[int]:
    """Return what the hint adds to each node's score, by name."""
    fleet = world.snapshot_fleet()
    workload = asked.build()
    assert workload.hint is not None
    row = bench(fleet, Policy()).row(workload)
    where = np.arange(len(fleet))
    return [int(n) for n in compute_hint_points(workload.hint, row.need, fleet, where, bound)]


def bench(fleet: Fleet, policy: Policy) -> Bench:
    return Bench(fleet, policy, compute_typical_mix([], share=0.95, max_classes=4), NOW, 1)


def with_taken(world: World, *taken: WorkloadBuilder) -> World:
    """Start work and return the world."""
    world.pending = [each.build() for each in taken]
    world.apply(decide(world.snapshot(), Policy(), NOW, 1))
    assert not world.pending
    return world


def placed(world: World, asked: WorkloadBuilder, policy: Policy = TIES) -> Placed:
    world.pending = [asked.build()]
    (verdict,) = decide(world.snapshot(), policy, NOW, 1).verdicts
    assert isinstance(verdict, Placed)
    return verdict


def on(name: str) -> dict[str, str]:
    return {"kubernetes.io/hostname": name}


def test_short_work_is_drawn_to_nodes_in_use_and_away_from_idle_ones() -> None:
    world = World([a_node("a", labels=on("a")), a_node("b", labels=on("b"))])
    half = a_workload("busy").gpus(4).placement(node_selector=on("b"))
    asked = a_workload("w").having(hint=SHORT)
    assert points(with_taken(world, half), asked) == [-10, 5]


def test_a_node_with_one_gpu_is_neither_filled_nor_broken_into() -> None:
    asked = a_workload("w").having(hint=SHORT)
    assert points(World([a_node("a", 1)]), asked) == [0]


def test_long_work_on_several_gpus_is_drawn_to_idle_nodes_joined_by_nvlink() -> None:
    world = World(
        [
            a_node("a", labels=on("a"), topology=named_topology("nvswitch-8", 8)),
            a_node("b", labels=on("b"), topology=named_topology("nvswitch-8", 8)),
            a_node("c", topology=named_topology("pcie-8", 8)),
            a_node("d"),
        ]
    )
    used = a_workload("busy").gpus(2).placement(node_selector=on("b"))
    asked = a_workload("w").gpus(4).having(hint=LONG)
    assert points(with_taken(world, used), asked) == [10, 5, 0, 0]


def test_long_work_on_one_gpu_asks_nothing_of_links() -> None:
    world = World([a_node("a", topology=named_topology("nvswitch-8", 8))])
    assert points(world, a_workload("w").having(hint=LONG)) == [0]


@pytest.mark.parametrize(
    ("memory_gib", "expected"),
    [(16, [9, 1]), (80, [-10, 9]), (12, [7, 1]), (141, [-10, -10])],
)
def test_gpus_that_the_measured_peak_just_fills_are_preferred(
    memory_gib: int, expected: list[int]
) -> None:
    world = World([a_node("a", model=T4), a_node("b")])
    hint = PlacementHint(None, Length.UNKNOWN, memory_gib)
    assert points(world, a_workload("w").having(hint=hint)) == expected


def test_work_without_gpus_gets_no_points() -> None:
    asked = a_workload("w").gpus(0).having(hint=replace(SHORT, memory_gib=16))
    assert points(World([a_node("a")]), asked) == [0]


def test_the_hint_decides_between_equal_nodes_and_is_told() -> None:
    world = with_taken(
        World([a_node("a", labels=on("a")), a_node("b", labels=on("b"))]),
        a_workload("busy").gpus(6).placement(node_selector=on("b")),
    )
    policy = Policy(placement=PlacementPolicy.RANDOM)
    seen = set()
    for seed in range(6):
        world.pending = [a_workload("w").having(hint=SHORT).build()]
        (verdict,) = decide(world.snapshot(), policy, NOW, seed).placed
        seen.add(verdict.replicas[0].node_name)
        told = [each for each in verdict.explanation if each.startswith("The hint")]
        name = verdict.replicas[0].node_name
        assert told == [
            {
                "b": "The hint for interactive is worth +7 of 100 there: short work fills up a "
                "node that is in use.",
                "a": "The hint for interactive is worth -10 of 100 there: short work would break "
                "into an idle node.",
            }[name]
        ]
    assert seen, "every seed places it"


def test_without_a_hint_nothing_is_told_and_nothing_changes() -> None:
    world = with_taken(World([a_node("a"), a_node("b")]), a_workload("busy").gpus(3))
    plain = placed(world, a_workload("w"), Policy())
    assert placed(world, a_workload("w"), Policy(hint_points=0)) == plain
    assert not any("hint" in each for each in plain.explanation)
    unbounded = placed(world, a_workload("w").having(hint=SHORT), Policy(hint_points=0))
    assert unbounded.replicas == plain.replicas
    assert unbounded.score == plain.score


def test_a_gang_is_told_the_hint_of_the_node_before_it_came() -> None:
    world = World([a_node("a")])
    verdict = placed(world, a_workload("w").gpus(1).gang(4).having(hint=SHORT), Policy())
    assert any("is worth -10 of 100 there" in each for each in verdict.explanation)


def test_jobs_with_another_hint_are_another_class() -> None:
    plain, short = a_workload("w").build(), a_workload("w").having(hint=SHORT).build()
    assert plain.class_key == a_workload("v").build().class_key
    assert short.class_key == a_workload("v").having(hint=SHORT).build().class_key
    assert len({plain.class_key, short.class_key, replace(short, hint=LONG).class_key}) == 3


hints = st.builds(
    PlacementHint,
    st.none() | st.sampled_from(WorkloadClass),
    st.sampled_from(Length),
    st.none() | st.sampled_from([8, 16, 80, 141]),
)


@examples(40)
@given(hints, st.integers(0, 8), st.integers(1, 8), st.integers(0, 100))
def test_a_hint_moves_no_score_by_more_than_its_bound(
    hint: PlacementHint, taken: int, gpus: int, bound: int
) -> None:
    nodes = [
        a_node("a", topology=named_topology("nvswitch-8", 8)),
        a_node("b", model=T4),
        a_node("c", 1),
    ]
    world = with_taken(World(nodes), a_workload("busy").gpus(taken))
    fleet = world.snapshot_fleet()
    policy = Policy(hint_points=bound)
    plain = bench(fleet, policy).row(a_workload("w").gpus(gpus).build()).ranks >> 16
    asked = a_workload("w").gpus(gpus).having(hint=hint).build()
    row = bench(fleet, policy).row(asked)
    hinted = row.ranks >> 16
    fits = row.ranks != NOT_FIT
    assert (abs(hinted - plain)[fits] <= bound).all()
    for part in PARTS.values():
        share = part.score(hint, row.need, fleet, np.arange(len(fleet)))
        assert (abs(share) <= 100).all()


@examples(25)
@given(st.lists(st.tuples(hints, st.integers(1, 4)), min_size=1, max_size=8))
def test_hints_are_the_same_looked_up_as_looked_at_anew(
    asked: list[tuple[PlacementHint, int]],
) -> None:
    def a_world() -> World:
        joined = named_topology("nvswitch-8", 8)
        nodes = [
            a_node("a", topology=joined),
            a_node("b", topology=joined),
            a_node("c"),
            a_node("d", 4, model=T4),
        ]  # fmt: skip - one fleet
        return World(nodes)

    policy = Policy(placement=PlacementPolicy.MOST_LOADED)
    pending = [
        a_workload(f"w{n}").gpus(gpus).having(hint=hint).age(1000 - n).build()
        for n, (hint, gpus) in enumerate(asked)
    ]
    at_once = a_world()
    at_once.pending = list(pending)
    together = {
        each.job_id: each.replicas for each in decide(at_once.snapshot(), policy, NOW, 1).placed
    }
    one_by_one = a_world()
    apart = {}
    for workload in pending:
        one_by_one.pending = [workload]
        decision = decide(one_by_one.snapshot(), policy, NOW, 1)
        apart |= {each.job_id: each.replicas for each in decision.placed}
        one_by_one.apply(decision)
    assert together == apart


def test_a_recording_keeps_hints_and_learned_durations_to_the_byte() -> None:
    known = Durations(60, 600, 6_000, Basis.HISTORY)
    hint = replace(SHORT, memory_gib=16)
    world = World([a_node("a"), a_node("b", model=T4)])
    world.pending = [a_workload("w").having(hint=hint, learned=known).build()]
    data = encode_recording(Recording(world.snapshot(), Policy(), NOW, 1))
    again = decode_recording(data)
    assert encode_recording(again) == data
    assert again.snapshot.pending[0].hint == hint
    assert again.snapshot.pending[0].learned == known
    assert again.replay().to_json() == decide(world.snapshot(), Policy(), NOW, 1).to_json()
