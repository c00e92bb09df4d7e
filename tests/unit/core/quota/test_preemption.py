"""Who may evict whom, and what Kueue has no words for: room under a LocalQueue's own cap.

Kueue's own scenarios are in test_kueue_preemptions; here are the rules one by one.
"""

import pytest

from gpuplane.core.quota import (
    AdmissionMode,
    AdmittedWorkload,
    BorrowWithinCohortPolicy,
    CohortSpec,
    FlavorMode,
    LocalQueueSpec,
    PreemptionPolicy,
    PreemptionPossibility,
    PreemptionReason,
    PreemptionVariant,
    Preemptor,
    QuotaTree,
    ReclaimWithinCohort,
    WithinClusterQueue,
    assign_flavors,
    candidate_order_key,
    decide_eviction,
    plan_oracle,
    plan_preemption,
    satisfies_policy,
)
from tests.unit.core.quota.builders import BLUE_CPU, RED_CPU, queue, quota

NEVER = PreemptionVariant.NEVER


def preemptor(
    amount: int = 1, *, priority: int = 5, queued_at_ms: int = 5, door: str | None = None
) -> Preemptor:
    return Preemptor("new", "a", {RED_CPU: amount}, priority, queued_at_ms, door)


def running(
    name: str,
    cluster_queue: str,
    amount: int = 1,
    *,
    priority: int = 0,
    queued_at_ms: int = 0,
    admitted_at_ms: int = 0,
    door: str | None = None,
    is_evicted: bool = False,
) -> AdmittedWorkload:
    return AdmittedWorkload(
        name,
        cluster_queue,
        {RED_CPU: amount},
        priority,
        queued_at_ms,
        admitted_at_ms,
        door,
        is_evicted,
    )


@pytest.mark.parametrize(
    ("policy", "lower", "equal_newer", "equal_older", "higher"),
    [
        (WithinClusterQueue.NEVER, False, False, False, False),
        (WithinClusterQueue.LOWER_PRIORITY, True, False, False, False),
        (WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY, True, True, False, False),
        (ReclaimWithinCohort.NEVER, False, False, False, False),
        (ReclaimWithinCohort.LOWER_PRIORITY, True, False, False, False),
        (ReclaimWithinCohort.ANY, True, True, True, True),
    ],
)
def test_each_policy_allows_what_its_word_says(
    policy: WithinClusterQueue | ReclaimWithinCohort,
    lower: bool,
    equal_newer: bool,
    equal_older: bool,
    higher: bool,
) -> None:
    candidates = [
        running("lower", "a", priority=4),
        running("equal-newer", "a", priority=5, queued_at_ms=6),
        running("equal-older", "a", priority=5, queued_at_ms=5),
        running("higher", "a", priority=6, queued_at_ms=9),
    ]
    allowed = [satisfies_policy(policy, preemptor(), each) for each in candidates]
    assert allowed == [lower, equal_newer, equal_older, higher]


def test_victims_are_tried_with_the_least_harm_first() -> None:
    candidates = [
        running("own", "a", priority=-9),
        running("late", "b", priority=1, admitted_at_ms=9),
        running("early", "b", priority=1, admitted_at_ms=1),
        running("low", "b", priority=0),
        running("b-tie", "b", priority=0, admitted_at_ms=0),
        running("going", "a", priority=99, is_evicted=True),
    ]
    candidates.sort(key=lambda each: candidate_order_key(each, "a"))
    names = [each.id for each in candidates]
    assert names == ["going", "b-tie", "low", "late", "early", "own"]


def pool(policy: PreemptionPolicy, *, ours: int = 4, theirs: int = 4) -> QuotaTree:
    """Return queues `a` and `b` of 4 each in one cohort; `b` borrows 2 and `a` uses 2."""
    return QuotaTree(
        [
            queue("a", {RED_CPU: quota(ours)}, "all", preemption=policy),
            queue("b", {RED_CPU: quota(theirs)}, "all"),
        ],
        usage={"a": {RED_CPU: 2}, "b": {RED_CPU: 6}},
    )


def test_a_workload_that_uses_nothing_of_what_is_short_is_left_alone() -> None:
    tree = pool(PreemptionPolicy(reclaim_within_cohort=ReclaimWithinCohort.ANY))
    other = AdmittedWorkload("x", "b", {BLUE_CPU: 1}, 0, 0, 0)
    assert decide_eviction(tree, preemptor(2), other) is NEVER
    assert decide_eviction(tree, preemptor(2), running("y", "b")) is not NEVER


def test_a_borrower_is_reclaimed_by_advantage_when_the_request_is_within_nominal() -> None:
    tree = pool(PreemptionPolicy(reclaim_within_cohort=ReclaimWithinCohort.ANY))
    high = running("x", "b", priority=99)
    assert decide_eviction(tree, preemptor(2), high) is PreemptionVariant.HIERARCHICAL_RECLAIM


def test_beyond_nominal_a_borrower_may_be_evicted_only_without_borrowing() -> None:
    tree = pool(PreemptionPolicy(reclaim_within_cohort=ReclaimWithinCohort.ANY))
    variant = decide_eviction(tree, preemptor(3), running("x", "b"))
    assert variant is PreemptionVariant.RECLAIM_WITHOUT_BORROWING


@pytest.mark.parametrize(
    ("priority", "threshold", "variant"),
    [
        (4, None, PreemptionVariant.RECLAIM_WHILE_BORROWING),
        (5, None, PreemptionVariant.RECLAIM_WITHOUT_BORROWING),
        (3, 3, PreemptionVariant.RECLAIM_WHILE_BORROWING),
        (4, 3, PreemptionVariant.RECLAIM_WITHOUT_BORROWING),
    ],
)
def test_borrow_within_cohort_evicts_only_lower_priorities_up_to_the_threshold(
    priority: int, threshold: int | None, variant: PreemptionVariant
) -> None:
    policy = PreemptionPolicy(
        reclaim_within_cohort=ReclaimWithinCohort.ANY,
        borrow_within_cohort=BorrowWithinCohortPolicy.LOWER_PRIORITY,
        max_priority_threshold=threshold,
    )
    candidate = running("x", "b", priority=priority)
    assert decide_eviction(pool(policy), preemptor(3), candidate) is variant


def test_a_queue_within_its_nominal_quota_is_out_of_reach() -> None:
    policy = PreemptionPolicy(reclaim_within_cohort=ReclaimWithinCohort.ANY)
    tree = pool(policy, theirs=6)
    assert decide_eviction(tree, preemptor(9), running("x", "b")) is NEVER


def test_a_borrower_inside_a_cohort_that_does_not_borrow_is_out_of_reach() -> None:
    policy = PreemptionPolicy(reclaim_within_cohort=ReclaimWithinCohort.ANY)
    tree = QuotaTree(
        [
            queue("a", {RED_CPU: quota(4)}, "root", preemption=policy),
            queue("b", {RED_CPU: quota(0)}, "team"),
        ],
        [CohortSpec("team", "root", {RED_CPU: quota(4)})],
        usage={"b": {RED_CPU: 4}, "a": {RED_CPU: 3}},
    )
    assert decide_eviction(tree, preemptor(2), running("x", "b")) is NEVER
    tree.add_usage("b", {RED_CPU: 1})
    assert decide_eviction(tree, preemptor(1), running("x", "b")) is not NEVER


def test_a_queue_of_another_cohort_is_out_of_reach() -> None:
    policy = PreemptionPolicy(reclaim_within_cohort=ReclaimWithinCohort.ANY)
    tree = QuotaTree(
        [
            queue("a", {RED_CPU: quota(1)}, "one", preemption=policy),
            queue("b", {RED_CPU: quota(1)}, "two"),
        ],
        usage={"a": {RED_CPU: 1}, "b": {RED_CPU: 3}},
    )
    assert decide_eviction(tree, preemptor(1), running("x", "b")) is NEVER


def test_never_has_no_reason_to_put_on_a_record() -> None:
    with pytest.raises(ValueError, match="never evicted"):
        assert NEVER.reason


def capped() -> QuotaTree:
    """Return queue `a` of 8 with a door of at most 4 for `ml`, another one uncapped."""
    policy = PreemptionPolicy(within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY)
    return QuotaTree(
        [queue("a", {RED_CPU: quota(8)}, preemption=policy)],
        local_queues=[
            LocalQueueSpec("door", "ml", "a", limits={RED_CPU: 4}),
            LocalQueueSpec("door", "web", "a"),
        ],
    )


def admit(tree: QuotaTree, *workloads: AdmittedWorkload) -> dict[str, list[AdmittedWorkload]]:
    found: dict[str, list[AdmittedWorkload]] = {}
    for each in workloads:
        tree.add_usage(each.cluster_queue, each.usage, each.local_queue)
        found.setdefault(each.cluster_queue, []).append(each)
    return found


def test_room_under_a_local_cap_is_made_among_the_workloads_behind_that_door() -> None:
    tree = capped()
    admitted = admit(
        tree,
        running("web-low", "a", 2, priority=-5, door="web/door"),
        running("ml-low", "a", 2, priority=1, door="ml/door"),
        running("ml-mid", "a", 2, priority=2, door="ml/door"),
    )
    targets = plan_preemption(tree, preemptor(2, door="ml/door"), admitted)
    assert [(each.workload.id, each.reason) for each in targets] == [
        ("ml-low", PreemptionReason.IN_CLUSTER_QUEUE)
    ]
    assert tree.local_usage_of("ml/door") == {RED_CPU: 4}


def test_a_local_cap_and_the_quota_are_both_made_to_hold() -> None:
    tree = capped()
    admitted = admit(
        tree,
        running("web-low", "a", 2, priority=-5, door="web/door"),
        running("web-high", "a", 4, priority=9, door="web/door"),
        running("ml-mid", "a", 2, priority=2, door="ml/door"),
    )
    targets = plan_preemption(tree, preemptor(3, door="ml/door"), admitted)
    assert [each.workload.id for each in targets] == ["ml-mid", "web-low"]


def test_nothing_is_evicted_for_a_request_above_the_local_cap() -> None:
    tree = capped()
    admitted = admit(tree, running("ml-low", "a", 4, door="ml/door"))
    assert plan_preemption(tree, preemptor(5, door="ml/door"), admitted) == ()


@pytest.mark.parametrize("mode", AdmissionMode)
def test_a_rule_of_the_caller_protects_workloads_on_top_of_the_policies(
    mode: AdmissionMode,
) -> None:
    policy = PreemptionPolicy(within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY)
    tree = QuotaTree([queue("a", {RED_CPU: quota(4)}, preemption=policy)], mode=mode)
    admitted = admit(tree, running("x", "a", 2, priority=1), running("y", "a", 2, priority=2))
    spared = plan_preemption(tree, preemptor(2), admitted, permit=lambda each: each.id != "x")
    assert [each.workload.id for each in spared] == ["y"]
    assert [each.workload.id for each in plan_preemption(tree, preemptor(2), admitted)] == ["x"]


def test_the_oracle_tells_reclaim_from_preemption_and_from_nobody() -> None:
    policy = PreemptionPolicy(WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.LOWER_PRIORITY)
    tree = QuotaTree(
        [
            queue("a", {RED_CPU: quota(4), BLUE_CPU: quota(4)}, "all", preemption=policy),
            queue("b", {RED_CPU: quota(0), BLUE_CPU: quota(0)}, "all"),
        ]
    )
    admitted = admit(
        tree,
        running("theirs", "b", 4),
        AdmittedWorkload("ours", "a", {BLUE_CPU: 4}, 0, 0, 0),
    )
    oracle = plan_oracle(tree, preemptor(), admitted)
    assert oracle(RED_CPU, 2) == (PreemptionPossibility.RECLAIM, 0)
    assert oracle(BLUE_CPU, 2) == (PreemptionPossibility.PREEMPT, 0)
    low = plan_oracle(tree, preemptor(priority=0), admitted)
    assert low(RED_CPU, 2) == (PreemptionPossibility.NO_CANDIDATES, 0)


def test_a_flavor_that_can_be_reclaimed_goes_before_one_that_needs_preemption_at_home() -> None:
    policy = PreemptionPolicy(WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.LOWER_PRIORITY)
    tree = QuotaTree(
        [
            queue("a", {BLUE_CPU: quota(4), RED_CPU: quota(4)}, "all", preemption=policy),
            queue("b", {BLUE_CPU: quota(0), RED_CPU: quota(0)}, "all"),
        ]
    )
    admitted = admit(
        tree,
        running("theirs", "b", 4),
        AdmittedWorkload("ours", "a", {BLUE_CPU: 4}, 0, 0, 0),
    )
    assignment = assign_flavors(
        tree, "a", {"cpu": 2}, oracle=plan_oracle(tree, preemptor(2), admitted)
    )
    assert assignment.mode is FlavorMode.RECLAIM
    assert assignment.flavors == {"cpu": "red"}
