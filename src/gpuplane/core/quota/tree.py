"""The quota tree: cluster queues under cohorts, with what they use right now.

Owns usage and its bookkeeping (add, remove, checkpoint, rollback) and answers what fits. Does not
know workloads: ordering, flavors and victims are the siblings' decisions over this tree.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from gpuplane.core.quota import nodes, shares, verdicts
from gpuplane.core.quota.nodes import Cell, Journal, Node
from gpuplane.core.quota.shares import DominantShare
from gpuplane.core.quota.specs import (
    UNLIMITED,
    AdmissionMode,
    ClusterQueueSpec,
    CohortSpec,
    FlavorResource,
    LocalQueueSpec,
    list_spec_problems,
)
from gpuplane.core.quota.verdicts import Outcome, QuotaVerdict

Usage = Mapping[FlavorResource, int]
"""Amounts per flavor-resource, each at least 0."""

Declared = tuple[
    AdmissionMode,
    tuple[ClusterQueueSpec, ...],
    tuple[CohortSpec, ...],
    tuple[LocalQueueSpec, ...],
]
"""Everything a tree was made from but usage, in a fixed order: equal trees answer alike."""


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """One line of a queue's or cohort's account, in the unit of its resource.

    Args:
        nominal: Own quota; for a cohort, its own plus what is lent from below; None, as
            `available` and `potential`, in a queue that covers everything.
        borrowed: Use beyond `nominal`.
        lent: Own unused quota that others hold: what it would have to reclaim to use.
        available: What it could add now, borrowing counted, without evicting anyone.
        potential: Most it could ever use.
    """

    flavor: str
    resource: str
    nominal: int | None
    used: int
    borrowed: int
    lent: int
    available: int | None
    potential: int | None
    borrowing_limit: int | None
    lending_limit: int | None


class QuotaTree:
    """Quotas and usage of every queue and cohort, changed in place and undone exactly.

    Not for use from several threads at once: checkpoints nest, they do not interleave.
    """

    def __init__(
        self,
        cluster_queues: Iterable[ClusterQueueSpec],
        cohorts: Iterable[CohortSpec] = (),
        local_queues: Iterable[LocalQueueSpec] = (),
        *,
        usage: Mapping[str, Usage] | None = None,
        local_usage: Mapping[str, Usage] | None = None,
        mode: AdmissionMode = AdmissionMode.CLASSICAL,
    ) -> None:
        """Build the tree and put current usage into it.

        Args:
            cluster_queues: Every ClusterQueue; the order does not matter.
            cohorts: Cohorts with quotas, parents or weights; others may just be named.
            local_queues: Tenants' doors with their caps.
            mode: Whether fair sharing widens when victims may be looked for.
            usage: By ClusterQueue; may exceed the quota (over-admission after a quota was cut).
            local_usage: By LocalQueue key; the part of the ClusterQueue's usage that came
                through that door. It is not added to the ClusterQueue's.

        Raises:
            ValueError: If a declaration is refused (the first few problems are named), or usage
                names an unknown queue or is below 0.
        """
        queue_list, cohort_list, local_list = (
            list(cluster_queues),
            list(cohorts),
            list(local_queues),
        )
        problems = list_spec_problems(queue_list, cohort_list, local_list)
        if problems:
            raise ValueError("; ".join(str(problem) for problem in problems[:3]))
        self.mode = mode
        self.declared: Declared = (
            mode,
            tuple(sorted(queue_list, key=lambda spec: spec.name)),
            tuple(sorted(cohort_list, key=lambda spec: spec.name)),
            tuple(sorted(local_list, key=lambda spec: spec.key)),
        )
        self._specs = {spec.name: spec for spec in queue_list}
        self._locals = {spec.key: spec for spec in local_list}
        self._queues: dict[str, Node] = {}
        self._cohorts: dict[str, Node] = {}
        self._versions = count(1)
        self._journal: Journal = []
        self._marks: list[tuple[int, int]] = []
        self._marks_made = 0
        self._fits: dict[str, QuotaVerdict] = {}
        self._build(queue_list, cohort_list)
        self._local_cells = {
            key: Node(key, self._versions, is_cohort=False) for key in self._locals
        }
        for name, amounts in (usage or {}).items():
            self.add_usage(name, amounts)
        for key, amounts in (local_usage or {}).items():
            self._add_local(key, amounts)

    def _build(self, queues: list[ClusterQueueSpec], cohorts: list[CohortSpec]) -> None:
        for cohort in cohorts:
            node = self._ensure_cohort(cohort.name)
            node.weight_milli = cohort.fair_weight_milli
            node.cells = {pair: Cell(node, quota) for pair, quota in cohort.quotas.items()}
            if cohort.parent is not None:
                node.parent = self._ensure_cohort(cohort.parent)
        for spec in queues:
            node = Node(spec.name, self._versions, is_cohort=False)
            node.weight_milli = spec.fair_weight_milli
            node.cells = {pair: Cell(node, quota) for pair, quota in spec.quotas.items()}
            if spec.cohort is not None:
                node.parent = self._ensure_cohort(spec.cohort)
            self._queues[spec.name] = node
            self._fits[spec.name] = QuotaVerdict(Outcome.FITS, spec.name)
        # Children by name: no answer may depend on the order of the declarations.
        for name in sorted(self._cohorts):
            node = self._cohorts[name]
            if node.parent is not None:
                node.parent.cohorts.append(node)
        for name in sorted(self._queues):
            node = self._queues[name]
            if node.parent is not None:
                node.parent.queues.append(node)
        for node in (*self._cohorts.values(), *self._queues.values()):
            if node.parent is None:
                nodes.settle_subtree(node)
                nodes.settle_potential(node)

    def _ensure_cohort(self, name: str) -> Node:
        node = self._cohorts.get(name)
        if node is None:
            node = self._cohorts[name] = Node(name, self._versions, is_cohort=True)
        return node

    # What is there.

    @property
    def cluster_queues(self) -> tuple[str, ...]:
        """Return the names of all ClusterQueues, sorted."""
        return tuple(sorted(self._queues))

    @property
    def cohorts(self) -> tuple[str, ...]:
        """Return the names of all cohorts, also of those only named by others, sorted."""
        return tuple(sorted(self._cohorts))

    @property
    def local_queues(self) -> tuple[str, ...]:
        """Return the keys of all LocalQueues, sorted."""
        return tuple(sorted(self._locals))

    def get_spec(self, cluster_queue: str) -> ClusterQueueSpec:
        """Return a ClusterQueue's declaration.

        Raises:
            ValueError: If there is no such queue.
        """
        spec = self._specs.get(cluster_queue)
        if spec is None:
            raise ValueError(f"there is no ClusterQueue {cluster_queue}")
        return spec

    def get_local_spec(self, local_queue: str) -> LocalQueueSpec:
        """Return a LocalQueue's declaration by its key.

        Raises:
            ValueError: If there is no such queue.
        """
        spec = self._locals.get(local_queue)
        if spec is None:
            raise ValueError(f"there is no LocalQueue {local_queue}")
        return spec

    def queue_node(self, cluster_queue: str) -> Node:
        """Return a ClusterQueue's node, for the decisions of this package."""
        node = self._queues.get(cluster_queue)
        if node is None:
            raise ValueError(f"there is no ClusterQueue {cluster_queue}")
        return node

    def cohort_node(self, cohort: str) -> Node:
        """Return a cohort's node, for the decisions of this package."""
        node = self._cohorts.get(cohort)
        if node is None:
            raise ValueError(f"there is no cohort {cohort}")
        return node

    # What fits.

    def fits(
        self, cluster_queue: str, request: Usage, local_queue: str | None = None
    ) -> QuotaVerdict:
        """Return whether a request fits the ClusterQueue's quota and the LocalQueue's caps now.

        Raises:
            ValueError: If a queue is unknown, the LocalQueue leads elsewhere, or an amount is
                below 0.
        """
        queue = self.queue_node(cluster_queue)
        shortages: list[verdicts.Shortage] = []
        if local_queue is not None:
            shortages = self._local_shortages(cluster_queue, local_queue, request)
        if self._specs[cluster_queue].covers_everything:
            if shortages:
                return verdicts.refusal(cluster_queue, shortages)
            return self._fits[cluster_queue]
        cells = queue.cells
        is_short = borrows = False
        for pair, amount in request.items():
            if amount < 0:
                raise ValueError(f"request of {pair.resource} is below 0: {amount}")
            cell = cells.get(pair)
            if cell is None or not cell.covered:
                is_short = is_short or amount > 0
            elif amount and nodes.available(cell) < amount:
                is_short = True
            elif cell.subtree < cell.usage + amount and cell.parent is not None:
                borrows = True
        if is_short:
            spec = self._specs[cluster_queue]
            shortages += verdicts.list_shortages(spec, queue, request, self.mode)
        if shortages:
            return verdicts.refusal(cluster_queue, shortages)
        if not borrows:
            return self._fits[cluster_queue]
        borrowed = verdicts.compute_borrowing(queue, request)
        if not borrowed:
            return self._fits[cluster_queue]
        return QuotaVerdict(Outcome.FITS_BORROWING, cluster_queue, (), borrowed)

    def find_level(self, cluster_queue: str, request: Usage) -> int:
        """Return from how far up the tree a request would get its quota, -1 if it does not fit.

        As `fits(...).borrow_level`, for those who ask often and need no reason.

        Raises:
            ValueError: If the queue is unknown.
        """
        queue = self.queue_node(cluster_queue)
        if self._specs[cluster_queue].covers_everything:
            return 0
        level = 0
        for pair, amount in request.items():
            if not amount:
                continue
            cell = queue.cells.get(pair)
            if cell is None or not cell.covered or nodes.available(cell) < amount:
                return -1
            if cell.parent is not None and nodes.borrows_with(cell, amount):
                level = max(level, nodes.find_lowest_fit(cell, amount)[0].height)
        return level

    def _local_shortages(
        self, cluster_queue: str, local_queue: str, request: Usage
    ) -> list[verdicts.Shortage]:
        local = self._check_door(cluster_queue, local_queue)
        if not local.limits:
            return []
        used = self.local_usage_of(local_queue)
        return verdicts.list_local_shortages(self._specs[cluster_queue], local, used, request)

    def available(self, cluster_queue: str, pair: FlavorResource) -> int:
        """Return what the queue can add now without evicting, borrowing counted; at least 0.

        `UNLIMITED` for a queue that covers everything, as also `potential_available`.
        """
        if self.get_spec(cluster_queue).covers_everything:
            return UNLIMITED
        cell = self.queue_node(cluster_queue).cells.get(pair)
        return max(0, nodes.available(cell)) if cell is not None else 0

    def potential_available(self, cluster_queue: str, pair: FlavorResource) -> int:
        """Return the largest request the queue could ever admit, with nothing running."""
        if self.get_spec(cluster_queue).covers_everything:
            return UNLIMITED
        cell = self.queue_node(cluster_queue).cells.get(pair)
        return cell.potential if cell is not None else 0

    def borrowing(self, cluster_queue: str, pair: FlavorResource) -> int:
        """Return how much the queue uses beyond its nominal quota."""
        cell = self.queue_node(cluster_queue).cells.get(pair)
        return _borrowed(cell) if cell is not None else 0

    def usage_of(self, cluster_queue: str) -> dict[FlavorResource, int]:
        """Return what the queue uses, without zeros."""
        cells = self.queue_node(cluster_queue).cells
        return {pair: cell.usage for pair, cell in cells.items() if cell.usage}

    def cohort_usage_of(self, cohort: str) -> dict[FlavorResource, int]:
        """Return what counts against the cohort's own subtree quota, without zeros."""
        cells = self.cohort_node(cohort).cells
        return {pair: cell.usage for pair, cell in cells.items() if cell.usage}

    def local_usage_of(self, local_queue: str) -> dict[FlavorResource, int]:
        """Return what came through a LocalQueue, without zeros."""
        self.get_local_spec(local_queue)
        cells = self._local_cells[local_queue].cells
        return {pair: cell.usage for pair, cell in cells.items() if cell.usage}

    def dominant_share(self, cluster_queue: str, extra: Usage | None = None) -> DominantShare:
        """Return the queue's dominant share, with `extra` usage counted in."""
        return shares.compute_share(self.queue_node(cluster_queue), extra)

    def cohort_share(self, cohort: str) -> DominantShare:
        """Return the cohort's dominant share among its siblings."""
        return shares.compute_share(self.cohort_node(cohort))

    # What changes.

    def add_usage(self, cluster_queue: str, usage: Usage, local_queue: str | None = None) -> None:
        """Count usage, whether or not it fits: the caller has decided.

        Raises:
            ValueError: If a queue is unknown or an amount is below 0; nothing is counted then.
        """
        queue = self.queue_node(cluster_queue)
        _refuse_negative(usage)
        if local_queue is not None:
            self._check_door(cluster_queue, local_queue)
            self._add_local(local_queue, usage)
        journal = self._journal if self._marks else None
        for pair, amount in usage.items():
            if amount:
                nodes.add_usage(nodes.ensure_cell(queue, pair), amount, journal)

    def remove_usage(
        self, cluster_queue: str, usage: Usage, local_queue: str | None = None
    ) -> None:
        """Take usage back.

        Raises:
            ValueError: If a queue is unknown, an amount is below 0 or more than is counted;
                nothing is taken back then.
        """
        queue = self.queue_node(cluster_queue)
        _refuse_negative(usage)
        _refuse_overdraft(queue, usage)
        journal = self._journal if self._marks else None
        if local_queue is not None:
            self._check_door(cluster_queue, local_queue)
            door = self._local_cells[local_queue]
            _refuse_overdraft(door, usage)
            _remove_all(door, usage, journal)
        _remove_all(queue, usage, journal)

    def _check_door(self, cluster_queue: str, local_queue: str) -> LocalQueueSpec:
        local = self.get_local_spec(local_queue)
        if local.cluster_queue != cluster_queue:
            raise ValueError(
                f"LocalQueue {local_queue} leads to {local.cluster_queue}, not {cluster_queue}"
            )
        return local

    def _add_local(self, local_queue: str, usage: Usage) -> None:
        self.get_local_spec(local_queue)
        _refuse_negative(usage)
        door = self._local_cells[local_queue]
        journal = self._journal if self._marks else None
        for pair, amount in usage.items():
            if amount:
                nodes.add_usage(nodes.ensure_cell(door, pair), amount, journal)

    def checkpoint(self) -> int:
        """Open a checkpoint and return its mark; close it with `rollback` or `release`."""
        self._marks_made += 1
        self._marks.append((self._marks_made, len(self._journal)))
        return self._marks_made

    def rollback(self, mark: int) -> None:
        """Undo every change since the checkpoint, and close it and those opened after it.

        Raises:
            ValueError: If the checkpoint is not open.
        """
        nodes.restore(self._journal, self._close(mark))

    def release(self, mark: int) -> None:
        """Keep every change since the checkpoint, and close it and those opened after it.

        Raises:
            ValueError: If the checkpoint is not open.
        """
        self._close(mark)
        if not self._marks:
            self._journal.clear()

    def _close(self, mark: int) -> int:
        for index in range(len(self._marks) - 1, -1, -1):
            number, length = self._marks[index]
            if number == mark:
                del self._marks[index:]
                return length
        raise ValueError(f"checkpoint {mark} is not open")

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo on leaving whatever was changed inside."""
        mark = self.checkpoint()
        try:
            yield
        finally:
            self.rollback(mark)

    # What people read.

    def explain(self, cluster_queue: str) -> list[QuotaRow]:
        """Return a queue's account, one row per flavor-resource, by name."""
        node = self.queue_node(cluster_queue)
        if self._specs[cluster_queue].covers_everything:
            used = sorted(self.usage_of(cluster_queue).items())
            return [
                QuotaRow(pair.flavor, pair.resource, None, amount, 0, 0, None, None, None, None)
                for pair, amount in used
            ]
        return _rows(node)

    def explain_cohort(self, cohort: str) -> list[QuotaRow]:
        """Return a cohort's account, one row per flavor-resource, by name."""
        return _rows(self.cohort_node(cohort))


def _refuse_negative(usage: Usage) -> None:
    for pair, amount in usage.items():
        if amount < 0:
            raise ValueError(f"usage of {pair.resource} in {pair.flavor} is below 0: {amount}")


def _refuse_overdraft(node: Node, usage: Usage) -> None:
    for pair, amount in usage.items():
        cell = node.cells.get(pair)
        counted = cell.usage if cell is not None else 0
        if amount > counted:
            raise ValueError(
                f"{node.name} uses {counted} {pair.resource} of {pair.flavor}, "
                f"cannot take back {amount}"
            )


def _remove_all(node: Node, usage: Usage, journal: Journal | None) -> None:
    for pair, amount in usage.items():
        if amount:
            nodes.remove_usage(node.cells[pair], amount, journal)


def _borrowed(cell: Cell) -> int:
    # Without a parent there is nobody to borrow from: use beyond the quota is over-admission.
    return max(0, cell.usage - cell.subtree) if cell.parent is not None else 0


def _rows(node: Node) -> list[QuotaRow]:
    rows = []
    for pair in sorted(node.cells):
        cell = node.cells[pair]
        if not (cell.in_subtree or cell.usage):
            continue
        free = max(0, nodes.available(cell))
        rows.append(
            QuotaRow(
                flavor=pair.flavor,
                resource=pair.resource,
                nominal=cell.subtree,
                used=cell.usage,
                borrowed=_borrowed(cell),
                lent=max(0, cell.subtree - cell.usage - free),
                available=free,
                potential=cell.potential,
                borrowing_limit=cell.borrowing_limit,
                lending_limit=cell.lending_limit,
            )
        )
    return rows
