"""Places all replicas of one workload in one fleet, or none of them.

Owns gangs (all or nothing with a ledger), spreading, and the level of the network a gang stays
inside. Counts what it places into the fleet; the caller keeps it or rolls back.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.fleet.columns import POPCOUNT, Bools, Fleet, Ints, Take
from gpuplane.core.scheduling.bench import NOT_FIT, Bench, Row
from gpuplane.core.scheduling.devices import choose_devices
from gpuplane.core.scheduling.filters import EVERYWHERE, mig_starts
from gpuplane.core.scheduling.needs import Need
from gpuplane.core.scheduling.scores import score_of_rank
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import ReplicaRequest, Spreading

_UNBOUNDED = 1 << 30
MAX_SAME_NODE_TRIES = 32
"""Nodes tried for replicas that must share one; capacity is checked first, so few ever fail."""


class Level(StrEnum):
    """The smallest part of the network that holds a whole workload."""

    NODE = "node"
    RACK = "rack"
    BLOCK = "block"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Spots:
    """Where the replicas of a workload go in one fleet, by rank.

    Attributes:
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
    if int(capacity.sum()) < needed:
        return None
    mark = fleet.checkpoint()
    for level, domain in _list_domains(workload, fleet, row, capacity, needed):
        takes, total = _fill(row, count, domain, spread=spreading is Spreading.SPREAD)
        if len(takes) >= needed:
            return Spots(tuple(takes), total // len(takes), level)
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
    fits = row.ranks != NOT_FIT
    if allowed is not None:
        fits = fits & allowed
    capacity = np.full(len(fleet), _UNBOUNDED, dtype=np.int64)
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
        return np.asarray(POPCOUNT[starts].sum(axis=0, dtype=np.int64))
    if not need.is_share:
        free = fleet.gpu_free_mask & need.granted_mask
        return np.asarray(POPCOUNT[free].astype(np.int64) // need.resources.gpu_count)
    bits = np.arange(fleet.gpu_count_max, dtype=np.uint16)[:, None]
    allowed = (need.granted_mask[None, :] >> bits) & np.uint16(1)
    shares = fleet.gpu_free_milli // np.uint16(need.resources.gpu_milli) * allowed
    return np.asarray(shares.sum(axis=0, dtype=np.int64))


def _place_one(row: Row, allowed: Bools | None) -> Spots | None:
    ranks = row.ranks if allowed is None else np.where(allowed, row.ranks, NOT_FIT)
    node = int(ranks.argmax())
    rank = int(ranks[node])
    if rank == NOT_FIT:
        return None
    take = choose_devices(row, node)
    row.fleet.allocate(take)
    return Spots((take,), score_of_rank(rank, row.context, node), Level.NODE)


def _fill(row: Row, count: int, domain: Bools, *, spread: bool) -> tuple[list[Take], int]:
    """Place up to `count` replicas, each on the best node left, and sum their scores."""
    takes: list[Take] = []
    total = 0
    domain = domain.copy()
    while len(takes) < count:
        row.refresh()
        ranks = np.where(domain, row.ranks, NOT_FIT)
        node = int(ranks.argmax())
        rank = int(ranks[node])
        if rank == NOT_FIT:
            break
        take = choose_devices(row, node)
        row.fleet.allocate(take)
        takes.append(take)
        total += score_of_rank(rank, row.context, node)
        if spread:
            domain[node] = False
    return takes, total


def _list_domains(
    workload: Workload, fleet: Fleet, row: Row, capacity: Ints, needed: int
) -> list[tuple[Level, Bools]]:
    """Return where to try, smallest part of the network first.

    A gang talks all the time, so it stays inside one node, one rack or one block where it can;
    replicas that need not start together go to the best nodes of the cluster.
    """
    spreading = workload.placement.spreading
    everywhere = capacity > 0
    domains: list[tuple[Level, Bools]] = []
    if spreading is Spreading.SAME_NODE or (spreading is Spreading.ANY and workload.replicas.gang):
        tries = MAX_SAME_NODE_TRIES if spreading is Spreading.SAME_NODE else 1
        domains += _single_nodes(row, capacity, needed, tries)
    if spreading is Spreading.SAME_NODE:
        return domains
    if workload.replicas.gang:
        for level, names, place in (
            (Level.RACK, fleet.racks, fleet.rack),
            (Level.BLOCK, fleet.blocks, fleet.block),
        ):
            found = _tightest(names, place, capacity, needed)
            if found is not None:
                domains.append((level, everywhere & (place == found)))
    domains.append((Level.CLUSTER, everywhere))
    return domains


def _single_nodes(row: Row, capacity: Ints, needed: int, tries: int) -> list[tuple[Level, Bools]]:
    ranks = np.where(capacity >= needed, row.ranks, NOT_FIT)
    best = np.argsort(-ranks, kind="stable")[:tries]
    domains: list[tuple[Level, Bools]] = []
    for node in best[ranks[best] != NOT_FIT]:
        only: NDArray[np.bool_] = np.zeros(len(capacity), dtype=np.bool_)
        only[node] = True
        domains.append((Level.NODE, only))
    return domains


def _tightest(names: tuple[str, ...], place: Ints, capacity: Ints, needed: int) -> int | None:
    """Return the named domain with the least room that is enough, the first of equals by name."""
    room = np.bincount(place, weights=capacity, minlength=len(names))
    fitting = [
        (int(room[i]), name, i) for i, name in enumerate(names) if name and room[i] >= needed
    ]
    return min(fitting)[2] if fitting else None
