"""Kueue's scheduler loop over `core.quota`: heads in, admissions and evictions out.

Owns what of Kueue lies around the quotas (heaps, parked workloads, the order of one cycle), so that
the quotas can be compared with a real Kueue without nodes, prices or people in between. Evictions
take effect at once.

Source: kubernetes-sigs/kueue v0.15.0, pkg/scheduler/scheduler.go (schedule, nominate, fits,
resourcesToReserve) and pkg/cache/queue/cluster_queue.go (requeueIfNotPresent, sticky workloads).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpuplane.core.quota import (
    OLD_GATES,
    AdmissionMode,
    AdmittedWorkload,
    ClusterQueueSpec,
    CohortSpec,
    FairOrder,
    FlavorAssignment,
    FlavorMode,
    FlavorResource,
    Head,
    Preemptor,
    QueueingStrategy,
    QuotaTree,
    ReclaimWithinCohort,
    Target,
    assign_flavors,
    classical_order_key,
    plan_oracle,
    plan_preemption,
    queue_order_key,
)

MOST_CYCLES = 2_000
"""Cycles of one step; a state that comes back ends it long before."""
Usage = Mapping[FlavorResource, int]


@dataclass(frozen=True)
class Item:
    """A workload: `uid` breaks ties as in Kueue, `name` is for people."""

    uid: str
    name: str
    queue: str
    request: Mapping[str, int]
    priority: int
    queued_at: int


@dataclass(frozen=True)
class Holding:
    """What an admitted workload holds, since when in ms, and whether it is being evicted."""

    usage: Usage
    admitted_at: int
    is_evicted: bool = False


@dataclass
class Queues:
    """Everything that waits and holds at one instant.

    Attributes:
        active: Uids that the next cycle may look at; others are parked.
        evictions: (victim, reason), in the order they happened.
        circles: Workloads evict one another without end.
    """

    items: dict[str, Item] = field(default_factory=dict)
    holdings: dict[str, Holding] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    evictions: list[tuple[str, str]] = field(default_factory=list)
    circles: bool = False

    @property
    def pending(self) -> list[str]:
        """Return the uids that hold nothing."""
        return [uid for uid in self.items if uid not in self.holdings]


class Outcome(StrEnum):
    """What a cycle does with a head."""

    ASSUMED = "assumed"
    PREEMPTING = "preempting"
    SKIPPED = "skipped"
    WAITING = "waiting"


@dataclass
class Entry:
    """What a cycle decides of the head of one queue."""

    item: Item
    assignment: FlavorAssignment
    targets: tuple[Target, ...] = ()
    outcome: Outcome = Outcome.WAITING


class KueueLoop:
    """The loop over one set of queues."""

    def __init__(
        self,
        queues: Sequence[ClusterQueueSpec],
        cohorts: Sequence[CohortSpec],
        mode: AdmissionMode,
    ) -> None:
        self._specs = {spec.name: spec for spec in queues}
        self._cohorts = cohorts
        self._mode = mode
        self._tree = QuotaTree(queues, cohorts, mode=mode)
        self._tried: dict[str, Mapping[str, int]] = {}
        self._sticky: dict[str, str] = {}

    def settle(self, queues: Queues, now: int) -> None:
        """Run cycles until nothing changes any more, or the same comes again and again."""
        self._load(queues)
        self._tried.clear()
        # Whoever evicts for itself stays first in its queue until it is admitted or deleted.
        self._sticky = {
            queue: uid
            for queue, uid in self._sticky.items()
            if uid in queues.items and uid not in queues.holdings
        }
        # A blocked head of a StrictFIFO queue is looked at again and again.
        queues.active |= {uid for uid in queues.pending if self._is_strict(queues.items[uid])}
        seen: dict[Hashable, int] = {}
        for _ in range(MOST_CYCLES):
            state = self._state(queues)
            if state in seen:
                # Heads that hinder one another are tried for ever, and nothing comes of it.
                queues.circles = len(queues.evictions) > seen[state]
                return
            seen[state] = len(queues.evictions)
            if not self._cycle(queues, now):
                return
        queues.circles = True

    def decide(
        self, queues: Queues, heads: Mapping[str, Mapping[str, int] | None]
    ) -> dict[str, Entry]:
        """Return what one cycle decides of these heads; nothing is changed.

        Args:
            queues: Who holds what.
            heads: By uid the flavors that were tried before, None to begin with the first.
        """
        self._load(queues)
        with self._tree.trial():
            return self._decide(queues, heads)

    def _load(self, queues: Queues) -> None:
        self._tree = QuotaTree(self._specs.values(), self._cohorts, mode=self._mode)
        for uid, holding in queues.holdings.items():
            self._tree.add_usage(queues.items[uid].queue, holding.usage)

    def _state(self, queues: Queues) -> Hashable:
        holdings = frozenset(
            (uid, *(pair for pair in holding.usage)) for uid, holding in queues.holdings.items()
        )
        tried = frozenset((uid, *sorted(found.items())) for uid, found in self._tried.items())
        return holdings, frozenset(queues.active), tried, frozenset(self._sticky.items())

    def _is_strict(self, item: Item) -> bool:
        return self._specs[item.queue].queueing_strategy is QueueingStrategy.STRICT_FIFO

    def _heads(self, queues: Queues) -> list[Item]:
        heads: dict[str, Item] = {}
        for uid in queues.active:
            item = queues.items[uid]
            best = heads.get(item.queue)
            if best is None or self._key(item) < self._key(best):
                heads[item.queue] = item
        return [heads[name] for name in sorted(heads)]

    def _key(self, item: Item) -> tuple[bool, int, int, str]:
        is_sticky = self._sticky.get(item.queue) == item.uid
        return (not is_sticky, *queue_order_key(item.priority, item.queued_at, item.uid))

    def _cycle(self, queues: Queues, now: int) -> bool:
        """Look at every head once; return whether anything changed."""
        heads = {item.uid: self._tried.get(item.uid) for item in self._heads(queues)}
        with self._tree.trial():
            entries = self._decide(queues, heads)
        found = list(entries.values())
        started = [entry for entry in found if entry.outcome is Outcome.ASSUMED]
        preempting = [entry for entry in found if entry.outcome is Outcome.PREEMPTING]
        changed = bool(started or preempting)
        for entry in started:
            queues.holdings[entry.item.uid] = Holding(entry.assignment.usage, now)
            queues.active.discard(entry.item.uid)
            if self._sticky.get(entry.item.queue) == entry.item.uid:
                del self._sticky[entry.item.queue]
            self._tree.add_usage(entry.item.queue, entry.assignment.usage)
        for entry in found:
            if entry.outcome is Outcome.WAITING:
                changed |= self._requeue(entry, queues)
            elif entry.outcome is Outcome.SKIPPED:
                self._tried.pop(entry.item.uid, None)
                changed = True
        # Last: what an eviction frees wakes also who was parked in this very cycle.
        for entry in preempting:
            self._evict(entry, queues)
        return changed

    def _decide(
        self, queues: Queues, heads: Mapping[str, Mapping[str, int] | None]
    ) -> dict[str, Entry]:
        admitted = self._admitted(queues)
        entries = {}
        for uid in sorted(heads, key=lambda each: queues.items[each].queue):
            entries[uid] = self._nominate(queues.items[uid], admitted, heads[uid])
        taken: set[str] = set()
        for entry in self._ordered(entries):
            self._process(entry, queues, taken)
        return entries

    def _nominate(
        self,
        item: Item,
        admitted: dict[str, list[AdmittedWorkload]],
        tried: Mapping[str, int] | None,
    ) -> Entry:
        asker = Preemptor(item.uid, item.queue, {}, item.priority, item.queued_at)
        oracle = plan_oracle(self._tree, asker, admitted, gates=OLD_GATES)
        assignment = assign_flavors(
            self._tree,
            item.queue,
            item.request,
            oracle=oracle,
            last_tried=tried,
        )
        entry = Entry(item, assignment)
        if assignment.mode not in (FlavorMode.FIT, FlavorMode.NO_FIT):
            asker = Preemptor(item.uid, item.queue, assignment.usage, item.priority, item.queued_at)
            entry.targets = plan_preemption(self._tree, asker, admitted, gates=OLD_GATES)
        return entry

    def _ordered(self, entries: dict[str, Entry]) -> Iterator[Entry]:
        heads = [
            Head(
                uid,
                entry.item.queue,
                entry.assignment.usage,
                entry.item.priority,
                entry.item.queued_at,
                entry.assignment.borrow_level,
            )
            for uid, entry in entries.items()
            if entry.assignment.mode is not FlavorMode.NO_FIT
        ]
        if self._mode is AdmissionMode.CLASSICAL:
            for head in sorted(heads, key=classical_order_key):
                yield entries[head.id]
            return
        order = FairOrder(self._tree, heads, OLD_GATES)
        while (popped := order.pop()) is not None:
            yield entries[popped.id]

    def _process(self, entry: Entry, queues: Queues, taken: set[str]) -> None:
        """Decide one head after those before it.

        Args:
            taken: Victims of the heads before; those of this one are added.
        """
        item, usage = entry.item, entry.assignment.usage
        is_fit = entry.assignment.mode is FlavorMode.FIT
        if not is_fit and not entry.targets:
            policy = self._specs[item.queue].preemption
            if policy.reclaim_within_cohort is not ReclaimWithinCohort.ANY:
                self._tree.add_usage(item.queue, self._to_reserve(entry))
            return
        own = {target.workload.id for target in entry.targets}
        if taken & own or not self._fits(item.queue, usage, taken | own, queues):
            entry.outcome = Outcome.SKIPPED
            return
        self._tree.add_usage(item.queue, usage)
        taken |= own
        entry.outcome = Outcome.ASSUMED if is_fit else Outcome.PREEMPTING

    def _to_reserve(self, entry: Entry) -> dict[FlavorResource, int]:
        spec = self._specs[entry.item.queue]
        used = self._tree.usage_of(spec.name)
        found = {}
        for pair, amount in entry.assignment.usage.items():
            quota, held = spec.quotas[pair], used.get(pair, 0)
            if entry.assignment.borrow_level > 0:
                limit = quota.borrowing_limit
                most = amount if limit is None else quota.nominal + limit - held
                found[pair] = max(0, min(amount, most))
            else:
                found[pair] = max(0, min(amount, quota.nominal - held))
        return found

    def _fits(self, queue: str, usage: Usage, without: set[str], queues: Queues) -> bool:
        with self._tree.trial():
            for uid in without:
                self._tree.remove_usage(queues.items[uid].queue, queues.holdings[uid].usage)
            return all(
                amount <= self._tree.available(queue, pair) for pair, amount in usage.items()
            )

    def _evict(self, entry: Entry, queues: Queues) -> None:
        for target in entry.targets:
            uid = target.workload.id
            holding = queues.holdings.pop(uid, None)
            if holding is not None:
                self._tree.remove_usage(queues.items[uid].queue, holding.usage)
                queues.evictions.append((queues.items[uid].name, target.reason.value))
        # What an eviction frees lets all who wait be looked at again.
        queues.active.update(queues.pending)
        self._tried.pop(entry.item.uid, None)
        if not self._is_strict(entry.item):
            self._sticky[entry.item.queue] = entry.item.uid

    def _requeue(self, entry: Entry, queues: Queues) -> bool:
        """Park a head that found nothing, or let it try its next flavor."""
        uid = entry.item.uid
        pending = {name: place for name, place in entry.assignment.last_tried.items() if place >= 0}
        if pending and self._tried.get(uid) != entry.assignment.last_tried:
            self._tried[uid] = entry.assignment.last_tried
            return True
        self._tried.pop(uid, None)
        if self._is_strict(entry.item):
            return False
        queues.active.discard(uid)
        return True

    def _admitted(self, queues: Queues) -> dict[str, list[AdmittedWorkload]]:
        found: dict[str, list[AdmittedWorkload]] = {}
        for uid, holding in queues.holdings.items():
            item = queues.items[uid]
            found.setdefault(item.queue, []).append(
                AdmittedWorkload(
                    uid,
                    item.queue,
                    holding.usage,
                    item.priority,
                    item.queued_at,
                    holding.admitted_at,
                    is_evicted=holding.is_evicted,
                )
            )
        return found
