"""Who is considered first, and what a boost may do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplane.core.fleet.facts import NodeFacts
from gpuplane.core.quota.specs import (
    GPU,
    AdmissionMode,
    ClusterQueueSpec,
    FlavorResource,
    QueueingStrategy,
    ResourceGroup,
    ResourceQuota,
)
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.ordering import BOOST_UNIT, compute_entry, describe_boosts
from gpuplane.core.scheduling.policy import Backfill, Boosts, Flavor, Policy
from gpuplane.core.workloads import PRIORITY_VALUES, Priority
from tests.builders import A100, H100, NOW, WorkloadBuilder, World, a_node, a_workload

BOOSTS = Boosts()


def effective(builder: WorkloadBuilder) -> int:
    return compute_entry(builder.build(), BOOSTS, NOW).effective


def a_queue(
    name: str,
    gpus: int,
    *,
    cohort: str | None = "all",
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
    flavors: tuple[str, ...] = (H100,),
) -> ClusterQueueSpec:
    return ClusterQueueSpec(
        name=name,
        cohort=cohort,
        resource_groups=(ResourceGroup((GPU,), flavors),),
        quotas={FlavorResource(each, GPU): ResourceQuota(gpus * 1000) for each in flavors},
        queueing_strategy=strategy,
    )


def run(world: World, **rest: object) -> Decision:
    return decide(world.snapshot(**rest), Policy(), NOW, 1)  # type: ignore[arg-type]  # by name


def started(decision: Decision) -> list[str]:
    return [str(placed.job_id) for placed in decision.placed]


def ids(*builders: WorkloadBuilder) -> list[str]:
    return [str(each.build().job_id) for each in builders]


def test_priority_goes_before_age_and_age_before_id() -> None:
    old = a_workload("old").age(600)
    young = a_workload("young").age(5)
    high = a_workload("high").priority(Priority.HIGH)
    world = World([a_node("a", 3)], pending=[each.build() for each in (young, old, high)])
    assert started(run(world)) == ids(high, old, young)


def test_waiting_long_lifts_to_the_next_class_and_no_further() -> None:
    normal = a_workload().priority(Priority.NORMAL)
    assert effective(normal) == 10 * BOOST_UNIT
    assert effective(normal.age(3600)) == 10 * BOOST_UNIT
    assert 10 * BOOST_UNIT < effective(normal.age(5400)) < 100 * BOOST_UNIT
    assert effective(normal.age(7199)) < 100 * BOOST_UNIT
    assert effective(normal.age(7200)) == effective(normal.age(10**7)) == 100 * BOOST_UNIT


def test_no_boost_reaches_critical() -> None:
    high = a_workload().priority(Priority.HIGH).age(10**8).having(deadline=NOW)
    assert effective(high) == PRIORITY_VALUES[Priority.CRITICAL] * BOOST_UNIT - 1
    critical = a_workload().priority(Priority.CRITICAL).age(10**8)
    assert effective(critical) == PRIORITY_VALUES[Priority.CRITICAL] * BOOST_UNIT


@pytest.mark.parametrize(("used", "share"), [(0.4, 0), (0.5, 0.3), (0.75, 0.6), (0.9, 1), (2, 1)])
def test_a_deadline_lifts_in_steps_of_the_time_budget(used: float, share: float) -> None:
    budget = 100_000
    submitted = NOW - round(used * budget)
    workload = a_workload().having(
        submitted_at=submitted, deadline=submitted + budget, queued_at=NOW
    )
    assert effective(workload) == round((10 + 90 * share) * BOOST_UNIT)


def test_a_job_that_a_higher_one_waits_for_counts_as_high_as_that() -> None:
    workload = a_workload().priority(Priority.LOW).having(inherited_priority=Priority.HIGH)
    entry = compute_entry(workload.build(), BOOSTS, NOW)
    assert entry.effective == 100 * BOOST_UNIT
    notes = describe_boosts(workload.build(), BOOSTS, NOW)
    assert notes == ["Counts as high: a high job waits for it."]


def test_every_boost_that_acts_is_told_in_the_verdict() -> None:
    world = World([a_node("a")], pending=[a_workload().age(5000).build()])
    assert any("Waits 5000 s" in line for line in run(world).placed[0].explanation)


def test_a_strict_queue_stops_at_its_blocked_head_and_a_best_effort_one_does_not() -> None:
    def world(strategy: QueueingStrategy) -> World:
        head = a_workload("head", "q").gpus(9).age(60)
        small = a_workload("small", "q").gpus(1)
        queue = a_queue("q", 100, cohort=None, strategy=strategy)
        return World([a_node("a")], [queue], [head.build(), small.build()])

    strict = run(world(QueueingStrategy.STRICT_FIFO))
    assert not strict.placed
    assert strict.waiting[1].reason.word is Word.BEHIND_HEAD
    assert len(run(world(QueueingStrategy.BEST_EFFORT_FIFO)).placed) == 1


def test_a_head_that_does_not_borrow_goes_before_one_that_does() -> None:
    borrower = a_workload("borrower", "small").gpus(4).priority(Priority.HIGH)
    owner = a_workload("owner", "large").gpus(4).priority(Priority.LOW)
    world = World(
        [a_node("a", 4)],
        [a_queue("small", 2), a_queue("large", 6)],
        [borrower.build(), owner.build()],
    )
    assert started(run(world)) == ids(owner)


def test_fair_sharing_gives_the_turn_to_the_queue_with_the_lowest_share() -> None:
    queues = [a_queue("a", 1), a_queue("b", 1), a_queue("spare", 10)]
    world = World([a_node("n", 8)], queues, quota={"mode": AdmissionMode.FAIR_SHARING})
    first = [a_workload(f"a{n}", "a").gpus(1).age(100 - n) for n in range(4)]
    second = [a_workload(f"b{n}", "b").gpus(1).age(10 - n) for n in range(4)]
    world.pending = [each.build() for each in (*first, *second)]
    order = started(run(world))
    assert set(order[:4]) == set(ids(first[0], first[1], second[0], second[1]))


def test_quota_that_is_used_up_is_the_reason_even_where_nodes_are_free() -> None:
    world = World(
        [a_node("a")],
        [a_queue("q", 2, cohort=None)],
        [a_workload(f"w{n}", "q").age(9 - n).build() for n in range(3)],
    )
    decision = run(world)
    assert len(decision.placed) == 2
    assert decision.waiting[0].reason.word is Word.QUOTA_EXCEEDED


def test_a_request_beyond_all_quota_says_so() -> None:
    world = World(
        [a_node("a")], [a_queue("q", 2, cohort=None)], [a_workload("w", "q").gpus(4).build()]
    )
    assert run(world).waiting[0].reason.word is Word.REQUEST_EXCEEDS_QUOTA


@pytest.mark.parametrize("nodes", [[a_node("a")], [a_node("a"), a_node("b", model=A100)]])
def test_a_queue_without_quota_for_the_model_says_so(nodes: list[NodeFacts]) -> None:
    wants = a_workload("w", "q").gpus(1, gpu_model=A100)
    (waiting,) = run(World(nodes, [a_queue("q", 2, cohort=None)], [wants.build()])).waiting
    assert waiting.reason.word is Word.NO_QUOTA_FOR_MODEL
    assert waiting.reason.sentence.startswith(f"Queue q has no quota for {A100}; flavor {H100} ")
    assert "have a quota added" in waiting.reason.fix


def test_a_quota_for_a_model_that_the_cluster_lacks_lets_no_other_model_in() -> None:
    queue = a_queue("q", 2, cohort=None, flavors=("nvidia-t4",))
    wants = a_workload("w", "q").gpus(1, gpu_model=H100)
    decision = run(World([a_node("a")], [queue], [wants.build()]))
    assert [each.reason.word for each in decision.waiting] == [Word.NO_QUOTA_FOR_MODEL]


def test_a_flavor_of_the_model_that_is_too_small_is_told_before_other_models() -> None:
    queue = a_queue("q", 2, cohort=None, flavors=(A100, H100))
    wants = a_workload("w", "q").gpus(4, gpu_model=H100)
    (waiting,) = run(World([a_node("a")], [queue], [wants.build()])).waiting
    assert waiting.reason.word is Word.REQUEST_EXCEEDS_QUOTA


def test_an_unknown_queue_is_a_reason_and_no_error() -> None:
    world = World([a_node("a")], pending=[a_workload("w", "nowhere").build()])
    assert run(world).waiting[0].reason.word is Word.NO_QUEUE


def test_work_goes_to_the_nodes_of_the_flavor_that_has_quota() -> None:
    queue = a_queue("q", 1, cohort=None, flavors=(H100, A100))
    world = World(
        [a_node("h"), a_node("a", model=A100)],
        [queue],
        [a_workload(f"w{n}", "q").age(9 - n).build() for n in range(3)],
    )
    decision = run(world)
    assert [each.replicas[0].node_name for each in decision.placed] == ["h", "a"]
    assert [each.usage[0].flavor for each in decision.placed] == [H100, A100]


def test_a_flavor_whose_nodes_are_full_gives_way_to_the_next() -> None:
    queue = a_queue("q", 16, cohort=None, flavors=(H100, A100))
    world = World(
        [a_node("h", 1), a_node("a", 1, model=A100)],
        [queue],
        [a_workload(f"w{n}", "q").age(9 - n).build() for n in range(2)],
    )
    assert [each.replicas[0].node_name for each in run(world).placed] == ["h", "a"]


def test_a_declared_flavor_stands_for_the_nodes_with_its_labels() -> None:
    queue = a_queue("q", 16, cohort=None, flavors=("reserved",))
    world = World(
        [a_node("a"), a_node("b", labels={"tier": "reserved"})],
        [queue],
        [a_workload("w", "q").build()],
    )
    flavors = {"reserved": Flavor("reserved", node_labels={"tier": "reserved"})}
    assert run(world, flavors=flavors).placed[0].replicas[0].node_name == "b"


def test_a_frozen_installation_starts_nothing_and_says_who_froze_it() -> None:
    world = World([a_node("a")], pending=[a_workload().build()])
    verdict = run(world, frozen=True, frozen_note="by ops, upgrade").waiting[0]
    assert verdict.reason.word is Word.FROZEN
    assert "by ops, upgrade" in verdict.reason.sentence


def test_a_scheduled_start_lies_ahead_until_its_instant() -> None:
    world = World([a_node("a")], pending=[a_workload().having(not_before=NOW + 1).build()])
    assert run(world).waiting[0].reason.word is Word.SCHEDULED_START
    world.pending = [a_workload().having(not_before=NOW).build()]
    assert run(world).placed


# Backfill.


def a_blocked_world(small: WorkloadBuilder) -> World:
    """Return one node, half busy for an hour, a head that needs all of it, and small work."""
    world = World([a_node("a", 8)])
    world.pending = [a_workload("busy").gpus(4).having(estimated_duration_s=3600).build()]
    world.apply(decide(world.snapshot(), Policy(), NOW, 1))
    world.pending = [a_workload("head").gpus(8).age(60).build(), small.build()]
    return world


def test_work_that_ends_before_the_head_can_start_may_pass_it() -> None:
    small = a_workload("small").gpus(2).having(estimated_duration_s=3600)
    assert len(run(a_blocked_world(small)).placed) == 1


@pytest.mark.parametrize("duration", [3601, None])
def test_work_that_could_delay_the_head_waits_behind_it(duration: int | None) -> None:
    small = a_workload("small").gpus(2).having(estimated_duration_s=duration)
    decision = run(a_blocked_world(small))
    assert not decision.placed
    head, other = decision.waiting
    assert "A place is kept for it from 2025-10-09T09:54Z on" in head.reason.sentence
    assert other.reason.word is Word.BEHIND_HEAD


def test_a_place_behind_overdue_work_is_told_without_a_time() -> None:
    world = a_blocked_world(a_workload("small").gpus(2))
    world.running = [replace(each, started_at=NOW - 10**8) for each in world.running]
    head = run(world).waiting[0]
    assert "the work there is over its expected time" in head.reason.sentence


def test_work_on_other_nodes_passes_the_head_however_long_it_is() -> None:
    world = a_blocked_world(a_workload("small").gpus(2))
    world.nodes = [*world.nodes, a_node("b", 4)]
    (placed,) = run(world).placed
    assert placed.replicas[0].node_name == "b"


def test_greedy_backfill_lets_everything_pass() -> None:
    world = a_blocked_world(a_workload("small").gpus(2))
    policy = Policy(backfill=Backfill.GREEDY)
    assert len(decide(world.snapshot(), policy, NOW, 1).placed) == 1


def test_longer_work_of_the_same_queue_may_not_eat_the_quota_the_head_waits_for() -> None:
    queue = a_queue("q", 8, cohort=None)
    world = World([a_node("a"), a_node("b"), a_node("c")], [queue])
    world.pending = [a_workload("busy", "q").gpus(4).having(estimated_duration_s=3600).build()]
    world.apply(decide(world.snapshot(), Policy(), NOW, 1))
    head = a_workload("head", "q").gpus(8).age(60)
    long = a_workload("long", "q").gpus(2)
    short = a_workload("short", "q").gpus(2).having(estimated_duration_s=600)
    world.pending = [each.build() for each in (head, long, short)]
    assert started(run(world)) == ids(short)
