"""Places all replicas of one workload in one fleet, or none of them.

Owns gangs (all or nothing with a ledger), spreading, and the level of the network a gang stays
inside. Counts what it places into the fleet; the caller keeps it or rolls back.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpuplane.core.fleet.columns import Bools, Fleet, Ints, Take
from gpuplane.core.scheduling.bench import MAX_REMEMBERED, NOT_FIT, Bench, Row
from gpuplane.core.scheduling.devices import choose_devices
from gpuplane.core.scheduling.filters import EVERYWHERE, mig_starts
from gpuplane.core.scheduling.needs import Need
from gpuplane.core.scheduling.network import Level, Part, list_domains, most_together
from gpuplane.core.scheduling.scores import score_of_rank
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import ReplicaRequest, Spreading

_UNBOUNDED = 1 << 30


class Spots(NamedTuple):
    """Where the replicas of a workload go in one fleet, by rank.

    Args:
        takes: One per replica, already counted into the fleet.
        score: Mean score, 0–100.
    """

    takes: tuple[Take, ...]
    score: int
    level: Level


def needed_replicas(replicas: ReplicaRequest) -> int:
    """Return how many replicas must start together for the workload to start at all.

    A gang whose minimum is not above 1 needs all: one replica is no gang.
    """
    if replicas.gang and replicas.minimum <= 1:
        return replicas.count
    return min(max(1, replicas.minimum), replicas.count)


def place_workload(workload: Workload, bench: Bench, allowed: Bools | None) -> Spots | None:
    """Place the workload and count it into the fleet, or return None with nothing counted.

    Args:
        workload: What to place.
        bench: The fleet to place it in.
        allowed: Nodes that affinity, quota and holds leave, shape (node,); None for all.
    """
    row = bench.row(workload)
    if not len(bench.fleet):
        return None
    count = workload.replicas.count
    if count == 1:
        return _place_one(row, allowed)
    fleet = bench.fleet
    needed = needed_replicas(workload.replicas)
    spreading = workload.placement.spreading
    capacity = compute_capacity(row, allowed)
    if spreading is Spreading.SPREAD:
        capacity = np.minimum(capacity, 1)
    mark = fleet.checkpoint()
    # All of them wherever that is; where all fit nowhere as many as fit, down to the minimum.
    most = count if needed == count else most_together(workload, fleet, capacity)
    for least in dict.fromkeys((count, max(most, needed), needed)):
        if int(capacity.sum()) < least:
            continue
        for domain in list_domains(workload, fleet, row.ranks, capacity, least):
            takes, total = _fill_parts(
                row, count, domain.parts, spread=spreading is Spreading.SPREAD
            )
            if len(takes) >= least:
                return Spots(tuple(takes), total // len(takes), domain.level)
            fleet.rollback(mark)
            row.refresh()
    return None


def count_placeable(workload: Workload, bench: Bench, allowed: Bools | None) -> int:
    """Return how many replicas of the workload would fit now, at most those asked for."""
    capacity = compute_capacity(bench.row(workload), allowed)
    if workload.placement.spreading is Spreading.SPREAD:
        capacity = np.minimum(capacity, 1)
    if workload.placement.spreading is Spreading.SAME_NODE:
        return min(workload.replicas.count, int(capacity.max(initial=0)))
    return min(workload.replicas.count, int(capacity.sum()))


def compute_capacity(row: Row, allowed: Bools | None) -> Ints:
    """Return how many replicas each node could take now, shape (node,).

    Exact but for links that are required: there a later replica may find them taken.
    """
    need, fleet, resources = row.need, row.fleet, row.need.resources
    fits = row.fits if allowed is None else row.fits & allowed
    capacity: Ints = np.full(len(fleet), _UNBOUNDED, dtype=np.int64)
    for free, wanted in (
        (fleet.cpu_free, resources.cpu_milli),
        (fleet.memory_free, resources.memory_mib),
        (fleet.ephemeral_free, resources.ephemeral_mib),
    ):
        if wanted:
            capacity = np.minimum(capacity, free // wanted)
    if need.is_mig or need.wants_gpus:
        capacity = np.minimum(capacity, _device_capacity(need, fleet))
    return np.where(fits, capacity, 0)


def _device_capacity(need: Need, fleet: Fleet) -> Ints:
    if need.is_mig:
        starts = mig_starts(need, fleet, EVERYWHERE, need.granted_mask)
        return np.asarray(np.bitwise_count(starts).sum(axis=0, dtype=np.int64))
    if not need.is_share:
        free = np.bitwise_count(fleet.gpu_free_mask & need.granted_mask)
        return np.asarray(free.astype(np.int64) // need.resources.gpu_count)
    bits = np.arange(fleet.gpu_count_max, dtype=np.uint16)[:, None]
    allowed = (need.granted_mask[None, :] >> bits) & np.uint16(1)
    shares = fleet.gpu_free_milli // np.uint16(need.resources.gpu_milli) * allowed
    return np.asarray(shares.sum(axis=0, dtype=np.int64))


def _place_one(row: Row, allowed: Bools | None) -> Spots | None:
    best = row.find_best(allowed)
    if best is None:
        return None
    node, rank = best
    return Spots((_take_on(row, node),), score_of_rank(rank, row.context, node), Level.NODE)


def _take_on(row: Row, node: int) -> Take:
    """Count one replica into a node that fits; what it takes there follows from the state."""
    fleet = row.fleet
    state = fleet.state_of[node]
    step = row.steps.get(state)
    if step is None:
        take = choose_devices(row, node)
        fleet.allocate(take)
        if not row.need.is_withheld:
            if len(row.steps) >= MAX_REMEMBERED:
                row.steps.clear()
            row.steps[state] = (take[1:], fleet.state_of[node])
        return take
    change, after = step
    fleet.advance(node, after)
    return Take(node, *change)


def place_batch(
    workload: Workload, count: int, bench: Bench, allowed: Bools | None = None
) -> list[Spots]:
    """Place up to `count` workloads of one class and one replica each, in one call.

    Every one gets what it would get if they were placed one after the other.

    Args:
        workload: Any of them.
        count: How many there are.
        bench: The fleet to place them in.
        allowed: Nodes that may be used, shape (node,); None for all.

    Returns:
        As many as fit.
    """
    row = bench.row(workload)
    return [Spots((take,), score, Level.NODE) for take, score in _fill(row, count, allowed)]


def _fill_parts(
    row: Row, count: int, parts: tuple[Part, ...], *, spread: bool
) -> tuple[list[Take], int]:
    """Place up to `count` replicas in the parts, each as many as it is to take."""
    takes: list[Take] = []
    total = 0
    for part in parts:
        most = min(part.most, count - len(takes))
        for take, score in _fill(row, most, part.nodes, spread=spread):
            takes.append(take)
            total += score
    return takes, total


def _fill(
    row: Row, count: int, domain: Bools | None, *, spread: bool = False
) -> Iterator[tuple[Take, int]]:
    """Place up to `count` replicas, each on the best node left, and yield each with its score.

    The nodes of the best rank are taken in their order. One is filled for as long as it ranks no
    lower than that, because then it is still the first of the best.
    """
    row.refresh()
    context = row.context
    ranks = row.ranks.copy() if domain is None else np.where(domain, row.ranks, NOT_FIT)
    while count and (best := int(ranks.max(initial=NOT_FIT))) != NOT_FIT:
        for node in np.flatnonzero(ranks == best)[:count].tolist():
            rank = best
            while rank >= best and count:
                count -= 1
                yield _take_on(row, node), score_of_rank(rank, context, node)
                rank = NOT_FIT if spread else row.rank_on(node)
            ranks[node] = rank
            if not count:
                break
