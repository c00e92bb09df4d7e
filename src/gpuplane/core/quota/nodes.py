"""The arithmetic of one flavor-resource at one node of the cohort tree.

Owns subtree quota, local quota, availability and how usage rises to the parent; knows nothing of
workloads, policies or names. Every number is an integer in the unit of its resource.

Source: kubernetes-sigs/kueue, pkg/cache/scheduler/resource_node.go, and KEP-79 "Hierarchical
Cohorts". Kueue saturates at int64; Python integers do not overflow, so nothing saturates here.
"""

from collections.abc import Iterator

from gpuplane.core.quota.specs import DEFAULT_FAIR_WEIGHT_MILLI, FlavorResource, ResourceQuota

Journal = list[tuple["Cell", int, int]]
"""Cells with the usage and the node's version they had, oldest first: what a rollback restores."""


class Cell:
    """Quota and usage of one flavor-resource at one node, linked to the same pair above.

    Attributes:
        covered: The node itself declares a quota for the pair.
        in_subtree: The node or anything below it declares one.
        subtree: Own quota plus what the children lend.
        local: The part of `subtree` that is never lent upwards.
        usage: What counts against `subtree`: a queue's own usage, or what rises from children.
        potential: Most the node could ever use, with nothing else running.
    """

    __slots__ = (
        "borrowing_limit",
        "covered",
        "in_subtree",
        "lending_limit",
        "local",
        "node",
        "nominal",
        "parent",
        "potential",
        "subtree",
        "usage",
    )

    def __init__(self, node: "Node", quota: ResourceQuota | None) -> None:
        self.node = node
        self.parent: Cell | None = None
        self.covered = quota is not None
        self.in_subtree = self.covered
        self.nominal = quota.nominal if quota else 0
        self.borrowing_limit = quota.borrowing_limit if quota else None
        self.lending_limit = quota.lending_limit if quota else None
        self.subtree = self.nominal
        self.local = 0
        self.usage = 0
        self.potential = 0


class Node:
    """A ClusterQueue or a cohort of the tree.

    Attributes:
        versions: Gives every change in the tree a number of its own.
        usage_version: The number of the last change at this node. A rollback brings back the old
            number with the old usage, so the same number always means the same usage.
        lendable: For a cohort, what its children could borrow at most, per resource.
    """

    __slots__ = (
        "cells",
        "cohorts",
        "height",
        "is_cohort",
        "lendable",
        "name",
        "parent",
        "queues",
        "usage_version",
        "versions",
        "weight_milli",
    )

    def __init__(self, name: str, versions: Iterator[int], *, is_cohort: bool) -> None:
        self.name = name
        self.is_cohort = is_cohort
        self.parent: Node | None = None
        self.cohorts: list[Node] = []
        self.queues: list[Node] = []
        self.cells: dict[FlavorResource, Cell] = {}
        self.height = 0
        self.weight_milli = DEFAULT_FAIR_WEIGHT_MILLI
        self.lendable: dict[str, int] = {}
        self.versions = versions
        self.usage_version = 0

    def ancestors(self) -> "Iterator[Node]":
        """Yield the parent, its parent, … up to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def root(self) -> "Node":
        """Return the topmost node above this one, or this one."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def subtree_queues(self) -> "Iterator[Node]":
        """Yield every ClusterQueue below a cohort."""
        yield from self.queues
        for cohort in self.cohorts:
            yield from cohort.subtree_queues()


def ensure_cell(node: Node, pair: FlavorResource) -> Cell:
    """Return the node's cell for a pair, making it and those above it without quota if missing."""
    cell = node.cells.get(pair)
    if cell is None:
        cell = Cell(node, None)
        node.cells[pair] = cell
        if node.parent is not None:
            cell.parent = ensure_cell(node.parent, pair)
            cell.potential = cell.parent.potential
    return cell


def settle_subtree(node: Node) -> None:
    """Compute quotas below a node from the leaves up; usage must still be zero."""
    for child in node.cohorts:
        settle_subtree(child)
    node.height = min(1, len(node.cohorts) + len(node.queues))
    for child in node.cohorts:
        node.height = max(node.height, child.height + 1)
    for child in (*node.cohorts, *node.queues):
        for pair, cell in child.cells.items():
            if cell.lending_limit is not None:
                cell.local = max(0, cell.subtree - cell.lending_limit)
            above = ensure_cell(node, pair)
            cell.parent = above
            above.in_subtree = above.in_subtree or cell.in_subtree
            above.subtree += cell.subtree - cell.local


def settle_potential(node: Node) -> None:
    """Compute the potential and lendable amounts from the root down, after `settle_subtree`."""
    if node.parent is not None:
        for pair in node.parent.cells:
            if node.is_cohort:
                ensure_cell(node, pair)
    for cell in node.cells.values():
        if cell.parent is None:
            cell.potential = cell.subtree
            continue
        most = cell.local + cell.parent.potential
        if cell.borrowing_limit is not None:
            most = min(most, cell.subtree + cell.borrowing_limit)
        cell.potential = most
    for pair, cell in node.cells.items():
        if node.is_cohort and cell.potential:
            node.lendable[pair.resource] = node.lendable.get(pair.resource, 0) + cell.potential
    for child in (*node.cohorts, *node.queues):
        settle_potential(child)


def local_available(cell: Cell) -> int:
    """Return how much of the quota kept from the parent is unused."""
    room = cell.local - cell.usage
    return room if room > 0 else 0


def available(cell: Cell) -> int:
    """Return what can be added here now without evicting; below 0 after over-admission."""
    parent = cell.parent
    if parent is None:
        return cell.subtree - cell.usage
    from_parent = available(parent)
    room = cell.local - cell.usage
    if cell.borrowing_limit is not None:
        used_in_parent = -room if room < 0 else 0
        ceiling = cell.subtree - cell.local - used_in_parent + cell.borrowing_limit
        if ceiling < from_parent:
            from_parent = ceiling
    return room + from_parent if room > 0 else from_parent


def available_without_limits(cell: Cell) -> int:
    """Return what could be added now if no borrowing limit stood on the way to the root."""
    room = local_available(cell)
    if cell.parent is None:
        return cell.subtree - cell.usage
    return room + available_without_limits(cell.parent)


def add_usage(cell: Cell, amount: int, journal: Journal | None) -> None:
    """Add usage, letting what exceeds the local quota rise to the parent."""
    while True:
        usage = cell.usage
        node = cell.node
        if journal is not None:
            journal.append((cell, usage, node.usage_version))
        cell.usage = usage + amount
        node.usage_version = next(node.versions)
        if cell.parent is None:
            return
        room = cell.local - usage
        if room > 0:
            amount -= room
            if amount <= 0:
                return
        cell = cell.parent


def remove_usage(cell: Cell, amount: int, journal: Journal | None) -> None:
    """Remove usage, taking back from the parent what had risen there."""
    while True:
        usage = cell.usage
        node = cell.node
        if journal is not None:
            journal.append((cell, usage, node.usage_version))
        cell.usage = usage - amount
        node.usage_version = next(node.versions)
        stored = usage - cell.local
        if cell.parent is None or stored <= 0:
            return
        amount = min(amount, stored)
        cell = cell.parent


def restore(journal: Journal, length: int) -> None:
    """Undo the newest entries of a journal until it has the given length."""
    while len(journal) > length:
        cell, usage, version = journal.pop()
        cell.usage = usage
        cell.node.usage_version = version


def borrows_with(cell: Cell, amount: int) -> bool:
    """Tell whether the node would use more than its own quota with this much added."""
    return cell.subtree < cell.usage + amount


def find_lowest_fit(cell: Cell, amount: int) -> tuple[Node, bool]:
    """Return the lowest node whose own quota holds the amount, and whether it is below the root.

    The node's height is Kueue's borrowing level: 0 is the queue's own quota. When no subtree holds
    the amount, the answer is the root and False. A node below the root, or a queue with a parent
    that does not borrow, may reclaim what others hold.

    Source: FindHeightOfLowestSubtreeThatFits, pkg/scheduler/preemption/classical.
    """
    if not borrows_with(cell, amount) or cell.parent is None:
        return cell.node, cell.parent is not None
    remaining = amount - local_available(cell)
    above = cell.parent
    while True:
        if not borrows_with(above, remaining):
            return above.node, above.parent is not None
        remaining -= local_available(above)
        if above.parent is None:
            return above.node, False
        above = above.parent
