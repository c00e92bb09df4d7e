"""Which pending workload is served next: within a queue, and across queues of a cohort.

Owns Kueue's two orders. Ages are instants given by the caller; ties always break by name.

Source: kubernetes-sigs/kueue, pkg/scheduler/scheduler.go (classicalIterator),
fair_sharing_iterator.go, pkg/cache/queue/cluster_queue.go (baseCompareFunc). Kueue leaves the
order between separate cohorts open; here the better head by priority, age and id goes first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuplane.core.quota.nodes import Node
from gpuplane.core.quota.shares import DominantShare, ShareKey, compute_share
from gpuplane.core.quota.specs import NEWEST_GATES, FairGates, FlavorResource
from gpuplane.core.quota.tree import QuotaTree

QueueKey = tuple[int, int, str]
ClassicalKey = tuple[bool, int, int, int, str]
FairKey = tuple[bool, ShareKey, int, int, str]
_KnownKey = tuple["Head", list[int], FairKey, DominantShare]
"""A head, the usage versions its key was computed at, the key, and the share in it."""
_KnownWinner = tuple[list[int], "Head | None"]
"""The usage versions of a whole tree of cohorts, and its winner then."""


@dataclass(frozen=True, slots=True)
class Head:
    """The workload that a ClusterQueue puts forward, with the flavors it would use.

    Args:
        priority: Effective priority, higher first.
        queued_at_ms: When it was queued, or evicted last.
        has_quota: Quota is reserved already and only a later step is due.
    """

    id: str
    cluster_queue: str
    usage: Mapping[FlavorResource, int]
    priority: int
    queued_at_ms: int
    borrow_level: int = 0
    has_quota: bool = False


def queue_order_key(priority: int, queued_at_ms: int, workload_id: str) -> QueueKey:
    """Return the key of a workload within its ClusterQueue: priority, then age, then id."""
    return -priority, queued_at_ms, workload_id


def classical_order_key(head: Head) -> ClassicalKey:
    """Return the key across queues: reserved, not borrowing, priority, age, id."""
    return (
        not head.has_quota,
        head.borrow_level,
        *queue_order_key(head.priority, head.queued_at_ms, head.id),
    )


class FairOrder:
    """Takes heads out in fair-sharing order while the caller admits them into the tree.

    At each level of a cohort tree the child wins whose dominant share, with its head admitted, is
    lowest; a child that would not borrow what its head asks for goes before one that would (a
    gate). A popped queue may put its next workload forward with `push`. Shares are kept until
    usage at their node changes, so a pop costs one comparison a head.
    """

    def __init__(
        self, tree: QuotaTree, heads: Iterable[Head] = (), gates: FairGates = NEWEST_GATES
    ) -> None:
        self._tree = tree
        self._gates = gates
        self._heads: dict[Node, Head] = {}
        self._waiting: dict[Node, int] = {}
        self._keys: dict[tuple[Node, Node], _KnownKey] = {}
        self._paths: dict[tuple[Node, Node], tuple[Node, ...]] = {}
        self._winners: dict[Node, _KnownWinner] = {}
        self._trees: dict[Node, list[Node]] = {}
        for head in heads:
            self.push(head)

    def __len__(self) -> int:
        return len(self._heads)

    def push(self, head: Head) -> None:
        """Put a head forward, in place of the one its ClusterQueue had.

        Raises:
            ValueError: If the ClusterQueue is unknown.
        """
        node = self._tree.queue_node(head.cluster_queue)
        if node not in self._heads:
            self._count(node, 1)
        self._heads[node] = head
        self._winners.pop(node.root(), None)

    def pop(self) -> Head | None:
        """Return the next head to consider and take it out, or None when none is left."""
        best: Head | None = None
        for root, waiting in self._waiting.items():
            if not waiting or root.parent is not None:
                continue
            winner = self._root_winner(root) if root.is_cohort else self._heads[root]
            if winner is not None and (best is None or _plain_key(winner) < _plain_key(best)):
                best = winner
        if best is not None:
            node = self._tree.queue_node(best.cluster_queue)
            del self._heads[node]
            self._count(node, -1)
        return best

    def _count(self, queue: Node, change: int) -> None:
        """Keep how many heads wait at and below each node."""
        self._waiting[queue] = self._waiting.get(queue, 0) + change
        self._winners.pop(queue.root(), None)
        for ancestor in queue.ancestors():
            self._waiting[ancestor] = self._waiting.get(ancestor, 0) + change

    def _root_winner(self, root: Node) -> Head | None:
        """Return the winner of a whole tree, the one from before while nothing in it changed."""
        nodes = self._trees.get(root)
        if nodes is None:
            nodes = self._trees[root] = _list_nodes(root)
        versions = [node.usage_version for node in nodes]
        known = self._winners.get(root)
        if known is None or known[0] != versions:
            known = self._winners[root] = versions, self._winner(root)
        return known[1]

    def _winner(self, cohort: Node) -> Head | None:
        best: Head | None = None
        best_key: FairKey | None = None
        for child in cohort.cohorts:
            if not self._waiting.get(child):
                continue
            candidate = self._winner(child)
            if candidate is not None:
                key = self._key(child, candidate)
                if best_key is None or key < best_key:
                    best, best_key = candidate, key
        heads = self._heads
        for child in cohort.queues:
            head = heads.get(child)
            if head is not None:
                key = self._key(child, head)
                if best_key is None or key < best_key:
                    best, best_key = head, key
        return best

    def _key(self, child: Node, head: Head) -> FairKey:
        """Return the key of a head at the level below which `child` stands."""
        queue = self._tree.queue_node(head.cluster_queue)
        slot = (child, queue)
        path = self._paths.get(slot)
        if path is None:
            path = self._paths[slot] = _path(queue, child)
        versions = [node.usage_version for node in path]
        known = self._keys.get(slot)
        share: DominantShare
        if known is not None and known[1] == versions:
            if known[0] is head:
                return known[2]
            if known[0].usage == head.usage:
                share = known[3]
                key = self._key_of(share, head)
                self._keys[slot] = (head, versions, key, share)
                return key
        if child.is_cohort:
            with self._tree.trial():
                self._tree.add_usage(head.cluster_queue, head.usage)
                share = compute_share(child)
        else:
            share = compute_share(child, head.usage)
        key = self._key_of(share, head)
        self._keys[slot] = (head, versions, key, share)
        return key

    def _key_of(self, share: DominantShare, head: Head) -> FairKey:
        is_second = self._gates.prioritizes_non_borrowing and share.borrows_on(head.usage)
        return (is_second, share.sort_key, *_plain_key(head))


def _list_nodes(cohort: Node) -> list[Node]:
    found = [cohort, *cohort.queues]
    for child in cohort.cohorts:
        found += _list_nodes(child)
    return found


def _path(queue: Node, top: Node) -> tuple[Node, ...]:
    path = [queue]
    for ancestor in queue.ancestors():
        if path[-1] is top:
            break
        path.append(ancestor)
    return tuple(path)


def _plain_key(head: Head) -> QueueKey:
    return queue_order_key(head.priority, head.queued_at_ms, head.id)
