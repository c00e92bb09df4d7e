"""What holds for every plan of victims and every fair order, whatever the tree and the load."""

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.quota import (
    AdmissionMode,
    AdmittedWorkload,
    FairOrder,
    Head,
    PreemptionReason,
    PreemptionVariant,
    Preemptor,
    QuotaTree,
    decide_eviction,
    plan_preemption,
)
from tests.property.quota_trees import (
    Declared,
    Request,
    admit_what_fits,
    histories,
    requests,
    state_of,
)

MODES = st.sampled_from(AdmissionMode)


def by_queue(admitted: list[AdmittedWorkload]) -> dict[str, list[AdmittedWorkload]]:
    found: dict[str, list[AdmittedWorkload]] = {}
    for workload in admitted:
        found.setdefault(workload.cluster_queue, []).append(workload)
    return found


def preemptor_of(request: Request) -> Preemptor:
    return Preemptor(
        f"new-{request.id}", request.queue, request.usage, request.priority, request.queued_at_ms
    )


@given(histories(), MODES, st.data())
def test_victims_suffice_and_none_of_them_is_spare(
    history: tuple[Declared, list[Request]], mode: AdmissionMode, data: st.DataObject
) -> None:
    declared, wanted = history
    tree = declared.tree(mode)
    admitted = by_queue(admit_what_fits(tree, wanted))
    for request in data.draw(requests(declared, most=3)):
        before = state_of(tree)
        preemptor = preemptor_of(request)
        targets = plan_preemption(tree, preemptor, admitted)
        assert state_of(tree) == before
        if tree.fits(request.queue, request.usage).fits:
            assert targets == ()
        if not targets:
            continue
        with tree.trial():
            for target in targets:
                tree.remove_usage(target.workload.cluster_queue, target.workload.usage)
            assert tree.fits(request.queue, request.usage).fits
            for target in targets:
                with tree.trial():
                    tree.add_usage(target.workload.cluster_queue, target.workload.usage)
                    without = tree.fits(request.queue, request.usage)
                    # A plan that may not borrow keeps victims only to avoid borrowing.
                    assert not without.fits or without.borrowed


@given(histories(), st.data())
def test_every_classical_victim_is_one_that_the_policies_allow(
    history: tuple[Declared, list[Request]], data: st.DataObject
) -> None:
    declared, wanted = history
    tree = declared.tree()
    admitted = by_queue(admit_what_fits(tree, wanted))
    for request in data.draw(requests(declared, most=3)):
        preemptor = preemptor_of(request)
        for target in plan_preemption(tree, preemptor, admitted):
            variant = decide_eviction(tree, preemptor, target.workload)
            assert variant is not PreemptionVariant.NEVER
            assert variant.reason is target.reason


@given(histories(), MODES, st.data())
def test_a_queue_that_does_not_borrow_loses_nothing_to_other_queues(
    history: tuple[Declared, list[Request]], mode: AdmissionMode, data: st.DataObject
) -> None:
    declared, wanted = history
    tree = declared.tree(mode)
    admitted = by_queue(admit_what_fits(tree, wanted))
    borrowers = {
        name
        for name in tree.cluster_queues
        if any(tree.borrowing(name, pair) for pair in declared.pairs)
    }
    for request in data.draw(requests(declared, most=3)):
        for target in plan_preemption(tree, preemptor_of(request), admitted):
            victim = target.workload
            if victim.cluster_queue == request.queue:
                assert target.reason is PreemptionReason.IN_CLUSTER_QUEUE
                assert victim.priority <= request.priority
            else:
                assert victim.cluster_queue in borrowers


@given(histories(), MODES, st.data())
def test_a_protected_workload_is_never_a_victim(
    history: tuple[Declared, list[Request]], mode: AdmissionMode, data: st.DataObject
) -> None:
    declared, wanted = history
    tree = declared.tree(mode)
    admitted = by_queue(admit_what_fits(tree, wanted))
    for request in data.draw(requests(declared, most=3)):
        targets = plan_preemption(
            tree, preemptor_of(request), admitted, permit=lambda each: each.priority == 0
        )
        assert all(target.workload.priority == 0 for target in targets)


@given(histories(), MODES, st.data())
def test_the_order_of_admitted_workloads_is_irrelevant(
    history: tuple[Declared, list[Request]], mode: AdmissionMode, data: st.DataObject
) -> None:
    declared, wanted = history
    tree = declared.tree(mode)
    admitted = by_queue(admit_what_fits(tree, wanted))
    turned = {name: admitted[name][::-1] for name in reversed(admitted)}
    for request in data.draw(requests(declared, most=3)):
        preemptor = preemptor_of(request)
        assert plan_preemption(tree, preemptor, admitted) == plan_preemption(
            tree, preemptor, turned
        )


def fairest_by_definition(tree: QuotaTree, declared: Declared, heads: dict[str, Head]) -> Head:
    """Return the head that wins the tournament, computed anew from the leaves up."""
    parent = {spec.name: spec.parent for spec in declared.cohorts}

    def winner(cohort: str) -> Head | None:
        entries = []
        for name in sorted(name for name, above in parent.items() if above == cohort):
            head = winner(name)
            if head is not None:
                with tree.trial():
                    tree.add_usage(head.cluster_queue, head.usage)
                    entries.append((tree.cohort_share(name), head))
        for spec in declared.queues:
            head = heads.get(spec.name)
            if head is not None and spec.cohort == cohort:
                with tree.trial():
                    tree.add_usage(spec.name, head.usage)
                    entries.append((tree.dominant_share(spec.name), head))
        ranked = [
            (
                share.borrows_on(head.usage),
                share.sort_key,
                -head.priority,
                head.queued_at_ms,
                head.id,
            )
            for share, head in entries
        ]
        return entries[ranked.index(min(ranked))][1] if entries else None

    roots = [name for name, above in parent.items() if above is None]
    finalists = [head for head in map(winner, roots) if head is not None]
    finalists += [
        heads[spec.name] for spec in declared.queues if spec.cohort is None and spec.name in heads
    ]
    return min(finalists, key=lambda head: (-head.priority, head.queued_at_ms, head.id))


@given(histories())
def test_the_fair_order_is_that_of_a_tournament_computed_anew(
    history: tuple[Declared, list[Request]],
) -> None:
    declared, wanted = history
    tree = declared.tree(AdmissionMode.FAIR_SHARING)
    waiting: dict[str, list[Head]] = {}
    for request in wanted:
        head = Head(
            request.id, request.queue, request.usage, request.priority, request.queued_at_ms
        )
        waiting.setdefault(request.queue, []).append(head)
    heads = {name: line.pop(0) for name, line in waiting.items()}
    order = FairOrder(tree, heads.values())
    while heads:
        expected = fairest_by_definition(tree, declared, heads)
        popped = order.pop()
        assert popped == expected
        queue = expected.cluster_queue
        del heads[queue]
        if tree.fits(queue, expected.usage).fits:
            tree.add_usage(queue, expected.usage)
        if waiting[queue]:
            heads[queue] = waiting[queue].pop(0)
            order.push(heads[queue])
    assert order.pop() is None
