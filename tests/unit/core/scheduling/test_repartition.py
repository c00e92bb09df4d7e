"""GPUs are cut anew for who finds no MIG instance, and nothing else waits for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gpuplane.core.fleet.facts import GpuFacts, MigChange, MigSlot, NodeFacts
from gpuplane.core.mig.profiles import MigProfile, device_table
from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    ResourceGroup,
    ResourceQuota,
)
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision, NeedsRepartition, Placed, Waiting
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.recording import Recording, decode_recording, encode_recording
from gpuplane.core.workloads import Spreading
from tests.builders import H100, NOW, WorkloadBuilder, World, a_node, a_workload

Mig = Mapping[int, Sequence[tuple[str, int]]]


def decide_on(world: World, **rest: object) -> Decision:
    return decide(world.snapshot(**rest), Policy(), NOW, 1)


def a_world(mig: Mig, *pending: WorkloadBuilder, count: int = 1) -> World:
    nodes = [a_node(f"node-{i}", len(mig), mig=mig) for i in range(count)]
    return World(nodes, pending=[each.build() for each in pending])


def cut_of(verdict: object) -> list[tuple[str, int, list[MigSlot], list[MigSlot]]]:
    assert isinstance(verdict, NeedsRepartition), verdict
    return [(c.node_name, c.gpu_index, [*c.destroy], [*c.create]) for c in verdict.changes]


def carry_out(world: World, changes: Sequence[MigChange]) -> None:
    """Cut the GPUs of the world as a plan says."""
    by_gpu = {change.gpu_id: change for change in changes}

    def cut(gpu: GpuFacts) -> GpuFacts:
        change = by_gpu.get(gpu.gpu_id)
        if change is None:
            return gpu
        kept = [slot for slot in gpu.mig_instances if slot not in change.destroy]
        return replace(gpu, mig_instances=tuple(sorted([*kept, *change.create])))

    def node_of(node: NodeFacts) -> NodeFacts:
        return replace(node, gpus=tuple(cut(gpu) for gpu in node.gpus))

    world.nodes = [node_of(node) for node in world.nodes]


def test_free_slices_are_cut_before_any_instance_is_destroyed() -> None:
    world = a_world(
        {0: [("1g.10gb", i) for i in range(7)], 1: [("1g.10gb", 0)]}, a_workload().mig("3g.40gb")
    )
    (verdict,) = decide_on(world).verdicts
    assert cut_of(verdict) == [("node-0", 1, [], [MigSlot("3g.40gb", 4)])]


def test_available_instances_give_way_where_no_slices_are_free() -> None:
    world = a_world({0: [("1g.10gb", i) for i in range(7)]}, a_workload().mig("2g.20gb"))
    (verdict,) = decide_on(world).verdicts
    assert cut_of(verdict) == [
        ("node-0", 0, [MigSlot("1g.10gb", 4), MigSlot("1g.10gb", 5)], [MigSlot("2g.20gb", 4)])
    ]


def test_what_somebody_holds_is_never_destroyed() -> None:
    world = a_world({0: [("3g.40gb", 0), ("3g.40gb", 4)]}, a_workload("first").mig("3g.40gb"))
    world.apply(decide_on(world))
    world.pending.append(a_workload("second").mig("7g.80gb").build())
    (verdict,) = decide_on(world).verdicts
    assert isinstance(verdict, Waiting)
    assert verdict.reason.word is Word.MIG_UNAVAILABLE
    world.pending = [a_workload("third").mig("4g.40gb").build()]
    held = world.running[0].allocations[0].mig
    assert held is not None
    (verdict,) = decide_on(world).verdicts
    if held.start == 4:
        assert cut_of(verdict) == [("node-0", 0, [MigSlot("3g.40gb", 0)], [MigSlot("4g.40gb", 0)])]
    else:
        assert isinstance(verdict, Waiting)


def test_the_verdict_says_its_word_its_sentence_and_its_plan() -> None:
    world = a_world({0: [("1g.10gb", 0)]}, a_workload().mig("2g.20gb"))
    decision = decide_on(world)
    (verdict,) = decision.repartitioning
    assert verdict.reason.word is Word.MIG_REPARTITION
    assert verdict.reason.sentence == (
        "Needs a MIG instance 2g.20gb; none is free, but a GPU can be cut anew: "
        "on GPU 0 of node-0 2g.20gb at 4 on free slices."
    )
    assert verdict.reason.fix
    assert decision.counts == {"NeedsRepartition": 1}
    told = json.loads(decision.to_json())["verdicts"][0]
    assert told["kind"] == "NeedsRepartition"
    assert told["changes"][0]["create"] == [{"profile": "2g.20gb", "start": 4}]
    assert [(each.word, each.nodes) for each in verdict.counts] == [(Word.MIG_UNAVAILABLE, 1)]


def test_everything_else_goes_on_beside_a_cut() -> None:
    world = a_world(
        {0: [("1g.10gb", 0)], 1: [("1g.10gb", 0)]},
        a_workload("large").mig("7g.80gb").age(60),
        a_workload("small").mig("1g.10gb").age(30),
    )
    large, small = decide_on(world).verdicts
    assert isinstance(large, NeedsRepartition)
    assert isinstance(small, Placed)
    # The instance that is to go is not given out in the same breath.
    assert {small.replicas[0].gpu_ids[0]} & {change.gpu_id for change in large.changes} == set()


def test_two_that_need_a_cut_get_two_gpus() -> None:
    world = a_world(
        {0: [("1g.10gb", 0)], 1: [("1g.10gb", 0)]},
        *(a_workload(name).mig("7g.80gb") for name in ("a", "b", "c")),
    )
    decision = decide_on(world)
    cut = [change.gpu_id for verdict in decision.repartitioning for change in verdict.changes]
    assert len(cut) == len(set(cut)) == 2
    assert [each.reason.word for each in decision.waiting] == [Word.MIG_UNAVAILABLE]


def test_who_has_no_quota_gets_no_cut() -> None:
    world = a_world({0: [("1g.10gb", 0)]}, a_workload().mig("3g.40gb"))
    world.queues = [
        ClusterQueueSpec(
            name="default",
            resource_groups=(ResourceGroup((GPU,), (H100,)),),
            quotas={FlavorResource(H100, GPU): ResourceQuota(400)},
        )
    ]
    (verdict,) = decide_on(world).verdicts
    assert isinstance(verdict, Waiting)
    assert verdict.reason.word in (Word.QUOTA_EXCEEDED, Word.REQUEST_EXCEEDS_QUOTA)


def test_what_is_being_cut_is_waited_for_and_not_cut_twice() -> None:
    world = a_world({0: [("1g.10gb", 0)], 1: [("1g.10gb", 0)]}, a_workload().mig("7g.80gb"))
    (verdict,) = decide_on(world).repartitioning
    (again,) = decide_on(world, recutting={verdict.job_id: verdict.changes}).verdicts
    assert isinstance(again, Waiting)
    assert again.reason.word is Word.MIG_REPARTITION
    assert "it is being cut" in again.reason.sentence
    world.pending.append(a_workload("other").mig("7g.80gb").build())
    decision = decide_on(world, recutting={verdict.job_id: verdict.changes})
    (other,) = decision.repartitioning
    assert {change.gpu_id for change in other.changes} != {c.gpu_id for c in verdict.changes}


def test_a_gpu_that_could_not_be_cut_is_left_alone() -> None:
    world = a_world({0: [("1g.10gb", 0)]}, a_workload().mig("7g.80gb"))
    (verdict,) = decide_on(world).repartitioning
    (again,) = decide_on(world, uncut=frozenset({verdict.changes[0].gpu_id})).verdicts
    assert isinstance(again, Waiting)
    assert again.reason.word is Word.MIG_UNAVAILABLE


def test_the_workload_starts_once_its_gpu_is_cut() -> None:
    world = a_world({0: [("1g.10gb", 0)]}, a_workload().mig("4g.40gb"))
    (verdict,) = decide_on(world).repartitioning
    carry_out(world, verdict.changes)
    (placed,) = decide_on(world).placed
    assert placed.replicas[0].mig is not None
    assert placed.replicas[0].mig.profile == "4g.40gb"


@pytest.mark.parametrize("spreading", [Spreading.ANY, Spreading.SPREAD, Spreading.SAME_NODE])
def test_a_gang_gets_as_many_instances_as_it_lacks(spreading: Spreading) -> None:
    gang = a_workload().mig("3g.40gb").gang(2).spreading(spreading)
    world = a_world({0: [("3g.40gb", 0)]}, gang, count=2)
    first = decide_on(world).verdicts[0]
    if spreading is not Spreading.SAME_NODE:
        assert isinstance(first, Placed)
        return
    assert len(cut_of(first)) == 1
    assert isinstance(first, NeedsRepartition)
    carry_out(world, first.changes)
    assert isinstance(decide_on(world).verdicts[0], Placed)


def test_a_node_without_cpu_left_is_not_cut() -> None:
    node = a_node(gpu_count=1, mig={0: [("1g.10gb", 0)]}, cpu_milli=4000)
    world = World([node], pending=[a_workload("first").mig("1g.10gb").build()])
    world.apply(decide_on(world))
    world.pending = [a_workload("second").mig("3g.40gb").build()]
    (verdict,) = decide_on(world).verdicts
    assert isinstance(verdict, Waiting)


def test_the_same_question_has_the_same_bytes_as_answer() -> None:
    mig: Mig = {i: [("1g.10gb", start) for start in range(i)] for i in range(4)}
    pending = [
        a_workload(name).mig(p) for name, p in zip("abcd", ["2g.20gb", "3g.40gb"] * 2, strict=True)
    ]
    world = a_world(mig, *pending, count=3)
    turned = a_world(mig, *reversed(pending), count=3)
    assert decide_on(world).to_json() == decide_on(turned).to_json()
    assert decide_on(world).repartitioning


def test_what_the_device_tells_wins_over_our_table() -> None:
    # A device whose 3g instances may begin at 1 alone: no table of ours says so.
    odd = MigProfile("3g.40gb", 3, 4, 40, 1, (1,))
    one = MigProfile("1g.10gb", 1, 1, 10, 7, tuple(range(7)))
    table = device_table(H100, (one, odd))
    world = a_world({0: [("1g.10gb", 1)]}, a_workload().mig("3g.40gb"))
    (node,) = world.nodes
    gpus = tuple(replace(gpu, mig_table=table) for gpu in node.gpus)
    world.nodes = [replace(node, gpus=gpus)]
    (verdict,) = decide_on(world).verdicts
    assert cut_of(verdict) == [("node-0", 0, [MigSlot("1g.10gb", 1)], [MigSlot("3g.40gb", 1)])]


def test_what_is_free_already_is_kept_for_the_gang_that_lacks_the_rest() -> None:
    gang = a_workload("gang").mig("3g.40gb").gang(2).age(60)
    late = a_workload("late").mig("3g.40gb").age(30)
    world = a_world({0: [("3g.40gb", 4), ("1g.10gb", 0)]}, gang, late)
    first, second = decide_on(world).verdicts
    assert cut_of(first) == [("node-0", 0, [MigSlot("1g.10gb", 0)], [MigSlot("3g.40gb", 0)])]
    assert isinstance(second, Waiting)
    assert isinstance(first, NeedsRepartition)
    underway = {first.job_id: first.changes}
    again, other = decide_on(world, recutting=underway, uncut=frozenset()).verdicts
    assert isinstance(again, Waiting)
    assert isinstance(other, Waiting)


def test_a_decision_with_cuts_replays_byte_for_byte_from_its_recording() -> None:
    table = device_table(H100, (MigProfile("7g.80gb", 7, 8, 80, 1, (0,)),
                                MigProfile("1g.10gb", 1, 1, 10, 7, tuple(range(7)))))  # fmt: skip
    world = a_world(
        {0: [("1g.10gb", 0)], 1: [("1g.10gb", 0)]},
        *(a_workload(name).mig("7g.80gb") for name in ("a", "b")),
    )
    (node,) = world.nodes
    gpus = tuple(replace(gpu, mig_table=table) for gpu in node.gpus)
    world.nodes = [replace(node, gpus=gpus)]
    first, second = decide_on(world).repartitioning
    snapshot = world.snapshot(
        recutting={first.job_id: first.changes}, uncut=frozenset({first.changes[0].gpu_id})
    )
    recorded = decode_recording(encode_recording(Recording(snapshot, Policy(), NOW, 1)))
    assert recorded.snapshot.recutting == snapshot.recutting
    assert recorded.snapshot.uncut == snapshot.uncut
    again = decide(recorded.snapshot, recorded.policy, recorded.now, recorded.seed)
    assert again.to_json() == decide(snapshot, Policy(), NOW, 1).to_json()
    assert [verdict.job_id for verdict in again.repartitioning] == [second.job_id]
