"""Keeps the places of blocked heads: finds when and where each could start, and holds it.

Owns the search over the ends of running work. One replica is forecast exactly, by node; a gang by
trying ends from the first one on at which there is room for enough replicas. Nodes are taken in
the order (time, name), never by rank: what is placed around a held place cannot move it, so
planning again changes nothing.
"""

import bisect
import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.fleet.columns import NEVER, Bools
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.scheduling.admission import Grant, Usage
from gpuplane.core.scheduling.backfill import Head, Release, find_first
from gpuplane.core.scheduling.bench import Row
from gpuplane.core.scheduling.holdings import Lookahead, release_key
from gpuplane.core.scheduling.placement import compute_capacity, needed_replicas
from gpuplane.core.scheduling.policy import Backfill
from gpuplane.core.scheduling.room import probe_place
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import Spreading

FORECASTS_A_HEAD = 4
"""Forecasts tried per head that may keep its place: some blocked work has none to be found."""
MAX_LOOKS = 64
"""Times at which nodes are checked exactly for one head, earliest first: the estimate before is
right but for links, shares and instances, of which the sum may do and no single GPU."""
MAX_GANG_ENDS = 1_024
"""Ends of running work tried for a gang beyond the first that may do: bounds the cost of trying."""

_Ints = NDArray[np.int64]


class HeadKeeper:
    """Keeps places in one trial, at most as many as the policy allows."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._forecasts_left = FORECASTS_A_HEAD * trial.policy.max_reserved_heads

    def keep_place(self, workload: Workload) -> int | None:
        """Keep the place of a queue's blocked head and return its forecast start, if it has one."""
        trial = self._trial
        if not self.may_keep(workload.queue) or not trial.could_ever_fit(workload):
            return None
        self._forecasts_left -= 1
        quota_at = self._quota_at(workload)
        if quota_at is None:
            return None
        if workload.replicas.count == 1:
            found = self._first_node(workload, quota_at)
        else:
            found = self._first_gang(workload, quota_at)
        if found is None:
            return None
        starts_at, places = found
        usage, left = self._quota_then(workload, starts_at)
        trial.heads[workload.queue] = Head(starts_at, usage, workload.local_queue, left)
        for index, node in places:
            trial.benches[index].hold(node, starts_at)
        return starts_at

    def may_keep(self, queue: str) -> bool:
        """Tell whether a place may still be kept for a queue's head; once not, never again."""
        trial = self._trial
        return (
            trial.policy.backfill is Backfill.CANNOT_DELAY_HEAD
            and queue not in trial.heads
            and len(trial.heads) < trial.policy.max_reserved_heads
            and self._forecasts_left > 0
        )

    # Quota.

    def _quota_at(self, workload: Workload) -> int | None:
        """Return from when on the workload has quota, None if never while this runs."""
        if self._grant(workload) is not None:
            return self._trial.now
        ends = self._trial.list_releases()
        found = find_first(
            ends, lambda some: self._grant_at(workload, some[-1].ends_at) if some else None
        )
        return None if found is None else max(self._trial.now, ends[found[0] - 1].ends_at)

    def _grant(self, workload: Workload) -> Grant | None:
        replicas = needed_replicas(workload.replicas)
        answer = next(iter(self._trial.admission.grants(workload, replicas)), None)
        return answer if isinstance(answer, Grant) else None

    def _grant_at(self, workload: Workload, at: int) -> Grant | None:
        """Return the quota it has once everything that is over by then has given its own back."""
        with self._trial.undone():
            self._trial.give_back_until(at, workload.queue)
            return self._grant(workload)

    def _quota_then(
        self, workload: Workload, starts_at: int
    ) -> tuple[Usage, dict[FlavorResource, int]]:
        """Return what it will count, and what its queue has left when it has started."""
        tree = self._trial.admission.tree
        if tree.get_spec(workload.queue).covers_everything:
            return {}, {}
        with self._trial.undone():
            self._trial.give_back_until(starts_at, workload.queue)
            grant = self._grant(workload)
            if grant is None:
                return {}, {}
            tree.add_usage(workload.queue, grant.usage, workload.local_queue)
            left = {pair: tree.available(workload.queue, pair) for pair in grant.usage}
            return grant.usage, left

    # Nodes.

    def _first_node(
        self, workload: Workload, quota_at: int
    ) -> tuple[int, list[tuple[int, int]]] | None:
        """Return the earliest (time, node) that takes one replica, checked exactly."""
        trial = self._trial
        rows: list[tuple[int, int, int]] = []
        grant = self._any_grant(workload)
        for index, bench in enumerate(trial.benches):
            if trial.may_use(workload, bench.fleet):
                row = bench.row(workload)
                allowed = trial.allowed_nodes(workload, index, grant)
                rows += [
                    (max(at, quota_at), index, node)
                    for at, node in list_earliest(row, allowed, trial.look_ahead(index), trial.now)
                ]
        heapq.heapify(rows)
        for _ in range(MAX_LOOKS):
            if not rows:
                break
            at, index, node = heapq.heappop(rows)
            releases = trial.list_releases_on(index, node)
            if self._fits_at(workload, at, index, node, releases):
                return at, [(index, node)]
            later = min((each.ends_at for each in releases if each.ends_at > at), default=None)
            if later is not None:
                heapq.heappush(rows, (later, index, node))
        return None

    def _fits_at(
        self, workload: Workload, at: int, index: int, node: int, releases: Sequence[Release]
    ) -> bool:
        """Tell whether a node takes one replica once what ends there by then is over."""
        bench = self._trial.benches[index]
        row = bench.row(workload)
        with self._trial.undone():
            for each in releases:
                if each.ends_at <= at:
                    for take in each.takes:
                        if take.node == node:
                            bench.fleet.release(take)
            row.refresh()
            return bool(row.fits[node])

    def _any_grant(self, workload: Workload) -> Grant | None:
        """Return the flavors it would get once it has quota; their nodes are where it may go."""
        return self._grant(workload) or self._grant_at(workload, NEVER)

    def _first_gang(
        self, workload: Workload, quota_at: int
    ) -> tuple[int, list[tuple[int, int]]] | None:
        """Return the earliest time at which the whole gang has a place, and the nodes of that."""
        trial = self._trial
        releases = trial.list_releases()
        earliest = self._earliest_room(workload)
        if earliest is None:
            return None
        room_at, index, nodes = earliest
        first = max(room_at, quota_at)
        there = {
            release_key(each): each  # by name: what started in this cycle is listed anew each time
            for node in nodes
            for each in trial.list_releases_on(index, node)
            if each.ends_at <= first
        }
        # Mostly the nodes that have room by then do, and far fewer ends are to be tried.
        place = self._place_after(workload, sorted(there.values(), key=release_key), first)
        if place is not None:
            return first, [(place.bench_index, take.node) for take in place.spots.takes]
        before = bisect.bisect_right(releases, room_at, key=_end_of)
        ends = releases[: before + MAX_GANG_ENDS]
        found = find_first(ends, lambda some: self._place_after(workload, some, quota_at), before)
        if found is None:
            return None
        count, place = found
        at = max(trial.now, quota_at, ends[count - 1].ends_at if count else trial.now)
        return at, [(place.bench_index, take.node) for take in place.spots.takes]

    def _earliest_room(self, workload: Workload) -> tuple[int, int, list[int]] | None:
        """Return a time before which no cluster has room for enough replicas, and where then."""
        trial = self._trial
        grant = self._any_grant(workload)
        times = []
        for index, bench in enumerate(trial.benches):
            if trial.may_use(workload, bench.fleet):
                allowed = trial.allowed_nodes(workload, index, grant)
                ends = trial.look_ahead(index)
                room = earliest_capacity(workload, bench.row(workload), allowed, ends, trial.now)
                if room is not None:
                    times.append((room[0], index, room[1]))
        return min(times, default=None)

    def _place_after(
        self, workload: Workload, some: Sequence[Release], quota_at: int
    ) -> Found | None:
        """Return where the workload would go after these ends, with the quota it has then."""
        trial = self._trial
        with trial.undone():
            for each in some:
                for take in each.takes:
                    trial.benches[each.bench_index].fleet.release(take)
            last = max(quota_at, some[-1].ends_at if some else quota_at)
            trial.give_back_until(last, workload.queue)
            return probe_place(trial, workload)


def _end_of(release: Release) -> int:
    return release.ends_at


def list_earliest(
    row: Row, allowed: Bools | None, lookahead: Lookahead, now: int
) -> list[tuple[int, int]]:
    """Return (time, node) at which nodes have enough of everything for one replica, earliest first.

    Args:
        row: The class against the fleet.
        allowed: Nodes that may be used at all, None for every node.
        lookahead: What is given back on this fleet.
        now: No time is earlier than this.
    """
    if not len(lookahead):
        return []
    enough = compute_capacity_after(row, lookahead) >= 1
    first = np.minimum.reduceat(np.where(enough, lookahead.ends, NEVER), lookahead.starts)
    nodes = lookahead.nodes[lookahead.starts]
    usable = row.suiting[nodes] & (first != NEVER)
    if allowed is not None:
        usable &= allowed[nodes]
    first, nodes = np.maximum(first[usable], now), nodes[usable]
    best = np.lexsort((nodes, first))[:MAX_LOOKS]
    return list(zip(first[best].tolist(), nodes[best].tolist(), strict=True))


def earliest_capacity(
    workload: Workload, row: Row, allowed: Bools | None, lookahead: Lookahead, now: int
) -> tuple[int, list[int]] | None:
    """Return a time before which the nodes together cannot hold the needed replicas, or None.

    Never too late: links, shares and the network may ask for more. With it come the nodes whose
    work has to end for that, in the order in which it does.
    """
    needed = needed_replicas(workload.replicas)
    spreading = workload.placement.spreading
    most = 1 if spreading is Spreading.SPREAD else needed
    base = np.minimum(compute_capacity(row, allowed), most)
    if int(base.sum()) >= needed and (spreading is not Spreading.SAME_NODE or base.max() >= needed):
        return now, []
    if not len(lookahead):
        return None
    nodes, ends, starts = lookahead.nodes, lookahead.ends, lookahead.starts
    usable = row.suiting[nodes]
    if allowed is not None:
        usable = usable & allowed[nodes]
    capacity = np.where(usable, np.minimum(compute_capacity_after(row, lookahead), most), 0)
    if spreading is Spreading.SAME_NODE:
        fitting = np.flatnonzero(capacity >= needed)
        if not len(fitting):
            return None
        best = fitting[ends[fitting].argmin()]
        return max(now, int(ends[best])), [int(nodes[best])]
    before = np.empty_like(capacity)
    before[1:] = capacity[:-1]
    before[starts] = base[nodes[starts]]
    gains = np.maximum(0, capacity - before)
    gaining = np.flatnonzero(gains)
    order = gaining[np.argsort(ends[gaining], kind="stable")]
    total = int(base.sum()) + gains[order].cumsum()
    reached = int(np.searchsorted(total, needed))
    if reached == len(total):
        return None
    used = order[: reached + 1]
    return max(now, int(ends[used[-1]])), list(dict.fromkeys(nodes[used].tolist()))


def compute_capacity_after(row: Row, lookahead: Lookahead) -> _Ints:
    """Return how many replicas each release's node could hold after it, shape (release,)."""
    need, fleet, resources = row.need, row.fleet, row.need.resources
    milli = resources.gpu_count * resources.gpu_milli if need.wants_gpus else 0
    capacity: _Ints = np.full(len(lookahead), 1 << 30, dtype=np.int64)
    idle = fleet.gpu_free_milli.sum(axis=0, dtype=np.int64) if milli else fleet.cpu_free
    for place, (free, wanted) in enumerate(
        (
            (idle, milli),
            (fleet.cpu_free, resources.cpu_milli),
            (fleet.memory_free, resources.memory_mib),
            (fleet.ephemeral_free, resources.ephemeral_mib),
        )
    ):
        if wanted:
            left = (free[lookahead.nodes] + lookahead.sums[place]) // wanted
            capacity = np.minimum(capacity, left)
    return capacity
