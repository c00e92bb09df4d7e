"""Cutting GPUs inside a cycle: nobody loses anything, and who was promised a cut starts on it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.fleet.facts import GpuFacts, MigChange, MigPlacement, NodeFacts
from gpuplane.core.ids import GpuId
from gpuplane.core.mig.layouts import MigInstance, find_problem
from gpuplane.core.mig.profiles import KNOWN_TABLES
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.policy import Policy
from tests.builders import A100, NOW, World, a_node, a_workload
from tests.examples import examples

TABLE = KNOWN_TABLES[A100]
PROFILES = [profile.name for profile in TABLE.profiles if not profile.is_variant]
OFF = Policy(preemption=replace(Policy().preemption, enabled=False))


@st.composite
def layouts(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Return at least one instance, legal together."""
    placed: list[MigInstance] = []
    for _ in range(draw(st.integers(1, 7))):
        options = [
            MigInstance(start, profile.name)
            for profile in TABLE.profiles
            if not profile.is_variant
            for start in profile.starts
            if find_problem(TABLE, [*placed, MigInstance(start, profile.name)]) is None
        ]
        if options:
            placed.append(draw(st.sampled_from(options)))
    return [(one.profile, one.start) for one in placed]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Return nodes of cut GPUs, some of them held, and work that asks for any profiles."""
    nodes = []
    for number in range(draw(st.integers(1, 3))):
        mig = {gpu: draw(layouts()) for gpu in range(draw(st.integers(1, 3)))}
        nodes.append(a_node(f"node-{number}", len(mig), model=A100, mig=mig, cpu_milli=40_000))
    world = World(nodes)
    free = sorted({slot.profile for node in nodes for gpu in node.gpus for slot in
                   gpu.mig_instances})  # fmt: skip
    first = draw(st.lists(st.sampled_from(free), max_size=5))
    world.pending = [a_workload(f"held-{i}").mig(name).build() for i, name in enumerate(first)]
    world.apply(decide(world.snapshot(), replace(OFF, cuts_gpus=False), NOW, 1))
    asked = draw(st.lists(st.tuples(st.sampled_from(PROFILES), st.integers(1, 3)), max_size=6))
    world.pending = []
    for i, (name, count) in enumerate(asked):
        builder = a_workload(f"asked-{i}").mig(name).age(60 - i)
        world.pending.append((builder.gang(count) if count > 1 else builder).build())
    return world


def held(world: World) -> set[MigPlacement]:
    return {
        allocation.mig
        for running in world.running
        for allocation in running.allocations
        if allocation.mig is not None
    }


def changes_of(decision: Decision) -> list[MigChange]:
    return [change for verdict in decision.repartitioning for change in verdict.changes]


def carry_out(world: World, changes: list[MigChange]) -> None:
    by_gpu = {change.gpu_id: change for change in changes}

    def cut(gpu: GpuFacts) -> GpuFacts:
        change = by_gpu.get(gpu.gpu_id)
        if change is None:
            return gpu
        kept = [slot for slot in gpu.mig_instances if slot not in change.destroy]
        return replace(gpu, mig_instances=tuple(sorted([*kept, *change.create])))

    def node_of(node: NodeFacts) -> NodeFacts:
        return replace(node, gpus=tuple(map(cut, node.gpus)))

    world.nodes = [node_of(node) for node in world.nodes]


@given(worlds())
@examples(60)
def test_a_cut_is_legal_and_touches_nothing_that_is_held_or_given_out(world: World) -> None:
    before = held(world)
    decision = decide(world.snapshot(), OFF, NOW, 1)
    assert {v.job_id for v in decision.verdicts} == {w.job_id for w in world.pending}
    changes = changes_of(decision)
    gpus = [change.gpu_id for change in changes]
    assert len(gpus) == len(set(gpus))
    gone = {MigPlacement(c.gpu_id, s.profile, s.start) for c in changes for s in c.destroy}
    given_out = {each.mig for placed in decision.placed for each in placed.replicas}
    assert not gone & before
    assert not gone & given_out
    carry_out(world, changes)
    for node in world.nodes:
        for gpu in node.gpus:
            there = [MigInstance(slot.start, slot.profile) for slot in gpu.mig_instances]
            assert find_problem(TABLE, there) is None


@given(worlds())
@examples(60)
def test_who_was_promised_a_cut_starts_once_it_is_made(world: World) -> None:
    decision = decide(world.snapshot(), OFF, NOW, 1)
    promised = {verdict.job_id for verdict in decision.repartitioning}
    carry_out(world, changes_of(decision))
    world.apply(decision)
    world.pending = [
        replace(each, promised_until=NOW + 300_000 + place) if each.job_id in promised else each
        for place, each in enumerate(world.pending)
    ]
    started = {placed.job_id for placed in decide(world.snapshot(), OFF, NOW, 1).placed}
    assert promised <= started


@given(worlds())
@examples(40)
def test_while_a_gpu_is_cut_the_same_is_not_asked_for_again(world: World) -> None:
    decision = decide(world.snapshot(), OFF, NOW, 1)
    underway = {verdict.job_id: verdict.changes for verdict in decision.repartitioning}
    doomed = [replace(change, create=()) for change in changes_of(decision)]
    carry_out(world, doomed)
    world.apply(decision)
    busy: frozenset[GpuId] = frozenset(c.gpu_id for c in changes_of(decision))
    again = decide(world.snapshot(recutting=underway, uncut=busy), OFF, NOW, 1)
    assert not {v.job_id for v in again.repartitioning} & underway.keys()
    assert not {c.gpu_id for c in changes_of(again)} & busy
    assert not {v.job_id for v in again.placed} & underway.keys()


@given(worlds())
@examples(30)
def test_the_order_of_the_input_does_not_matter(world: World) -> None:
    first = decide(world.snapshot(), OFF, NOW, 1).to_json()
    world.pending = list(reversed(world.pending))
    world.nodes = list(reversed(world.nodes))
    assert decide(world.snapshot(), OFF, NOW, 1).to_json() == first
