"""What is available where, with the numbers of Kueue's own tests and documentation.

Source: kubernetes-sigs/kueue ff69552, pkg/cache/scheduler/resource_test.go TestAvailable;
https://kueue.sigs.k8s.io/docs/concepts/cluster_queue (borrowing limit, lending limit).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from gpuplane.core.quota import (
    ClusterQueueSpec,
    CohortSpec,
    FlavorResource,
    QuotaTree,
)
from tests.unit.core.quota.builders import BLUE_CPU, RED_CPU, queue, quota, red, red_cohort

Amounts = Mapping[str, Mapping[FlavorResource, int]]


@dataclass(frozen=True)
class Case:
    queues: tuple[ClusterQueueSpec, ...]
    usage: Amounts
    available: Amounts
    potential: Amounts
    cohorts: tuple[CohortSpec, ...] = field(default=())


def reds(**amounts: int) -> Amounts:
    return {name.replace("_", "-"): {RED_CPU: amount} for name, amount in amounts.items()}


CASES = {
    "queues without a cohort keep to themselves": Case(
        queues=(
            red("cq1", None, 0),
            queue("cq2", {RED_CPU: quota(5_000), BLUE_CPU: quota(10_000)}),
        ),
        usage={"cq1": {RED_CPU: 1_000}, "cq2": {RED_CPU: 2_500, BLUE_CPU: 1_000}},
        available={"cq1": {RED_CPU: 0}, "cq2": {RED_CPU: 2_500, BLUE_CPU: 9_000}},
        potential={"cq1": {RED_CPU: 0}, "cq2": {RED_CPU: 5_000, BLUE_CPU: 10_000}},
    ),
    "a cohort adds its own quota and what is lent": Case(
        queues=(red("cq1", "cohort", 10_000), red("cq2", "cohort", 10_000, None, 9_000)),
        cohorts=(red_cohort("cohort", None, 10_000),),
        usage=reds(cq1=1_000, cq2=500),
        available=reds(cq1=28_000, cq2=28_500),
        potential=reds(cq1=29_000, cq2=30_000),
    ),
    "a queue borrows the quota of the cohort itself": Case(
        queues=(red("cq1", "cohort", 10_000),),
        cohorts=(red_cohort("cohort", None, 10_000),),
        usage=reds(cq1=11_000),
        available=reds(cq1=9_000),
        potential=reds(cq1=20_000),
    ),
    "over-admission of one queue takes from the whole cohort": Case(
        queues=(red("cq1", "cohort", 10_000), red("cq2", "cohort", 10_000, 0, 0)),
        cohorts=(red_cohort("cohort", None, 10_000),),
        usage=reds(cq1=31_000),
        available=reds(cq1=0, cq2=0),
        potential=reds(cq1=20_000, cq2=10_000),
    ),
    "lending and borrowing limits are respected": Case(
        queues=(
            red("cq1", "cohort", 10_000),
            red("cq2", "cohort", 10_000, 2_000),
            red("cq3", "cohort", 10_000, None, 5_000),
        ),
        cohorts=(red_cohort("cohort", None, 10_000),),
        usage=reds(cq1=20_000, cq2=10_000, cq3=6_000),
        available=reds(cq1=4_000, cq2=2_000, cq3=4_000),
        potential=reds(cq1=35_000, cq2=12_000, cq3=40_000),
    ),
    "cohorts of a hierarchy share through the root": Case(
        queues=(red("cq1", "left", 10_000), red("cq2", "right", 10_000, None, 0)),
        cohorts=(
            CohortSpec("root"),
            red_cohort("left", "root", 10_000),
            red_cohort("right", "root", 10_000),
        ),
        usage=reds(cq1=10_000, cq2=5_000),
        available=reds(cq1=20_000, cq2=25_000),
        potential=reds(cq1=30_000, cq2=40_000),
    ),
    "a cohort's borrowing limit holds for all queues below it": Case(
        queues=(
            red("left-cq1", "left", 10_000),
            red("left-cq2", "left", 10_000, 5_000),
            red("right-cq", "right", 10_000),
        ),
        cohorts=(
            CohortSpec("root"),
            red_cohort("left", "root", 10_000, 5_000),
            red_cohort("right", "root", 10_000),
        ),
        usage={},
        available=reds(left_cq1=35_000, left_cq2=15_000, right_cq=50_000),
        potential=reds(left_cq1=35_000, left_cq2=15_000, right_cq=50_000),
    ),
    "a cohort's lending limit holds for all queues beside it": Case(
        queues=(
            red("left-cq1", "left", 10_000, None, 5_000),
            red("left-cq2", "left", 10_000),
            red("right-cq", "right", 0),
            red("root-cq", "root", 0),
        ),
        cohorts=(
            CohortSpec("root"),
            red_cohort("left", "root", 0, None, 5_000),
            red_cohort("right", "root", 0),
        ),
        usage={},
        available=reds(left_cq1=20_000, left_cq2=15_000, right_cq=5_000, root_cq=5_000),
        potential=reds(left_cq1=20_000, left_cq2=15_000, right_cq=5_000, root_cq=5_000),
    ),
    "documentation: a borrowing limit of 1 makes 9 CPUs 10": Case(
        queues=(red("team-a", "team-ab", 9_000, 1_000), red("team-b", "team-ab", 12_000)),
        usage={},
        available=reds(team_a=10_000, team_b=21_000),
        potential=reds(team_a=10_000, team_b=21_000),
    ),
    "documentation: a lending limit of 1 makes 9 CPUs 10 for the other": Case(
        queues=(red("team-a", "team-ab", 9_000), red("team-b", "team-ab", 12_000, None, 1_000)),
        usage=reds(team_b=11_000),
        available=reds(team_a=10_000, team_b=10_000),
        potential=reds(team_a=10_000, team_b=21_000),
    ),
}


def available_in(tree: QuotaTree, want: Amounts) -> Amounts:
    return {name: {pair: tree.available(name, pair) for pair in want[name]} for name in want}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_available_and_potential_amounts_equal_those_of_kueue(case: Case) -> None:
    tree = QuotaTree(case.queues, case.cohorts)
    potential = {
        name: {pair: tree.potential_available(name, pair) for pair in case.potential[name]}
        for name in case.potential
    }
    assert potential == case.potential
    assert available_in(tree, case.potential) == case.potential

    for name, amounts in case.usage.items():
        tree.add_usage(name, amounts)
    assert available_in(tree, case.available) == case.available

    for name, amounts in case.usage.items():
        tree.remove_usage(name, amounts)
    assert available_in(tree, case.potential) == case.potential


def lending_tree() -> QuotaTree:
    """Return the queues of Kueue's TestSnapshotAddRemoveWorkloadWithLendingLimit, fully used."""
    return QuotaTree(
        [red("lend-a", "lend", 10_000, None, 4_000), red("lend-b", "lend", 10_000, None, 6_000)],
        usage={"lend-a": {RED_CPU: 16_000}, "lend-b": {RED_CPU: 4_000}},
    )


@pytest.mark.parametrize(
    ("removed", "queue_usage", "cohort_usage"),
    [(0, 16_000, 10_000), (9_000, 7_000, 1_000), (10_000, 6_000, 0), (15_000, 1_000, 0)],
)
def test_only_usage_beyond_the_guaranteed_quota_rises_to_the_cohort(
    removed: int, queue_usage: int, cohort_usage: int
) -> None:
    tree = lending_tree()
    tree.remove_usage("lend-a", {RED_CPU: removed})
    assert tree.usage_of("lend-a").get(RED_CPU, 0) == queue_usage
    assert tree.cohort_usage_of("lend").get(RED_CPU, 0) == cohort_usage


def test_usage_of_a_resource_without_quota_counts_but_nothing_more_fits() -> None:
    tree = QuotaTree([red("a", "c", 10)], usage={"a": {BLUE_CPU: 3}})
    assert tree.usage_of("a") == {BLUE_CPU: 3}
    assert tree.cohort_usage_of("c") == {BLUE_CPU: 3}
    assert tree.available("a", BLUE_CPU) == 0
    assert not tree.fits("a", {BLUE_CPU: 1}).fits
