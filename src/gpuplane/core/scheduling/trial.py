"""The scratch of one cycle: fleets and quotas that are counted into and restored at the end.

Owns the search for quota and nodes for one workload. Whose turn it is, who is stopped and what a
verdict says is decided by others on top of it.
"""

import bisect
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import Bools, Fleet, Take
from gpuplane.core.ids import JobId
from gpuplane.core.quota.nodes import Node
from gpuplane.core.scheduling.admission import Admission, Grant, QuotaRefusal, Usage, models_of
from gpuplane.core.scheduling.answers import Answers
from gpuplane.core.scheduling.backfill import Head, Release
from gpuplane.core.scheduling.bench import expected_s, latest_end, open_bench
from gpuplane.core.scheduling.holdings import Lookahead, order_of_rows, release_key, rows_of
from gpuplane.core.scheduling.memory import Memory, owners_of
from gpuplane.core.scheduling.neighbours import compute_neighbouring
from gpuplane.core.scheduling.ordering import Entry
from gpuplane.core.scheduling.placement import Spots, needed_replicas, place_workload
from gpuplane.core.scheduling.policy import Policy, Snapshot
from gpuplane.core.scheduling.reservations import plan_upcoming
from gpuplane.core.scheduling.workload import RunningWorkload, Workload


@dataclass(frozen=True, slots=True)
class Found:
    """A place: the fleet, the spots counted there, and the grant counted against the queue."""

    bench_index: int
    spots: Spots
    grant: Grant


class Trial:
    """Fleets and quotas of a snapshot under trial; use as a context manager.

    Attributes:
        heads: By queue, the blocked head that keeps its place.
        started: What was placed since the last `advance`, with where.
        changes: Grows whenever usage has changed for good, not on trial.
        owners: Whose reservations are still to begin.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        now: int,
        seed: int,
        memory: Memory | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        self.changes = 0
        self.memory = Memory() if memory is None else memory
        self.owners = owners_of(snapshot)
        fleets = self.memory.learn(snapshot, policy, now)
        kept = self.memory.answers
        kept.rebase(snapshot.quotas.declared, snapshot.flavors, models_of(fleets))
        self.admission = Admission(snapshot.quotas, snapshot.flavors, fleets, kept.fixed)
        self._holdings = self.memory.holdings
        mix = self.memory.compute_mix(policy)
        self.benches = [open_bench(fleet, policy, mix, now, seed) for fleet in fleets]
        self.answers = Answers(self.admission, kept)
        self._places: dict[JobId, list[tuple[int, int]]] | None = None
        self.heads: dict[str, Head] = {}
        self._full: set[tuple[Hashable, tuple[str, ...], int]] = set()
        self._tries = 0
        self._roots: dict[str, Node | None] = {}
        self.started: list[tuple[Workload, Found]] = []
        self._releases: tuple[int, list[Release]] | None = None
        self._lookaheads: dict[int, tuple[int, Lookahead]] = {}
        if snapshot.reservations:
            self._keep_clear()

    def _keep_clear(self) -> None:
        """Let each bench know which GPUs are to be clear when a reservation begins."""
        ends = {each.name: each.ends_at for each in self.list_releases()}
        for index, bench in enumerate(self.benches):
            running = [
                (one, takes, ends[str(one.workload.job_id)])
                for one, place, takes in self.list_running()
                if place == index
            ]
            bench.upcoming = plan_upcoming(
                bench.fleet, self.snapshot.reservations, running, self.now
            )

    def __enter__(self) -> "Trial":
        self._fleet_marks = [bench.fleet.checkpoint() for bench in self.benches]
        self._quota_mark = self.admission.tree.checkpoint()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.admission.tree.rollback(self._quota_mark)
        for bench, mark in zip(self.benches, self._fleet_marks, strict=True):
            bench.fleet.rollback(mark)
            bench.close()

    def _list_places(self) -> dict[JobId, list[tuple[int, int]]]:
        """Return (fleet, node) of every replica of running and started jobs, made at first use."""
        if self._places is None:
            self._places = {
                running.workload.job_id: [(index, take.node) for take in takes]
                for running, index, takes in self.list_running()
            }
            for workload, found in self.started:
                self._places[workload.job_id] = _places_of(found)
        return self._places

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo on leaving whatever was counted inside."""
        marks = [bench.fleet.checkpoint() for bench in self.benches]
        self._tries += 1
        try:
            with self.admission.tree.trial():
                yield
        finally:
            self._tries -= 1
            for bench, mark in zip(self.benches, marks, strict=True):
                bench.fleet.rollback(mark)

    def list_running(self) -> list[tuple[RunningWorkload, int, tuple[Take, ...]]]:
        """Return running workloads with their fleet's place and what they took, by job id."""
        return self._holdings.list_running()

    def list_stopping(self) -> list[tuple[RunningWorkload, int, tuple[Take, ...]]]:
        """Return the same of those that were asked to stop."""
        return self._holdings.list_stopping()

    def list_releases(self) -> list[Release]:
        """Return what is expected to be given back, earliest end first; what is late ends now."""
        if self._releases is None or self._releases[0] != self.changes:
            found = self._holdings.list_releases()
            if self.started:
                found = found.copy()
                for release in self._list_started():
                    bisect.insort(found, release, key=release_key)
            self._releases = self.changes, found
        return self._releases[1]

    def look_ahead(self, bench_index: int) -> Lookahead:
        """Return the same on one fleet as running sums, by node, then end."""
        known = self._lookaheads.get(bench_index)
        if known is None or known[0] != self.changes:
            rows = self._holdings.list_rows(bench_index)
            more = [
                row
                for release in self._list_started()
                if release.bench_index == bench_index
                for row in rows_of(release)
            ]
            if more:
                rows = np.concatenate((rows, np.array(more, dtype=np.int64)))
                rows = rows[order_of_rows(rows)]
            known = self._lookaheads[bench_index] = self.changes, Lookahead(rows)
        return known[1]

    def list_releases_on(self, bench_index: int, node: int) -> list[Release]:
        """Return what is expected to be given back on one node, in no order."""
        started = [
            each
            for each in self._list_started()
            if each.bench_index == bench_index and any(take.node == node for take in each.takes)
        ]
        return self._holdings.list_releases_on(bench_index, node) + started

    def give_back_until(self, at: int, asker: str) -> None:
        """Give back the quota of what is expected to be over by an instant.

        Args:
            at: The instant.
            asker: The queue for which that is of interest: others than those it shares a cohort
                with are left as they are.
        """
        admission = self.admission

        def wants(queue: str) -> bool:
            return self._share_quota(queue, asker)

        found = self._holdings.list_usage_until(at, wants)
        for (queue, local_queue, is_counted), usage in found:
            door = local_queue
            if not is_counted:
                door = admission.find_counted_door(local_queue, queue)
            admission.give_back(queue, usage, door)
        for release in self._list_started():
            if release.ends_at <= at and self._share_quota(release.queue, asker):
                admission.give_back(release.queue, release.usage, release.local_queue)

    def _list_started(self) -> list[Release]:
        return [self.release_of(workload, found) for workload, found in self.started]

    def note_started(self, workload: Workload, found: Found) -> None:
        """Remember what was started in this trial: others may want to be near it or follow it."""
        self.changes += 1
        if self._places is not None:
            self._places[workload.job_id] = _places_of(found)
        self.started.append((workload, found))

    def note_ended(self, job_id: JobId) -> None:
        """Forget a workload that is over; what it held is given back by the caller."""
        self.changes += 1
        self._keep_started()
        self._list_places().pop(job_id, None)
        self._holdings.end(job_id)

    def advance(self, now: int) -> None:
        """Go on to a later instant: nothing is kept for anyone yet."""
        self.changes += 1
        self._keep_started()
        self.now = now
        self.heads.clear()
        self._full.clear()
        self.started.clear()
        for bench in self.benches:
            bench.now = now
            bench.release_holds()

    def _keep_started(self) -> None:
        """Count what was started since the last advance as running."""
        if self.started:
            self._list_places()
            for workload, found in self.started:
                self._holdings.add(workload, self.release_of(workload, found))
            self.started.clear()

    def release_of(self, workload: Workload, found: Found) -> Release:
        """Return what work that starts now gives back, and when that is expected."""
        return Release(
            self.now + expected_s(workload, self.policy) * MS_PER_S,
            str(workload.job_id),
            found.bench_index,
            found.spots.takes,
            workload.queue,
            found.grant.usage,
            workload.local_queue,
            is_counted=True,
        )

    def could_ever_fit(self, workload: Workload) -> bool:
        """Tell whether some node would take the workload if it were empty."""
        return any(
            self.may_use(workload, bench.fleet) and bench.row(workload).suits_any
            for bench in self.benches
        )

    def first_choice(self, entry: Entry) -> tuple[Usage, int]:
        """Return what a workload would count first, and from how far up that quota comes."""
        answer = self.answers.first(entry, self.changes)
        if isinstance(answer, Grant):
            return answer.usage, answer.borrow_level
        return ({}, 0) if answer is None else (answer.usage, 0)

    def find_place(
        self, workload: Workload, kind: Hashable | None = None
    ) -> Found | QuotaRefusal | None:
        """Find quota and nodes for a workload and count them; None when only nodes are short.

        Args:
            workload: What to place.
            kind: Its kind, when nothing is on trial: nodes that had no room for the kind once
                are not asked again, whatever the queue.
        """
        found = self._find_within_quota(workload, kind)
        if isinstance(found, Found) or workload.reservation_id is None:
            return found
        return self.find_reserved(workload) or found

    def find_reserved(self, workload: Workload) -> Found | None:
        """Find nodes on GPUs of the workload's own reservation, which no quota has to admit.

        A reservation is capacity that was granted before: what runs on it counts against it, and
        neither against the queue nor behind the queue's head.
        """
        if workload.reservation_id is None or not workload.resources.gpu_count:
            return None
        alone = workload if workload.only_reserved else replace(workload, only_reserved=True)
        return self._find_nodes(alone, Grant(workload.replicas.count, {}, (), 0))

    def is_full(self, workload: Workload, kind: Hashable | None, grant: Grant) -> bool:
        """Tell whether it is known that nodes have no room for a kind in its only flavors."""
        if kind is None or (kind, grant.flavors, grant.replicas) not in self._full:
            return False
        return self.admission.find_fixed(workload) is not None

    def _find_within_quota(
        self, workload: Workload, kind: Hashable | None
    ) -> Found | QuotaRefusal | None:
        refusal: QuotaRefusal | None = None
        has_quota = False
        for replicas in self._list_counts(workload):
            for answer in self.admission.grants(workload, replicas):
                if isinstance(answer, QuotaRefusal):
                    refusal = refusal or answer
                    continue
                has_quota = True
                found = self._find_unless_full(workload, answer, kind)
                if found is not None:
                    tree = self.admission.tree
                    tree.add_usage(workload.queue, found.grant.usage, workload.local_queue)
                    self._note_passing(workload, found.grant.usage)
                    return found
        return None if has_quota else refusal

    def _find_unless_full(
        self, workload: Workload, grant: Grant, kind: Hashable | None
    ) -> Found | None:
        """Return a place with this quota that delays no blocked head, counted on its nodes."""
        asked = (kind, grant.flavors, grant.replicas)
        if kind is not None and asked in self._full:
            return None
        own = self.heads.get(workload.queue)
        if own is not None and not own.lets_pass(grant.usage, latest_end(workload, self.now)):
            return None
        marks = [bench.fleet.checkpoint() for bench in self.benches]
        found = self._find_nodes(workload, grant)
        if found is None:
            if kind is not None:
                self._full.add(asked)
            return None
        if self._delays_a_head(workload, found.grant.usage):
            for bench, mark in zip(self.benches, marks, strict=True):
                bench.fleet.rollback(mark)
            return None
        return found

    def _delays_a_head(self, workload: Workload, usage: Usage) -> bool:
        """Tell whether the quota it takes may be what another queue's head counts on."""
        if self._tries:
            return False  # it is only asked what would be if others were gone
        ends_at = latest_end(workload, self.now)
        for queue, head in self.heads.items():
            if head.lets_pass(usage, ends_at) or not self._share_quota(queue, workload.queue):
                continue
            tree = self.admission.tree
            with tree.trial():
                self.give_back_until(head.starts_at, queue)
                tree.add_usage(workload.queue, usage, workload.local_queue)
                if not tree.fits(queue, head.usage, head.local_queue).fits:
                    return True
        return False

    def _note_passing(self, workload: Workload, usage: Usage) -> None:
        ends_at = latest_end(workload, self.now)
        for queue, head in self.heads.items():
            if self._share_quota(queue, workload.queue):
                head.note(usage, ends_at)

    def _share_quota(self, one: str, other: str) -> bool:
        if one == other:
            return True
        roots = self._roots
        for name in (one, other):
            if name not in roots:
                known = self.admission.knows(name)
                roots[name] = self.admission.tree.queue_node(name).root() if known else None
        return roots[one] is not None and roots[one] is roots[other]

    def _list_counts(self, workload: Workload) -> list[int]:
        """Return for how many replicas to ask: all, then the most above the minimum with quota."""
        count = workload.replicas.count
        low = needed_replicas(workload.replicas)
        if low == count:
            return [count]
        if self._has_quota(workload, count):
            return [count, low]
        high = count - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._has_quota(workload, middle):
                low = middle
            else:
                high = middle - 1
        return [count, low]

    def _has_quota(self, workload: Workload, replicas: int) -> bool:
        answer = next(iter(self.admission.grants(workload, replicas)), None)
        return isinstance(answer, Grant)

    def _find_nodes(self, workload: Workload, grant: Grant) -> Found | None:
        """Place the granted replicas, no more, in the fleet where most start, then score best."""
        if grant.replicas < workload.replicas.count:
            fewer = replace(workload.replicas, count=grant.replicas)
            workload = replace(workload, replicas=fewer)
        best: tuple[int, int, int] | None = None
        for index, bench in enumerate(self.benches):
            if not self.may_use(workload, bench.fleet):
                continue
            if not bench.row(workload).fits_any:
                continue
            mark = bench.fleet.checkpoint()
            spots = place_workload(workload, bench, self.allowed_nodes(workload, index, grant))
            if spots is None:
                continue
            if len(self.benches) == 1:
                return _found(index, spots, grant)
            bench.fleet.rollback(mark)
            worth = (len(spots.takes), spots.score, -index)
            if best is None or worth > best:
                best = worth
        if best is None:
            return None
        index = -best[2]
        again = place_workload(
            workload, self.benches[index], self.allowed_nodes(workload, index, grant)
        )
        assert again is not None, "what was placed and undone fits again"
        return _found(index, again, grant)

    def allowed_nodes(self, workload: Workload, index: int, grant: Grant | None) -> Bools | None:
        """Return the nodes that quota, affinity and holds leave; None for all."""
        bench = self.benches[index]
        parts: list[Bools] = []
        if grant is not None and grant.flavors:
            mask = self.admission.flavor_nodes(grant.flavors, index)
            if mask is not None:
                parts.append(mask)
        affinity = self.affinity_nodes(workload, index)
        if affinity is not None:
            parts.append(affinity)
        if bench.is_holding and not workload.only_reserved:
            # GPUs that a reservation has been granted are nobody's to keep for a head.
            parts.append(bench.open_nodes(latest_end(workload, self.now)))
        return _intersect(parts)

    def affinity_nodes(self, workload: Workload, index: int) -> Bools | None:
        """Return the nodes near and apart from the jobs it names; None when it names none."""
        return compute_neighbouring(
            workload.placement,
            lambda job_id: self._nodes_of(job_id, index),
            len(self.benches[index].fleet),
        )

    def _nodes_of(self, job_id: JobId, index: int) -> list[int]:
        return [node for fleet, node in self._list_places().get(job_id, ()) if fleet == index]

    def may_use(self, workload: Workload, fleet: Fleet) -> bool:
        """Tell whether the workload may run in this fleet's cluster."""
        return workload.clusters is None or fleet.cluster_id in workload.clusters


def _intersect(masks: Sequence[Bools]) -> Bools | None:
    """Return the nodes in all of these, None for every node; not to be written to."""
    if not masks:
        return None
    found = masks[0]
    for mask in masks[1:]:
        found = found & mask
    return found


def _places_of(found: Found) -> list[tuple[int, int]]:
    return [(found.bench_index, take.node) for take in found.spots.takes]


def _found(index: int, spots: Spots, grant: Grant) -> Found:
    if len(spots.takes) != grant.replicas:
        grant = Grant(len(spots.takes), grant.replica_usage, grant.flavors, grant.borrow_level)
    return Found(index, spots, grant)
