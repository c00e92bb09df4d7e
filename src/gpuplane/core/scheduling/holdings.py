"""What running work holds and when it is expected to give it back, kept from cycle to cycle.

Owns the releases in their order, and the same as columns and as sums by queue, so that a look
into the future costs a few array operations. Never decides when anything ends.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import NEVER, Fleet, Take
from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.scheduling.admission import Usage
from gpuplane.core.scheduling.backfill import Release
from gpuplane.core.scheduling.bench import expected_s
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.workload import RunningWorkload, Workload

Ints = NDArray[np.int64]

COLUMNS = 6
"""Of a release on a node: node, end, milli-GPU, CPU, memory, ephemeral storage."""

Door = tuple[str, str | None, bool]
"""Queue, LocalQueue, and whether the LocalQueue surely counts it."""


@dataclass(slots=True)
class _Held:
    workload: Workload
    release: Release
    running: RunningWorkload | None = None
    slots: tuple[int, ...] = ()
    sum_slot: int = -1


class _Sums:
    """What a door's work gives back by an instant, in slots that are used again.

    A free slot ends never and gives nothing back.
    """

    def __init__(self) -> None:
        self.count = 0
        self._ends: Ints = np.full(16, NEVER, dtype=np.int64)
        self._amounts: dict[FlavorResource, Ints] = {}
        self._free = list(range(15, -1, -1))
        self._settled: tuple[Ints, dict[FlavorResource, Ints]] | None = None

    def add(self, release: Release) -> int:
        """Take in a release and return its slot."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._ends[slot] = release.ends_at
        for pair, amount in release.usage.items():
            if pair not in self._amounts:
                self._amounts[pair] = np.zeros(len(self._ends), dtype=np.int64)
            self._amounts[pair][slot] = amount
        self.count += 1
        self._settled = None
        return slot

    def remove(self, slot: int) -> None:
        """Let go of what is in a slot."""
        self._ends[slot] = NEVER
        for amounts in self._amounts.values():
            amounts[slot] = 0
        self._free.append(slot)
        self.count -= 1
        self._settled = None

    def usage_until(self, at: int) -> Usage:
        """Return what ends by an instant, without zeros."""
        ends, totals = self._settle()
        count = int(ends.searchsorted(at, side="right"))
        if not count:
            return {}
        found = {pair: int(sums[count - 1]) for pair, sums in totals.items()}
        return {pair: amount for pair, amount in found.items() if amount}

    def _settle(self) -> tuple[Ints, dict[FlavorResource, Ints]]:
        """Return the ends in order, and by pair what they give back up to each."""
        if self._settled is None:
            order = self._ends.argsort()
            totals = {pair: self._amounts[pair][order].cumsum() for pair in sorted(self._amounts)}
            self._settled = self._ends[order], totals
        return self._settled

    def _grow(self) -> None:
        size = len(self._ends)
        self._ends = np.concatenate((self._ends, np.full(size, NEVER, dtype=np.int64)))
        for pair, amounts in self._amounts.items():
            self._amounts[pair] = np.concatenate((amounts, np.zeros_like(amounts)))
        self._free = list(range(2 * size - 1, size - 1, -1))


class _Columns:
    """The releases on one fleet's nodes as rows of numbers, in slots that are used again."""

    def __init__(self) -> None:
        self._rows: Ints = np.zeros((64, COLUMNS), dtype=np.int64)
        self._rows[:, 0] = -1
        self._free = list(range(63, -1, -1))
        self._order: Ints = np.zeros(0, dtype=np.int64)
        self._fresh: set[int] = set()
        self._ordered: Ints | None = None

    def add(self, release: Release) -> tuple[int, ...]:
        slots: list[int] = []
        for row in rows_of(release):
            if not self._free:
                size = len(self._rows)
                more: Ints = np.full((size, COLUMNS), -1, dtype=np.int64)
                self._rows = np.concatenate((self._rows, more))
                self._free = list(range(2 * size - 1, size - 1, -1))
            slot = self._free.pop()
            self._rows[slot] = row
            slots.append(slot)
        self._fresh.update(slots)
        self._ordered = None
        return tuple(slots)

    def remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._rows[slot, 0] = -1
            self._free.append(slot)
        self._ordered = None

    def list_ordered(self) -> Ints:
        """Return the rows by node, then end; shape (release, column)."""
        if self._ordered is None:
            is_known = self._rows[:, 0] >= 0
            fresh = [slot for slot in self._fresh if is_known[slot]]
            is_known[list(self._fresh)] = False
            # Those that were there before stand in their order, so little is left to sort.
            slots = np.r_[self._order[is_known[self._order]], np.array(sorted(fresh), np.int64)]
            order = order_of_rows(self._rows[slots])
            self._order, self._fresh = slots[order], set()
            self._ordered = self._rows[self._order]
        return self._ordered


class Lookahead:
    """What ends on the nodes of one fleet, as running sums.

    Attributes:
        nodes: The node of each release, shape (release,), in the order of nodes.
        ends: When it is expected.
        starts: The place of each node's first release.
        sums: What this and all that ended before on the node give back: milli-GPU, CPU, memory
            and ephemeral storage, shape (4, release).
    """

    def __init__(self, rows: Ints) -> None:
        """Sum up rows that are ordered by node, then end."""
        self.nodes, self.ends = rows[:, 0].copy(), rows[:, 1].copy()
        is_first: NDArray[np.bool_] = np.ones(len(rows), dtype=np.bool_)
        is_first[1:] = self.nodes[1:] != self.nodes[:-1]
        self.starts = np.flatnonzero(is_first)
        sums = rows[:, 2:].cumsum(axis=0)
        before = sums[self.starts] - rows[self.starts, 2:]
        sums -= np.repeat(before, np.diff(np.r_[self.starts, len(rows)]), axis=0)
        self.sums = np.ascontiguousarray(sums.T)

    def __len__(self) -> int:
        return len(self.nodes)


class Holdings:
    """Running work by what it holds; advanced by what started and ended.

    A running workload is known again by being the very same object.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._basis: tuple[tuple[Fleet, ...], int] | None = None
        self._empty()

    def _empty(self) -> None:
        self._listed: tuple[RunningWorkload, ...] = ()
        # The keys of what is held: a set of its own is compared faster than those of a mapping.
        self._present: set[int] = set()
        self._held: dict[int, _Held] = {}
        self._added = 0
        self._by_job: dict[JobId, int] = {}
        self._sums: dict[Door, _Sums] = {}
        self._columns: dict[int, _Columns] = {}
        self._on_nodes: dict[tuple[int, int], dict[int, Release]] = {}
        self._stopping: dict[int, _Held] = {}
        self._running: list[tuple[RunningWorkload, int, tuple[Take, ...]]] | None = None
        self._releases: list[Release] | None = None
        self.class_counts: dict[str, int] = {}
        self.members: dict[str, Workload] = {}

    def advance(
        self, running: tuple[RunningWorkload, ...], fleets: tuple[Fleet, ...], policy: Policy
    ) -> None:
        """Hold what runs now.

        Args:
            running: Everything that holds resources.
            fleets: Where; the same objects as before, or everything is learnt anew.
            policy: Says how long work is taken to last of which nothing is known.
        """
        basis = (fleets, policy.default_duration_s)
        known = self._basis
        if (
            known is None
            or known[1] != basis[1]
            or len(known[0]) != len(fleets)
            or any(old is not new for old, new in zip(known[0], fleets, strict=True))
        ):
            self._empty()
        self._basis = basis
        if running is self._listed:
            return
        keys = list(map(id, running))
        present = set(keys)
        gone, fresh = self._present - present, present - self._present
        for key in sorted(gone):
            self._remove(key)
        if fresh:
            places = {fleet.cluster_id: index for index, fleet in enumerate(fleets)}
            for place in [place for place, key in enumerate(keys) if key in fresh]:
                each = running[place]
                self._add_running(each, places.get(each.cluster_id), fleets, policy)
        self._listed = running

    def add(self, workload: Workload, release: Release) -> None:
        """Hold what was started since."""
        self._added += 1
        self._insert(-self._added, _Held(workload, release))

    def end(self, job_id: JobId) -> None:
        """Hold no longer what a job held."""
        key = self._by_job.get(job_id)
        if key is not None:
            self._remove(key)

    def list_running(self) -> list[tuple[RunningWorkload, int, tuple[Take, ...]]]:
        """Return running workloads with their fleet's place and what they took, by job id."""
        if self._running is None:
            self._running = _list_runs(self._held.values())
        return self._running

    def list_stopping(self) -> list[tuple[RunningWorkload, int, tuple[Take, ...]]]:
        """Return the same of those that were asked to stop."""
        return _list_runs(self._stopping.values())

    def list_releases(self) -> list[Release]:
        """Return what is given back, earliest end first."""
        if self._releases is None:
            found = [held.release for held in self._held.values() if held.release.bench_index >= 0]
            found.sort(key=release_key)
            self._releases = found
        return self._releases

    def list_rows(self, bench_index: int) -> Ints:
        """Return the releases on one fleet by node, then end; shape (release, column)."""
        columns = self._columns.get(bench_index)
        return np.zeros((0, COLUMNS), dtype=np.int64) if columns is None else columns.list_ordered()

    def list_releases_on(self, bench_index: int, node: int) -> list[Release]:
        """Return what is given back on one node, in no order."""
        return list(self._on_nodes.get((bench_index, node), {}).values())

    def list_usage_until(
        self, at: int, wants: Callable[[str], bool]
    ) -> Iterator[tuple[Door, Usage]]:
        """Yield what the work of each door of a wanted queue gives back by an instant."""
        for door, sums in self._sums.items():
            if not wants(door[0]):
                continue
            usage = sums.usage_until(at)
            if usage:
                yield door, usage

    def _add_running(
        self,
        running: RunningWorkload,
        index: int | None,
        fleets: tuple[Fleet, ...],
        policy: Policy,
    ) -> None:
        workload = running.workload
        takes: tuple[Take, ...] = ()
        if index is not None:
            fleet = fleets[index]
            takes = tuple(
                fleet.take_of(each) for each in running.allocations if each.node_id in fleet.index
            )
        ends_at = running.expected_end
        if ends_at is None:
            ends_at = running.started_at + expected_s(workload, policy) * MS_PER_S
        release = Release(
            ends_at,
            str(workload.job_id),
            -1 if index is None else index,
            takes,
            workload.queue,
            running.usage,
            workload.local_queue,
        )
        self._insert(id(running), _Held(workload, release, running))

    def _insert(self, key: int, held: _Held) -> None:
        release = held.release
        self._held[key] = held
        self._present.add(key)
        self._by_job[held.workload.job_id] = key
        if release.bench_index >= 0:
            columns = self._columns.setdefault(release.bench_index, _Columns())
            held.slots = columns.add(release)
            for take in release.takes:
                there = self._on_nodes.setdefault((release.bench_index, take.node), {})
                there[id(release)] = release
            door = _door_of(release)
            if door not in self._sums:
                self._sums[door] = _Sums()
            held.sum_slot = self._sums[door].add(release)
            if self._releases is not None:
                bisect.insort(self._releases, release, key=release_key)
        if held.running is not None and held.running.stopping:
            self._stopping[key] = held
        self._count(held.workload, held.workload.replicas.count)
        self._running = None

    def _remove(self, key: int) -> None:
        held = self._held.pop(key)
        self._present.discard(key)
        self._stopping.pop(key, None)
        release = held.release
        job_id = held.workload.job_id
        if self._by_job.get(job_id) == key:
            del self._by_job[job_id]
        if release.bench_index >= 0:
            self._columns[release.bench_index].remove(held.slots)
            for take in release.takes:
                self._on_nodes[release.bench_index, take.node].pop(id(release), None)
            door = _door_of(release)
            self._sums[door].remove(held.sum_slot)
            if not self._sums[door].count:
                del self._sums[door]
            if self._releases is not None:
                place = bisect.bisect_left(self._releases, release_key(release), key=release_key)
                while self._releases[place] is not release:
                    place += 1
                del self._releases[place]
        self._count(held.workload, -held.workload.replicas.count)
        self._running = None

    def _count(self, workload: Workload, change: int) -> None:
        key = workload.class_key
        count = self.class_counts.get(key, 0) + change
        if count:
            self.class_counts[key] = count
            self.members[key] = workload
        else:
            self.class_counts.pop(key, None)
            self.members.pop(key, None)


def _list_runs(some: Iterable[_Held]) -> list[tuple[RunningWorkload, int, tuple[Take, ...]]]:
    found = [
        (held.running, held.release.bench_index, held.release.takes)
        for held in some
        if held.running is not None and held.release.bench_index >= 0
    ]
    found.sort(key=lambda each: each[0].workload.job_id.int)
    return found


def release_key(release: Release) -> tuple[int, str]:
    """Return the order of releases: what is expected earlier first, then by name."""
    return release.ends_at, release.name


def rows_of(release: Release) -> list[tuple[int, ...]]:
    """Return a release as rows of numbers, one a replica."""
    return [
        (take.node, release.ends_at, take.gpu_mask.bit_count() * take.gpu_milli, *take[3:6])
        for take in release.takes
    ]


def order_of_rows(rows: Ints) -> Ints:
    """Return the places of rows by node, then end; fast where they nearly stand so."""
    nodes, ends = rows[:, 0], rows[:, 1]
    first = int(ends.min(initial=NEVER))
    span = int(ends.max(initial=first)) - first + 1
    if span * (int(nodes.max(initial=0)) + 1) >= NEVER:
        return np.lexsort((ends, nodes))
    return np.argsort(nodes * span + (ends - first), kind="stable")


def _door_of(release: Release) -> Door:
    return release.queue, release.local_queue, release.is_counted
