"""What holds in every quota tree, whatever is declared and in whatever order things happen.

The reference of `reference_usage` and `most_that_fits` is written from KEP-79's definitions, not
from the code: it recomputes the whole tree each time and tries every amount.
"""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.quota import FlavorResource, Outcome, QuotaTree
from tests.property.quota_trees import (
    Declared,
    Request,
    Usage,
    admit_what_fits,
    declarations,
    histories,
    requests,
    state_of,
)


class Reference:
    """The tree of one flavor-resource by its definition: quota, guarantee, usage and limits."""

    def __init__(self, declared: Declared, pair: FlavorResource) -> None:
        self.parent = {("c", spec.name): spec.parent for spec in declared.cohorts}
        self.parent |= {("q", spec.name): spec.cohort for spec in declared.queues}
        self.quota = {("c", spec.name): spec.quotas[pair] for spec in declared.cohorts}
        self.quota |= {("q", spec.name): spec.quotas[pair] for spec in declared.queues}
        self.queues = [spec.name for spec in declared.queues]

    def children(self, name: str) -> list[tuple[str, str]]:
        return [node for node, parent in self.parent.items() if parent == name]

    def subtree(self, node: tuple[str, str]) -> int:
        below = self.children(node[1]) if node[0] == "c" else []
        return self.quota[node].nominal + sum(
            self.subtree(child) - self.kept(child) for child in below
        )

    def kept(self, node: tuple[str, str]) -> int:
        limit = self.quota[node].lending_limit
        return 0 if limit is None else max(0, self.subtree(node) - limit)

    def usage(self, node: tuple[str, str], of_queues: dict[str, int]) -> int:
        if node[0] == "q":
            return of_queues[node[1]]
        return sum(
            max(0, self.usage(child, of_queues) - self.kept(child))
            for child in self.children(node[1])
        )

    def is_within_limits(self, of_queues: dict[str, int]) -> bool:
        for node, parent in self.parent.items():
            used, owned = self.usage(node, of_queues), self.subtree(node)
            if parent is None and used > owned:
                return False
            limit = self.quota[node].borrowing_limit
            if parent is not None and limit is not None and used > owned + limit:
                return False
        return True

    def most_that_fits(self, queue: str, of_queues: dict[str, int]) -> int:
        amount = 0
        while self.is_within_limits(of_queues | {queue: of_queues[queue] + amount + 1}):
            amount += 1
        return amount


def usage_by_queue(tree: QuotaTree, pair: FlavorResource) -> dict[str, int]:
    return {name: tree.usage_of(name).get(pair, 0) for name in tree.cluster_queues}


@given(histories())
def test_no_node_of_the_tree_is_ever_overdrawn(history: tuple[Declared, list[Request]]) -> None:
    declared, wanted = history
    tree = declared.tree()
    admit_what_fits(tree, wanted)
    for pair in declared.pairs:
        reference = Reference(declared, pair)
        assert reference.is_within_limits(usage_by_queue(tree, pair))


@given(histories())
def test_available_is_the_most_that_fits(history: tuple[Declared, list[Request]]) -> None:
    declared, wanted = history
    tree = declared.tree()
    admit_what_fits(tree, wanted)
    for pair in declared.pairs:
        reference = Reference(declared, pair)
        used = usage_by_queue(tree, pair)
        empty = dict.fromkeys(used, 0)
        for name in tree.cluster_queues:
            assert tree.available(name, pair) == reference.most_that_fits(name, used)
            assert tree.potential_available(name, pair) == reference.most_that_fits(name, empty)


@given(histories())
def test_usage_of_cohorts_is_what_rises_beyond_the_guaranteed_quota(
    history: tuple[Declared, list[Request]],
) -> None:
    declared, wanted = history
    tree = declared.tree()
    for request in wanted:  # whether it fits or not: over-admission rises too
        tree.add_usage(request.queue, request.usage)
    for request in wanted[::2]:
        tree.remove_usage(request.queue, request.usage)
    for pair in declared.pairs:
        reference = Reference(declared, pair)
        used = usage_by_queue(tree, pair)
        for name in tree.cohorts:
            found = tree.cohort_usage_of(name).get(pair, 0)
            assert found == reference.usage(("c", name), used)


@given(histories())
def test_borrowing_never_exceeds_its_limit_and_the_guaranteed_quota_stays_free(
    history: tuple[Declared, list[Request]],
) -> None:
    declared, wanted = history
    tree = declared.tree()
    admit_what_fits(tree, wanted)
    for spec in declared.queues:
        for pair, quota in spec.quotas.items():
            used = tree.usage_of(spec.name).get(pair, 0)
            if quota.borrowing_limit is not None:
                assert tree.borrowing(spec.name, pair) <= quota.borrowing_limit
            if quota.lending_limit is not None:
                guaranteed = quota.nominal - quota.lending_limit
                assert tree.available(spec.name, pair) >= guaranteed - used


@given(histories(), st.randoms(use_true_random=False))
def test_removing_in_any_order_restores_an_empty_tree(
    history: tuple[Declared, list[Request]], random: Random
) -> None:
    declared, wanted = history
    tree = declared.tree()
    empty = state_of(tree)
    for request in wanted:
        tree.add_usage(request.queue, request.usage)
    shuffled = list(wanted)
    random.shuffle(shuffled)
    for request in shuffled:
        tree.remove_usage(request.queue, request.usage)
    assert state_of(tree) == empty


@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_adding_and_declaring_is_irrelevant(
    history: tuple[Declared, list[Request]], random: Random
) -> None:
    declared, wanted = history
    one = declared.tree()
    queues, cohorts, shuffled = list(declared.queues), list(declared.cohorts), list(wanted)
    for each in (queues, cohorts, shuffled):
        random.shuffle(each)
    other = QuotaTree(queues, cohorts)
    for request in wanted:
        one.add_usage(request.queue, request.usage)
    for request in shuffled:
        other.add_usage(request.queue, request.usage)
    assert state_of(one) == state_of(other)
    for name in one.cluster_queues:
        assert one.explain(name) == other.explain(name)
        assert one.dominant_share(name) == other.dominant_share(name)


@given(st.data(), declarations())
def test_a_rollback_is_exact_at_every_depth(data: st.DataObject, declared: Declared) -> None:
    tree = declared.tree()
    opened: list[tuple[int, dict[str, Usage], list[Request]]] = []
    counted: list[Request] = []
    for request in data.draw(requests(declared, most=20)):
        step = data.draw(st.sampled_from(("add", "remove", "open", "rollback")))
        if step == "add":
            tree.add_usage(request.queue, request.usage)
            counted.append(request)
        elif step == "remove" and counted:
            gone = counted.pop()
            tree.remove_usage(gone.queue, gone.usage)
        elif step == "open":
            opened.append((tree.checkpoint(), state_of(tree), list(counted)))
        elif step == "rollback" and opened:
            mark, before, counted = opened.pop(data.draw(st.integers(0, len(opened) - 1)))
            opened = [each for each in opened if each[0] < mark]
            tree.rollback(mark)
            assert state_of(tree) == before
    if opened:
        tree.rollback(opened[0][0])
        assert state_of(tree) == opened[0][1]


@given(histories(), st.data())
def test_a_verdict_names_exactly_what_is_short(
    history: tuple[Declared, list[Request]], data: st.DataObject
) -> None:
    declared, wanted = history
    tree = declared.tree()
    admit_what_fits(tree, wanted)
    for request in data.draw(requests(declared, most=4)):
        queue = request.queue
        verdict = tree.fits(queue, request.usage)
        short = {
            pair: amount - tree.available(queue, pair)
            for pair, amount in request.usage.items()
            if amount > tree.available(queue, pair)
        }
        never = {
            pair
            for pair, amount in request.usage.items()
            if amount > tree.potential_available(queue, pair)
        }
        assert verdict.fits == (not short)
        assert {each.flavor_resource for each in verdict.shortages} == set(short)
        assert (verdict.outcome is Outcome.NEVER_FITS) == bool(never)
        for each in verdict.shortages:
            if each.outcome is not Outcome.NEVER_FITS:
                assert each.short_by == short[each.flavor_resource]
        trimmed = {pair: amount - short.get(pair, 0) for pair, amount in request.usage.items()}
        assert tree.fits(queue, trimmed).fits
        assert (verdict.reason is None) == verdict.fits


@given(histories(), st.data())
def test_what_is_borrowed_is_what_the_verdict_announced(
    history: tuple[Declared, list[Request]], data: st.DataObject
) -> None:
    declared, wanted = history
    tree = declared.tree()
    admit_what_fits(tree, wanted)
    for request in data.draw(requests(declared, most=4)):
        verdict = tree.fits(request.queue, request.usage)
        if not verdict.fits:
            continue
        before = {pair: tree.borrowing(request.queue, pair) for pair in declared.pairs}
        tree.add_usage(request.queue, request.usage)
        announced = {each.flavor_resource: each.amount for each in verdict.borrowed}
        for pair in declared.pairs:
            grown = tree.borrowing(request.queue, pair) - before[pair]
            assert grown == announced.get(pair, 0)


@given(histories(), st.booleans())
def test_the_level_asked_for_alone_is_that_of_the_whole_answer(
    history: tuple[Declared, list[Request]], is_overdrawn: bool
) -> None:
    declared, wanted = history
    tree = declared.tree()
    for request in wanted[: len(wanted) // 2]:
        if is_overdrawn or tree.fits(request.queue, request.usage).fits:
            tree.add_usage(request.queue, request.usage)
    for request in wanted:
        answer = tree.fits(request.queue, request.usage)
        level = tree.find_level(request.queue, request.usage)
        assert level == (answer.borrow_level if answer.fits else -1)
