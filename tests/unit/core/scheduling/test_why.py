"""Every change that is named really starts the job, and the smallest comes first."""

from __future__ import annotations

from gpuplane.core.fleet.facts import Taint
from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    ResourceGroup,
    ResourceQuota,
)
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.why import Why, explain_workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import NetworkMode, NetworkRequest, Spreading, TimeWindow
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


def test_two_obstacles_at_once_are_told_as_one_pair_of_changes() -> None:
    world = World([a_node("a", 4, taints=[Taint("team", "vision")])])
    (change,) = why(world, a_workload().gpus(8)).changes
    assert (change.field, change.after) == ("placement.tolerations", "team=vision:NoSchedule")
    assert change.also is not None
    assert (change.also.field, change.also.after) == ("resources.gpu_count", "4")
    assert change.sentence == "Tolerate team=vision:NoSchedule, and ask for 4 GPUs a replica."


def test_two_amounts_are_each_the_most_that_fits_beside_the_other() -> None:
    world = World([a_node("a", 4, cpu_milli=10_000)])
    (change,) = why(world, a_workload().gpus(8, cpu_milli=12_000)).changes
    assert (change.field, change.after) == ("resources.cpu_milli", "10000")
    assert change.also is not None
    assert (change.also.field, change.also.after) == ("resources.gpu_count", "4")


def test_three_obstacles_leave_no_change_to_tell() -> None:
    world = World([a_node("a", 4, cpu_milli=10_000, taints=[Taint("team", "vision")])])
    assert why(world, a_workload().gpus(8, cpu_milli=12_000)).changes == ()


def test_preferring_a_rack_is_named_where_one_is_required() -> None:
    world = World([a_node("a", 4, rack="r1"), a_node("b", 4, rack="r2")])
    found = why(
        world,
        a_workload().gpus(4).gang(2).placement(network=NetworkRequest(mode=NetworkMode.REQUIRED)),
    )
    assert found.waiting is not None
    assert found.waiting.reason.word is Word.NETWORK
    assert fields(found)["placement.network.mode"] == "preferred"


def a_cohort(limit: int | None, nominal: int = 2) -> list[ClusterQueueSpec]:
    def queue(name: str, gpus: int, most: int | None) -> ClusterQueueSpec:
        quota = {FlavorResource(H100, GPU): ResourceQuota(gpus * 1000, most)}
        return ClusterQueueSpec(name, "all", (ResourceGroup((GPU,), (H100,)),), quota)

    return [queue("default", nominal, limit), queue("other", 8, None)]


def test_how_much_more_the_queue_would_borrow_and_until_when_is_told() -> None:
    world = World([a_node()], a_cohort(limit=2000))
    found = why(world, a_workload().gpus(6).having(estimated_duration_s=3600))
    assert found.waiting is not None
    change = found.changes[-1]
    assert change.field == f"queue.borrowing_limit.{H100}.{GPU}"
    assert (change.before, change.after) == ("2000", "4000")
    assert "until 2025-10-09T09:54Z" in change.sentence


def test_borrowing_is_not_told_where_nobody_has_quota_to_lend() -> None:
    world = World([a_node()], a_cohort(limit=2000))
    lender = a_workload("theirs", "other").gpus(4).having(estimated_duration_s=60).build()
    world.pending = [lender]
    world.apply(decide(world.snapshot(), Policy(), NOW, 0))
    found = why(world, a_workload().gpus(8))
    assert not [each for each in found.changes if each.field.startswith("queue.")]


def test_a_deadline_that_cannot_be_met_is_told_with_one_that_can() -> None:
    late = a_workload().having(
        estimated_duration_s=600, deadline=NOW + 60_000, is_cancelled_at_deadline=True
    )
    found = why(World([a_node()]), late)
    assert found.waiting is not None
    assert found.waiting.reason.word is Word.DEADLINE
    assert fields(found) == {"deadline": "2025-10-09T09:04Z"}


def test_work_too_long_for_what_is_left_of_its_window_may_be_checkpointed() -> None:
    window = TimeWindow(8 * 60, 9 * 60, "UTC")
    found = why(World([a_node()]), a_workload().having(estimated_duration_s=600, window=window))
    assert found.waiting is not None
    assert found.waiting.reason.word is Word.WINDOW_TOO_SHORT
    assert fields(found) == {"window.at_end": "checkpoint"}


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
