"""What flavor assignment says beyond Kueue's own scenarios: reasons, resumption, no quotas."""

import pytest

from gpuplane.core.quota import (
    ANY_FLAVOR,
    GPU,
    CohortSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorMode,
    FlavorPreference,
    FlavorResource,
    PreemptionPolicy,
    PreemptionPossibility,
    QuotaTree,
    WithinClusterQueue,
    assign_flavors,
    unlimited_cluster_queue,
)
from gpuplane.core.reasons import Word
from tests.unit.core.quota.builders import queue, quota

A100, H100 = FlavorResource("A100", GPU), FlavorResource("H100", GPU)
CPU = FlavorResource("cpu-only", "cpu")
TRY_NEXT = FlavorFungibilityPolicy.TRY_NEXT_FLAVOR
PREEMPT_AT_HOME = PreemptionPossibility.PREEMPT


def models(**fields: object) -> QuotaTree:
    """Return a queue with 4 A100, then 4 H100, and 8 cores of a flavor of their own."""
    quotas = {A100: quota(4_000), H100: quota(4_000), CPU: quota(8_000)}
    return QuotaTree([queue("a", quotas, **fields)])


def test_each_resource_group_takes_a_flavor_of_its_own() -> None:
    assignment = assign_flavors(models(), "a", {GPU: 2_000, "cpu": 4_000})
    assert assignment.mode is FlavorMode.FIT
    assert assignment.flavors == {GPU: "A100", "cpu": "cpu-only"}
    assert assignment.usage == {A100: 2_000, CPU: 4_000}
    assert assignment.reason is None
    assert [each.flavor for each in assignment.attempts] == ["cpu-only", "A100"]


def test_a_full_flavor_is_passed_and_said_why() -> None:
    tree = models()
    tree.add_usage("a", {A100: 3_000})
    assignment = assign_flavors(tree, "a", {GPU: 2_000})
    assert assignment.flavors == {GPU: "H100"}
    first = assignment.attempts[0]
    assert first.mode is FlavorMode.NO_CANDIDATES
    assert first.reason is not None
    assert first.reason.sentence == (
        "Asks for 2 GPUs of A100; queue a needs 1 GPU of A100 more unused."
    )


def test_only_flavors_that_suit_are_taken() -> None:
    tree = models()
    assignment = assign_flavors(tree, "a", {GPU: 1_000}, suits=lambda flavor: flavor == "H100")
    assert assignment.flavors == {GPU: "H100"}
    nothing = assign_flavors(tree, "a", {GPU: 1_000}, suits=lambda flavor: flavor == "L4")
    assert nothing.mode is FlavorMode.NO_FIT
    assert nothing.reason is not None
    assert nothing.reason.word is Word.SELECTOR


def test_the_mildest_reason_over_the_flavors_is_the_one_told() -> None:
    tree = QuotaTree([queue("a", {A100: quota(1_000), H100: quota(4_000)})])
    tree.add_usage("a", {H100: 3_000})
    assignment = assign_flavors(tree, "a", {GPU: 2_000})
    assert assignment.mode is FlavorMode.NO_CANDIDATES
    assert assignment.reason is not None
    assert assignment.reason.word is Word.QUOTA_EXCEEDED
    assert assign_flavors(tree, "a", {GPU: 5_000}).reason is not None
    too_much = assign_flavors(tree, "a", {GPU: 5_000})
    assert too_much.reason is not None
    assert too_much.reason.word is Word.REQUEST_EXCEEDS_QUOTA


def test_a_resource_that_the_queue_does_not_offer_is_refused() -> None:
    assignment = assign_flavors(models(), "a", {GPU: 1_000, "memory": 1})
    assert assignment.mode is FlavorMode.NO_FIT
    assert assignment.reason is not None
    assert assignment.reason.sentence == "Queue a has no quota for memory."
    assert assign_flavors(models(), "a", {GPU: 1_000, "memory": 0}).mode is FlavorMode.FIT


def test_what_other_parts_of_the_workload_take_is_counted() -> None:
    assignment = assign_flavors(models(), "a", {GPU: 3_000}, assumed={A100: 2_000})
    assert assignment.flavors == {GPU: "H100"}


def test_a_search_goes_on_after_the_flavor_tried_last() -> None:
    tree = models(
        preemption=PreemptionPolicy(within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY),
        flavor_fungibility=FlavorFungibility(
            when_can_preempt=FlavorFungibilityPolicy.MAY_STOP_SEARCH
        ),
    )
    tree.add_usage("a", {A100: 4_000, H100: 4_000})
    first = assign_flavors(tree, "a", {GPU: 1_000})
    assert (first.mode, first.flavors) == (FlavorMode.PREEMPT, {GPU: "A100"})
    second = assign_flavors(tree, "a", {GPU: 1_000}, last_tried=first.last_tried)
    assert second.flavors == {GPU: "H100"}
    assert second.last_tried == {GPU: -1}


@pytest.mark.parametrize(
    ("preference", "flavor"),
    [(None, "H100"), (FlavorPreference.PREEMPTION_OVER_BORROWING, "A100")],
)
def test_the_preference_decides_between_borrowing_and_preempting(
    preference: FlavorPreference | None, flavor: str
) -> None:
    tree = QuotaTree(
        [
            queue(
                "a",
                {A100: quota(4_000, 0), H100: quota(0)},
                "all",
                preemption=PreemptionPolicy(within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY),
                flavor_fungibility=FlavorFungibility(TRY_NEXT, TRY_NEXT, preference),
            )
        ],
        [CohortSpec("all", None, {H100: quota(4_000)})],
        usage={"a": {A100: 4_000}},
    )

    assignment = assign_flavors(
        tree, "a", {GPU: 1_000}, oracle=lambda pair, amount: (PREEMPT_AT_HOME, 0)
    )
    assert assignment.flavors == {GPU: flavor}


def test_a_queue_that_covers_everything_needs_no_flavor() -> None:
    tree = QuotaTree([unlimited_cluster_queue("default")])
    assignment = assign_flavors(tree, "default", {GPU: 10**9, "cpu": 1})
    assert assignment.mode is FlavorMode.FIT
    assert assignment.flavors == {GPU: ANY_FLAVOR, "cpu": ANY_FLAVOR}
    assert tree.fits("default", assignment.usage).fits


def test_a_request_below_0_is_refused() -> None:
    with pytest.raises(ValueError, match="below 0"):
        assign_flavors(models(), "a", {GPU: -1})
