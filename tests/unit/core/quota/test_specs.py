"""Which declarations are refused, and which door a tenant's job goes through."""

import pytest

from gpuplane.core.quota import (
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    CohortSpec,
    FlavorFungibility,
    FlavorFungibilityPolicy,
    FlavorPreference,
    FlavorResource,
    LocalQueueSpec,
    PreemptionPolicy,
    QuotaTree,
    ReclaimWithinCohort,
    ResourceGroup,
    find_local_queue,
    list_spec_problems,
)
from tests.unit.core.quota.builders import BLUE_CPU, RED_CPU, queue, quota, red

GROUP = ResourceGroup(("cpu",), ("red",))
LONG_LINE = [CohortSpec(f"c{index}", f"c{index + 1}") for index in range(70)]


@pytest.mark.parametrize(
    ("spec", "field", "sentence"),
    [
        (red("a", "c", -1), "quotas", "is below 0"),
        (red("a", "c", 1, -1), "quotas", "is below 0"),
        (red("a", None, 1, 1), "quotas", "need a cohort"),
        (red("a", None, 1, None, 1), "quotas", "need a cohort"),
        (red("a", "c", 1, None, 2), "quotas", "above its nominal"),
        (ClusterQueueSpec("a", None, (GROUP,)), "quotas", "no quota for cpu in flavor red"),
        (ClusterQueueSpec("a", quotas={RED_CPU: quota(1)}), "quotas", "in no resource group"),
        (
            ClusterQueueSpec("a", None, (GROUP, GROUP), {RED_CPU: quota(1)}),
            "resource_groups",
            "more than one group",
        ),
        (ClusterQueueSpec("a", None, (ResourceGroup((), ()),)), "resource_groups", "at least one"),
        (ClusterQueueSpec("a", fair_weight_milli=-1), "fair_weight_milli", "at least 0"),
        (ClusterQueueSpec("a", "c", covers_everything=True), "covers_everything", "neither"),
        (
            ClusterQueueSpec(
                "a",
                preemption=PreemptionPolicy(
                    borrow_within_cohort=BorrowWithinCohortPolicy.LOWER_PRIORITY
                ),
            ),
            "preemption",
            "needs a reclaimWithinCohort",
        ),
        (
            ClusterQueueSpec(
                "a",
                preemption=PreemptionPolicy(
                    reclaim_within_cohort=ReclaimWithinCohort.ANY, max_priority_threshold=1
                ),
            ),
            "preemption",
            "maxPriorityThreshold needs",
        ),
        (
            ClusterQueueSpec(
                "a",
                flavor_fungibility=FlavorFungibility(
                    preference=FlavorPreference.PREEMPTION_OVER_BORROWING
                ),
            ),
            "flavor_fungibility",
            "needs both",
        ),
    ],
)
def test_what_kueue_refuses_is_refused_with_the_field_named(
    spec: ClusterQueueSpec, field: str, sentence: str
) -> None:
    problems = list_spec_problems([spec])
    assert [problem.field for problem in problems][:1] == [field]
    assert any(sentence in problem.sentence for problem in problems)
    with pytest.raises(ValueError, match="ClusterQueue a"):
        QuotaTree([spec])


def test_too_many_resource_groups_are_refused() -> None:
    pairs = {FlavorResource(f"f{index}", f"r{index}"): quota(1) for index in range(17)}
    problems = list_spec_problems([queue("a", pairs)])
    assert [problem.sentence for problem in problems] == ["has 17 groups, at most 16"]


@pytest.mark.parametrize(
    ("cohorts", "sentence"),
    [
        ([CohortSpec("a", "a")], "forms a cycle: a → a"),
        ([CohortSpec("a", "b"), CohortSpec("b", "a")], "forms a cycle: a → b → a"),
        ([CohortSpec("x", "a"), CohortSpec("a", "b"), CohortSpec("b", "a")], "forms a cycle"),
        (LONG_LINE, "more than 64 cohorts above it"),
    ],
)
def test_a_cycle_or_bottomless_line_of_cohorts_is_refused(
    cohorts: list[CohortSpec], sentence: str
) -> None:
    with pytest.raises(ValueError, match="Cohort") as caught:
        QuotaTree([red("q", cohorts[0].name, 1)], cohorts)
    assert any(sentence in str(problem) for problem in list_spec_problems([], cohorts))
    assert "parent" in str(caught.value)


def test_a_cohort_without_a_parent_has_no_limits_but_may_lend_more_than_its_own() -> None:
    limited = CohortSpec("c", None, {RED_CPU: quota(1, 1)})
    assert [problem.field for problem in list_spec_problems([], [limited])] == ["quotas"]
    generous = CohortSpec("c", "root", {RED_CPU: quota(1, None, 5)})
    assert list_spec_problems([], [generous]) == []


def test_names_declared_twice_are_refused() -> None:
    local = LocalQueueSpec("l", "t", "a")
    problems = list_spec_problems(
        [red("a", None, 1), red("a", None, 1)],
        [CohortSpec("c"), CohortSpec("c")],
        [local, local, LocalQueueSpec("l", "other", "a")],
    )
    assert [problem.subject for problem in problems] == [
        "ClusterQueue a",
        "Cohort c",
        "LocalQueue t/l",
    ]


def test_a_local_queue_that_leads_nowhere_or_has_a_limit_below_0_is_refused() -> None:
    problems = list_spec_problems(
        [red("a", None, 1)],
        [],
        [LocalQueueSpec("x", "t", "gone"), LocalQueueSpec("y", "t", "a", limits={RED_CPU: -1})],
    )
    assert [problem.field for problem in problems] == ["cluster_queue", "limits"]


def test_the_door_that_names_the_job_type_goes_before_the_one_for_all() -> None:
    doors = [
        LocalQueueSpec("any-b", "ml", "q"),
        LocalQueueSpec("any-a", "ml", "q"),
        LocalQueueSpec("zoo", "ml", "q", frozenset({"training", "batch"})),
        LocalQueueSpec("aaa", "web", "q"),
    ]
    found = {
        (tenant, kind): door and door.key
        for tenant in ("ml", "web", "ops")
        for kind in ("training", "service")
        for door in [find_local_queue(doors, tenant, kind)]
    }
    assert found == {
        ("ml", "training"): "ml/zoo",
        ("ml", "service"): "ml/any-a",
        ("web", "training"): "web/aaa",
        ("web", "service"): "web/aaa",
        ("ops", "training"): None,
        ("ops", "service"): None,
    }


def test_the_words_of_kueue_v1beta1_are_read_as_those_of_v1beta2() -> None:
    assert FlavorFungibilityPolicy("Borrow") is FlavorFungibilityPolicy.MAY_STOP_SEARCH
    assert FlavorFungibilityPolicy("Preempt") is FlavorFungibilityPolicy.MAY_STOP_SEARCH
    with pytest.raises(ValueError, match="Anything"):
        FlavorFungibilityPolicy("Anything")


def test_questions_about_unknown_queues_and_impossible_amounts_are_refused() -> None:
    tree = QuotaTree(
        [red("a", None, 5), red("b", None, 5)],
        local_queues=[LocalQueueSpec("door", "t", "a")],
        usage={"a": {RED_CPU: 2}},
    )
    asked = [
        lambda: tree.fits("nobody", {}),
        lambda: tree.fits("a", {}, "t/nobody"),
        lambda: tree.fits("b", {RED_CPU: 1}, "t/door"),
        lambda: tree.add_usage("b", {RED_CPU: 1}, "t/door"),
        lambda: tree.fits("a", {RED_CPU: -1}),
        lambda: tree.add_usage("a", {RED_CPU: -1}),
        lambda: tree.remove_usage("a", {RED_CPU: 3}),
        lambda: tree.remove_usage("a", {RED_CPU: 1, BLUE_CPU: 1}),
        lambda: tree.remove_usage("a", {RED_CPU: 1}, "t/door"),
        lambda: tree.rollback(1),
        lambda: tree.release(1),
        lambda: tree.explain("nobody"),
        lambda: tree.explain_cohort("nobody"),
    ]
    for ask in asked:
        with pytest.raises(ValueError, match=r"\w"):
            ask()
    assert tree.usage_of("a") == {RED_CPU: 2}


def test_a_released_checkpoint_keeps_what_was_done_and_an_outer_one_undoes_it() -> None:
    tree = QuotaTree([red("a", None, 5)])
    outer = tree.checkpoint()
    inner = tree.checkpoint()
    tree.add_usage("a", {RED_CPU: 2})
    tree.release(inner)
    assert tree.usage_of("a") == {RED_CPU: 2}
    tree.rollback(outer)
    assert tree.usage_of("a") == {}
    again = tree.checkpoint()
    with pytest.raises(ValueError, match="not open"):
        tree.rollback(outer)
    tree.add_usage("a", {RED_CPU: 1})
    tree.release(again)
    assert tree.usage_of("a") == {RED_CPU: 1}
