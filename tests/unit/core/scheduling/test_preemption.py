"""Who is stopped for whom, what it costs, and what is promised meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpuplane.core.fleet.facts import Allocation, MigPlacement
from gpuplane.core.forecast.forecasting import forecast
from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    PreemptionPolicy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
    unlimited_cluster_queue,
)
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.policy import Policy, PreemptionLimits, Snapshot
from gpuplane.core.scheduling.preemption import compute_loss
from gpuplane.core.scheduling.why import explain_limit, explain_protection
from gpuplane.core.scheduling.workload import RunningWorkload
from gpuplane.core.workloads import PRIORITY_VALUES, Priority
from tests.builders import (
    CLUSTER,
    H100,
    NOW,
    WorkloadBuilder,
    World,
    a_node,
    a_tree,
    a_workload,
)

HOUR_S = 3600


def run(world: World, **limits: int | bool) -> Decision:
    policy = Policy(preemption=replace(PreemptionLimits(), **limits))  # type: ignore[arg-type]  # by name
    return decide(world.snapshot(), policy, NOW, 1)


def start(world: World, *builders: WorkloadBuilder, ran_s: int = HOUR_S) -> None:
    """Start workloads so many seconds ago."""
    at = NOW - ran_s * 1000
    kept, world.pending = world.pending, [each.build() for each in builders]
    world.apply(decide(world.snapshot(), Policy(), at, 1), at)
    assert not world.pending, "the test means them to fit"
    world.pending = kept


def change(world: World, name: str, **changes: object) -> None:
    job_id = a_workload(name).build().job_id
    world.running = [
        replace(each, **changes) if each.workload.job_id == job_id else each  # type: ignore[arg-type]  # by name
        for each in world.running
    ]


def names(world: Sequence[RunningWorkload], decision: Decision, *known: str) -> list[list[str]]:
    by_id = {a_workload(name).build().job_id: name for name in known}
    return [sorted(by_id[victim] for victim in each.victims) for each in decision.preempting]


@pytest.mark.parametrize("preemptor", list(Priority))
@pytest.mark.parametrize("victim", list(Priority))
def test_the_table_of_classes_decides_who_may_stop_whom(
    preemptor: Priority, victim: Priority
) -> None:
    world = World([a_node("a")])
    start(world, a_workload("victim").gpus(8).priority(victim))
    world.pending = [a_workload("urgent").gpus(8).priority(preemptor).build()]
    allowed = (
        victim is not Priority.CRITICAL and PRIORITY_VALUES[preemptor] > PRIORITY_VALUES[victim]
    )
    assert bool(run(world).preempting) is allowed


@pytest.mark.parametrize(
    ("urgent", "victim"), [({"preempts_others": False}, {}), ({}, {"preemptible": False})]
)
def test_jobs_may_narrow_the_table_and_not_widen_it(
    urgent: dict[str, bool], victim: dict[str, bool]
) -> None:
    world = World([a_node("a")])
    start(world, a_workload("victim").gpus(8).priority(Priority.LOW).having(**victim))
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.HIGH).having(**urgent).build()]
    assert not run(world).preempting


def test_nobody_is_stopped_while_there_is_room() -> None:
    world = World([a_node("a"), a_node("b")])
    start(world, a_workload("low").gpus(8).priority(Priority.LOW))
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.CRITICAL).build()]
    decision = run(world)
    assert decision.placed
    assert not decision.preempting


def test_who_just_started_is_left_alone() -> None:
    world = World([a_node("a")])
    start(world, a_workload("low").gpus(8).priority(Priority.LOW), ran_s=299)
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.HIGH).build()]
    assert not run(world).preempting
    assert run(world, min_run_s=299).preempting


def test_the_victims_are_the_fewest_that_make_room() -> None:
    world = World([a_node("a")])
    low = [a_workload(f"low{n}").gpus(2).priority(Priority.LOW) for n in range(4)]
    start(world, *low)
    world.pending = [a_workload("urgent").gpus(4).priority(Priority.HIGH).build()]
    (victims,) = names(world.running, run(world), *(f"low{n}" for n in range(4)))
    assert len(victims) == 2


def test_of_equal_classes_the_one_that_loses_least_is_stopped() -> None:
    world = World([a_node("a"), a_node("b")])
    start(world, a_workload("lost").gpus(8).priority(Priority.LOW), ran_s=7200)
    start(world, a_workload("saved").gpus(8).priority(Priority.LOW), ran_s=9000)
    change(world, "saved", checkpoint_at=NOW - 60_000)
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.HIGH).build()]
    decision = run(world)
    assert names(world.running, decision, "lost", "saved") == [["saved"]]
    (receipt,) = decision.preempting[0].receipts
    assert receipt.lost_gpu_s == 60 * 8
    assert receipt.ran_s == 9000
    assert receipt.rule == "low may be stopped by high"
    assert "since its last checkpoint" in receipt.sentence


def test_a_lower_class_is_stopped_before_a_cheaper_one_of_a_higher_class() -> None:
    world = World([a_node("a"), a_node("b")])
    start(world, a_workload("normal").gpus(8).priority(Priority.NORMAL), ran_s=400)
    start(world, a_workload("spot").gpus(8).priority(Priority.SPOT), ran_s=9000)
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.HIGH).build()]
    assert names(world.running, run(world), "normal", "spot") == [["spot"]]


def test_who_is_nearly_done_is_spared() -> None:
    world = World([a_node("a"), a_node("b")])
    start(world, a_workload("early").gpus(8).priority(Priority.LOW), ran_s=9000)
    start(world, a_workload("done").gpus(8).priority(Priority.LOW), ran_s=8000)
    change(world, "done", progress_ratio=0.95)
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.HIGH).build()]
    assert names(world.running, run(world), "early", "done") == [["early"]]


@pytest.mark.parametrize(("replicas", "blocked"), [(1, 40), (2, 260)])
def test_victims_are_found_behind_any_number_of_nodes_where_none_make_room(
    replicas: int, blocked: int
) -> None:
    """On those nodes the pieces are the cheapest, and work that nobody may stop is beside them."""
    world = World([a_node(f"n{index:03}") for index in range(blocked + replicas)])
    large = [f"large-{index}" for index in range(replicas)]
    critical = [
        a_workload(f"critical-{index}").gpus(7).priority(Priority.CRITICAL)
        for index in range(blocked)
    ]
    spot = [a_workload(f"spot-{index}").gpus(1).priority(Priority.SPOT) for index in range(blocked)]
    whole = [a_workload(name).gpus(8).priority(Priority.SPOT) for name in large]
    start(world, *critical, *whole)
    start(world, *spot, ran_s=HOUR_S // 2)
    urgent = a_workload("urgent").gpus(8).priority(Priority.HIGH)
    world.pending = [(urgent.gang(replicas, replicas) if replicas > 1 else urgent).build()]
    assert names(world.running, run(world), *large) == [large]


def test_a_gang_gets_victims_on_every_node_it_needs() -> None:
    world = World([a_node("a"), a_node("b"), a_node("c")])
    low = [a_workload(f"low{n}").gpus(8).priority(Priority.LOW) for n in range(3)]
    start(world, *low)
    world.pending = [a_workload("gang").gpus(8).gang(2).priority(Priority.HIGH).build()]
    decision = run(world)
    assert len(decision.preempting[0].victims) == 2
    assert len(decision.preempting[0].placement.replicas) == 2


def test_a_gang_spares_who_only_happens_to_be_on_its_nodes() -> None:
    world = World([a_node("a"), a_node("b")])
    bystander = a_workload("bystander").gpus(0).priority(Priority.LOW)
    low = [a_workload(f"low{n}").gpus(8).priority(Priority.LOW) for n in range(2)]
    start(world, *low, bystander)
    world.pending = [a_workload("gang").gpus(4).gang(3).priority(Priority.HIGH).build()]
    (victims,) = names(world.running, run(world), "low0", "low1", "bystander")
    assert victims == ["low0", "low1"]


def test_no_more_are_stopped_than_the_limit_of_the_hour_leaves() -> None:
    world = World([a_node("a")])
    start(world, *(a_workload(f"low{n}").gpus(2).priority(Priority.LOW) for n in range(4)))
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.HIGH).build()]
    assert not run(world, per_cluster_hour=3).preempting
    assert run(world, per_cluster_hour=4).preempting
    policy = Policy(preemption=PreemptionLimits(per_cluster_hour=5))
    spent = world.snapshot(preempted_last_hour={CLUSTER: 2})
    assert not decide(spent, policy, NOW, 1).preempting


@pytest.mark.parametrize(("spent", "minutes"), [(2, 10), (3, 20)])
def test_who_waits_for_the_limit_of_the_hour_is_told_of_it_and_of_its_end(
    spent: int, minutes: int
) -> None:
    world = World([a_node("a")])
    start(world, a_workload("low").gpus(8).priority(Priority.LOW))
    urgent = a_workload("urgent").gpus(8).priority(Priority.HIGH).build()
    snapshot = world.snapshot(
        preempted_last_hour={CLUSTER: spent},
        preemptions_leave_at={CLUSTER: tuple(NOW + n * 600_000 for n in range(1, spent + 1))},
    )
    policy = Policy(preemption=PreemptionLimits(per_cluster_hour=2))
    reason = explain_limit(snapshot, urgent, policy, NOW, 1)
    assert reason is not None
    at = datetime.fromtimestamp((NOW // 60_000 + 1 + minutes) * 60, UTC)
    assert reason.word is Word.GPU_COUNT
    assert "in place of 1 running job of lower priority" in reason.sentence
    assert f"({spent} of 2); the next is possible from {at:%Y-%m-%dT%H:%MZ} on." in reason.sentence
    assert f"Wait until {at:%Y-%m-%dT%H:%MZ}" in reason.fix
    equal = a_workload("equal").gpus(8).priority(Priority.LOW).build()
    assert explain_limit(snapshot, equal, policy, NOW, 1) is None, "nobody may be stopped for it"
    assert explain_limit(world.snapshot(), urgent, policy, NOW, 1) is None


def test_who_waits_for_young_work_to_be_old_enough_is_told_from_when_on_it_may_be_stopped() -> None:
    world = World([a_node("a"), a_node("b")])
    low = [a_workload(f"low{n}").gpus(8).priority(Priority.LOW) for n in range(2)]
    start(world, low[0], ran_s=20)
    start(world, low[1], ran_s=140)
    urgent = a_workload("urgent").gpus(8).priority(Priority.HIGH).build()
    reason = explain_protection(world.snapshot(), urgent, Policy(), NOW, 1)
    assert reason is not None
    at = datetime.fromtimestamp(-(-(NOW + 160_000) // 60_000) * 60, UTC)
    assert reason.word is Word.GPU_COUNT
    assert "in place of 1 running job of lower priority" in reason.sentence
    assert f"in the first 300 s: possible from {at:%Y-%m-%dT%H:%MZ} on." in reason.sentence
    assert f"Wait until {at:%Y-%m-%dT%H:%MZ}" in reason.fix
    gang = a_workload("gang").gpus(8).gang(2).priority(Priority.HIGH).build()
    both = explain_protection(world.snapshot(), gang, Policy(), NOW, 1)
    assert both is not None
    at = datetime.fromtimestamp(-(-(NOW + 280_000) // 60_000) * 60, UTC)
    assert "2 running jobs of lower priority may be stopped" in both.fix
    assert f"{at:%Y-%m-%dT%H:%MZ}" in both.fix
    equal = a_workload("equal").gpus(8).priority(Priority.LOW).build()
    assert explain_protection(world.snapshot(), equal, Policy(), NOW, 1) is None
    off = Policy(preemption=PreemptionLimits(enabled=False))
    assert explain_protection(world.snapshot(), urgent, off, NOW, 1) is None


@pytest.mark.parametrize("replicas", [1, 2])
def test_where_the_cheapest_are_too_many_for_the_hour_fewer_and_dearer_ones_are_stopped(
    replicas: int,
) -> None:
    world = World([a_node(f"n{index}") for index in range(2 * replicas)])
    small = [a_workload(f"small-{index}").gpus(1) for index in range(8 * replicas)]
    large = [f"large-{index}" for index in range(replicas)]
    start(world, *[each.priority(Priority.SPOT) for each in small], ran_s=HOUR_S // 2)
    start(world, *[a_workload(name).gpus(8).priority(Priority.SPOT) for name in large])
    urgent = a_workload("urgent").gpus(8).priority(Priority.HIGH)
    world.pending = [(urgent.gang(replicas, replicas) if replicas > 1 else urgent).build()]
    assert len(run(world, per_cluster_hour=8 * replicas).preempting[0].victims) == 8 * replicas
    assert names(world.running, run(world, per_cluster_hour=5), *large) == [large]
    assert run(world, per_cluster_hour=replicas - 1).preempting == ()


@pytest.mark.parametrize(
    ("ran_s", "stopped"),
    [((1000, 1100, 600), ["c"]), ((400, 500, 600), ["a", "b"]), ((400, 5000, 1300), ["c"])],
)
def test_on_one_node_the_victims_are_those_that_together_lose_least(
    ran_s: tuple[int, int, int], stopped: list[str]
) -> None:
    """The first two hold a GPU each, the third both that are needed."""
    world = World([a_node(gpu_count=4)])
    for name, gpus, ran in zip("abc", (1, 1, 2), ran_s, strict=True):
        start(world, a_workload(name).gpus(gpus).priority(Priority.SPOT), ran_s=ran)
    world.pending = [a_workload("urgent").gpus(2).priority(Priority.HIGH).build()]
    assert names(world.running, run(world), "a", "b", "c") == [stopped]


def test_what_a_preemptor_is_promised_nobody_else_gets() -> None:
    world = World([a_node("a")])
    start(world, a_workload("low").gpus(6).priority(Priority.LOW))
    urgent = a_workload("urgent").gpus(8).priority(Priority.HIGH)
    small = a_workload("small").gpus(1).priority(Priority.HIGH).age(-60)
    world.pending = [urgent.build(), small.build()]
    decision = run(world)
    assert [each.job_id for each in decision.preempting] == [urgent.build().job_id]
    assert not decision.placed


def test_two_preemptors_share_one_large_victim() -> None:
    world = World([a_node("a")])
    start(world, a_workload("low").gpus(8).priority(Priority.LOW))
    world.pending = [
        a_workload(name).gpus(4).priority(Priority.HIGH).build() for name in ("one", "two")
    ]
    decision = run(world)
    assert len(decision.preempting) == 1
    assert "What is stopping now makes room" in decision.waiting[0].reason.sentence


def test_the_room_that_was_made_goes_to_the_one_it_was_made_for() -> None:
    world = World([a_node("a")])
    start(world, a_workload("low").gpus(8).priority(Priority.LOW))
    urgent = a_workload("urgent").gpus(8).priority(Priority.HIGH)
    world.pending = [urgent.build()]
    world.apply(run(world))
    world.running.clear()
    world.pending.append(a_workload("late").gpus(8).priority(Priority.CRITICAL).build())
    assert [each.job_id for each in run(world).placed] == [urgent.build().job_id]
    forgotten = [replace(each, promised_until=NOW) for each in world.pending]
    world.pending = forgotten
    assert run(world).placed[0].job_id == a_workload("late").build().job_id


def test_who_may_stop_nobody_does_not_wait_for_what_others_stopped() -> None:
    world = World([a_node("a")])
    start(world, a_workload("low").gpus(8).priority(Priority.LOW))
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.HIGH).build()]
    world.apply(run(world))
    world.pending = [a_workload("other").gpus(8).priority(Priority.LOW).age(99).build()]
    assert "stopping" not in run(world).waiting[0].reason.sentence


def test_while_victims_stop_no_more_are_chosen() -> None:
    world = World([a_node("a"), a_node("b")])
    start(world, *(a_workload(f"low{n}").gpus(8).priority(Priority.LOW) for n in range(2)))
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.HIGH).build()]
    world.apply(run(world))
    again = run(world)
    assert not again.preempting
    assert "What is stopping now makes room" in again.waiting[0].reason.sentence


@pytest.mark.parametrize(
    ("ran_s", "spared"), [(3600, "late"), (5400, "half"), (7201, "late")], ids=str
)
def test_work_without_a_report_is_nearly_done_by_the_length_that_was_stated(
    ran_s: int, spared: str
) -> None:
    """At 90 % of two hours it is spared; before that, and when it runs over, its loss decides."""
    world = World([a_node("a"), a_node("b")])
    stated = 7200 if spared == "late" else 6000
    first = a_workload("half").gpus(8).priority(Priority.LOW).having(estimated_duration_s=stated)
    start(world, first, ran_s=ran_s)
    start(world, a_workload("late").gpus(8).priority(Priority.LOW), ran_s=ran_s + 600)
    world.pending = [a_workload("urgent").gpus(8).priority(Priority.HIGH).build()]
    stopped = names(world.running, run(world), "half", "late")
    assert stopped == [["half" if spared == "late" else "late"]]


@pytest.mark.parametrize(("by_loss", "victim"), [(True, "saved"), (False, "lost")])
def test_victims_for_quota_lose_least_unless_kueue_s_own_order_is_asked_for(
    by_loss: bool, victim: str
) -> None:
    queue = ClusterQueueSpec(
        name="default",
        resource_groups=(ResourceGroup((GPU,), (H100,)),),
        quotas={FlavorResource(H100, GPU): ResourceQuota(8000)},
        preemption=PreemptionPolicy(WithinClusterQueue.LOWER_PRIORITY),
    )
    world = World([a_node("a"), a_node("b")], [queue])
    start(world, a_workload("saved").gpus(4).priority(Priority.LOW), ran_s=9000)
    start(world, a_workload("lost").gpus(4).priority(Priority.LOW), ran_s=7200)
    change(world, "saved", checkpoint_at=NOW - 60_000)
    world.pending = [a_workload("urgent").gpus(4).priority(Priority.HIGH).build()]
    assert names(world.running, run(world, by_loss=by_loss), "saved", "lost") == [[victim]]


def a_quota(name: str, gpus: int, **rest: object) -> ClusterQueueSpec:
    """Return a queue for H100s that takes from lower classes, its own and those that borrow."""
    policy = PreemptionPolicy(WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.LOWER_PRIORITY)
    return ClusterQueueSpec(
        name=name,
        resource_groups=(ResourceGroup((GPU,), (H100,)),),
        quotas={FlavorResource(H100, GPU): ResourceQuota(gpus * 1000)},
        preemption=policy,
        **rest,  # type: ignore[arg-type]  # by name
    )


@pytest.mark.parametrize("lender", ["default", "guest"])
def test_where_the_victims_for_quota_are_too_many_for_the_hour_others_are_stopped(
    lender: str,
) -> None:
    """Four small ones lose least together; the large one is a single victim."""
    small = [f"small-{index}" for index in range(4)]
    queues = [a_quota("default", 8 if lender == "default" else 4, cohort="all")]
    if lender != "default":
        queues.append(a_quota(lender, 4, cohort="all"))
    world = World([a_node("a")], queues)
    start(world, a_workload("large", lender).gpus(4).priority(Priority.SPOT), ran_s=2 * HOUR_S)
    start(world, *[a_workload(name, lender).gpus(1).priority(Priority.SPOT) for name in small])
    world.pending = [a_workload("urgent").gpus(4).priority(Priority.HIGH).build()]
    known = [*small, "large"]
    assert names(world.running, run(world, per_cluster_hour=4), *known) == [small]
    assert names(world.running, run(world, per_cluster_hour=3), *known) == [["large"]]
    assert run(world, per_cluster_hour=0).preempting == ()


def test_where_quota_and_room_together_need_too_many_one_victim_that_gives_both_is_stopped() -> (
    None
):
    """Quota alone is cheapest from two on another node; room is where the large one runs."""
    world = World([a_node("a", 4), a_node("b", 4)], [a_quota("default", 8)])
    start(world, a_workload("large").gpus(4).priority(Priority.SPOT), ran_s=2 * HOUR_S)
    fixed = a_workload("fixed").gpus(2).priority(Priority.HIGH)
    start(world, fixed, *[a_workload(f"small-{n}").gpus(1).priority(Priority.SPOT) for n in (0, 1)])
    world.pending = [a_workload("urgent").gpus(4).priority(Priority.HIGH).build()]
    for limit in (10, 2, 1):
        stopped = names(world.running, run(world, per_cluster_hour=limit), "large")
        assert stopped == [["large"]], limit


def test_borrowed_quota_is_reclaimed_from_a_lower_class() -> None:
    def queue(name: str) -> ClusterQueueSpec:
        return ClusterQueueSpec(
            name=name,
            cohort="all",
            resource_groups=(ResourceGroup((GPU,), (H100,)),),
            quotas={FlavorResource(H100, GPU): ResourceQuota(4000)},
            preemption=PreemptionPolicy(
                WithinClusterQueue.NEVER, ReclaimWithinCohort.LOWER_PRIORITY
            ),
        )

    world = World([a_node("a"), a_node("b")], [queue("owner"), queue("guest")])
    start(
        world,
        a_workload("own", "guest").gpus(4).priority(Priority.LOW),
        a_workload("borrowed", "guest").gpus(4).priority(Priority.LOW),
    )
    world.pending = [a_workload("back", "owner").gpus(4).priority(Priority.NORMAL).build()]
    decision = run(world)
    assert len(decision.preempting) == 1
    assert len(decision.preempting[0].victims) == 1


def test_a_queue_whose_policies_say_never_stops_nobody() -> None:
    queue = ClusterQueueSpec(
        name="q",
        resource_groups=(ResourceGroup((GPU,), (H100,)),),
        quotas={FlavorResource(H100, GPU): ResourceQuota(64_000)},
    )
    world = World([a_node("a")], [queue])
    start(world, a_workload("low", "q").gpus(8).priority(Priority.LOW))
    world.pending = [a_workload("urgent", "q").gpus(8).priority(Priority.HIGH).build()]
    assert not run(world).preempting


def test_work_of_a_queue_that_is_gone_runs_on_and_disturbs_nobody() -> None:
    world = World([a_node("a")], [unlimited_cluster_queue("old"), unlimited_cluster_queue("new")])
    start(world, a_workload("left", "old").gpus(8).priority(Priority.LOW))
    world.queues = [unlimited_cluster_queue("new")]
    urgent = a_workload("urgent", "new").gpus(8).priority(Priority.HIGH).build()
    running = tuple(
        replace(each, workload=replace(each.workload, local_queue="gone/door"))
        for each in world.running
    )
    fleet = world.snapshot_fleet()
    snapshot = Snapshot(1, (urgent,), running, (fleet,), a_tree(*world.queues))
    decision = decide(snapshot, Policy(), NOW, 1)
    assert not decision.preempting
    assert len(forecast(snapshot, Policy(), NOW, 1).estimates) == 1


def test_a_local_queue_that_leads_elsewhere_is_a_reason() -> None:
    world = World([a_node("a")], pending=[a_workload().having(local_queue="t/door").build()])
    assert run(world).waiting[0].reason.word is Word.NO_QUEUE


@pytest.mark.parametrize(
    ("profile", "model", "lost_gpu_s"),
    [
        ("7g.80gb", None, 3600),
        ("3g.40gb", None, 3600 * 428 // 1000),
        ("1g.10gb", None, 3600 * 142 // 1000),
        ("1g.24gb", "nvidia-rtx-pro-6000", 900),
        ("1g.24gb", "nvidia-h100-94gb-nvl", 3600 * 142 // 1000),
    ],
)
def test_an_instance_loses_the_part_of_the_gpu_that_its_profile_takes(
    profile: str, model: str | None, lost_gpu_s: int
) -> None:
    held = MigPlacement(a_node("a").gpus[0].gpu_id, profile, 0)
    workload = a_workload("sliced").mig(profile).resources(gpu_model=model).build()
    allocation = Allocation(workload.job_id, a_node("a").node_id, mig=held)
    running = RunningWorkload(workload, CLUSTER, (allocation,), NOW - HOUR_S * 1000)
    assert compute_loss(running, NOW).lost_gpu_s == lost_gpu_s
