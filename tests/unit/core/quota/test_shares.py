"""The dominant resource share, with the numbers of Kueue's own tests.

Source: kubernetes-sigs/kueue ff69552, pkg/cache/scheduler/fair_sharing_test.go
TestDominantResourceShare and TestIsBorrowingOn.
"""

from dataclasses import dataclass, field

import pytest

from gpuplane.core.quota import (
    MAX_SHARE,
    ClusterQueueSpec,
    CohortSpec,
    FlavorResource,
    QuotaTree,
)
from tests.unit.core.quota.builders import queue, quota

CPU = FlavorResource("default", "cpu")
GPU = FlavorResource("default", "example.com/gpu")
ON_DEMAND = FlavorResource("on-demand", "cpu")
SPOT = FlavorResource("spot", "cpu")

Shares = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Case:
    queues: tuple[ClusterQueueSpec, ...]
    usage: dict[FlavorResource, int]
    shares: Shares
    extra: dict[FlavorResource, int] = field(default_factory=dict)
    cohorts: tuple[CohortSpec, ...] = ()
    cohort_shares: Shares = field(default_factory=dict)


def pool(
    *lines: tuple[FlavorResource, int, int], cq_weight_milli: int = 1000
) -> tuple[ClusterQueueSpec, ...]:
    """Return `cq` and `lending-cq` in one cohort: pair, quota of the one, quota of the other."""
    ours = {pair: quota(own) for pair, own, _ in lines}
    theirs = {pair: quota(lent) for pair, _, lent in lines}
    return (
        queue("cq", ours, "test-cohort", fair_weight_milli=cq_weight_milli),
        queue("lending-cq", theirs, "test-cohort"),
    )


TWO = ((CPU, 2_000, 8_000), (GPU, 5, 5))
CASES = {
    "no cohort, no share": Case(
        (queue("cq", {CPU: quota(2_000), GPU: quota(5)}),), {CPU: 3_000, GPU: 7}, {"cq": (0, "")}
    ),
    "usage below nominal": Case(
        pool(*TWO), {CPU: 1_000, GPU: 2}, {"cq": (0, ""), "lending-cq": (0, "")}
    ),
    "usage above nominal: (7 - 5) * 1000 / 10": Case(
        pool(*TWO), {CPU: 3_000, GPU: 7}, {"cq": (200, "example.com/gpu"), "lending-cq": (0, "")}
    ),
    "slightly above nominal among large quotas rounds up to 1": Case(
        pool((GPU, 500, 1_000)), {GPU: 501}, {"cq": (1, "example.com/gpu")}
    ),
    "way above nominal with a large weight rounds up to 1": Case(
        pool((GPU, 500, 1_000), cq_weight_milli=300_000),
        {GPU: 800},
        {"cq": (1, "example.com/gpu")},
    ),
    "one resource above nominal: (3 - 2) * 1000 / 10": Case(
        pool(*TWO), {CPU: 3_000, GPU: 3}, {"cq": (100, "cpu")}
    ),
    "with a workload: (1 + 4 - 2) * 1000 / 10": Case(
        pool(*TWO), {CPU: 1_000, GPU: 2}, {"cq": (300, "cpu")}, extra={CPU: 4_000, GPU: 4}
    ),
    "a resource that nobody lends gives no ratio": Case(
        (
            queue("cq", {CPU: quota(2_000), GPU: quota(2, None, 0)}, "test-cohort"),
            queue("lending-cq", {CPU: quota(8_000), GPU: quota(64, None, 0)}, "test-cohort"),
        ),
        {CPU: 1_000, GPU: 1},
        {"cq": (300, "cpu")},
        extra={CPU: 4_000, GPU: 4},
    ),
    "flavors add up: ((15 + 10 - 20) + 0) * 1000 / 200": Case(
        (
            queue("cq", {ON_DEMAND: quota(20_000), SPOT: quota(80_000)}, "test-cohort"),
            queue("lending-cq", {CPU: quota(100_000)}, "test-cohort"),
        ),
        {ON_DEMAND: 15_000, SPOT: 5_000},
        {"cq": (25, "cpu")},
        extra={ON_DEMAND: 10_000},
    ),
    "weight 2 halves the share": Case(
        pool((GPU, 5, 5), cq_weight_milli=2_000), {GPU: 7}, {"cq": (100, "example.com/gpu")}
    ),
    "weight 0.5 doubles the share": Case(
        pool((GPU, 5, 5), cq_weight_milli=500), {GPU: 7}, {"cq": (400, "example.com/gpu")}
    ),
    "weight 0 borrows at the highest share": Case(
        pool((GPU, 5, 10), cq_weight_milli=0), {GPU: 7}, {"cq": (MAX_SHARE, "example.com/gpu")}
    ),
    "a cohort has a share of its own": Case(
        (queue("cq", {GPU: quota(5)}, "child-cohort"),),
        {GPU: 10},
        {"cq": (100, "example.com/gpu")},
        cohorts=(
            CohortSpec("child-cohort", "root", fair_weight_milli=2_000),
            CohortSpec("root", None, {GPU: quota(45)}),
        ),
        cohort_shares={"child-cohort": (50, "example.com/gpu"), "root": (0, "")},
    ),
    "what only the root owns counts as lendable": Case(
        (queue("cq", {GPU: quota(0)}, "child-cohort"),),
        {GPU: 10},
        {"cq": (200, "example.com/gpu")},
        cohorts=(
            CohortSpec("child-cohort", "root", fair_weight_milli=2_000),
            CohortSpec("root", None, {GPU: quota(50)}),
        ),
        cohort_shares={"child-cohort": (100, "example.com/gpu"), "root": (0, "")},
    ),
    "a borrowing limit above bounds what is lendable": Case(
        (queue("cq", {GPU: quota(0)}, "child-cohort"),),
        {GPU: 10},
        {"cq": (1000, "example.com/gpu")},
        cohorts=(
            CohortSpec("child-cohort", "root", {GPU: quota(0, 10)}),
            CohortSpec("root", None, {GPU: quota(50)}),
        ),
        cohort_shares={"child-cohort": (200, "example.com/gpu"), "root": (0, "")},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_dominant_share_equals_that_of_kueue(case: Case) -> None:
    tree = QuotaTree(case.queues, case.cohorts, usage={"cq": case.usage})
    for name, want in case.shares.items():
        share = tree.dominant_share(name, case.extra if name == "cq" else None)
        assert (share.per_mille, share.resource) == want
        assert share.is_borrowing == (want[0] > 0)
    for name, want in case.cohort_shares.items():
        share = tree.cohort_share(name)
        assert (share.per_mille, share.resource) == want


@pytest.mark.parametrize(
    ("usage", "request_", "borrows_on_it", "borrows"),
    [
        ({CPU: 3_000}, {CPU: 1_000}, True, True),
        ({CPU: 1_000, GPU: 7}, {CPU: 1_000}, False, True),
        ({CPU: 3_000, GPU: 7}, {GPU: 1}, True, True),
        ({CPU: 1_000, GPU: 2}, {CPU: 1_000}, False, False),
        ({CPU: 3_000}, {}, False, True),
    ],
)
def test_borrowing_on_what_is_asked_is_told_from_borrowing_at_all(
    usage: dict[FlavorResource, int],
    request_: dict[FlavorResource, int],
    borrows_on_it: bool,
    borrows: bool,
) -> None:
    share = QuotaTree(pool(*TWO), usage={"cq": usage}).dominant_share("cq")
    assert share.borrows_on(request_) is borrows_on_it
    assert share.is_borrowing is borrows


def test_a_borrower_of_weight_0_comes_after_every_other_borrower() -> None:
    greedy = QuotaTree(pool((GPU, 5, 100)), usage={"cq": {GPU: 100}}).dominant_share("cq")
    modest = QuotaTree(
        pool((GPU, 5, 100), cq_weight_milli=0), usage={"cq": {GPU: 6}}
    ).dominant_share("cq")
    more = QuotaTree(pool((GPU, 5, 100), cq_weight_milli=0), usage={"cq": {GPU: 7}}).dominant_share(
        "cq"
    )
    assert greedy.sort_key < modest.sort_key < more.sort_key


def test_equal_ratios_name_the_first_resource() -> None:
    tree = QuotaTree(pool((CPU, 2, 8), (GPU, 2, 8)), usage={"cq": {GPU: 3, CPU: 3}})
    assert tree.dominant_share("cq").resource == "cpu"
