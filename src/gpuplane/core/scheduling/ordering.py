"""In which order pending workloads are considered: effective priority, and turns across queues.

Owns the boosts and their explanations, and hands out one workload at a time while the cycle
counts what it placed; Kueue's own order across queues comes from `core.quota.ordering`.
"""

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import NEVER
from gpuplane.core.quota.ordering import FairOrder, Head
from gpuplane.core.quota.specs import AdmissionMode, FlavorResource
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.decisions import Waiting
from gpuplane.core.scheduling.kinds import Owners, kind_of, rank_of
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import PRIORITY_VALUES, Priority

BOOST_UNIT = 1000
"""Effective priorities are class values times this, so that boosts have room between classes."""

Key = tuple[int, int, str]
"""Less of the effective priority, instant of queueing, id: smaller goes first."""

NO_OWNERS: Owners = frozenset()

_BY_VALUE = sorted(PRIORITY_VALUES.values())


@dataclass(slots=True, eq=False)
class Entry:
    """A pending workload with its place in its queue.

    Attributes:
        effective: Effective priority in `BOOST_UNIT`ths of a class value.
        key: Orders the entries of a queue, best first.
        due: From when on `effective` may be another one, in ms.
        kind: What makes two workloads of a queue equal for a place, None when nothing does.
        place: Queue and kind: who shares it finds no place either, for the same reason.
        rank: That, class and tenant: who shares it finds no victims either. None if each is asked.
        waiting: The verdict it got last, given again when nothing in it has changed.
    """

    workload: Workload
    effective: int
    key: Key
    due: int
    kind: Hashable | None = None
    place: Hashable | None = None
    rank: Hashable | None = None
    waiting: Waiting | None = None


def compute_entry(
    workload: Workload, boosts: Boosts, now: int, owners: Owners = NO_OWNERS
) -> Entry:
    """Return the workload with its effective priority.

    A boost lifts at most to the value of the next class, and never to CRITICAL: then age decides
    among equals, so waiting work moves on, and the order of classes stays what people expect. It
    grows in whole percents of the way, so that an order holds until somebody's next step is due.
    """
    value = PRIORITY_VALUES[_base_class(workload)]
    gap = _room_above(value)
    effective = value * BOOST_UNIT
    due = NEVER
    if gap:
        percent, starved_due = _starvation_percent(workload, boosts, now)
        part, deadline_due = _deadline_part(workload, boosts, now)
        effective += max(gap * percent // 100, round(gap * part))
        due = min(starved_due, deadline_due)
    key = (-effective, workload.queued_at, str(workload.job_id))
    kind = kind_of(workload, owners)
    place = None if kind is None else (workload.queue, kind)
    return Entry(workload, effective, key, due, kind, place, rank_of(workload, place))


def describe_boosts(workload: Workload, boosts: Boosts, now: int) -> list[str]:
    """Return one sentence for each boost that acts on the workload now."""
    notes: list[str] = []
    base = _base_class(workload)
    if base is not workload.priority:
        notes.append(f"Counts as {base.value}: a {base.value} job waits for it.")
    if not _room_above(PRIORITY_VALUES[base]):
        return notes
    percent, _ = _starvation_percent(workload, boosts, now)
    if percent:
        target = boosts.wait_target_s[workload.priority]
        notes.append(
            f"Waits {(now - workload.queued_at) // MS_PER_S} s, its class's target is "
            f"{target} s: {percent} % of the way to the next class."
        )
    part, _ = _deadline_part(workload, boosts, now)
    if part > 0:
        notes.append(f"Its deadline nears: {round(100 * part)} % of the way to the next class.")
    return notes


def _base_class(workload: Workload) -> Priority:
    inherited = workload.inherited_priority
    if inherited is None or PRIORITY_VALUES[inherited] <= PRIORITY_VALUES[workload.priority]:
        return workload.priority
    return inherited


def _room_above(value: int) -> int:
    """Return how far a boost may lift a class, in effective units; 0 for the highest."""
    higher = [each for each in _BY_VALUE if each > value]
    if not higher:
        return 0
    ceiling = higher[0] * BOOST_UNIT
    if higher[0] == PRIORITY_VALUES[Priority.CRITICAL]:
        ceiling -= 1
    return ceiling - value * BOOST_UNIT


def _starvation_percent(workload: Workload, boosts: Boosts, now: int) -> tuple[int, int]:
    """Return how far waiting has lifted it, in percent of the way, and when that changes next."""
    target = boosts.wait_target_s.get(workload.priority)
    span = round(1000 * boosts.starved_ratio) - 500
    if not target or span <= 0:
        return 0, NEVER
    target_ms = target * MS_PER_S
    waited = now - workload.queued_at
    percent = (1000 * waited - 500 * target_ms) * 100 // (span * target_ms)
    if percent >= 100:
        return 100, NEVER
    percent = max(0, percent)
    next_wait = -(-(50_000 + (percent + 1) * span) * target_ms // 100_000)
    return percent, workload.queued_at + next_wait


def _deadline_part(workload: Workload, boosts: Boosts, now: int) -> tuple[float, int]:
    """Return how far its deadline has lifted it, as part of the way, and when that changes."""
    if workload.deadline is None:
        return 0.0, NEVER
    budget = max(0, workload.deadline - workload.submitted_at)
    part, due = 0.0, NEVER
    for step, lift in boosts.deadline_steps:
        at = workload.submitted_at + math.ceil(step * budget)
        if now >= at:
            part = max(part, lift)
        else:
            due = min(due, at)
    return part, due


Request = Callable[[Entry], tuple[Mapping[FlavorResource, int], int]]
"""For an entry: the flavors it would use first, and the borrowing level of that."""


class Counted(Protocol):
    """What knows how often usage has changed for good: `changes` grows with every time."""

    changes: int


class _Line:
    """One queue as it moves up: its head, and the borrowing levels of kinds since a change."""

    __slots__ = ("asked_at", "end", "entries", "has_cohort", "levels", "place")

    def __init__(self, entries: Sequence[Entry], *, has_cohort: bool) -> None:
        self.entries = entries
        self.has_cohort = has_cohort
        self.place = 0
        self.end = len(entries)
        self.asked_at = -1
        self.levels: dict[Hashable, int] = {}


class Turns:
    """Hands out the entries of all queues, best head first, one at a time.

    Args of the constructor:
        queues: By ClusterQueue its entries, best first.
        request: What a head would count.
        counted: Borrowing levels are asked for again when its `changes` have grown.
    """

    def __init__(
        self,
        tree: QuotaTree,
        queues: Mapping[str, Sequence[Entry]],
        request: Request,
        counted: Counted,
    ) -> None:
        self._tree = tree
        self._request = request
        self._counted = counted
        self._queues = {name: queues[name] for name in sorted(queues) if queues[name]}

    def __iter__(self) -> Iterator[Entry]:
        """Yield every entry in its turn; what the caller places meanwhile counts for the next."""
        if self._tree.mode is AdmissionMode.FAIR_SHARING:
            return self._iterate_fairly()
        if len(self._queues) == 1:
            return iter(next(iter(self._queues.values())))
        return self._iterate_classically()

    def _iterate_classically(self) -> Iterator[Entry]:
        lines = [
            _Line(entries, has_cohort=self._tree.queue_node(name).parent is not None)
            for name, entries in self._queues.items()
        ]
        counted = self._counted
        # Keys hold the job's id: no two are equal, and lines are never compared.
        heap = [(self._level(line), line.entries[0].key, line) for line in lines]
        heapq.heapify(heap)
        replace_head = heapq.heapreplace
        while heap:
            level, key, line = heap[0]
            if line.has_cohort and line.asked_at != counted.changes:
                # What was placed since may have used up the quota that this head counted on.
                fresh = self._level(line)
                if fresh != level:
                    replace_head(heap, (fresh, key, line))
                    continue
            place = line.place
            yield line.entries[place]
            place += 1
            if place == line.end:
                heapq.heappop(heap)
                continue
            line.place = place
            head = line.entries[place]
            next_level: int | None = None
            if line.asked_at == counted.changes:
                next_level = line.levels.get(head.kind)
            if next_level is None:
                next_level = self._level(line)
            replace_head(heap, (next_level, head.key, line))

    def _level(self, line: "_Line") -> int:
        """Return from how far up the quota of a line's head would come."""
        if not line.has_cohort:
            return 0
        changes = self._counted.changes
        if line.asked_at != changes:
            line.asked_at = changes
            line.levels.clear()
        entry = line.entries[line.place]
        level = line.levels.get(entry.kind)
        if level is None:
            level = self._request(entry)[1]
            if entry.kind is not None:
                line.levels[entry.kind] = level
        return level

    def _iterate_fairly(self) -> Iterator[Entry]:
        order = FairOrder(self._tree)
        places = dict.fromkeys(self._queues, 0)
        for name in self._queues:
            self._push(order, name, 0)
        while (head := order.pop()) is not None:
            name = head.cluster_queue
            place = places[name]
            yield self._queues[name][place]
            places[name] = place + 1
            self._push(order, name, place + 1)

    def _push(self, order: FairOrder, name: str, place: int) -> None:
        entries = self._queues[name]
        if place == len(entries):
            return
        entry = entries[place]
        workload = entry.workload
        usage, level = self._request(entry)
        order.push(Head(entry.key[2], name, usage, entry.effective, workload.queued_at, level))


def group_entries(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the entries by queue, best first."""
    queues: dict[str, list[Entry]] = {}
    for entry in entries:
        queues.setdefault(entry.workload.queue, []).append(entry)
    for queue in queues.values():
        queue.sort(key=lambda entry: entry.key)
    return queues
