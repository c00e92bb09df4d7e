"""The pending workloads in their order, kept from cycle to cycle.

Owns what of a workload's place in its queue stays true while it waits: its kind, its effective
priority and when that changes next. Never knows quotas, nodes or gates.
"""

import heapq
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from gpuplane.core.scheduling.gates import GateGroup, gate_group, has_own_gate
from gpuplane.core.scheduling.kinds import Owners, rank_of
from gpuplane.core.scheduling.ordering import (
    NO_OWNERS,
    Entry,
    Key,
    compute_effective,
    compute_entry,
)
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.core.scheduling.workload import Workload

MAX_SINGLY = 64
"""Entries taken out of a queue one by one; more are cheaper taken out together."""


@dataclass(slots=True)
class _Queue:
    entries: list[Entry] = field(default_factory=list)
    is_sorted: bool = True


class PendingPool:
    """Entries of what is pending, by queue, best first; advanced by what came and went.

    A workload is known again by being the very same object: callers that keep their values
    between cycles pay for changes only, the others for everything.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._kinds: dict[Hashable, int] = {}
        self._empty()

    def _empty(self) -> None:
        """Hold nothing again; numbers of kinds stay, because answers are kept by them."""
        self._boosts: Boosts | None = None
        self._owners: Owners = NO_OWNERS
        self._now = 0
        self._listed: tuple[Workload, ...] = ()
        self._entries: dict[int, Entry] = {}
        # Their keys: a set of its own is compared faster than those of a mapping.
        self._present: set[int] = set()
        self._job_ids: set[int] = set()
        self._queues: dict[str, _Queue] = {}
        self._due: list[tuple[int, int, Entry]] = []
        self._dues_made = 0
        self.groups: dict[GateGroup, Workload] = {}
        """Some workload of each group that the same gates open and close."""
        self.alone: dict[int, Entry] = {}
        """Entries with gates of their own."""
        self.promised: dict[int, Entry] = {}
        """Entries for whom others were stopped."""
        self.class_counts: dict[str, int] = {}
        """Replicas asked for, by class."""
        self.members: dict[str, Workload] = {}
        """Some workload of each class that was ever seen here."""

    def advance(
        self,
        pending: tuple[Workload, ...],
        boosts: Boosts,
        now: int,
        owners: Owners = NO_OWNERS,
    ) -> None:
        """Make the entries those of this instant.

        Raises:
            ValueError: If a workload is given twice.
        """
        if boosts != self._boosts or now < self._now or owners != self._owners:
            self._empty()
            self._boosts = boosts
            self._owners = owners
        self._now = now
        if pending is not self._listed:
            self._exchange(pending, boosts, now)
        while self._due and self._due[0][0] <= now:
            entry = heapq.heappop(self._due)[2]
            if self._entries.get(id(entry.workload)) is entry:
                self._replace(entry, boosts, now)

    @property
    def kinds_known(self) -> int:
        """Return how many kinds and ranks have a number."""
        return len(self._kinds)

    def count_known(self, pending: Sequence[Workload]) -> int:
        """Return how many of these it holds."""
        return sum(1 for each in pending if id(each) in self._entries)

    def list_queues(self) -> dict[str, list[Entry]]:
        """Return the entries by queue, best first; not to be changed."""
        found: dict[str, list[Entry]] = {}
        for name, queue in self._queues.items():
            if not queue.entries:
                continue
            if not queue.is_sorted:
                queue.entries.sort(key=_key_of)
                queue.is_sorted = True
            found[name] = queue.entries
        return found

    def _exchange(self, pending: tuple[Workload, ...], boosts: Boosts, now: int) -> None:
        present = set(map(id, pending))
        if len(present) != len(pending):
            raise ValueError("a pending workload is given twice")
        gone, fresh = self._present - present, present - self._present
        if gone:
            self._remove(gone)
        if fresh:
            self._add([each for each in pending if id(each) in fresh], boosts, now)
        self._listed = pending

    def _remove(self, gone: set[int]) -> None:
        self._present -= gone
        touched: dict[str, list[Entry]] = {}
        for each in sorted(gone):
            entry = self._entries.pop(each)
            workload = entry.workload
            self.alone.pop(each, None)
            self.promised.pop(each, None)
            self._job_ids.discard(workload.job_id.int)
            self._count(workload, -workload.replicas.count)
            touched.setdefault(workload.queue, []).append(entry)
        for name, some in touched.items():
            queue = self._queues[name]
            if queue.is_sorted and len(some) <= MAX_SINGLY:
                for entry in some:
                    # No two keys are equal: they hold the id of the job.
                    del queue.entries[bisect_left(queue.entries, entry.key, key=_key_of)]
            else:
                queue.entries = [each for each in queue.entries if id(each.workload) not in gone]

    def _add(self, fresh: Sequence[Workload], boosts: Boosts, now: int) -> None:
        for workload in fresh:
            if workload.job_id.int in self._job_ids:
                # Whoever catches this may ask again: nothing half-known may be left behind.
                self._empty()
                raise ValueError("a pending workload is given twice")
            self._job_ids.add(workload.job_id.int)
            self._count(workload, workload.replicas.count)
            self.members.setdefault(workload.class_key, workload)
            entry = compute_entry(workload, boosts, now, self._owners)
            self.number(entry)
            self._insert(entry)

    def _count(self, workload: Workload, change: int) -> None:
        key = workload.class_key
        count = self.class_counts.get(key, 0) + change
        if count:
            self.class_counts[key] = count
        else:
            del self.class_counts[key]

    def number(self, entry: Entry) -> None:
        """Put numbers in the place of an entry's values: equal ones get the same."""
        if entry.is_numbered:
            return
        entry.is_numbered = True
        if entry.kind is not None:
            entry.kind = self._intern(entry.kind)
            entry.place = self._intern((entry.workload.queue, entry.kind))
        if entry.rank is not None:
            entry.rank = self._intern(rank_of(entry.workload, entry.place))
        if entry.asker is not None:
            entry.asker = self._intern(entry.asker)

    def _intern(self, value: Hashable) -> int:
        return self._kinds.setdefault(value, len(self._kinds))

    def _insert(self, entry: Entry) -> None:
        workload = entry.workload
        self._entries[id(workload)] = entry
        self._present.add(id(workload))
        if has_own_gate(workload):
            self.alone[id(workload)] = entry
        else:
            self.groups.setdefault(gate_group(workload), workload)
        if workload.promised_until is not None:
            self.promised[id(workload)] = entry
        queue = self._queues.setdefault(workload.queue, _Queue())
        queue.entries.append(entry)
        queue.is_sorted = False
        self._note_due(entry)

    def _replace(self, entry: Entry, boosts: Boosts, now: int) -> None:
        """Give an entry the effective priority of this instant, in place."""
        effective, entry.due = compute_effective(entry.workload, boosts, now)
        if effective != entry.effective:
            entry.effective = effective
            entry.key = (-effective, *entry.key[1:])
            self._queues[entry.workload.queue].is_sorted = False
        self._note_due(entry)

    def _note_due(self, entry: Entry) -> None:
        self._dues_made += 1
        heapq.heappush(self._due, (entry.due, self._dues_made, entry))


def _key_of(entry: Entry) -> Key:
    return entry.key
