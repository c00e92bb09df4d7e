"""Kueue's own cycles through `core.quota`: the same snapshot and heads, decision by decision.

Owns the comparison of single cycles. When something arrives and how long an eviction takes has no
part in it, so that what differs here is a difference of the decisions themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.kueue_cycle import Entry as Decided
from benchmarks.kueue_cycle import Holding, Item, KueueLoop, Outcome, Queues
from benchmarks.kueue_plans import Plan
from benchmarks.kueue_trace import Cycle, Entry
from gpuplane.core.quota import GPU, FlavorMode, FlavorResource

_MODES = {FlavorMode.NO_FIT: 0, FlavorMode.FIT: 2}
_PREEMPT = 1


@dataclass(frozen=True)
class Known:
    """A Workload that was seen: what never changes of it."""

    uid: str
    job: str
    queue: str
    gpus: int
    priority: int
    created_at: int

    def as_item(self) -> Item:
        """Return it as the loop has it."""
        return Item(
            self.uid, self.job, self.queue, {GPU: self.gpus * 1000}, self.priority, self.created_at
        )


class Replay:
    """Cycles of one cohort, decided again.

    Args:
        known: By name of the Workload.
        reserved: Tells by a Workload's name with which flavor and since when it holds quota in a
            cycle of this number.
    """

    def __init__(
        self,
        plan: Plan,
        loop: KueueLoop,
        known: Mapping[str, Known],
        reserved: Callable[[str, int], tuple[str, int]],
    ) -> None:
        self._plan = plan
        self._loop = loop
        self._known = known
        self._reserved = reserved
        self._queues = {spec.name: spec for spec in plan.queues}
        self._last: object = None

    def compare(self, cycle: Cycle) -> tuple[int, list[str]]:
        """Return how many heads were decided again, and what differs.

        The same question twice in a row, as a blocked head asks it, is not asked again.
        """
        entries = [entry for entry in cycle.entries if entry.queue in self._queues]
        holders = {queue: names for queue, names in cycle.holders.items() if queue in self._queues}
        question = (
            frozenset(entries),
            frozenset(name for names in holders.values() for name in names),
            cycle.evicted,
        )
        if not entries or not cycle.is_whole or question == self._last:
            return 0, []
        self._last = question
        state = self._state(cycle, entries, holders)
        heads = {self._known[entry.workload].uid: self._tried(entry) for entry in entries}
        decided = self._loop.decide(state, heads)
        found = []
        for entry in entries:
            ours = decided[self._known[entry.workload].uid]
            found += self._differs(cycle, entry, ours)
        return len(entries), found

    def _state(
        self, cycle: Cycle, entries: list[Entry], holders: Mapping[str, tuple[str, ...]]
    ) -> Queues:
        state = Queues()
        for entry in entries:
            item = self._known[entry.workload].as_item()
            state.items[item.uid] = item
        for names in holders.values():
            for name in names:
                item = self._known[name].as_item()
                flavor, since = self._reserved(name, cycle.number)
                pair = FlavorResource(flavor, GPU)
                state.items[item.uid] = item
                state.holdings[item.uid] = Holding(
                    {pair: item.request[GPU]}, since, name in cycle.evicted
                )
        return state

    def _tried(self, entry: Entry) -> dict[str, int] | None:
        """Return where Kueue's search of a flavor went on, by the first one that it tried."""
        if not entry.attempts:
            return None
        flavors = self._queues[entry.queue].resource_groups[0].flavors
        return {GPU: flavors.index(entry.attempts[0]) - 1}

    def _differs(self, cycle: Cycle, theirs: Entry, ours: Decided) -> list[str]:
        said, ourselves = self._told(cycle, theirs), self._answer(cycle, theirs, ours)
        if said == ourselves:
            return []
        job = self._known[theirs.workload].job
        where = f"{self._plan.name} cycle {cycle.number}: {job} in {theirs.queue}"
        return [f"{where}: Kueue {said}, core.quota {ourselves}"]

    def _told(self, cycle: Cycle, entry: Entry) -> tuple[object, ...]:
        outcome = entry.status or (Outcome.PREEMPTING if entry.is_issued else Outcome.WAITING).value
        targets = sorted(
            (self._known[name].job, cycle.reasons.get((name, entry.workload), ""))
            for name in entry.targets
        )
        return entry.mode, entry.flavor, entry.borrowing if entry.mode else 0, outcome, targets

    def _answer(self, cycle: Cycle, theirs: Entry, ours: Decided) -> tuple[object, ...]:
        mode = _MODES.get(ours.assignment.mode, _PREEMPT)
        by_uid = {self._known[name].uid: name for name in theirs.targets}
        targets = []
        for target in ours.targets:
            name = by_uid.get(target.workload.id, "")
            # Kueue tells its reason once, when it issues the eviction.
            told = (name, theirs.workload) in cycle.reasons or not name
            job = self._known[name].job if name else target.workload.id
            targets.append((job, target.reason.value if told else ""))
        return (
            mode,
            next(iter(ours.assignment.flavors.values()), "") if mode else "",
            ours.assignment.borrow_level if mode else 0,
            ours.outcome.value,
            sorted(targets),
        )
