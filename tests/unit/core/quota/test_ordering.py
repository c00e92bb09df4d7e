"""Who is served next: Kueue's classical order and its fair-sharing tournament.

Source: kubernetes-sigs/kueue ff69552, pkg/scheduler/scheduler.go (classicalIterator) and
fair_sharing_iterator.go; KEP-1714.
"""

from gpuplane.core.quota import (
    OLD_GATES,
    AdmissionMode,
    CohortSpec,
    FairOrder,
    Head,
    QuotaTree,
    classical_order_key,
    queue_order_key,
)
from tests.unit.core.quota.builders import BLUE_CPU, RED_CPU, queue, quota, red


def head(name: str, cluster_queue: str, amount: int = 1, **fields: int) -> Head:
    facts = {"priority": 0, "queued_at_ms": 0} | fields
    return Head(name, cluster_queue, {RED_CPU: amount}, **facts)


def drain(tree: QuotaTree, order: FairOrder) -> list[str]:
    """Return the ids in the order they come out, each admitted if it fits."""
    found = []
    while (next_head := order.pop()) is not None:
        found.append(next_head.id)
        if tree.fits(next_head.cluster_queue, next_head.usage).fits:
            tree.add_usage(next_head.cluster_queue, next_head.usage)
    return found


def test_within_a_queue_priority_goes_before_age_and_age_before_the_id() -> None:
    waiting = [("d", 0, 1), ("c", 0, 2), ("b", 5, 9), ("a", 0, 2)]
    waiting.sort(key=lambda each: queue_order_key(each[1], each[2], each[0]))
    assert [name for name, _, _ in waiting] == ["b", "d", "a", "c"]


def test_the_classical_order_is_reserved_then_not_borrowing_then_priority_then_age() -> None:
    heads = [
        head("young", "q", queued_at_ms=9),
        head("borrows", "q", priority=9, borrow_level=1),
        head("old", "q", queued_at_ms=1),
        head("high", "q", priority=5, queued_at_ms=9),
        head("borrows-far", "q", priority=10, borrow_level=2),
        Head("reserved", "q", {}, 0, 9, borrow_level=2, has_quota=True),
    ]
    heads.sort(key=classical_order_key)
    assert [each.id for each in heads] == [
        "reserved",
        "high",
        "old",
        "young",
        "borrows",
        "borrows-far",
    ]


def fair(*queues_: tuple[str, int, int]) -> QuotaTree:
    """Return queues of one cohort: name, nominal, weight in thousandths."""
    specs = [
        queue(name, {RED_CPU: quota(nominal)}, "all", fair_weight_milli=weight_milli)
        for name, nominal, weight_milli in queues_
    ]
    return QuotaTree(specs, mode=AdmissionMode.FAIR_SHARING)


def test_the_queue_that_borrows_least_is_served_first() -> None:
    tree = fair(("a", 2, 1000), ("b", 2, 1000), ("c", 6, 1000))
    tree.add_usage("a", {RED_CPU: 4})
    tree.add_usage("b", {RED_CPU: 3})
    order = FairOrder(tree, [head("a1", "a", priority=9), head("b1", "b")])
    assert drain(tree, order) == ["b1", "a1"]


def test_a_queue_within_its_quota_goes_before_every_borrower() -> None:
    tree = fair(("a", 4, 1000), ("b", 0, 1000))
    heads = [head("a1", "a", queued_at_ms=9), head("b1", "b", priority=9)]
    assert drain(tree, FairOrder(tree, heads)) == ["a1", "b1"]


def test_a_heavier_queue_may_borrow_more_before_it_is_passed() -> None:
    tree = fair(("heavy", 0, 2000), ("light", 0, 1000), ("owner", 12, 1000))
    order = FairOrder(tree)
    turns = []
    for turn in range(9):
        order.push(head(f"heavy-{turn}", "heavy"))
        order.push(head(f"light-{turn}", "light"))
        winner = order.pop()
        assert winner is not None
        tree.add_usage(winner.cluster_queue, winner.usage)
        turns.append(winner.cluster_queue)
    assert (turns.count("heavy"), turns.count("light")) == (6, 3)


def test_equal_shares_go_by_priority_then_age_then_id() -> None:
    tree = fair(("a", 2, 1000), ("b", 2, 1000), ("c", 2, 1000), ("d", 2, 1000))
    order = FairOrder(
        tree,
        [
            head("z", "a", queued_at_ms=5),
            head("y", "b", queued_at_ms=1),
            head("x", "c", queued_at_ms=5),
            head("w", "d", priority=1, queued_at_ms=9),
        ],
    )
    assert drain(tree, order) == ["w", "y", "x", "z"]


def test_borrowing_of_another_flavor_does_not_count_against_a_head() -> None:
    both = {RED_CPU: quota(2), BLUE_CPU: quota(2)}
    tree = QuotaTree(
        [queue("a", both, "all"), queue("b", both, "all"), queue("c", both, "all")],
        usage={"a": {BLUE_CPU: 4}, "b": {RED_CPU: 2}},
        mode=AdmissionMode.FAIR_SHARING,
    )
    # `a` has by far the higher share, but for red it is within its quota and `b` is not.
    assert drain(tree, FairOrder(tree, [head("a1", "a"), head("b1", "b")])) == ["a1", "b1"]


def test_before_its_gate_shares_alone_decide_whose_head_is_first() -> None:
    both = {RED_CPU: quota(2), BLUE_CPU: quota(2)}
    tree = QuotaTree(
        [queue("a", both, "all"), queue("b", both, "all"), queue("c", both, "all")],
        usage={"a": {BLUE_CPU: 4}, "b": {RED_CPU: 2}},
        mode=AdmissionMode.FAIR_SHARING,
    )
    heads = [head("a1", "a"), head("b1", "b")]
    assert drain(tree, FairOrder(tree, heads, OLD_GATES)) == ["b1", "a1"]


def test_the_tournament_compares_cohorts_before_their_queues() -> None:
    tree = QuotaTree(
        [red("l1", "left", 0), red("l2", "left", 0), red("r1", "right", 0)],
        [
            CohortSpec("left", "root"),
            CohortSpec("right", "root"),
            CohortSpec("root", None, {RED_CPU: quota(12)}),
        ],
        usage={"l1": {RED_CPU: 3}, "r1": {RED_CPU: 4}},
        mode=AdmissionMode.FAIR_SHARING,
    )
    # l2 uses nothing, but left as a whole is at 4 with it against 5 of right.
    order = FairOrder(tree, [head("l2-1", "l2"), head("r1-1", "r1", priority=9)])
    assert drain(tree, order) == ["l2-1", "r1-1"]
    tree.add_usage("l1", {RED_CPU: 3})
    order = FairOrder(tree, [head("l2-2", "l2"), head("r1-2", "r1")])
    assert drain(tree, order) == ["r1-2", "l2-2"]


def test_a_pushed_head_replaces_the_one_its_queue_had() -> None:
    tree = fair(("a", 2, 1000))
    order = FairOrder(tree, [head("old", "a")])
    order.push(head("new", "a"))
    assert len(order) == 1
    assert drain(tree, order) == ["new"]


def test_separate_cohorts_take_turns_by_priority_and_age() -> None:
    tree = QuotaTree([red("a", "x", 4), red("b", "y", 4), red("c", None, 4)])
    order = FairOrder(
        tree,
        [
            head("1", "a", queued_at_ms=3),
            head("2", "b", queued_at_ms=2),
            head("3", "c", priority=1),
        ],
    )
    assert drain(tree, order) == ["3", "2", "1"]
