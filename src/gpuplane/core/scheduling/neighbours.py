"""The filters over nodes that look at where other jobs are: near some, apart from others.

Owns both, in the order in which they are applied. They have the shape of the filters over nodes;
only what they look at is not the fleet but where jobs are in this cycle, so no answer is ever kept.
Adding one: write the function, put it into the list.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gpuplane.core.fleet.columns import Bools
from gpuplane.core.ids import JobId
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import PlacementRequest

NodesOf = Callable[[JobId], Sequence[int]]
"""The nodes of one fleet on which a job has replicas."""


class NeighbourFilter(NamedTuple):
    """A condition on nodes, the word for those that fail it, and which requests are asked.

    Args:
        passes: (request, where jobs are, number of nodes) -> which nodes pass, shape (node,).
    """

    word: Word
    passes: Callable[[PlacementRequest, NodesOf, int], Bools]
    applies: Callable[[PlacementRequest], bool]


def is_near_jobs(placement: PlacementRequest, nodes_of: NodesOf, count: int) -> Bools:
    """Pass nodes on which every job runs that it asks to be near."""
    passing = np.ones(count, dtype=np.bool_)
    for other in placement.co_locate_with:
        near = np.zeros(count, dtype=np.bool_)
        near[nodes_of(JobId(other))] = True
        passing &= near
    return passing


def is_apart_from_jobs(placement: PlacementRequest, nodes_of: NodesOf, count: int) -> Bools:
    """Pass nodes on which no job runs that it asks to be apart from."""
    passing = np.ones(count, dtype=np.bool_)
    for other in placement.separate_from:
        passing[nodes_of(JobId(other))] = False
    return passing


NEIGHBOUR_FILTERS = (
    NeighbourFilter(Word.AFFINITY, is_near_jobs, lambda asked: bool(asked.co_locate_with)),
    NeighbourFilter(Word.AFFINITY, is_apart_from_jobs, lambda asked: bool(asked.separate_from)),
)


def compute_neighbouring(
    placement: PlacementRequest, nodes_of: NodesOf, count: int
) -> Bools | None:
    """Return the nodes that pass, None where the request names no other job."""
    active = [each for each in NEIGHBOUR_FILTERS if each.applies(placement)]
    if not active:
        return None
    passing = active[0].passes(placement, nodes_of, count)
    for each in active[1:]:
        passing = passing & each.passes(placement, nodes_of, count)
    return passing
