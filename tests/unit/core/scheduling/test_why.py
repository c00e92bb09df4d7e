"""Every change that is named really starts the job, and the smallest comes first."""

from __future__ import annotations

from gpuplane.core.fleet.facts import Taint
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.why import Why, explain_workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import Spreading
from tests.builders import A100, H100, NOW, WorkloadBuilder, World, a_node, a_workload, an_id


def why(world: World, builder: WorkloadBuilder) -> Why:
    return explain_workload(world.snapshot(), builder.build(), Policy(), NOW, 1)


def fields(found: Why) -> dict[str, str]:
    return {change.field: change.after for change in found.changes}


def test_work_that_would_start_needs_no_change() -> None:
    found = why(World([a_node()]), a_workload())
    assert found.waiting is None
    assert found.changes == ()


def test_fewer_gpus_are_as_many_as_still_fit() -> None:
    found = why(World([a_node("a", 4), a_node("b", 3)]), a_workload().gpus(8))
    assert found.waiting is not None
    assert found.waiting.reason.word is Word.NODE_TOO_SMALL
    assert fields(found) == {"resources.gpu_count": "4"}
    assert found.changes[0].sentence == "Ask for 4 GPUs a replica."
    assert found.changes[0].node_name == "a"


def test_preferring_links_is_smaller_than_asking_for_fewer_gpus() -> None:
    world = World([a_node(gpu_count=4, topology=named_topology("pcie", 4))])
    found = why(world, a_workload().gpus(2).links(LinkPreference.NVLINK, required=True))
    assert [change.field for change in found.changes] == [
        "placement.links_required",
        "resources.gpu_count",
    ]


def test_another_model_is_named_with_its_memory() -> None:
    world = World([a_node("a", model=A100)])
    found = why(world, a_workload().gpus(1, gpu_model=H100))
    assert fields(found) == {"resources.gpu_model": A100}
    assert "81920 MiB" in found.changes[0].sentence


def test_less_cpu_and_fewer_replicas_are_the_most_that_fits() -> None:
    world = World([a_node("a", cpu_milli=10_000)])
    assert fields(why(world, a_workload().gpus(1, cpu_milli=12_000))) == {
        "resources.cpu_milli": "10000"
    }
    many = why(world, a_workload().gpus(1, cpu_milli=4000).gang(4))
    assert fields(many)["replicas.count"] == "2"


def test_a_missing_toleration_and_a_label_are_named() -> None:
    world = World([a_node("a", taints=[Taint("team", "vision")])])
    assert fields(why(world, a_workload())) == {"placement.tolerations": "team=vision:NoSchedule"}
    labelled = World([a_node("a", labels={"zone": "a", "disk": "ssd"})])
    selector = {"zone": "b", "disk": "ssd"}
    found = why(labelled, a_workload().placement(node_selector=selector))
    assert [change.field for change in found.changes] == ["placement.node_selector.zone"]


def test_loosening_where_replicas_lie_is_named() -> None:
    world = World([a_node("a", 4), a_node("b", 4)])
    apart = why(world, a_workload().gpus(2).gang(4).spreading(Spreading.SPREAD))
    assert fields(apart)["placement.spreading"] == "any"
    near = why(world, a_workload().placement(co_locate_with=(an_id("job/absent"),)))
    assert fields(near) == {"placement.co_locate_with": "0"}


def test_two_obstacles_at_once_leave_no_single_change() -> None:
    world = World([a_node("a", 4, taints=[Taint("team", "vision")])])
    assert why(world, a_workload().gpus(8)).changes == ()


def test_at_a_gate_only_the_gate_is_told() -> None:
    found = why(World([a_node()]), a_workload("w", "nowhere"))
    assert found.waiting is not None
    assert found.waiting.reason.word is Word.NO_QUEUE
    assert found.changes == ()


def test_asking_why_changes_nothing() -> None:
    world = World([a_node("a", 4)], pending=[a_workload("w").gpus(4).build()])
    snapshot = world.snapshot()
    explain_workload(snapshot, a_workload("x").gpus(8).build(), Policy(), NOW, 1)
    fresh = decide(world.snapshot(), Policy(), NOW, 1).to_json()
    assert decide(snapshot, Policy(), NOW, 1).to_json() == fresh
