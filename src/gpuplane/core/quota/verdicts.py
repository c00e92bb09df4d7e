"""What the quotas say about one request, as a value with its word and its sentence.

Owns the verdict's shape and the judgement of a request that does not simply fit. Never changes
usage and never chooses victims.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from gpuplane.core.quota.nodes import (
    Cell,
    Node,
    available,
    available_without_limits,
    borrows_with,
    find_lowest_fit,
)
from gpuplane.core.quota.specs import (
    CPU,
    GPU,
    MEMORY,
    AdmissionMode,
    BorrowWithinCohortPolicy,
    ClusterQueueSpec,
    FlavorResource,
    LocalQueueSpec,
    PreemptionPolicy,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from gpuplane.core.reasons import Reason, Word


class Outcome(IntEnum):
    """What the quotas say, best first: comparing two outcomes gives the worse one as greater."""

    FITS = 0
    FITS_BORROWING = 1
    NEEDS_PREEMPTION = 2
    """Fits once others release quota, and the policies allow to look for victims."""
    WAITS = 3
    """Fits once others release quota, and nobody may be evicted for it."""
    NEVER_FITS = 4
    """Does not fit however empty the queues are."""


@dataclass(frozen=True, slots=True)
class Borrowing:
    """What one flavor-resource of the request takes beyond the queue's own quota.

    Args:
        amount: How much of this request is borrowed.
        cohort: The lowest cohort whose quota holds it.
        level: That cohort's height in the tree; Kueue's borrowing level.
    """

    flavor_resource: FlavorResource
    amount: int
    cohort: str
    level: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """One flavor-resource that is short, by how much, and what stands in the way.

    Args:
        available: What is free for this queue now (`NEVER_FITS`: what it could ever use).
        short_by: `requested` less `available`, above 0.
        limited_by: The LocalQueue, ClusterQueue or cohort whose quota or limit is in the way.
    """

    flavor_resource: FlavorResource
    requested: int
    available: int
    outcome: Outcome
    word: Word
    limited_by: str

    @property
    def short_by(self) -> int:
        return self.requested - self.available


@dataclass(frozen=True, slots=True)
class QuotaVerdict:
    """Whether a request fits the quotas, and if not what is short and why.

    Args:
        shortages: Most serious first, then by name; empty when the request fits.
        borrowed: What would be borrowed, by name; empty when nothing is.
    """

    outcome: Outcome
    cluster_queue: str
    shortages: tuple[Shortage, ...] = ()
    borrowed: tuple[Borrowing, ...] = ()

    @property
    def fits(self) -> bool:
        return self.outcome <= Outcome.FITS_BORROWING

    @property
    def is_final(self) -> bool:
        """Tell whether the request would not even fit into empty queues: waiting cannot help."""
        return self.outcome is Outcome.NEVER_FITS

    @property
    def borrow_level(self) -> int:
        """Return how far up the tree the request reaches for quota; 0 without borrowing."""
        return max((borrowing.level for borrowing in self.borrowed), default=0)

    @property
    def word(self) -> Word | None:
        """Return the dominant reason's word, or None when the request fits."""
        return self.shortages[0].word if self.shortages else None

    @property
    def sentence(self) -> str:
        """Return what a person needs to know, in one sentence."""
        if self.shortages:
            return describe_shortage(self.shortages[0], self.cluster_queue)
        if self.borrowed:
            parts = ", ".join(
                f"{describe_pair_amount(borrowing.flavor_resource, borrowing.amount)} "
                f"from cohort {borrowing.cohort}"
                for borrowing in self.borrowed
            )
            return f"Fits queue {self.cluster_queue} by borrowing {parts}."
        return f"Fits the quota of queue {self.cluster_queue}."

    @property
    def reason(self) -> Reason | None:
        """Return the dominant reason as a value, or None when the request fits."""
        if not self.shortages:
            return None
        first = self.shortages[0]
        return Reason(first.word, self.sentence, _fix(first))


def describe_amount(resource: str, amount: int) -> str:
    """Return an amount as people say it: whole GPUs, cores, GiB where that is exact."""
    if resource == GPU:
        count = _thousandths(amount)
        return f"{count} GPU" if count == "1" else f"{count} GPUs"
    if resource == CPU:
        count = _thousandths(amount)
        return f"{count} core" if count == "1" else f"{count} cores"
    if resource == MEMORY:
        return f"{amount // 1024} GiB" if amount % 1024 == 0 else f"{amount} MiB"
    return f"{amount} {resource}"


def describe_pair_amount(pair: FlavorResource, amount: int) -> str:
    """Return an amount with its flavor, such as `2 GPUs of H100-80GB`."""
    return f"{describe_amount(pair.resource, amount)} of {pair.flavor}"


def describe_shortage(shortage: Shortage, cluster_queue: str) -> str:
    """Return one sentence on what is short, where, and by how much."""
    pair = shortage.flavor_resource
    asked = describe_pair_amount(pair, shortage.requested)
    there = describe_amount(pair.resource, shortage.available)
    short = describe_amount(pair.resource, shortage.short_by)
    where = shortage.limited_by
    if shortage.word is Word.LOCAL_QUEUE_LIMIT:
        kind = "its limit is" if shortage.outcome is Outcome.NEVER_FITS else "its limit leaves"
        return f"Asks for {asked}; {where}: {kind} {there}, {short} too few."
    if shortage.word is Word.REQUEST_EXCEEDS_QUOTA:
        if shortage.available == 0:
            return f"Asks for {asked}; queue {cluster_queue} has no quota for it."
        return (
            f"Asks for {asked}; queue {cluster_queue} can use at most {there}, borrowing counted."
        )
    if shortage.word is Word.BORROWING_LIMIT:
        return f"Asks for {asked}; the borrowing limit of {where} leaves {there}, {short} too few."
    return f"Asks for {asked}; queue {cluster_queue} has {there} unused, {short} too few."


def _fix(shortage: Shortage) -> str:
    if shortage.word is Word.LOCAL_QUEUE_LIMIT:
        return "Ask for less, wait for your own workloads, or have the limit raised."
    if shortage.word is Word.REQUEST_EXCEEDS_QUOTA:
        return "Ask for less, another model, or a queue with more quota."
    if shortage.word is Word.BORROWING_LIMIT:
        return "Ask for less, wait for workloads of this queue, or have borrowingLimit raised."
    return "Wait for running workloads, ask for less, or raise the priority."


def _thousandths(amount: int) -> str:
    whole, part = divmod(abs(amount), 1000)
    text = f"{whole}.{part:03d}".rstrip("0").rstrip(".")
    return f"-{text}" if amount < 0 else text


def compute_borrowing(queue: Node, request: Mapping[FlavorResource, int]) -> tuple[Borrowing, ...]:
    """Return what a request that fits would borrow, by name of flavor and resource."""
    borrowed = []
    for pair in sorted(request):
        amount = request[pair]
        cell = queue.cells[pair] if amount else None
        if cell is None or cell.parent is None or not borrows_with(cell, amount):
            continue
        lender, _ = find_lowest_fit(cell, amount)
        beyond = min(amount, cell.usage + amount - cell.subtree)
        borrowed.append(Borrowing(pair, beyond, lender.name, lender.height))
    return tuple(borrowed)


def list_shortages(
    spec: ClusterQueueSpec,
    queue: Node,
    request: Mapping[FlavorResource, int],
    mode: AdmissionMode,
) -> list[Shortage]:
    """Return every flavor-resource for which the ClusterQueue's quota is short now."""
    shortages = []
    for pair, amount in request.items():
        if amount == 0:
            # Kueue: a request of nothing needs no quota, declared or not (issue 8079).
            continue
        cell = queue.cells.get(pair)
        if cell is None or not cell.covered:
            shortages.append(_never(pair, amount, 0, queue.name))
        elif amount > cell.potential:
            shortages.append(_never(pair, amount, cell.potential, queue.name))
        else:
            free = max(0, available(cell))
            if amount > free:
                shortages.append(_short_now(spec, cell, pair, amount, free, mode))
    return shortages


def list_local_shortages(
    spec: ClusterQueueSpec,
    local: LocalQueueSpec,
    local_usage: Mapping[FlavorResource, int],
    request: Mapping[FlavorResource, int],
) -> list[Shortage]:
    """Return every flavor-resource for which the LocalQueue's own cap is short now."""
    shortages = []
    for pair, limit in local.limits.items():
        amount = request.get(pair, 0)
        if amount == 0:
            continue
        name = f"queue {local.key}"
        word = Word.LOCAL_QUEUE_LIMIT
        if amount > limit:
            shortages.append(Shortage(pair, amount, limit, Outcome.NEVER_FITS, word, name))
            continue
        free = max(0, limit - local_usage.get(pair, 0))
        if amount > free:
            # Only the queue's own workloads can make room under the queue's own cap.
            may_evict = spec.preemption.within_cluster_queue is not WithinClusterQueue.NEVER
            outcome = Outcome.NEEDS_PREEMPTION if may_evict else Outcome.WAITS
            shortages.append(Shortage(pair, amount, free, outcome, word, name))
    return shortages


def refusal(cluster_queue: str, shortages: Iterable[Shortage]) -> QuotaVerdict:
    """Return the verdict for a request that does not fit, dominant shortage first."""
    ordered = sorted(shortages, key=lambda each: (-each.outcome, each.word, each.flavor_resource))
    return QuotaVerdict(ordered[0].outcome, cluster_queue, tuple(ordered))


def _never(pair: FlavorResource, amount: int, most: int, queue: str) -> Shortage:
    word = Word.REQUEST_EXCEEDS_QUOTA
    return Shortage(pair, amount, most, Outcome.NEVER_FITS, word, f"queue {queue}")


def _short_now(
    spec: ClusterQueueSpec,
    cell: Cell,
    pair: FlavorResource,
    amount: int,
    free: int,
    mode: AdmissionMode,
) -> Shortage:
    policy = spec.preemption
    may_preempt = may_evict_someone(policy, cell) and may_seek_victims(policy, cell, amount, mode)
    outcome = Outcome.NEEDS_PREEMPTION if may_preempt else Outcome.WAITS
    limiting = _limiting_node(cell, amount)
    if limiting is None:
        return Shortage(pair, amount, free, outcome, Word.QUOTA_EXCEEDED, cell.node.name)
    kind = "cohort" if limiting.is_cohort else "queue"
    name = f"{kind} {limiting.name}"
    return Shortage(pair, amount, free, outcome, Word.BORROWING_LIMIT, name)


def _limiting_node(cell: Cell, amount: int) -> Node | None:
    """Return the lowest node whose borrowing limit alone keeps the amount out, if one does."""
    if available_without_limits(cell) < amount:
        return None
    node_cell: Cell | None = cell
    rising = amount
    while node_cell is not None and node_cell.parent is not None:
        limit = node_cell.borrowing_limit
        if limit is not None and node_cell.usage + rising > node_cell.subtree + limit:
            return node_cell.node
        room = node_cell.local - node_cell.usage
        if room > 0:
            rising -= room
        node_cell = node_cell.parent
    return None


def may_seek_victims(
    policy: PreemptionPolicy, cell: Cell, amount: int, mode: AdmissionMode
) -> bool:
    """Tell whether the amount entitles to a search for victims; there may be none to find.

    It does when it is within the nominal quota, when a subtree below the root holds it, or when
    the policy allows evicting while borrowing.

    Source: fitsResourceQuota, pkg/scheduler/flavorassigner/flavorassigner.go.
    """
    if cell.nominal >= amount or find_lowest_fit(cell, amount)[1]:
        return True
    if policy.borrow_within_cohort is not BorrowWithinCohortPolicy.NEVER:
        return True
    reclaims = policy.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
    return mode is AdmissionMode.FAIR_SHARING and reclaims


def may_evict_someone(policy: PreemptionPolicy, cell: Cell) -> bool:
    """Tell whether the policies of a queue name anyone at all whom it may evict."""
    if policy.within_cluster_queue is not WithinClusterQueue.NEVER:
        return True
    return cell.parent is not None and policy.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
