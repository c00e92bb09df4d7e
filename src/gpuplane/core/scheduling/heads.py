"""Keeps the places of blocked heads: finds when and where each could start, and holds it.

Owns the search over the ends of running work. One replica is forecast exactly, by node; a gang by
trying ever more ends. Nodes are taken in the order (time, name), never by rank: what is placed
around a held place cannot move it, so planning again changes nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.fleet.columns import Bools, Take
from gpuplane.core.quota.specs import FlavorResource
from gpuplane.core.scheduling.admission import Grant
from gpuplane.core.scheduling.backfill import Head, Release, find_first
from gpuplane.core.scheduling.bench import NOT_FIT, Row
from gpuplane.core.scheduling.placement import needed_replicas
from gpuplane.core.scheduling.policy import Backfill
from gpuplane.core.scheduling.room import probe_place
from gpuplane.core.scheduling.trial import Found, Trial
from gpuplane.core.scheduling.workload import Workload

FORECASTS_A_HEAD = 4
"""Forecasts tried per head that may keep its place: some blocked work has none to be found."""
MAX_NODES = 16
"""Nodes checked exactly for one head, earliest first: the estimate before is right but for links,
shares and instances."""
MAX_GANG_ENDS = 1_024
"""Ends of running work looked ahead for a gang: bounds the cost of trying them."""

_Ints = NDArray[np.int64]


class HeadKeeper:
    """Keeps places in one trial, at most as many as the policy allows."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._forecasts_left = FORECASTS_A_HEAD * trial.policy.max_reserved_heads

    def keep_place(self, workload: Workload) -> int | None:
        """Keep the place of a queue's blocked head and return its forecast start, if it has one."""
        trial = self._trial
        if (
            trial.policy.backfill is not Backfill.CANNOT_DELAY_HEAD
            or workload.queue in trial.heads
            or len(trial.heads) >= trial.policy.max_reserved_heads
            or self._forecasts_left <= 0
            or not trial.could_ever_fit(workload)
        ):
            return None
        self._forecasts_left -= 1
        releases = trial.list_releases()
        quota_at = self._quota_at(workload, releases)
        if quota_at is None:
            return None
        if workload.replicas.count == 1:
            found = self._first_node(workload, releases, quota_at)
        else:
            found = self._first_gang(workload, releases, quota_at)
        if found is None:
            return None
        starts_at, places = found
        trial.heads[workload.queue] = Head(
            starts_at, self._quota_left(workload, releases, starts_at)
        )
        for index, node in places:
            trial.benches[index].hold(node, starts_at)
        return starts_at

    # Quota.

    def _quota_at(self, workload: Workload, releases: Sequence[Release]) -> int | None:
        """Return from when on the workload has quota, None if never while this runs."""
        if self._grant(workload) is not None:
            return self._trial.now
        found = find_first(releases, lambda some: self._grant_after(workload, some))
        if found is None:
            return None
        return max(self._trial.now, releases[found[0] - 1].ends_at)

    def _grant(self, workload: Workload) -> Grant | None:
        replicas = needed_replicas(workload.replicas)
        answer = next(iter(self._trial.admission.grants(workload, replicas)), None)
        return answer if isinstance(answer, Grant) else None

    def _grant_after(self, workload: Workload, releases: Sequence[Release]) -> Grant | None:
        with self._trial.undone():
            self._give_back(releases)
            return self._grant(workload)

    def _give_back(self, releases: Sequence[Release]) -> None:
        for each in releases:
            self._trial.admission.give_back(each.queue, each.usage, each.local_queue)

    def _quota_left(
        self, workload: Workload, releases: Sequence[Release], starts_at: int
    ) -> dict[FlavorResource, int]:
        """Return what its queue has left when the workload has started."""
        tree = self._trial.admission.tree
        if tree.get_spec(workload.queue).covers_everything:
            return {}
        with self._trial.undone():
            self._give_back([each for each in releases if each.ends_at <= starts_at])
            grant = self._grant(workload)
            if grant is None:
                return {}
            tree.add_usage(workload.queue, grant.usage, workload.local_queue)
            return {pair: tree.available(workload.queue, pair) for pair in grant.usage}

    # Nodes.

    def _first_node(
        self, workload: Workload, releases: Sequence[Release], quota_at: int
    ) -> tuple[int, list[tuple[int, int]]] | None:
        """Return the earliest (time, node) that takes one replica, checked exactly."""
        trial = self._trial
        rows: list[tuple[int, int, int]] = []
        for index, bench in enumerate(trial.benches):
            if trial.may_use(workload, bench.fleet):
                row = bench.row(workload)
                allowed = trial.allowed_nodes(workload, index, self._any_grant(workload, releases))
                ends = [each for each in releases if each.bench_index == index]
                rows += [
                    (max(at, quota_at), index, node)
                    for at, node in list_earliest(row, allowed, ends, trial.now)
                ]
        for at, index, node in sorted(rows)[:MAX_NODES]:
            row = trial.benches[index].row(workload)
            with trial.undone():
                for each in releases:
                    if each.bench_index == index and each.ends_at <= at:
                        for take in each.takes:
                            if take.node == node:
                                trial.benches[index].fleet.release(take)
                row.refresh()
                if row.ranks[node] != NOT_FIT:
                    return at, [(index, node)]
        return None

    def _any_grant(self, workload: Workload, releases: Sequence[Release]) -> Grant | None:
        """Return the flavors it would get once it has quota; their nodes are where it may go."""
        return self._grant(workload) or self._grant_after(workload, releases)

    def _first_gang(
        self, workload: Workload, releases: Sequence[Release], quota_at: int
    ) -> tuple[int, list[tuple[int, int]]] | None:
        trial = self._trial
        ends = releases[:MAX_GANG_ENDS]
        found = find_first(ends, lambda some: self._place_after(workload, some, releases, quota_at))
        if found is None:
            return None
        count, place = found
        at = max(trial.now, quota_at, ends[count - 1].ends_at)
        return at, [(place.bench_index, take.node) for take in place.spots.takes]

    def _place_after(
        self,
        workload: Workload,
        some: Sequence[Release],
        releases: Sequence[Release],
        quota_at: int,
    ) -> Found | None:
        """Return where the workload would go after these ends, with the quota it has then."""
        trial = self._trial
        with trial.undone():
            for each in some:
                for take in each.takes:
                    trial.benches[each.bench_index].fleet.release(take)
            last = max(quota_at, some[-1].ends_at if some else quota_at)
            self._give_back([each for each in releases if each.ends_at <= last])
            return probe_place(trial, workload)


def list_earliest(
    row: Row, allowed: Bools | None, releases: Sequence[Release], now: int
) -> list[tuple[int, int]]:
    """Return (time, node) at which nodes have enough of everything for one replica, earliest first.

    Args:
        row: The class against the fleet.
        allowed: Nodes that may be used at all, None for every node.
        releases: Ends of work in this fleet, earliest first.
        now: No time is earlier than this.
    """
    need, fleet, resources = row.need, row.fleet, row.need.resources
    freed = [
        (take.node, max(each.ends_at, now), _milli(take), *take[3:6])
        for each in releases
        for take in each.takes
    ]
    if not freed:
        return []
    columns: _Ints = np.array(freed, dtype=np.int64)
    order = np.lexsort((columns[:, 1], columns[:, 0]))
    columns = columns[order]
    nodes, ends = columns[:, 0], columns[:, 1]
    starts = np.flatnonzero(np.r_[True, nodes[1:] != nodes[:-1]])
    sums = columns[:, 2:].cumsum(axis=0)
    sizes = np.diff(np.r_[starts, len(nodes)])
    sums -= np.repeat(sums[starts] - columns[starts, 2:], sizes, axis=0)
    milli = resources.gpu_count * resources.gpu_milli if need.wants_gpus else 0
    idle = fleet.gpu_free_milli.sum(axis=0, dtype=np.int64)[nodes]
    enough = (idle + sums[:, 0] >= milli) & (
        fleet.cpu_free[nodes] + sums[:, 1] >= resources.cpu_milli
    )
    enough &= fleet.memory_free[nodes] + sums[:, 2] >= resources.memory_mib
    enough &= fleet.ephemeral_free[nodes] + sums[:, 3] >= resources.ephemeral_mib
    never = np.iinfo(np.int64).max
    first = np.minimum.reduceat(np.where(enough, ends, never), starts)
    found = [
        (int(at), int(node))
        for at, node in zip(first, nodes[starts], strict=True)
        if at != never and row.suits(int(node)) and (allowed is None or allowed[node])
    ]
    found.sort()
    return found[:MAX_NODES]


def _milli(take: Take) -> int:
    return take.gpu_mask.bit_count() * take.gpu_milli
