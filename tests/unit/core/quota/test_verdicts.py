"""What a verdict says: the outcome, the word, the amount and the sentence."""

import pytest

from gpuplane.core.quota import (
    GPU,
    UNLIMITED,
    AdmissionMode,
    BorrowWithinCohortPolicy,
    CohortSpec,
    FlavorResource,
    LocalQueueSpec,
    Outcome,
    PreemptionPolicy,
    QuotaTree,
    ReclaimWithinCohort,
    WithinClusterQueue,
    describe_amount,
    unlimited_cluster_queue,
)
from gpuplane.core.reasons import Word
from tests.unit.core.quota.builders import queue, quota

H100 = FlavorResource("H100-80GB", GPU)
H100_CPU = FlavorResource("H100-80GB", "cpu")
PREEMPTS = PreemptionPolicy(WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.ANY)


def shared(**policy: PreemptionPolicy) -> QuotaTree:
    """Return two teams with 8 GPUs each in one cohort; `a` may borrow 4."""
    return QuotaTree(
        [
            queue("a", {H100: quota(8_000, 4_000)}, "org", **policy),
            queue("b", {H100: quota(8_000)}, "org"),
        ]
    )


def test_a_request_within_the_nominal_quota_fits_without_borrowing() -> None:
    verdict = shared().fits("a", {H100: 8_000})
    assert verdict.outcome is Outcome.FITS
    assert verdict.fits
    assert verdict.reason is None
    assert verdict.borrow_level == 0
    assert verdict.sentence == "Fits the quota of queue a."


def test_a_request_beyond_it_names_what_is_borrowed_from_whom() -> None:
    verdict = shared().fits("a", {H100: 10_500})
    assert verdict.outcome is Outcome.FITS_BORROWING
    (borrowing,) = verdict.borrowed
    assert (borrowing.amount, borrowing.cohort, borrowing.level) == (2_500, "org", 1)
    assert verdict.sentence == ("Fits queue a by borrowing 2.5 GPUs of H100-80GB from cohort org.")


def test_borrowing_reaches_only_as_far_up_as_it_must() -> None:
    tree = QuotaTree(
        [queue("a", {H100: quota(1_000)}, "team")],
        [
            CohortSpec("team", "org", {H100: quota(2_000)}),
            CohortSpec("org", None, {H100: quota(4_000)}),
        ],
    )
    levels = {
        amount: [(each.cohort, each.level) for each in tree.fits("a", {H100: amount}).borrowed]
        for amount in (1_000, 3_000, 7_000)
    }
    assert levels == {1_000: [], 3_000: [("team", 1)], 7_000: [("org", 2)]}


def test_more_than_could_ever_be_had_never_fits() -> None:
    verdict = shared().fits("a", {H100: 13_000})
    assert verdict.outcome is Outcome.NEVER_FITS
    assert verdict.word is Word.REQUEST_EXCEEDS_QUOTA
    assert verdict.shortages[0].short_by == 1_000
    assert verdict.sentence == (
        "Asks for 13 GPUs of H100-80GB; queue a can use at most 12 GPUs, borrowing counted."
    )


def test_a_resource_without_quota_never_fits_but_none_of_it_does() -> None:
    tree = shared()
    verdict = tree.fits("a", {H100_CPU: 1_000})
    assert (verdict.outcome, verdict.word) == (Outcome.NEVER_FITS, Word.REQUEST_EXCEEDS_QUOTA)
    assert verdict.sentence == ("Asks for 1 core of H100-80GB; queue a has no quota for it.")
    assert tree.fits("a", {H100: 1_000, H100_CPU: 0}).fits


def test_the_borrowing_limit_is_named_when_it_alone_stands_in_the_way() -> None:
    tree = shared(preemption=PREEMPTS)
    tree.add_usage("a", {H100: 11_000})
    verdict = tree.fits("a", {H100: 2_000})
    assert verdict.word is Word.BORROWING_LIMIT
    assert verdict.shortages[0].limited_by == "queue a"
    assert verdict.sentence == (
        "Asks for 2 GPUs of H100-80GB; the borrowing limit of queue a leaves 1 GPU, 1 GPU too few."
    )


def test_the_borrowing_limit_of_a_cohort_is_named_too() -> None:
    tree = QuotaTree(
        [queue("a", {H100: quota(2_000)}, "team"), queue("b", {H100: quota(0)}, "team")],
        [
            CohortSpec("team", "org", {H100: quota(0, 1_000)}),
            CohortSpec("org", None, {H100: quota(9_000)}),
        ],
        usage={"b": {H100: 2_000}},
    )
    verdict = tree.fits("a", {H100: 2_000})
    assert (verdict.word, verdict.shortages[0].limited_by) == (Word.BORROWING_LIMIT, "cohort team")


def test_quota_in_use_by_others_is_quota_exceeded() -> None:
    tree = shared(preemption=PREEMPTS)
    tree.add_usage("b", {H100: 15_000})
    verdict = tree.fits("a", {H100: 4_000})
    assert verdict.outcome is Outcome.NEEDS_PREEMPTION
    assert verdict.word is Word.QUOTA_EXCEEDED
    assert verdict.shortages[0].available == 1_000
    assert verdict.sentence == (
        "Asks for 4 GPUs of H100-80GB; queue a has 1 GPU unused, 3 GPUs too few."
    )
    assert verdict.reason is not None
    assert verdict.reason.fix


@pytest.mark.parametrize(
    ("policy", "mode", "outcome"),
    [
        (PreemptionPolicy(), AdmissionMode.CLASSICAL, Outcome.WAITS),
        (
            PreemptionPolicy(reclaim_within_cohort=ReclaimWithinCohort.ANY),
            AdmissionMode.CLASSICAL,
            Outcome.WAITS,
        ),
        (
            PreemptionPolicy(reclaim_within_cohort=ReclaimWithinCohort.ANY),
            AdmissionMode.FAIR_SHARING,
            Outcome.NEEDS_PREEMPTION,
        ),
        (
            PreemptionPolicy(
                reclaim_within_cohort=ReclaimWithinCohort.ANY,
                borrow_within_cohort=BorrowWithinCohortPolicy.LOWER_PRIORITY,
            ),
            AdmissionMode.CLASSICAL,
            Outcome.NEEDS_PREEMPTION,
        ),
    ],
)
def test_a_request_beyond_nominal_may_seek_victims_only_where_the_policy_lets_it_borrow(
    policy: PreemptionPolicy, mode: AdmissionMode, outcome: Outcome
) -> None:
    tree = QuotaTree(
        [
            queue("a", {H100: quota(8_000)}, "org", preemption=policy),
            queue("b", {H100: quota(8_000)}, "org"),
        ],
        usage={"b": {H100: 10_000}},
        mode=mode,
    )
    assert tree.fits("a", {H100: 9_000}).outcome is outcome


def test_the_worst_shortage_comes_first() -> None:
    tree = QuotaTree(
        [queue("a", {H100: quota(8_000), H100_CPU: quota(4_000)})], usage={"a": {H100: 8_000}}
    )
    verdict = tree.fits("a", {H100: 1_000, H100_CPU: 5_000})
    assert verdict.outcome is Outcome.NEVER_FITS
    assert [each.word for each in verdict.shortages] == [
        Word.REQUEST_EXCEEDS_QUOTA,
        Word.QUOTA_EXCEEDED,
    ]


def doors(within: WithinClusterQueue = WithinClusterQueue.NEVER) -> QuotaTree:
    """Return one queue of 8 GPUs with a door for `ml`, capped at 4."""
    policy = PreemptionPolicy(within_cluster_queue=within)
    return QuotaTree(
        [queue("a", {H100: quota(8_000)}, preemption=policy)],
        local_queues=[
            LocalQueueSpec("batch", "ml", "a", limits={H100: 4_000}),
            LocalQueueSpec("batch", "web", "a"),
        ],
    )


def test_the_limit_of_the_local_queue_holds_besides_the_quota() -> None:
    tree = doors()
    tree.add_usage("a", {H100: 3_000}, "ml/batch")
    verdict = tree.fits("a", {H100: 2_000}, "ml/batch")
    assert (verdict.outcome, verdict.word) == (Outcome.WAITS, Word.LOCAL_QUEUE_LIMIT)
    assert not verdict.is_final
    assert verdict.sentence == (
        "Asks for 2 GPUs of H100-80GB; queue ml/batch: its limit leaves 1 GPU, 1 GPU too few."
    )
    assert tree.fits("a", {H100: 5_000}, "web/batch").fits
    tree.remove_usage("a", {H100: 3_000}, "ml/batch")
    assert tree.local_usage_of("ml/batch") == {}
    assert tree.fits("a", {H100: 4_000}, "ml/batch").fits


def test_more_than_the_limit_of_the_local_queue_never_fits() -> None:
    verdict = doors().fits("a", {H100: 5_000}, "ml/batch")
    assert verdict.is_final
    assert (verdict.outcome, verdict.word) == (Outcome.NEVER_FITS, Word.LOCAL_QUEUE_LIMIT)
    assert verdict.sentence == (
        "Asks for 5 GPUs of H100-80GB; queue ml/batch: its limit is 4 GPUs, 1 GPU too few."
    )


def test_a_queue_that_may_evict_its_own_can_make_room_under_its_limit() -> None:
    tree = doors(WithinClusterQueue.LOWER_PRIORITY)
    tree.add_usage("a", {H100: 4_000}, "ml/batch")
    assert tree.fits("a", {H100: 1_000}, "ml/batch").outcome is Outcome.NEEDS_PREEMPTION


def test_a_queue_that_covers_everything_admits_everything_and_still_counts() -> None:
    tree = QuotaTree(
        [unlimited_cluster_queue("default")],
        local_queues=[LocalQueueSpec("all", "ml", "default", limits={H100: 1_000})],
    )
    tree.add_usage("default", {H100: 10**9})
    assert tree.fits("default", {H100: 10**12, FlavorResource("odd", "thing"): 1}).fits
    assert tree.available("default", H100) == UNLIMITED
    assert not tree.fits("default", {H100: 2_000}, "ml/all").fits
    (row,) = tree.explain("default")
    assert (row.used, row.nominal, row.available, row.borrowed) == (10**9, None, None, 0)


def test_explain_tells_what_is_borrowed_and_what_is_lent() -> None:
    tree = shared()
    tree.add_usage("a", {H100: 11_000})
    tree.add_usage("b", {H100: 2_000})
    (ours,), (theirs,) = tree.explain("a"), tree.explain("b")
    assert (ours.nominal, ours.used, ours.borrowed, ours.lent) == (8_000, 11_000, 3_000, 0)
    assert (ours.available, ours.potential) == (1_000, 12_000)
    assert (theirs.nominal, theirs.used, theirs.borrowed, theirs.lent) == (8_000, 2_000, 0, 3_000)
    assert theirs.available == 3_000
    (pool,) = tree.explain_cohort("org")
    assert (pool.nominal, pool.used, pool.available) == (16_000, 13_000, 3_000)


def test_over_admission_in_a_queue_of_its_own_is_not_called_borrowing() -> None:
    tree = QuotaTree([queue("a", {H100: quota(1_000)})], usage={"a": {H100: 3_000}})
    (row,) = tree.explain("a")
    assert (row.used, row.borrowed, row.available) == (3_000, 0, 0)


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        (GPU, 1_000, "1 GPU"),
        (GPU, 500, "0.5 GPUs"),
        (GPU, 12_250, "12.25 GPUs"),
        ("cpu", 64_000, "64 cores"),
        ("cpu", 1_000, "1 core"),
        ("memory", 2_048, "2 GiB"),
        ("memory", 1_500, "1500 MiB"),
        ("example.com/thing", 3, "3 example.com/thing"),
    ],
)
def test_amounts_are_said_as_people_say_them(resource: str, amount: int, text: str) -> None:
    assert describe_amount(resource, amount) == text
