"""Every condition and every score of the product stands in one ordered list, in one shape."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.catalogue import COUNTED, UNITS, Stage, Unit
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Waiting
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.workloads import NetworkLevel, NetworkMode, NetworkRequest, Spreading
from tests.builders import NOW, WorkloadBuilder, World, a_node, a_workload, an_id

CONDITIONS = {
    "readiness": ["is_ready"],
    "cordon": ["is_schedulable"],
    "taints": ["tolerates_taints"],
    "selector": ["matches_selector"],
    "count": ["is_large_enough", "has_gpus"],
    "memory": ["has_gpu_memory"],
    "architecture": ["has_architecture"],
    "model": ["has_model"],
    "MIG": ["has_mig_profile"],
    "CPU": ["has_cpu"],
    "memory of the node": ["has_memory"],
    "window": ["is_in_its_window", "ends_before_maintenance"],
    "reservation": ["is_not_reserved"],
    "tenant-cluster affinity": ["is_required", "is_not_excluded", "is_granted"],
    "restricted data only on dedicated clusters": ["may_hold_the_data"],
    "dedicated clusters": ["is_not_dedicated_to_others"],
    "RDMA fabric": ["is_on_fabric"],
    "ephemeral storage": ["has_ephemeral_storage"],
    "must fit inside the window by estimate": ["is_in_its_window"],
    "deadline": ["meets_its_deadline"],
    "links required": ["has_links"],
    "job affinity and anti-affinity": ["is_near_jobs", "is_apart_from_jobs"],
    "SAME_NODE": ["fit_one_node"],
    "SPREAD": ["fit_each_apart"],
    "rack, block and clique": ["fit_one_part", "fit_one_clique"],
    "data affinity": ["data_score"],
    "40/35/25": ["topology_score", "resource_score", "balance_score"],
}
"""What the product promises to look at, and the units that do."""


@pytest.mark.parametrize("promise", CONDITIONS)
def test_what_is_promised_is_a_unit_of_the_list(promise: str) -> None:
    names = [unit.name for unit in UNITS]
    assert [name for name in CONDITIONS[promise] if name not in names] == []


def test_the_stages_follow_each_other_and_every_unit_says_whom_it_passes() -> None:
    order = list(Stage)
    stages = [order.index(unit.stage) for unit in UNITS]
    assert stages == sorted(stages)
    assert set(stages) == set(range(len(order)))
    assert len({unit.asks for unit in UNITS}) == len(UNITS)
    for unit in UNITS:
        assert unit.sentence.endswith("."), unit.name
        starts = ("Score", "Prefer") if unit.stage is Stage.SCORE else ("Pass",)
        assert unit.sentence.startswith(starts), unit.name
        assert bool(unit.words) is (unit.stage is not Stage.SCORE), unit.name


def test_every_word_for_a_node_is_counted_in_the_order_of_the_list() -> None:
    words = [word for unit in UNITS if is_about_nodes(unit) for word in unit.words]
    assert tuple(dict.fromkeys(words)) == COUNTED


def is_about_nodes(unit: Unit) -> bool:
    return unit.stage in (Stage.NODE, Stage.FREE, Stage.NEIGHBOUR)


ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "reference" / "scheduling.md"


def test_the_page_on_scheduling_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 15
    assert [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []


def test_the_page_on_scheduling_names_every_word_of_the_list() -> None:
    text = PAGE.read_text()
    words = {word for unit in UNITS for word in unit.words}
    assert sorted(word.value for word in words if f"`{word.value}`" not in text) == []


def waiting_of(world: World, asked: WorkloadBuilder) -> Waiting:
    world.pending = [asked.build()]
    verdict = decide(world.snapshot(), Policy(), NOW, 1).verdicts[0]
    assert isinstance(verdict, Waiting)
    return verdict


def a_world_with_an_anchor() -> World:
    """Return three nodes of four GPUs, one of them full with the job `anchor`."""
    world = World([a_node(name, 4) for name in ("a", "b", "c")])
    world.pending = [a_workload("anchor").gpus(4).build()]
    world.apply(decide(world.snapshot(), Policy(), NOW, 1))
    return world


def test_nodes_that_other_jobs_rule_out_are_counted_beside_those_of_other_filters() -> None:
    anchor = an_id("job/anchor")
    near = waiting_of(a_world_with_an_anchor(), a_workload().placement(co_locate_with=(anchor,)))
    assert near.reason.word is Word.AFFINITY
    assert [(each.word, each.nodes) for each in near.counts] == [
        (Word.GPU_COUNT, 1),
        (Word.AFFINITY, 2),
    ]


def test_a_gang_is_told_how_many_nodes_other_jobs_rule_out_and_how_many_are_too_few() -> None:
    anchor = an_id("job/anchor")
    world = a_world_with_an_anchor()
    world.nodes = [*world.nodes, a_node("d", 4)]
    apart = a_workload().gpus(4).gang(4).placement(separate_from=(anchor,))
    counts = waiting_of(world, apart).counts
    assert [(each.word, each.nodes) for each in counts] == [(Word.GPU_COUNT, 1), (Word.GANG, 3)]
    cpu = a_workload().gpus(0).gang(43).placement(separate_from=(anchor,)).resources(cpu_milli=9000)
    counts = waiting_of(world, cpu).counts
    assert [(each.word, each.nodes) for each in counts] == [(Word.AFFINITY, 1), (Word.GANG, 3)]


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (a_workload().gpus(2).gang(4).spreading(Spreading.SAME_NODE), Word.GANG),
        (a_workload().gpus(1).gang(4).spreading(Spreading.SPREAD), Word.GANG),
        (
            a_workload()
            .gpus(4)
            .gang(2)
            .placement(network=NetworkRequest(NetworkLevel.RACK, NetworkMode.REQUIRED)),
            Word.NETWORK,
        ),
    ],
    ids=["SAME_NODE", "SPREAD", "rack"],
)
def test_a_layout_that_no_nodes_give_is_counted_under_its_word(
    asked: WorkloadBuilder, word: Word
) -> None:
    world = World([a_node(name, 4, rack=name) for name in ("a", "b", "c")])
    verdict = waiting_of(world, asked)
    assert verdict.reason.word is word
    assert [(each.word, each.nodes) for each in verdict.counts] == [(word, 3)]
