"""Which workloads are evicted for one: Kueue's plans, classical and fair sharing.

Owns the choice among legal victims by Kueue's measure. Evicts nobody: the plan is data, and the
tree is as it was when the plan is returned.

Source: kubernetes-sigs/kueue, pkg/scheduler/preemption/preemption.go, classical/ and
preemption_oracle.go; `fair_victims` holds the fair-sharing order of queues. A LocalQueue's own
cap is not Kueue's: room under it is made first, among the workloads of that LocalQueue.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from gpuplane.core.quota.fair_victims import QueueOrder, compute_shares, share_after_removal
from gpuplane.core.quota.nodes import borrows_with, find_lowest_fit
from gpuplane.core.quota.preemption import (
    AdmittedWorkload,
    Legality,
    PreemptionReason,
    PreemptionVariant,
    Preemptor,
    candidate_order_key,
    is_within_nominal,
    satisfies_policy,
    short_pairs,
    uses_any,
)
from gpuplane.core.quota.specs import (
    NEWEST_GATES,
    AdmissionMode,
    BorrowWithinCohortPolicy,
    FairGates,
    FlavorResource,
    ReclaimWithinCohort,
)
from gpuplane.core.quota.tree import QuotaTree

AdmittedByQueue = Mapping[str, Sequence[AdmittedWorkload]]
"""Workloads that hold quota, by ClusterQueue; the tree counts their usage."""
Permit = Callable[[AdmittedWorkload], bool]
"""A rule of the caller's on top of the policies: False protects a workload."""


class FairStrategy(StrEnum):
    """When fair sharing may evict, KEP-1714 rules S2-a and S2-b."""

    LESS_THAN_OR_EQUAL_TO_FINAL_SHARE = "LessThanOrEqualToFinalShare"
    LESS_THAN_INITIAL_SHARE = "LessThanInitialShare"


DEFAULT_STRATEGIES = (
    FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,
    FairStrategy.LESS_THAN_INITIAL_SHARE,
)


class AllowBorrowing(StrEnum):
    """Whether the preemptor's queue may borrow once the victims are gone."""

    YES = "Yes"
    NO = "No"


class PreemptionPossibility(IntEnum):
    """What a search for victims found; greater is better."""

    NO_CANDIDATES = 0
    PREEMPT = 1
    """Some victim is in the preemptor's own queue."""
    RECLAIM = 2
    """Every victim is a borrower elsewhere."""


@dataclass(frozen=True, slots=True)
class Target:
    """One workload to evict and why."""

    workload: AdmittedWorkload
    reason: PreemptionReason


Oracle = Callable[[FlavorResource, int], tuple[PreemptionPossibility, int]]
"""For an amount of one flavor-resource: what a search finds, and the borrowing level after it."""


def plan_preemption(
    tree: QuotaTree,
    preemptor: Preemptor,
    admitted: AdmittedByQueue,
    *,
    strategies: Sequence[FairStrategy] = DEFAULT_STRATEGIES,
    permit: Permit | None = None,
    gates: FairGates = NEWEST_GATES,
) -> tuple[Target, ...]:
    """Return a minimal set of legal victims that makes the preemptor fit, or nothing.

    Nothing also when it fits without victims. The order of the answer is that of the search.
    """
    search = _Search(tree, preemptor, admitted, permit, gates)
    with tree.trial():
        targets = _plan(search, strategies)
    return tuple(targets)


def plan_oracle(
    tree: QuotaTree,
    preemptor: Preemptor,
    admitted: AdmittedByQueue,
    *,
    strategies: Sequence[FairStrategy] = DEFAULT_STRATEGIES,
    permit: Permit | None = None,
    gates: FairGates = NEWEST_GATES,
) -> Oracle:
    """Return what flavor assignment asks: would evicting help in this flavor, and how far up."""

    def simulate(pair: FlavorResource, amount: int) -> tuple[PreemptionPossibility, int]:
        """Return what evicting would give for so much of one flavor, and how far up it fits."""
        alone = Preemptor(
            preemptor.id,
            preemptor.cluster_queue,
            {pair: amount},
            preemptor.priority,
            preemptor.queued_at_ms,
            preemptor.local_queue,
        )
        targets = plan_preemption(
            tree, alone, admitted, strategies=strategies, permit=permit, gates=gates
        )
        cell = tree.queue_node(preemptor.cluster_queue).cells[pair]
        with tree.trial():
            for target in targets:
                _remove(tree, target.workload)
            level = find_lowest_fit(cell, amount)[0].height
        if not targets:
            return PreemptionPossibility.NO_CANDIDATES, level
        own = preemptor.cluster_queue
        if any(target.workload.cluster_queue == own for target in targets):
            return PreemptionPossibility.PREEMPT, level
        return PreemptionPossibility.RECLAIM, level

    return simulate


class _Search:
    """One search: the tree under trial, the candidates and the victims taken so far."""

    def __init__(
        self,
        tree: QuotaTree,
        preemptor: Preemptor,
        admitted: AdmittedByQueue,
        permit: Permit | None,
        gates: FairGates,
    ) -> None:
        self.gates = gates
        self.tree = tree
        self.preemptor = preemptor
        self.admitted = admitted
        self.permit = permit
        self.pairs: frozenset[FlavorResource] = frozenset()
        self.node = tree.queue_node(preemptor.cluster_queue)
        self.policy = tree.get_spec(preemptor.cluster_queue).preemption
        self.targets: list[Target] = []

    def candidates_of(self, cluster_queue: str) -> list[AdmittedWorkload]:
        found = list(self.admitted.get(cluster_queue, ()))
        if self.targets:
            taken = {target.workload.id for target in self.targets}
            found = [workload for workload in found if workload.id not in taken]
        if self.permit is not None:
            found = [workload for workload in found if self.permit(workload)]
        return found

    def take(self, workload: AdmittedWorkload, reason: PreemptionReason) -> None:
        _remove(self.tree, workload)
        self.targets.append(Target(workload, reason))

    def put_back(self, kept: int) -> None:
        """Return every victim but the first `kept`."""
        while len(self.targets) > kept:
            _add(self.tree, self.targets.pop().workload)

    def fits_quota(self, allow_borrowing: AllowBorrowing) -> bool:
        for pair, amount in self.preemptor.usage.items():
            if amount == 0:
                continue
            cell = self.node.cells.get(pair)
            if cell is None:
                return False
            if allow_borrowing is AllowBorrowing.NO and borrows_with(cell, amount):
                return False
            if amount > self.tree.available(self.preemptor.cluster_queue, pair):
                return False
        return True

    def short_under_cap(self) -> frozenset[FlavorResource]:
        if self.preemptor.local_queue is None:
            return frozenset()
        local = self.tree.get_local_spec(self.preemptor.local_queue)
        if not local.limits:
            return frozenset()
        used = self.tree.local_usage_of(local.key)
        asked = self.preemptor.usage
        return frozenset(
            pair
            for pair, limit in local.limits.items()
            if asked.get(pair, 0) and asked[pair] + used.get(pair, 0) > limit
        )

    def fits(self, allow_borrowing: AllowBorrowing) -> bool:
        return self.fits_quota(allow_borrowing) and not self.short_under_cap()


def _plan(search: _Search, strategies: Sequence[FairStrategy]) -> list[Target]:
    if search.fits(AllowBorrowing.YES):
        return []
    if not _make_room_under_cap(search):
        return []
    search.pairs = short_pairs(search.tree, search.preemptor)
    if not search.fits_quota(AllowBorrowing.YES):
        if search.tree.mode is AdmissionMode.FAIR_SHARING:
            borrowing = _take_fairly(search, strategies)
        else:
            borrowing = _take_classically(search)
        if borrowing is None:
            return []
    else:
        borrowing = AllowBorrowing.YES
    _fill_back(search, borrowing)
    return search.targets


def _make_room_under_cap(search: _Search) -> bool:
    """Take victims of the preemptor's own LocalQueue until its cap has room, if they suffice."""
    short = search.short_under_cap()
    if not short:
        return True
    candidates = [
        workload
        for workload in search.candidates_of(search.preemptor.cluster_queue)
        if workload.local_queue == search.preemptor.local_queue
        and uses_any(workload.usage, short)
        and satisfies_policy(search.policy.within_cluster_queue, search.preemptor, workload)
    ]
    candidates.sort(key=lambda each: candidate_order_key(each, search.preemptor.cluster_queue))
    for workload in candidates:
        if uses_any(workload.usage, search.short_under_cap()):
            search.take(workload, PreemptionReason.IN_CLUSTER_QUEUE)
            if not search.short_under_cap():
                return True
    search.put_back(0)
    return False


def _take_classically(search: _Search) -> AllowBorrowing | None:
    """Take victims in Kueue's order until the preemptor fits; None when it never does."""
    legality = Legality(search.tree, search.preemptor, search.pairs)
    candidates = _classical_candidates(search, legality)
    first = len(search.targets)
    for allow_borrowing in _attempts(search, candidates):
        for workload, variant in candidates:
            is_own = workload.cluster_queue == search.preemptor.cluster_queue
            if not is_own:
                needs_none = variant is PreemptionVariant.RECLAIM_WITHOUT_BORROWING
                if needs_none and allow_borrowing is AllowBorrowing.YES:
                    continue
                # Taking one victim may bring a queue back within its quota: the rest are safe.
                if not legality.is_reachable(search.tree.queue_node(workload.cluster_queue)):
                    continue
            search.take(workload, variant.reason)
            if search.fits(allow_borrowing):
                return allow_borrowing
        search.put_back(first)
    return None


def _classical_candidates(
    search: _Search, legality: Legality
) -> list[tuple[AdmittedWorkload, PreemptionVariant]]:
    """Return legal victims: evicted ones first, then by ground, then by candidate order."""
    queue = search.preemptor.cluster_queue
    names = [queue]
    if search.policy.reclaim_within_cohort is not ReclaimWithinCohort.NEVER:
        root = search.node.root()
        others = root.subtree_queues() if root.is_cohort else iter(())
        names += [node.name for node in others if node is not search.node]
    found: list[tuple[AdmittedWorkload, PreemptionVariant]] = []
    for name in names:
        found += legality.list_legal(name, search.candidates_of(name))
    ground = {
        PreemptionVariant.HIERARCHICAL_RECLAIM: 0,
        PreemptionVariant.RECLAIM_WHILE_BORROWING: 1,
        PreemptionVariant.RECLAIM_WITHOUT_BORROWING: 1,
        PreemptionVariant.WITHIN_CLUSTER_QUEUE: 2,
    }
    found.sort(
        key=lambda each: (
            not each[0].is_evicted,
            ground[each[1]],
            candidate_order_key(each[0], queue),
        )
    )
    return found


def _attempts(
    search: _Search, candidates: Sequence[tuple[AdmittedWorkload, PreemptionVariant]]
) -> tuple[AllowBorrowing, ...]:
    """Return whether to try with borrowing, without, or both, and in which order."""
    yes, no = AllowBorrowing.YES, AllowBorrowing.NO
    variants = [variant for _, variant in candidates]
    no_others = all(each is PreemptionVariant.WITHIN_CLUSTER_QUEUE for each in variants)
    forbidden = search.policy.borrow_within_cohort is BorrowWithinCohortPolicy.NEVER
    cells = search.node.cells
    under_nominal = all(
        pair in cells and cells[pair].usage < cells[pair].nominal for pair in search.pairs
    )
    if no_others or (forbidden and not under_nominal):
        return (yes,)
    if forbidden and PreemptionVariant.HIERARCHICAL_RECLAIM not in variants:
        return (no, yes)
    return (yes, no)


def _take_fairly(search: _Search, strategies: Sequence[FairStrategy]) -> AllowBorrowing | None:
    """Take victims of the queues with the highest shares; None when that never suffices."""
    candidates = _fair_candidates(search)
    first = len(search.targets)
    # Shares are compared with the preemptor's usage counted in.
    search.tree.add_usage(search.preemptor.cluster_queue, search.preemptor.usage)
    fits, retry = _first_strategy(search, candidates, strategies[0])
    if not fits and len(strategies) > 1:
        fits = _second_strategy(search, retry)
    search.tree.remove_usage(search.preemptor.cluster_queue, search.preemptor.usage)
    if fits:
        return AllowBorrowing.YES
    search.put_back(first)
    return None


def _fair_candidates(search: _Search) -> list[AdmittedWorkload]:
    queue = search.preemptor.cluster_queue
    found = [
        workload
        for workload in search.candidates_of(queue)
        if satisfies_policy(search.policy.within_cluster_queue, search.preemptor, workload)
    ]
    reclaim = search.policy.reclaim_within_cohort
    root = search.node.root()
    if root.is_cohort and reclaim is not ReclaimWithinCohort.NEVER:
        for node in root.subtree_queues():
            if node is search.node or is_within_nominal(node, search.pairs):
                continue
            found += [
                workload
                for workload in search.candidates_of(node.name)
                if satisfies_policy(reclaim, search.preemptor, workload)
            ]
    found = [workload for workload in found if uses_any(workload.usage, search.pairs)]
    found.sort(key=lambda each: candidate_order_key(each, queue))
    return found


def _first_strategy(
    search: _Search, candidates: Sequence[AdmittedWorkload], strategy: FairStrategy
) -> tuple[bool, list[AdmittedWorkload]]:
    """Take victims by a strategy; return whether it fits and those the strategy spared."""
    order = QueueOrder(search.tree, search.node, candidates)
    spared: list[AdmittedWorkload] = []
    entitled = search.gates.preempts_within_nominal and is_within_nominal(search.node, search.pairs)
    while (target := order.next_queue()) is not None:
        if target is search.node or entitled:
            is_own = target is search.node
            reason = (
                PreemptionReason.IN_CLUSTER_QUEUE
                if is_own
                else PreemptionReason.IN_COHORT_RECLAMATION
            )
            search.take(order.pop(target), reason)
            if _fits_with_own_usage_counted(search):
                return True, []
            continue
        ours, theirs = compute_shares(search.node, target)
        while order.has_candidates(target):
            workload = order.pop(target)
            if strategy is FairStrategy.LESS_THAN_INITIAL_SHARE:
                passed = ours.sort_key < theirs.sort_key
            else:
                after = share_after_removal(search.tree, search.node, target, workload)
                passed = ours.sort_key <= after.sort_key
            if not passed:
                spared.append(workload)
                continue
            search.take(workload, PreemptionReason.IN_COHORT_FAIR_SHARING)
            if _fits_with_own_usage_counted(search):
                return True, []
            break
    return False, spared


def _second_strategy(search: _Search, spared: Sequence[AdmittedWorkload]) -> bool:
    """Rule S2-b: one victim a queue whose share was higher before, among those spared."""
    order = QueueOrder(search.tree, search.node, spared)
    while (target := order.next_queue()) is not None:
        ours, theirs = compute_shares(search.node, target)
        workload = order.pop(target)
        if ours.sort_key < theirs.sort_key:
            search.take(workload, PreemptionReason.IN_COHORT_FAIR_SHARING)
            if _fits_with_own_usage_counted(search):
                return True
        order.drop(target)
    return False


def _fits_with_own_usage_counted(search: _Search) -> bool:
    with search.tree.trial():
        search.tree.remove_usage(search.preemptor.cluster_queue, search.preemptor.usage)
        return search.fits(AllowBorrowing.YES)


def _fill_back(search: _Search, allow_borrowing: AllowBorrowing) -> None:
    """Give back, latest first, every victim without whom the preemptor still fits."""
    for index in range(len(search.targets) - 2, -1, -1):
        workload = search.targets[index].workload
        _add(search.tree, workload)
        if search.fits(allow_borrowing):
            del search.targets[index]
        else:
            _remove(search.tree, workload)


def _remove(tree: QuotaTree, workload: AdmittedWorkload) -> None:
    tree.remove_usage(workload.cluster_queue, workload.usage, workload.local_queue)


def _add(tree: QuotaTree, workload: AdmittedWorkload) -> None:
    tree.add_usage(workload.cluster_queue, workload.usage, workload.local_queue)
