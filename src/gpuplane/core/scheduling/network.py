"""Where in the network the replicas of one workload may lie together: node, rack, block, cluster.

Owns the candidate domains and their order, smallest part first, and how many replicas each part
is to take. Never chooses nodes inside a part: `placement` fills them.

Source of the three modes: Kueue's topology-aware scheduling (KEP-2724, required and preferred
levels, and balanced placement); the tightest domain that is enough comes first, as there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from gpuplane.core.fleet.columns import Bools, Fleet, Ints
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.workloads import NetworkLevel, NetworkMode, Spreading

MAX_SAME_NODE_TRIES = 32
"""Nodes tried for replicas that must share one; capacity is checked first, so few ever fail."""


class Level(StrEnum):
    """The smallest part of the network that holds a whole workload."""

    NODE = "node"
    CLIQUE = "clique"
    """Nodes whose GPUs reach each other over NVLink, such as an NVL72 rack."""
    RACK = "rack"
    BLOCK = "block"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes to fill, and how many replicas at most go there."""

    nodes: Bools
    most: int


@dataclass(frozen=True, slots=True)
class Domain:
    """A way to lay out all replicas: parts to be filled one after the other."""

    level: Level
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Places:
    """One level of the network: its named parts, and which of them each node is in."""

    level: Level
    names: tuple[str, ...]
    place: Ints


def list_domains(
    workload: Workload, fleet: Fleet, ranks: Ints, capacity: Ints, needed: int
) -> list[Domain]:
    """Return the layouts to try, the one that keeps the replicas closest first.

    A gang talks all the time, so it stays inside one node, one rack or one block where it can,
    and else in as few parts as possible; replicas that need not start together go to the best
    nodes of the cluster, unless the workload asks for a level itself.

    Args:
        workload: What is placed.
        fleet: The nodes.
        ranks: Rank of each node for the class, shape (node,).
        capacity: Replicas that each node takes now, 0 where it may take none, shape (node,).
        needed: Replicas that must start together.
    """
    spreading, asked = workload.placement.spreading, workload.placement.network
    is_together = workload.replicas.gang or asked is not None
    count = workload.replicas.count
    everywhere = Domain(Level.CLUSTER, (Part(capacity > 0, count),))
    domains: list[Domain] = []
    is_balanced = asked is not None and asked.mode is NetworkMode.BALANCED
    if spreading is Spreading.SAME_NODE:
        return _single_nodes(ranks, capacity, needed, MAX_SAME_NODE_TRIES)
    if spreading is Spreading.ANY and is_together and not is_balanced:
        domains += _single_nodes(ranks, capacity, needed, 1)
    if not is_together:
        return [everywhere]
    levels = _list_levels(fleet)
    wishes = ranks if workload.placement.data else None
    if asks_nvlink(workload):
        domains += _cliques(workload, fleet, levels, capacity, needed)
        if workload.placement.links_required:
            # NVLink ends with the clique: what is left are nodes of none, where it is promised
            # inside each replica and no further.
            capacity = np.where(_outside_cliques(fleet), capacity, 0)
            everywhere = Domain(Level.CLUSTER, (Part(capacity > 0, count),))
            if not capacity.any():
                return domains
    if asked is not None:
        # Inside the level asked for no smaller part is looked for: nobody asked to be packed.
        levels = levels[_DEPTH[asked.level] :]
    if asked is not None and is_balanced:
        domains += _balanced(levels[0], capacity, needed)
    if asked is not None and asked.mode is NetworkMode.REQUIRED:
        return domains + _tightest(levels[0], capacity, needed, count, wishes)
    for places in levels:
        domains += _tightest(places, capacity, needed, count, wishes, most=1)
    if levels:
        domains += _fewest(levels[0], capacity, needed, count)
    return [*domains, everywhere]


def asks_nvlink(workload: Workload) -> bool:
    """Tell whether the replicas talk over NVLink among each other where nodes offer that."""
    placement, replicas = workload.placement, workload.replicas
    return replicas.gang and replicas.count > 1 and placement.links is LinkPreference.NVLINK


def is_required(workload: Workload) -> bool:
    """Tell whether the workload runs inside one part of the network or not at all."""
    asked = workload.placement.network
    return asked is not None and asked.mode is NetworkMode.REQUIRED


class Layout(NamedTuple):
    """A condition on all replicas together, and the word for work of which too few meet it.

    Args:
        limit: (workload, fleet, capacity by node) -> the most replicas that may start together.
    """

    words: tuple[Word, ...]
    limit: Callable[[Workload, Fleet, Ints], int]
    applies: Callable[[Workload], bool]


def fit_together(workload: Workload, fleet: Fleet, capacity: Ints) -> int:
    """Pass as many replicas as all nodes take at once."""
    return int(capacity.sum())


def fit_one_node(workload: Workload, fleet: Fleet, capacity: Ints) -> int:
    """Pass as many replicas as one node takes (spreading SAME_NODE)."""
    return int(capacity.max(initial=0))


def fit_each_apart(workload: Workload, fleet: Fleet, capacity: Ints) -> int:
    """Pass one replica a node (spreading SPREAD)."""
    return int(np.count_nonzero(capacity))


def fit_one_clique(workload: Workload, fleet: Fleet, capacity: Ints) -> int:
    """Pass as many replicas as one NVLink clique takes, where NVLink is required among them."""
    return largest_nvlink_room(fleet, capacity)


def fit_one_part(workload: Workload, fleet: Fleet, capacity: Ints) -> int:
    """Pass as many replicas as one rack or block takes, where one is required."""
    return largest_room(workload, fleet, capacity)


def _requires_clique(workload: Workload) -> bool:
    return asks_nvlink(workload) and workload.placement.links_required


LAYOUTS = (
    Layout((Word.GANG,), fit_together, lambda workload: True),
    Layout(
        (Word.GANG,),
        fit_one_node,
        lambda workload: workload.placement.spreading is Spreading.SAME_NODE,
    ),
    Layout(
        (Word.GANG,),
        fit_each_apart,
        lambda workload: workload.placement.spreading is Spreading.SPREAD,
    ),
    Layout((Word.TOPOLOGY,), fit_one_clique, _requires_clique),
    Layout((Word.NETWORK,), fit_one_part, is_required),
)
"""Every condition on the replicas of one workload among each other."""


def most_together(workload: Workload, fleet: Fleet, capacity: Ints) -> int:
    """Return the most replicas that one layout could take now, at most those asked for.

    An upper bound: exact where either a level of the network or NVLink is required and not both,
    and where the replicas require no links inside themselves.
    """
    limits = [each.limit(workload, fleet, capacity) for each in LAYOUTS if each.applies(workload)]
    return min(workload.replicas.count, *limits)


def largest_nvlink_room(fleet: Fleet, capacity: Ints) -> int:
    """Return the most replicas that may start together where NVLink is required among them."""
    places = _Places(Level.CLIQUE, fleet.cliques, fleet.clique)
    room = _room(places, capacity)
    inside = [int(room[i]) for i, name in enumerate(places.names) if name]
    outside = int(np.where(_outside_cliques(fleet), capacity, 0).sum())
    return max([outside, *inside])


def _outside_cliques(fleet: Fleet) -> Bools:
    unnamed = [i for i, name in enumerate(fleet.cliques) if not name]
    return np.isin(fleet.clique, unnamed)


def _cliques(
    workload: Workload, fleet: Fleet, levels: Sequence[_Places], capacity: Ints, needed: int
) -> list[Domain]:
    """Return the cliques that hold all that is needed, the tightest first.

    Where a level of the network is required too, only those that lie inside one part of it.
    """
    places = _Places(Level.CLIQUE, fleet.cliques, fleet.clique)
    found = _tightest(places, capacity, needed, workload.replicas.count)
    asked = workload.placement.network
    if asked is None or asked.mode is not NetworkMode.REQUIRED:
        return found
    level = levels[_DEPTH[asked.level]].place
    return [each for each in found if len(np.unique(level[each.parts[0].nodes])) == 1]


def largest_room(workload: Workload, fleet: Fleet, capacity: Ints) -> int:
    """Return the most replicas that fit inside one part of the level the workload asks for.

    A single node is inside one part, also where nobody named its rack.
    """
    asked = workload.placement.network
    most = int(capacity.max(initial=0))
    if asked is None:
        return int(capacity.sum())
    places = _list_levels(fleet)[_DEPTH[asked.level]]
    named = [int(room) for room, name in zip(_room(places, capacity), places.names, strict=True)
             if name]  # fmt: skip
    return max([most, *named])


_DEPTH = {NetworkLevel.RACK: 0, NetworkLevel.BLOCK: 1}


def _list_levels(fleet: Fleet) -> list[_Places]:
    return [
        _Places(Level.RACK, fleet.racks, fleet.rack),
        _Places(Level.BLOCK, fleet.blocks, fleet.block),
    ]


def _single_nodes(ranks: Ints, capacity: Ints, needed: int, tries: int) -> list[Domain]:
    """Return single nodes that hold all that is needed, the best by rank first."""
    fitting = np.flatnonzero(capacity >= needed)
    best = fitting[np.argsort(-ranks[fitting], kind="stable")[:tries]]
    domains = []
    for node in best:
        only = np.zeros(len(capacity), dtype=np.bool_)
        only[node] = True
        domains.append(Domain(Level.NODE, (Part(only, int(capacity[node])),)))
    return domains


def _room(places: _Places, capacity: Ints) -> Ints:
    summed = np.bincount(places.place, weights=capacity, minlength=len(places.names))
    return np.asarray(summed.astype(np.int64))


def _tightest(
    places: _Places,
    capacity: Ints,
    needed: int,
    count: int,
    wishes: Ints | None = None,
    most: int | None = None,
) -> list[Domain]:
    """Return the named parts that hold all that is needed, the best first.

    Best is the one that takes most of the replicas asked for, then the one with the least room:
    work that starts with fewer than it asks for is not to start with its minimum where more fit.

    Args:
        places: The parts.
        capacity: Replicas by node.
        needed: Replicas that must fit.
        count: Replicas that are asked for.
        wishes: What comes before the least room, by node, higher is better: a part is as good as
            its best node; None when nothing does.
        most: How many parts are wanted, None for all.
    """
    room = _room(places, capacity)
    best = np.zeros(len(places.names), dtype=np.int64)
    if wishes is not None:
        np.maximum.at(best, places.place, np.where(capacity > 0, wishes, 0))
    fitting = sorted(
        (-min(int(room[i]), count), -int(best[i]), int(room[i]), places.names[i], i)
        for i in np.flatnonzero(room >= needed).tolist()
        if places.names[i]
    )
    return [
        Domain(places.level, (Part((capacity > 0) & (places.place == i), count),))
        for *_, i in fitting[:most]
    ]


def _fewest(places: _Places, capacity: Ints, needed: int, count: int) -> list[Domain]:
    """Return the fewest named parts that hold all that is needed together, the roomiest first.

    The last one taken is the tightest that still suffices, so that large parts stay whole.
    """
    room = _room(places, capacity)
    named = [i for i in np.flatnonzero(room).tolist() if places.names[i]]
    left = sorted((-int(room[i]), places.names[i], i) for i in named)
    taken: list[int] = []
    missing = needed
    while left and missing > 0:
        enough = [each for each in left if -each[0] >= missing]
        chosen = max(enough, key=lambda each: (each[0], each[1])) if enough else left[0]
        left.remove(chosen)
        taken.append(chosen[2])
        missing += chosen[0]
    if missing > 0 or len(taken) < 2:
        return []
    inside = np.isin(places.place, taken) & (capacity > 0)
    return [Domain(Level.CLUSTER, (Part(inside, count),))]


def _balanced(places: _Places, capacity: Ints, total: int) -> list[Domain]:
    """Return the layout with equally many replicas, give or take one, in the fewest named parts."""
    room = _room(places, capacity)
    named = sorted((int(room[i]), name, i) for i, name in enumerate(places.names) if name)
    for parts in range(1, min(total, len(named)) + 1):
        each, more = divmod(total, parts)
        chosen = _choose_even(named, parts, each, more)
        if chosen is not None:
            level = places.level if parts == 1 else Level.CLUSTER
            return [
                Domain(
                    level,
                    tuple(Part((capacity > 0) & (places.place == i), share) for i, share in chosen),
                )
            ]
    return []


def _choose_even(
    named: Sequence[tuple[int, str, int]], parts: int, each: int, more: int
) -> list[tuple[int, int]] | None:
    """Return (part, replicas) of the tightest parts: `more` of them take one more than `each`."""
    large = [one for one in named if one[0] > each][:more]
    rest = [one for one in named if one[0] >= each and one not in large][: parts - more]
    if len(large) < more or len(rest) < parts - more:
        return None
    shares = [(i, each + 1) for _, _, i in large] + [(i, each) for _, _, i in rest]
    return sorted(shares)
