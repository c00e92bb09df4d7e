"""Who may evict whom under the policies of a ClusterQueue, and in which order they are tried.

Owns Kueue's legality of a single victim. Choosing the set of victims is `victims`; the product's
own rules on top (never CRITICAL, limits per hour, measured loss) are the scheduler's.

Source: kubernetes-sigs/kueue, pkg/scheduler/preemption/common and preemption/classical.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpuplane.core.quota.nodes import Node, borrows_with, local_available
from gpuplane.core.quota.specs import (
    BorrowWithinCohortPolicy,
    FlavorResource,
    PreemptionPolicy,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from gpuplane.core.quota.tree import QuotaTree, Usage

CandidateKey = tuple[bool, bool, int, int, int, str]


class PreemptionReason(StrEnum):
    """Why a victim is evicted; Kueue's words."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"


class PreemptionVariant(StrEnum):
    """On what ground a workload may be evicted, if at all."""

    NEVER = "Never"
    WITHIN_CLUSTER_QUEUE = "WithinClusterQueue"
    HIERARCHICAL_RECLAIM = "HierarchicalReclaim"
    """The preemptor stands closer to the quota that the victim borrows."""
    RECLAIM_WITHOUT_BORROWING = "ReclaimWithoutBorrowing"
    """Only if the preemptor's queue does not borrow afterwards."""
    RECLAIM_WHILE_BORROWING = "ReclaimWhileBorrowing"

    @property
    def reason(self) -> PreemptionReason:
        """Return the word on the victim's record.

        Raises:
            ValueError: For `NEVER`, which has no victim.
        """
        if self is PreemptionVariant.NEVER:
            raise ValueError("a workload that is never evicted has no preemption reason")
        return _REASONS[self]


_REASONS = {
    PreemptionVariant.WITHIN_CLUSTER_QUEUE: PreemptionReason.IN_CLUSTER_QUEUE,
    PreemptionVariant.HIERARCHICAL_RECLAIM: PreemptionReason.IN_COHORT_RECLAMATION,
    PreemptionVariant.RECLAIM_WITHOUT_BORROWING: PreemptionReason.IN_COHORT_RECLAMATION,
    PreemptionVariant.RECLAIM_WHILE_BORROWING: PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING,
}


@dataclass(frozen=True, slots=True)
class Preemptor:
    """A pending workload with the flavors it would use.

    Args:
        queued_at_ms: When it was queued, or evicted last.
        local_queue: Key of the LocalQueue it came through, or None.
    """

    id: str
    cluster_queue: str
    usage: Usage
    priority: int
    queued_at_ms: int
    local_queue: str | None = None


@dataclass(frozen=True, slots=True)
class AdmittedWorkload:
    """A workload that holds quota; its usage is counted in the tree.

    Args:
        admitted_at_ms: When its quota was reserved.
        is_evicted: It is being evicted already, so choosing it costs nothing more.
        loss: What evicting it throws away, by the caller's measure: less goes first among equals.
            Kueue knows none; with 0 everywhere the order is Kueue's.
    """

    id: str
    cluster_queue: str
    usage: Usage
    priority: int
    queued_at_ms: int
    admitted_at_ms: int
    local_queue: str | None = None
    is_evicted: bool = False
    loss: int = 0


def satisfies_policy(
    policy: WithinClusterQueue | ReclaimWithinCohort,
    preemptor: Preemptor,
    candidate: AdmittedWorkload,
) -> bool:
    """Tell whether priorities and ages allow the eviction under a policy."""
    if policy == WithinClusterQueue.NEVER:
        return False
    if policy is ReclaimWithinCohort.ANY:
        return True
    if preemptor.priority > candidate.priority:
        return True
    return (
        policy is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
        and preemptor.priority == candidate.priority
        and preemptor.queued_at_ms < candidate.queued_at_ms
    )


def uses_any(usage: Usage, pairs: frozenset[FlavorResource]) -> bool:
    """Tell whether a usage holds anything of the given flavor-resources."""
    return not pairs.isdisjoint(usage)


def candidate_order_key(candidate: AdmittedWorkload, cluster_queue: str) -> CandidateKey:
    """Return the order in which victims are tried: least harm by Kueue's measure first.

    Evicted already, then of other queues, then lower priority, then least loss where the caller
    measures it, then admitted last, then id.
    """
    return (
        not candidate.is_evicted,
        candidate.cluster_queue == cluster_queue,
        candidate.priority,
        candidate.loss,
        -candidate.admitted_at_ms,
        candidate.id,
    )


def short_pairs(tree: QuotaTree, preemptor: Preemptor) -> frozenset[FlavorResource]:
    """Return the flavor-resources of which the preemptor's queue has too little unused."""
    queue = preemptor.cluster_queue
    return frozenset(
        pair
        for pair, amount in preemptor.usage.items()
        if amount > 0 and amount > tree.available(queue, pair)
    )


def is_within_nominal(node: Node, pairs: frozenset[FlavorResource]) -> bool:
    """Tell whether a node borrows none of the given flavor-resources."""
    cells = node.cells
    return not any(pair in cells and borrows_with(cells[pair], 0) for pair in pairs)


def may_borrow_while_evicting(
    policy: PreemptionPolicy, preemptor: Preemptor, candidate: AdmittedWorkload
) -> bool:
    """Tell whether a preemptor without hierarchical advantage may evict and still borrow."""
    if policy.borrow_within_cohort is BorrowWithinCohortPolicy.NEVER:
        return False
    if candidate.priority >= preemptor.priority:
        return False
    threshold = policy.max_priority_threshold
    return threshold is None or candidate.priority <= threshold


class Legality:
    """Judges single victims for one preemptor over the tree as it was when this was made.

    Args of the constructor:
        pairs: The flavor-resources that are short; victims must use one of them.
    """

    def __init__(
        self, tree: QuotaTree, preemptor: Preemptor, pairs: frozenset[FlavorResource]
    ) -> None:
        self.tree = tree
        self.preemptor = preemptor
        self.pairs = pairs
        self.node = tree.queue_node(preemptor.cluster_queue)
        self.policy = tree.get_spec(preemptor.cluster_queue).preemption
        self._advantage = _hierarchical_advantage(self.node, preemptor.usage)

    def find_lca(self, queue: Node) -> Node | None:
        """Return the lowest cohort that holds both queues, or None when there is none."""
        for ancestor in queue.ancestors():
            if ancestor.name in self._advantage:
                return ancestor
        return None

    def is_reachable(self, queue: Node) -> bool:
        """Tell whether a queue borrows what is short, and every cohort up to the common one too."""
        if queue is self.node:
            return True
        lca = self.find_lca(queue)
        if lca is None or is_within_nominal(queue, self.pairs):
            return False
        for ancestor in queue.ancestors():
            if ancestor is lca:
                return True
            if is_within_nominal(ancestor, self.pairs):
                return False
        return False

    def decide_variant(self, candidate: AdmittedWorkload) -> PreemptionVariant:
        """Return on what ground the candidate may be evicted, `NEVER` if it may not."""
        found = self.list_legal(candidate.cluster_queue, (candidate,))
        return found[0][1] if found else PreemptionVariant.NEVER

    def list_legal(
        self, cluster_queue: str, candidates: Iterable[AdmittedWorkload]
    ) -> list[tuple[AdmittedWorkload, PreemptionVariant]]:
        """Return those workloads of one queue that may be evicted, and on what ground."""
        queue = self.tree.queue_node(cluster_queue)
        policy: WithinClusterQueue | ReclaimWithinCohort = self.policy.within_cluster_queue
        lca: Node | None = None
        if queue is not self.node:
            policy = self.policy.reclaim_within_cohort
            lca = self.find_lca(queue)
            if lca is None or not self.is_reachable(queue):
                return []
        if policy == WithinClusterQueue.NEVER:
            return []
        found = []
        for candidate in candidates:
            if uses_any(candidate.usage, self.pairs) and satisfies_policy(
                policy, self.preemptor, candidate
            ):
                found.append((candidate, self._ground(lca, candidate)))
        return found

    def _ground(self, lca: Node | None, candidate: AdmittedWorkload) -> PreemptionVariant:
        if lca is None:
            return PreemptionVariant.WITHIN_CLUSTER_QUEUE
        if self._advantage[lca.name]:
            return PreemptionVariant.HIERARCHICAL_RECLAIM
        if may_borrow_while_evicting(self.policy, self.preemptor, candidate):
            return PreemptionVariant.RECLAIM_WHILE_BORROWING
        return PreemptionVariant.RECLAIM_WITHOUT_BORROWING


def _hierarchical_advantage(queue: Node, request: Usage) -> Mapping[str, bool]:
    """Return for each ancestor whether the request fits the quota of a subtree below it.

    Then whoever borrows from elsewhere under that ancestor stands further from the quota than
    the preemptor does, and yields regardless of `borrowWithinCohort`.
    """
    advantage: dict[str, bool] = {}
    node = queue
    remaining = dict(request)
    has_advantage = False
    for ancestor in queue.ancestors():
        fits = True
        for pair, amount in remaining.items():
            cell = node.cells.get(pair)
            if cell is None:
                fits = fits and amount <= 0
                continue
            fits = fits and not borrows_with(cell, amount)
            remaining[pair] = max(0, amount - local_available(cell))
        has_advantage = has_advantage or fits
        advantage[ancestor.name] = has_advantage
        node = ancestor
    return advantage


def decide_eviction(
    tree: QuotaTree,
    preemptor: Preemptor,
    candidate: AdmittedWorkload,
    pairs: frozenset[FlavorResource] | None = None,
) -> PreemptionVariant:
    """Return on what ground one workload may evict another by the policies of their queues.

    For many candidates make one `Legality` and ask it. `pairs` are the flavor-resources to make
    room in; by default those of which the preemptor's queue has too little.
    """
    short = short_pairs(tree, preemptor) if pairs is None else pairs
    return Legality(tree, preemptor, short).decide_variant(candidate)
