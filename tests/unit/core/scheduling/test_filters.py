"""Each filter keeps the right nodes away and says so with its own word."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuplane.core.fleet.facts import NodeFacts, Taint
from gpuplane.core.ids import ReservationId
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Waiting
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import Toleration
from tests.builders import A100, NOW, WorkloadBuilder, World, a_node, a_workload, an_id

MINE = ReservationId(an_id("mine"))
THEIRS = ReservationId(an_id("theirs"))
Shape = Callable[[WorkloadBuilder], WorkloadBuilder]

REFUSED: dict[Word, tuple[NodeFacts, Shape]] = {
    Word.NOT_READY: (a_node(ready=False), lambda w: w),
    Word.CORDONED: (a_node(cordoned=True), lambda w: w),
    Word.MAINTENANCE: (
        a_node(maintenance_at=NOW + 1_800_000),
        lambda w: w.having(estimated_duration_s=3600),
    ),
    Word.UNTOLERATED_TAINT: (a_node(taints=[Taint("team", "vision")]), lambda w: w),
    Word.SELECTOR: (
        a_node(labels={"zone": "a"}),
        lambda w: w.placement(node_selector={"zone": "b"}),
    ),
    Word.GPU_MODEL: (a_node(), lambda w: w.gpus(1, gpu_model=A100)),
    Word.GPU_MEMORY: (a_node(), lambda w: w.gpus(1, gpu_memory_mib=140_000)),
    Word.GPU_ARCHITECTURE: (a_node(), lambda w: w.gpus(1, gpu_architecture="ampere")),
    Word.MIG_UNAVAILABLE: (
        a_node(mig={0: [("1g.10gb", 0)]}),
        lambda w: w.mig("2g.10gb"),
    ),
    Word.RDMA: (a_node(rdma_fabric="ib-1"), lambda w: w.gpus(1, rdma_fabric="ib-2")),
    Word.NODE_TOO_SMALL: (a_node(gpu_count=4), lambda w: w.gpus(5)),
    Word.TOPOLOGY: (
        a_node(gpu_count=4, topology=named_topology("pcie", 4)),
        lambda w: w.gpus(2).links(LinkPreference.NVLINK, required=True),
    ),
    Word.RESERVED: (a_node(gpu_count=1, reserved={0: THEIRS}), lambda w: w),
}


def verdict_of(node: NodeFacts, workload: WorkloadBuilder) -> object:
    world = World([node], pending=[workload.build()])
    return decide(world.snapshot(), Policy(), NOW, 1).verdicts[0]


@pytest.mark.parametrize("word", REFUSED, ids=lambda word: word.name)
def test_a_filter_refuses_its_node_with_its_word_and_a_fix(word: Word) -> None:
    node, shape = REFUSED[word]
    verdict = verdict_of(node, shape(a_workload()))
    assert isinstance(verdict, Waiting)
    assert verdict.reason.word is word
    assert [(each.word, each.nodes) for each in verdict.counts] == [(word, 1)]
    assert verdict.reason.sentence
    assert verdict.reason.fix


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        (
            a_node(maintenance_at=NOW + 7_200_000),
            lambda w: w.having(estimated_duration_s=3600),
        ),
        (
            a_node(taints=[Taint("team", "vision")]),
            lambda w: w.tolerating(Toleration("team", "Exists")),
        ),
        (
            a_node(taints=[Taint("team", "vision")]),
            lambda w: w.tolerating(Toleration("team", "Equal", "vision", "NoSchedule")),
        ),
        (a_node(taints=[Taint("old", "", "PreferNoSchedule")]), lambda w: w),
        (a_node(labels={"zone": "a"}), lambda w: w.placement(node_selector={"zone": "a"})),
        (a_node(rdma_fabric="ib-1"), lambda w: w.gpus(1, rdma_fabric="any")),
        (a_node(mig={0: [("1g.10gb", 3)]}), lambda w: w.mig("1g.10gb")),
        (a_node(gpu_count=1, reserved={0: MINE}), lambda w: w.having(reservation_id=MINE)),
        (
            a_node(topology=named_topology("nvswitch-8", 8)),
            lambda w: w.gpus(8).links(LinkPreference.NVLINK, required=True),
        ),
        (a_node(gpu_count=0), lambda w: w.gpus(0)),
    ],
)
def test_what_a_filter_is_content_with_is_placed(node: NodeFacts, shape: Shape) -> None:
    assert not isinstance(verdict_of(node, shape(a_workload())), Waiting)


@pytest.mark.parametrize(
    "toleration",
    [
        Toleration("team", "Equal", "speech"),
        Toleration("other", "Exists"),
        Toleration("team", "Exists", effect="NoExecute"),
        Toleration(""),
    ],
)
def test_a_toleration_that_does_not_match_tolerates_nothing(toleration: Toleration) -> None:
    node = a_node(taints=[Taint("team", "vision", "NoSchedule")])
    assert isinstance(verdict_of(node, a_workload().tolerating(toleration)), Waiting)


@pytest.mark.parametrize(
    ("word", "resources"),
    [
        (Word.CPU, {"cpu_milli": 5000}),
        (Word.MEMORY, {"memory_mib": 50_000}),
        (Word.EPHEMERAL_STORAGE, {"ephemeral_mib": 60_000}),
        (Word.GPU_COUNT, {"gpu_count": 2}),
    ],
)
def test_what_is_taken_is_refused_with_the_word_of_what_is_short(
    word: Word, resources: dict[str, int]
) -> None:
    node = a_node(gpu_count=2, cpu_milli=8000, memory_mib=65_536, ephemeral_mib=65_536)
    taker = a_workload("taker").build()
    world = World([node], pending=[taker])
    world.apply(decide(world.snapshot(), Policy(), NOW, 1))
    world.pending = [a_workload("late").resources(**resources).build()]
    verdict = decide(world.snapshot(), Policy(), NOW, 1).verdicts[0]
    assert isinstance(verdict, Waiting)
    assert verdict.reason.word is word


def test_the_dominant_reason_is_the_filter_that_refused_the_most_hopeful_node() -> None:
    world = World(
        [a_node("a", ready=False), a_node("b", ready=False), a_node("c", gpu_count=2)],
        pending=[a_workload().gpus(4).build()],
    )
    verdict = decide(world.snapshot(), Policy(), NOW, 1).waiting[0]
    assert verdict.reason.word is Word.NODE_TOO_SMALL
    assert [(each.word, each.nodes) for each in verdict.counts] == [
        (Word.NOT_READY, 2),
        (Word.NODE_TOO_SMALL, 1),
    ]
