"""The pending workloads in their order, kept from cycle to cycle.

Owns what of a workload's place in its queue stays true while it waits: its kind, its effective
priority and when that changes next, also as columns of numbers by slot, so that the order of many
is found without touching each. Never knows quotas, nodes or gates.
"""

import heapq
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.fleet.columns import NEVER
from gpuplane.core.scheduling.gates import GateGroup, gate_group, has_own_gate
from gpuplane.core.scheduling.kinds import Owners, rank_of
from gpuplane.core.scheduling.ordering import (
    NO_OWNERS,
    Entry,
    compute_effective,
    compute_entry,
)
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.core.scheduling.workload import Workload

Numbers = NDArray[np.int64]
Objects = NDArray[Any]

_LOWER = (1 << 64) - 1

COLUMNS = 8
QUEUE, GROUP, PLACE, KIND, ASKER, VERSION, LESS_PRIORITY, QUEUED_AT = range(COLUMNS)
"""Of a waiting workload: numbers as in `Entry`, -1 for None, and the first two of its key."""


class PendingPool:
    """Entries of what is pending, by queue, best first; advanced by what came and went.

    A workload is known again by being the very same object: callers that keep their values
    between cycles pay for changes only, the others for everything.

    Attributes:
        columns: Numbers of each entry by its slot, shape (column, slot).
        entries: The entry in each slot. `job_ids`: its job's, shape (slot,).
        queue_names: What the numbers of queues stand for.
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
        self.columns: Numbers = np.zeros((COLUMNS, 64), dtype=np.int64)
        self.entries: list[Entry | None] = [None] * 64
        self.job_ids: Objects = np.empty(64, dtype=object)
        self._id_halves: NDArray[np.uint64] = np.zeros((2, 64), dtype=np.uint64)
        self.queue_names: list[str] = []
        self._queue_numbers: dict[str, int] = {}
        self._free = list(range(63, -1, -1))
        self._order: Numbers = np.zeros(0, dtype=np.int64)
        self._fresh: set[int] = set()
        self._gone: set[int] = set()
        self._is_sorted = True
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

    def list_order(self) -> Numbers:
        """Return the slots of all entries in the order of their keys."""
        if self._fresh or self._gone or not self._is_sorted:
            slots = self._order
            changed = list(self._fresh | self._gone)
            if changed:
                is_kept = np.ones(len(self.entries), dtype=np.bool_)
                is_kept[changed] = False
                slots = np.r_[slots[is_kept[slots]], np.array(sorted(self._fresh), dtype=np.int64)]
            self._order = slots[self._find_order(slots)]
            self._fresh, self._gone, self._is_sorted = set(), set(), True
        return self._order

    def _find_order(self, slots: Numbers) -> Numbers:
        """Return the places of slots by their keys; fast where they nearly stand so."""
        less, queued = self.columns[LESS_PRIORITY, slots], self.columns[QUEUED_AT, slots]
        first = int(queued.min(initial=NEVER))
        span = int(queued.max(initial=first)) - first + 1
        least = int(less.min(initial=0))
        if (1 - least) * span < NEVER:
            order = np.argsort((less - least) * span + (queued - first), kind="stable")
        else:
            order = np.lexsort((queued, less))
        at = slots[order]
        less, queued = less[order], queued[order]
        upper, lower = self._id_halves[0, at], self._id_halves[1, at]
        is_tied = (less[1:] == less[:-1]) & (queued[1:] == queued[:-1])
        is_swapped = np.where(
            upper[1:] == upper[:-1], lower[1:] < lower[:-1], upper[1:] < upper[:-1]
        )
        if not (is_tied & is_swapped).any():
            return order
        # The keys end with the job's id as text, which sorts as its number does.
        return np.asarray(order[np.lexsort((lower, upper, queued, less))])

    def entry_at(self, slot: int) -> Entry:
        """Return the entry in a slot that is taken."""
        entry = self.entries[slot]
        assert entry is not None, "only slots that are taken are asked for"
        return entry

    def list_queues(self) -> dict[str, list[Entry]]:
        """Return the entries by queue, best first."""
        found: dict[str, list[Entry]] = {}
        for slot in self.list_order().tolist():
            entry = self.entry_at(slot)
            found.setdefault(entry.workload.queue, []).append(entry)
        return found

    def _exchange(self, pending: tuple[Workload, ...], boosts: Boosts, now: int) -> None:
        keys = list(map(id, pending))
        present = set(keys)
        if len(present) != len(pending):
            raise ValueError("a pending workload is given twice")
        gone, fresh = self._present - present, present - self._present
        if gone:
            self._remove(gone)
        if fresh:
            # The keys are at hand; each of the others would have to be fetched from memory.
            places = [place for place, key in enumerate(keys) if key in fresh]
            self._add([pending[place] for place in places], boosts, now)
        self._listed = pending

    def _remove(self, gone: set[int]) -> None:
        self._present -= gone
        for each in sorted(gone):
            entry = self._entries.pop(each)
            workload = entry.workload
            self.alone.pop(each, None)
            self.promised.pop(each, None)
            self._job_ids.discard(workload.job_id.int)
            self._count(workload, -workload.replicas.count)
            self.entries[entry.slot] = self.job_ids[entry.slot] = None
            self._free.append(entry.slot)
            self._fresh.discard(entry.slot)
            self._gone.add(entry.slot)

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
        self._put(entry)
        self._note_due(entry)

    def _put(self, entry: Entry) -> None:
        """Give an entry a slot and write its columns."""
        if not self._free:
            room = len(self.entries)
            self._free = list(range(2 * room - 1, room - 1, -1))
            self.columns = np.concatenate((self.columns, np.zeros_like(self.columns)), axis=1)
            self.entries += [None] * room
            self.job_ids = np.concatenate((self.job_ids, np.empty(room, dtype=object)))
            more = np.zeros_like(self._id_halves)
            self._id_halves = np.concatenate((self._id_halves, more), axis=1)
        slot = entry.slot = self._free.pop()
        workload = entry.workload
        queue = self._queue_numbers.setdefault(workload.queue, len(self._queue_numbers))
        if queue == len(self.queue_names):
            self.queue_names.append(workload.queue)
        group = -1 if has_own_gate(workload) else self.group_number(gate_group(workload))
        values = [queue, group, entry.place, entry.kind, entry.asker]
        numbers = [-1 if each is None else each for each in values]
        numbers += [workload.version, -entry.effective, workload.queued_at]
        self.columns[:, slot] = np.array(numbers, dtype=np.int64)
        self.entries[slot] = entry
        self.job_ids[slot] = workload.job_id
        number = workload.job_id.int
        self._id_halves[:, slot] = (number >> 64, number & _LOWER)
        self._fresh.add(slot)

    def make_like(self, entries: Iterable[Entry]) -> "PendingPool":
        """Return a pool of these entries, which wait in none, with the numbers of this one."""
        other = PendingPool()
        other._kinds = self._kinds
        for entry in entries:
            other.number(entry)
            other._put(entry)
        return other

    def group_number(self, group: GateGroup) -> int:
        """Return the number of a group that the same gates open and close."""
        return self._intern(group)

    def _replace(self, entry: Entry, boosts: Boosts, now: int) -> None:
        """Give an entry the effective priority of this instant, in place."""
        effective, entry.due = compute_effective(entry.workload, boosts, now)
        if effective != entry.effective:
            entry.effective = effective
            entry.key = (-effective, *entry.key[1:])
            self.columns[LESS_PRIORITY, entry.slot] = -effective
            self._is_sorted = False
        self._note_due(entry)

    def _note_due(self, entry: Entry) -> None:
        self._dues_made += 1
        heapq.heappush(self._due, (entry.due, self._dues_made, entry))
