"""Which pending workload is served next: within a queue, and across queues of a cohort.

Owns Kueue's two orders. Ages are instants given by the caller; ties always break by name.

Source: kubernetes-sigs/kueue, pkg/scheduler/scheduler.go (classicalIterator),
fair_sharing_iterator.go, pkg/cache/queue/cluster_queue.go (baseCompareFunc). Kueue leaves the
order between separate cohorts open; here the better head by priority, age and id goes first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuplane.core.quota.nodes import Node
from gpuplane.core.quota.shares import ShareKey, compute_share
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.quota.tree import QuotaTree

QueueKey = tuple[int, int, str]
ClassicalKey = tuple[bool, int, int, int, str]
FairKey = tuple[bool, ShareKey, int, int, str]


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
    lowest; a child that would not borrow what its head asks for goes before one that would. A
    popped queue may put its next workload forward with `push`. Shares are kept until usage at
    their node changes, so a pop costs one comparison a head.
    """

    def __init__(self, tree: QuotaTree, heads: Iterable[Head] = ()) -> None:
        self._tree = tree
        self._heads: dict[str, Head] = {}
        self._keys: dict[tuple[str, str], tuple[tuple[int, ...], FairKey]] = {}
        for head in heads:
            self.push(head)

    def __len__(self) -> int:
        return len(self._heads)

    def push(self, head: Head) -> None:
        """Put a head forward, in place of the one its ClusterQueue had.

        Raises:
            ValueError: If the ClusterQueue is unknown.
        """
        self._tree.queue_node(head.cluster_queue)
        self._heads[head.cluster_queue] = head

    def pop(self) -> Head | None:
        """Return the next head to consider and take it out, or None when none is left."""
        best: Head | None = None
        seen: set[Node] = set()
        for name in sorted(self._heads):
            node = self._tree.queue_node(name)
            root = node.root()
            if root in seen:
                continue
            seen.add(root)
            winner = self._heads[name] if root is node else self._winner(root)
            if winner is not None and (best is None or _plain_key(winner) < _plain_key(best)):
                best = winner
        if best is not None:
            del self._heads[best.cluster_queue]
        return best

    def _winner(self, cohort: Node) -> Head | None:
        best: Head | None = None
        best_key: FairKey | None = None
        for child in cohort.cohorts:
            candidate = self._winner(child)
            if candidate is not None:
                key = self._key(child, candidate)
                if best_key is None or key < best_key:
                    best, best_key = candidate, key
        for child in cohort.queues:
            head = self._heads.get(child.name)
            if head is not None:
                key = self._key(child, head)
                if best_key is None or key < best_key:
                    best, best_key = head, key
        return best

    def _key(self, child: Node, head: Head) -> FairKey:
        """Return the key of a head at the level below which `child` stands."""
        path = _path(self._tree.queue_node(head.cluster_queue), child)
        versions = tuple(node.usage_version for node in path)
        slot = (f"{'cohort' if child.is_cohort else 'queue'} {child.name}", head.id)
        known = self._keys.get(slot)
        if known is not None and known[0] == versions:
            return known[1]
        if child.is_cohort:
            with self._tree.trial():
                self._tree.add_usage(head.cluster_queue, head.usage)
                share = compute_share(child)
        else:
            share = compute_share(child, head.usage)
        key = (share.borrows_on(head.usage), share.sort_key, *_plain_key(head))
        self._keys[slot] = (versions, key)
        return key


def _path(queue: Node, top: Node) -> list[Node]:
    path = [queue]
    while path[-1] is not top:
        parent = path[-1].parent
        if parent is None:
            break
        path.append(parent)
    return path


def _plain_key(head: Head) -> QueueKey:
    return queue_order_key(head.priority, head.queued_at_ms, head.id)
