"""In which order pending workloads are considered: effective priority, and turns across queues.

Owns the boosts and their explanations, and hands out one workload at a time while the cycle
counts what it placed; Kueue's own order across queues comes from `core.quota.ordering`.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.quota.ordering import FairOrder, Head
from gpuplane.core.quota.specs import AdmissionMode, FlavorResource
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import PRIORITY_VALUES, Priority

BOOST_UNIT = 1000
"""Effective priorities are class values times this, so that boosts have room between classes."""

_BY_VALUE = sorted(PRIORITY_VALUES.values())


@dataclass(frozen=True, slots=True)
class Entry:
    """A pending workload with its place in its queue.

    Attributes:
        effective: Effective priority in `BOOST_UNIT`ths of a class value.
        boosts: One sentence for each boost that acts.
    """

    workload: Workload
    effective: int
    boosts: tuple[str, ...]
    key: tuple[int, int, str]


def compute_entry(workload: Workload, boosts: Boosts, now: int) -> Entry:
    """Return the workload with its effective priority and why it is what it is.

    A boost lifts at most to the value of the next class, and never to CRITICAL: then age decides
    among equals, so waiting work moves on, and the order of classes stays what people expect.
    """
    notes: list[str] = []
    base = workload.priority
    inherited = workload.inherited_priority
    if inherited is not None and PRIORITY_VALUES[inherited] > PRIORITY_VALUES[base]:
        base = inherited
        notes.append(f"Counts as {base.value}: a {base.value} job waits for it.")
    value = PRIORITY_VALUES[base]
    gap = _room_above(value)
    effective = value * BOOST_UNIT
    if gap:
        starved = _starvation_ratio(workload, boosts, now)
        urgent = _deadline_ratio(workload, boosts, now)
        if starved > 0:
            target = boosts.wait_target_s[workload.priority]
            notes.append(
                f"Waits {(now - workload.queued_at) // MS_PER_S} s, its class's target is "
                f"{target} s: {round(100 * starved)} % of the way to the next class."
            )
        if urgent > 0:
            notes.append(
                f"Its deadline nears: {round(100 * urgent)} % of the way to the next class."
            )
        effective += round(gap * max(starved, urgent))
    key = (-effective, workload.queued_at, str(workload.job_id))
    return Entry(workload, effective, tuple(notes), key)


def _room_above(value: int) -> int:
    """Return how far a boost may lift a class, in effective units; 0 for the highest."""
    higher = [each for each in _BY_VALUE if each > value]
    if not higher:
        return 0
    ceiling = higher[0] * BOOST_UNIT
    if higher[0] == PRIORITY_VALUES[Priority.CRITICAL]:
        ceiling -= 1
    return ceiling - value * BOOST_UNIT


def _starvation_ratio(workload: Workload, boosts: Boosts, now: int) -> float:
    target = boosts.wait_target_s.get(workload.priority)
    if not target or boosts.starved_ratio <= 0.5:
        return 0.0
    ratio = (now - workload.queued_at) / (target * MS_PER_S)
    return min(1.0, max(0.0, (ratio - 0.5) / (boosts.starved_ratio - 0.5)))


def _deadline_ratio(workload: Workload, boosts: Boosts, now: int) -> float:
    if workload.deadline is None:
        return 0.0
    budget = workload.deadline - workload.submitted_at
    used = 1.0 if budget <= 0 else (now - workload.submitted_at) / budget
    return max((part for step, part in boosts.deadline_steps if used >= step), default=0.0)


Request = Callable[[Workload], tuple[Mapping[FlavorResource, int], int]]
"""For a workload: the flavors it would use first, and the borrowing level of that."""


class Turns:
    """Hands out the entries of all queues, best head first, one at a time."""

    def __init__(self, tree: QuotaTree, entries: Iterable[Entry], request: Request) -> None:
        self._tree = tree
        self._request = request
        self._queues: dict[str, list[Entry]] = {}
        for entry in entries:
            self._queues.setdefault(entry.workload.queue, []).append(entry)
        for queue in self._queues.values():
            queue.sort(key=lambda entry: entry.key, reverse=True)
        self._is_fair = tree.mode is AdmissionMode.FAIR_SHARING
        self._fair = FairOrder(tree)
        self._heap: list[tuple[int, tuple[int, int, str], str]] = []
        self._has_cohort = {name: tree.queue_node(name).parent is not None for name in self._queues}
        for name in sorted(self._queues):
            self._push(name)

    def next(self) -> Entry | None:
        """Return the next entry and take it out, or None at the end."""
        if self._is_fair:
            head = self._fair.pop()
            if head is None:
                return None
            return self._take(head.cluster_queue)
        while self._heap:
            level, key, name = heapq.heappop(self._heap)
            now_level = self._level(name)
            if now_level != level and self._heap:
                # What was placed since has used up the quota that this head counted on.
                heapq.heappush(self._heap, (now_level, key, name))
                if self._heap[0][2] != name:
                    continue
                heapq.heappop(self._heap)
            return self._take(name)
        return None

    def _take(self, name: str) -> Entry:
        entry = self._queues[name].pop()
        self._push(name)
        return entry

    def _push(self, name: str) -> None:
        queue = self._queues[name]
        if not queue:
            return
        entry = queue[-1]
        if not self._is_fair:
            heapq.heappush(self._heap, (self._level(name), entry.key, name))
            return
        workload = entry.workload
        usage, level = self._request(workload)
        self._fair.push(
            Head(str(workload.job_id), name, usage, entry.effective, workload.queued_at, level)
        )

    def _level(self, name: str) -> int:
        if not self._has_cohort[name]:
            return 0
        return self._request(self._queues[name][-1].workload)[1]
