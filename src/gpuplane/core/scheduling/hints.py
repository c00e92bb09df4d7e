"""What a prediction adds to or takes from a node's score, within a bound.

Owns the parts of the hint, each one function (hint, need, fleet, where) -> share of the bound in
percent, -100 to 100, per node. Without a hint nothing here runs and every rank stays as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.amounts import MIB_PER_GIB
from gpuplane.core.fleet.columns import POPCOUNT, Fleet, Take
from gpuplane.core.prediction.hints import Length, PlacementHint
from gpuplane.core.scheduling.filters import Where
from gpuplane.core.scheduling.needs import Need
from gpuplane.core.topology.matrix import LinkMatrix

Percents = NDArray[np.int64]

_MEMORY_SLACK = 0.92
"""Drivers report less than the size a GPU is sold by, least of it with ECC on: 15,109 MiB of the
16 GB of a T4, 23,028 MiB of the 24 GB of an A10 (core.hardware)."""

Part = Callable[[PlacementHint, Need, Fleet, Where], Percents]


def fit_memory(hint: PlacementHint, need: Need, fleet: Fleet, where: Where) -> Percents:
    """Prefer GPUs whose memory the measured peak just fills; avoid those it would overflow.

    The best fit is worth all, twice too large half of it, too small costs all: a job that runs out
    of memory has run for nothing, one on too large a GPU only takes it from somebody.
    """
    if hint.memory_gib is None:
        return _nothing(fleet, where)
    slots = np.arange(fleet.gpu_count_max, dtype=np.uint16)[:, None]
    is_eligible = (need.granted_mask[where][None, :] >> slots) & np.uint16(1)
    memory = fleet.gpu_memory_mib[:, where].astype(np.int64)
    largest = np.where(is_eligible == 1, memory, 0).max(axis=0)
    needed = int(hint.memory_gib * MIB_PER_GIB * _MEMORY_SLACK)
    fits = largest >= needed
    share = 100 * needed // np.maximum(largest, 1)
    return np.asarray(np.where(fits, share, -100) * (largest > 0))


def fill_used_nodes(hint: PlacementHint, need: Need, fleet: Fleet, where: Where) -> Percents:
    """Prefer partly used nodes for short work, the fuller the better; avoid idle ones.

    A node that is idle is what large work waits for; short work leaves again before that matters.
    """
    if hint.length is not Length.SHORT:
        return _nothing(fleet, where)
    total = POPCOUNT[fleet.usable_mask[where]].astype(np.int64)
    idle = POPCOUNT[fleet.gpu_free_mask[where]].astype(np.int64)
    used = 100 * (total - idle) // np.maximum(total, 1)
    return np.asarray(np.where(total == idle, -100, used) * (total > 1))


def keep_links_whole(hint: PlacementHint, need: Need, fleet: Fleet, where: Where) -> Percents:
    """Prefer idle nodes with NVLink between all GPUs for long work on several GPUs.

    A node without them costs nothing: the topology score judges the links that are asked for.
    """
    if hint.length is not Length.LONG or need.resources.gpu_count < 2:
        return _nothing(fleet, where)
    joined = np.array([*(_is_joined(each) for each in fleet.topologies), False], dtype=np.bool_)
    is_joined = joined[fleet.topology_index[where]]
    is_idle = (fleet.gpu_free_mask[where] == fleet.usable_mask[where]) & (
        fleet.usable_mask[where] != 0
    )
    return np.asarray(np.where(is_joined, np.where(is_idle, 100, 50), 0).astype(np.int64))


@dataclass(frozen=True, slots=True)
class HintPart:
    """One part of the hint: how it scores, and what is said where it helps or hurts."""

    score: Part
    good: str
    bad: str


PARTS: MappingProxyType[str, HintPart] = MappingProxyType(
    {
        "memory": HintPart(
            fit_memory,
            "its GPUs fit the measured peak of memory",
            "its GPUs may be too small for the measured peak of memory",
        ),
        "filling": HintPart(
            fill_used_nodes,
            "short work fills up a node that is in use",
            "short work would break into an idle node",
        ),
        "links": HintPart(keep_links_whole, "NVLink joins all of its GPUs for long work", ""),
    }
)
"""Every part in one place; a new one is a function of the same shape here."""


def compute_hint_points(
    hint: PlacementHint, need: Need, fleet: Fleet, where: Where, bound: int
) -> Percents:
    """Return the points that the hint adds to each node's score, -bound to bound, shape (node,).

    Args:
        hint: What is predicted of the class.
        need: The class bound to the fleet.
        fleet: The cluster.
        where: The nodes looked at.
        bound: `Policy.hint_points`.
    """
    if not need.wants_gpus:
        return _nothing(fleet, where)
    percent = sum(
        (part.score(hint, need, fleet, where) for part in PARTS.values()),
        start=_nothing(fleet, where),
    )
    clipped = np.clip(percent, -100, 100)
    return np.asarray(np.sign(clipped) * (bound * np.abs(clipped) // 100))


def explain_hint(
    hint: PlacementHint, need: Need, fleet: Fleet, takes: Sequence[Take], bound: int
) -> str | None:
    """Return what the hint did to the score of a placement's first node, None when nothing.

    Args:
        hint: What is predicted of the class.
        need: The class bound to the fleet.
        fleet: The cluster with the placement counted; the same afterwards.
        takes: The placement, not empty.
        bound: `Policy.hint_points`.
    """
    where = np.array([takes[0].node])
    mark = fleet.checkpoint()
    for take in takes:  # the score was of the node as it was before
        fleet.release(take)
    points = int(compute_hint_points(hint, need, fleet, where, bound)[0])
    shares = [(part, int(part.score(hint, need, fleet, where)[0])) for part in PARTS.values()]
    fleet.rollback(mark)
    if points == 0:
        return None
    said = [part.good if share > 0 else part.bad for part, share in shares if share]
    taken_for = f" for {hint.workload_class.value}" if hint.workload_class is not None else ""
    return f"The hint{taken_for} is worth {points:+d} of 100 there: {'; '.join(said)}."


def _is_joined(matrix: LinkMatrix) -> bool:
    count = matrix.gpu_count
    return count > 1 and all(
        matrix.nvlinks[first][second] > 0 for first in range(count) for second in range(first)
    )


def _nothing(fleet: Fleet, where: Where) -> Percents:
    return np.zeros_like(fleet.cpu_free[where])
