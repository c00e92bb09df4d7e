"""Every condition that can keep work waiting and every score, in the one order they are asked in.

Owns the order of the lists among each other and nothing else: each unit stands in the list of its
stage, and a list takes what has its shape. Whoever adds one adds it there and finds it here.

    gates       (workload, scene) -> reason         the same on every node, so asked once
    clusters    (request, cluster) -> truth         before anything inside a cluster is looked at
    nodes       (need, fleet, where) -> truths      what a node is, then what is free on it
    neighbours  (request, where jobs are) -> truths where other jobs are
    layouts     replicas of one workload together   what no single node can tell
    scores      (context, where) -> 0 to 100        which of the nodes left is best

Quota is asked between clusters and nodes (`admission`); its words are the queues'.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from gpuplane.core.reasons import Word
from gpuplane.core.scheduling import hints
from gpuplane.core.scheduling.eligibility import CLUSTER_FILTERS
from gpuplane.core.scheduling.filters import DYNAMIC_FILTERS, FILTERS, STATIC_FILTERS
from gpuplane.core.scheduling.gates import GATES
from gpuplane.core.scheduling.neighbours import NEIGHBOUR_FILTERS
from gpuplane.core.scheduling.network import LAYOUTS
from gpuplane.core.scheduling.scores import MAIN_SCORES, WEIGHTED_SCORES, data_score


class Stage(StrEnum):
    """When a unit is asked; the stages are in their order."""

    GATE = "gate"
    CLUSTER = "cluster"
    NODE = "node"
    FREE = "free"
    NEIGHBOUR = "neighbour"
    LAYOUT = "layout"
    SCORE = "score"


class Unit(NamedTuple):
    """One condition or score.

    Args:
        words: What is said of work that it keeps waiting; none for a score.
    """

    stage: Stage
    asks: Callable[..., Any]
    words: tuple[Word, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of its function."""
        return self.asks.__name__

    @property
    def sentence(self) -> str:
        """Return whom it passes, the first line of its docstring."""
        return (self.asks.__doc__ or "").strip().split("\n", 1)[0]


UNITS: tuple[Unit, ...] = (
    *(Unit(Stage.GATE, each.find, each.words) for each in GATES),
    *(Unit(Stage.CLUSTER, each.passes, (each.word,)) for each in CLUSTER_FILTERS),
    *(Unit(Stage.NODE, each.passes, (each.word,)) for each in STATIC_FILTERS),
    *(Unit(Stage.FREE, each.passes, (each.word,)) for each in DYNAMIC_FILTERS),
    *(Unit(Stage.NEIGHBOUR, each.passes, (each.word,)) for each in NEIGHBOUR_FILTERS),
    *(Unit(Stage.LAYOUT, each.limit, each.words) for each in LAYOUTS),
    *(Unit(Stage.SCORE, each.score) for each in WEIGHTED_SCORES),
    *(
        Unit(Stage.SCORE, each)
        for each in dict.fromkeys(MAIN_SCORES.values())
        if each not in [weighted.score for weighted in WEIGHTED_SCORES]
    ),
    Unit(Stage.SCORE, data_score),
    *(Unit(Stage.SCORE, each.score) for each in hints.PARTS.values()),
)

COUNTED: tuple[Word, ...] = tuple(
    dict.fromkeys(each.word for each in (*FILTERS, *NEIGHBOUR_FILTERS))
)
"""The words under which nodes are counted, in the order in which the filters refuse them."""
