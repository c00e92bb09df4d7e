"""How a node is chosen among those that fit: five strategies, all of them pure.

Owns the choice. Never filters, and never draws lots itself: chance is an argument. Among equals
the first by name is taken, so that equal input gives equal output.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from gpuplane.core.topology.matrix import LinkPreference, TopologyFormatError
from gpuplane.core.topology.named import MAX_NODE_GPUS, described_topology, unknown_topology
from gpuplane.core.topology.tables import TopologyClass, topology_class
from gpuplane.operator.names import CHEAP_LABEL, TOPOLOGY_ANNOTATION, Strategy
from gpuplane.operator.rules.nodes import Candidate

_BILLION = 1_000_000_000


def choose_node(
    strategy: Strategy,
    candidates: Sequence[Candidate],
    gpus: int,
    *,
    chance: int,
    mix: Mapping[int, int],
) -> Candidate | None:
    """Return the node that a strategy takes, or None where there is none.

    Args:
        candidates: Nodes that fit, in any order.
        gpus: GPUs asked for on one node, at least 1.
        chance: Any number not below 0, drawn by the caller; only `random` reads it.
        mix: How many workloads ask for so many GPUs, which `fragmentation` keeps room for.
    """
    if not candidates:
        return None
    by_name = sorted(candidates, key=lambda each: each.node.name)
    match strategy:
        case Strategy.RANDOM:
            return by_name[chance % len(by_name)]
        case Strategy.COST_OPTIMIZED:
            cheap = [each for each in by_name if each.node.labels.get(CHEAP_LABEL) == "true"]
            return _least_loaded(cheap or by_name)
        case Strategy.FRAGMENTATION:
            return min(by_name, key=lambda each: (_growth(each, gpus, mix), each.free))
        case Strategy.TOPOLOGY:
            return max(by_name, key=lambda each: (link_score(each, gpus), -each.free))
        case Strategy.LEAST_LOADED:
            return _least_loaded(by_name)


def link_score(candidate: Candidate, gpus: int) -> int:
    """Return how well the best free GPUs of a node are linked, 0 to 100.

    The links are those of the node's `gpuplane.io/topology` annotation. A node that says nothing
    scores as one whose links nobody knows. Where it is not known which GPUs are busy, the score is
    that of an empty node: an upper bound, the same for all such nodes.
    """
    if gpus > candidate.total or candidate.total > MAX_NODE_GPUS:
        return 0
    links = _links(candidate.node.annotations.get(TOPOLOGY_ANNOTATION, ""), candidate.total)
    mask = candidate.free_mask
    if mask is None:
        mask = (1 << candidate.total) - 1
    return max(0, int(links.score_table(LinkPreference.NVLINK, required=False)[gpus, mask]))


def compute_stranded(free: int, mix: Mapping[int, int]) -> int:
    """Return the free GPUs that a workload drawn from the mix can not use, in billionths.

    Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 3: the expected
    fragment of a node over typical requests; here for whole GPUs, with what is asked for now as
    the typical requests.
    """
    whole = sum(mix.values())
    if not whole:
        return 0
    return sum(count * free for asked, count in mix.items() if asked > free) * _BILLION // whole


def _growth(candidate: Candidate, gpus: int, mix: Mapping[int, int]) -> int:
    after = compute_stranded(candidate.free - gpus, mix)
    return after - compute_stranded(candidate.free, mix)


def _least_loaded(candidates: Sequence[Candidate]) -> Candidate:
    return max(candidates, key=lambda each: each.free)


@lru_cache(maxsize=256)
def _links(text: str, count: int) -> TopologyClass:
    try:
        matrix = described_topology(text, count) if text else unknown_topology(count)
    except (TopologyFormatError, ValueError):
        matrix = unknown_topology(count)
    return topology_class(matrix)
