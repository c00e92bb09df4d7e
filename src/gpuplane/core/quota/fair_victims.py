"""From which queue fair sharing takes the next victim: down the tree along the highest shares.

Owns the order of queues and the comparison of shares below the common cohort. Which victim a
strategy allows is decided in `victims`.

Source: kubernetes-sigs/kueue, pkg/scheduler/preemption/fairsharing, and KEP-1714.
"""

from collections import deque
from collections.abc import Iterable

from gpuplane.core.quota.nodes import Node
from gpuplane.core.quota.preemption import AdmittedWorkload, CandidateKey, candidate_order_key
from gpuplane.core.quota.shares import DominantShare, ShareKey, compute_share
from gpuplane.core.quota.tree import QuotaTree


class QueueOrder:
    """Gives the queue to take from next; shares are read from the tree at every step.

    A queue other than the preemptor's is done when it stops borrowing, a cohort when it does and
    the preemptor is not below it. Between two calls the caller pops a candidate or drops a queue.
    """

    def __init__(
        self, tree: QuotaTree, preemptor: Node, candidates: Iterable[AdmittedWorkload]
    ) -> None:
        self._tree = tree
        self._preemptor = preemptor
        self._above = {node.name for node in preemptor.ancestors()}
        self._candidates: dict[str, deque[AdmittedWorkload]] = {}
        for workload in candidates:
            self._candidates.setdefault(workload.cluster_queue, deque()).append(workload)
        self._done_queues: set[str] = set()
        self._done_cohorts: set[str] = set()

    def has_candidates(self, queue: Node) -> bool:
        return bool(self._candidates.get(queue.name))

    def pop(self, queue: Node) -> AdmittedWorkload:
        """Return and forget a queue's next candidate."""
        return self._candidates[queue.name].popleft()

    def drop(self, queue: Node) -> None:
        """Take nothing more from a queue."""
        self._done_queues.add(queue.name)

    def next_queue(self) -> Node | None:
        """Return the queue to take from, or None when nobody is left."""
        if self._preemptor.parent is None:
            is_open = self._preemptor.name not in self._done_queues
            return self._preemptor if is_open and self.has_candidates(self._preemptor) else None
        root = self._preemptor.root()
        while root.name not in self._done_cohorts:
            found = self._descend(root)
            if found is not None:
                return found
        return None

    def _descend(self, cohort: Node) -> Node | None:
        """Return the queue along the highest shares; None when something was only marked done."""
        queue, queue_key = self._highest_queue(cohort)
        child, child_key = self._highest_cohort(cohort)
        # On equal shares the cohort: its worst queue is at least as far out.
        is_cohort_first = queue_key is None or (child_key is not None and child_key >= queue_key)
        if child is not None and is_cohort_first:
            return self._descend(child)
        if queue is None:
            self._done_cohorts.add(cohort.name)
        return queue

    def _highest_queue(self, cohort: Node) -> tuple[Node | None, ShareKey | None]:
        best: Node | None = None
        best_key: ShareKey | None = None
        for queue in cohort.queues:
            if queue.name in self._done_queues:
                continue
            share = compute_share(queue)
            is_spared = not share.is_borrowing and queue is not self._preemptor
            if is_spared or not self.has_candidates(queue):
                self._done_queues.add(queue.name)
            elif best is None or best_key is None or share.sort_key > best_key:
                best, best_key = queue, share.sort_key
            elif share.sort_key == best_key and self._first_key(queue) < self._first_key(best):
                best = queue
        return best, best_key

    def _first_key(self, queue: Node) -> CandidateKey:
        return candidate_order_key(self._candidates[queue.name][0], self._preemptor.name)

    def _highest_cohort(self, cohort: Node) -> tuple[Node | None, ShareKey | None]:
        best: Node | None = None
        best_key: ShareKey | None = None
        for child in cohort.cohorts:
            if child.name in self._done_cohorts:
                continue
            share = compute_share(child)
            if not share.is_borrowing and child.name not in self._above:
                self._done_cohorts.add(child.name)
            elif best_key is None or share.sort_key >= best_key:
                best, best_key = child, share.sort_key
        return best, best_key


def below_common_cohort(preemptor: Node, target: Node) -> tuple[Node, Node]:
    """Return the two nodes just below the lowest cohort that holds both queues.

    Raises:
        ValueError: If the queues have no cohort in common.
    """
    above = list(preemptor.ancestors())
    their = target
    while their.parent is not None and their.parent not in above:
        their = their.parent
    common = their.parent
    our = preemptor
    while our.parent is not None and our.parent is not common:
        our = our.parent
    if common is None or our.parent is None:
        raise ValueError(f"queues {preemptor.name} and {target.name} have no cohort in common")
    return our, their


def compute_shares(preemptor: Node, target: Node) -> tuple[DominantShare, DominantShare]:
    """Return the shares of both sides just below their common cohort."""
    our, their = below_common_cohort(preemptor, target)
    return compute_share(our), compute_share(their)


def share_after_removal(
    tree: QuotaTree, preemptor: Node, target: Node, workload: AdmittedWorkload
) -> DominantShare:
    """Return the target side's share as it would be without one of its workloads."""
    _, their = below_common_cohort(preemptor, target)
    with tree.trial():
        tree.remove_usage(workload.cluster_queue, workload.usage, workload.local_queue)
        return compute_share(their)
