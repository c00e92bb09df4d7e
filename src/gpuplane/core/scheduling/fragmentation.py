"""The fragmentation gradient: how much GPU capacity a placement makes useless to the typical mix.

Owns the typical mix and the exact change of the fragment of a node; never which node is taken.
All sums are integers, so a node looked at alone scores as it does among a thousand.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023, sections 3 and 4; score = truncated 100 x logistic of the
gradient in whole GPUs, as in the authors' simulator.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.scheduling.filters import Where
from gpuplane.core.scheduling.needs import Need
from gpuplane.core.scheduling.workload import Workload

Counts = NDArray[np.int64]

_STEPS = tuple(WHOLE_GPU_MILLI * math.log(s / (100 - s)) for s in range(1, 100))
"""Gradient in milli-GPU from which the score is 1, 2, … 99: the inverse of the logistic."""


class TypicalClass(NamedTuple):
    """One kind of request in the mix; memory is left out, as in the source."""

    cpu_milli: int
    gpu_milli: int
    gpu_count: int
    gpu_model: str


class TypicalMix(NamedTuple):
    """The most frequent classes with how many replicas each has."""

    classes: tuple[TypicalClass, ...]
    weights: tuple[int, ...]


def compute_typical_mix(
    workloads: Iterable[Workload], *, share: float, max_classes: int
) -> TypicalMix:
    """Return the shortest list of classes, most frequent first, that covers a share of replicas.

    Args:
        workloads: Pending and running workloads, in any order.
        share: Part of all replicas to cover, in [0, 1].
        max_classes: Most classes in the mix.
    """
    counted: Counter[str] = Counter()
    members: dict[str, Workload] = {}
    for workload in workloads:
        counted[workload.class_key] += workload.replicas.count
        members.setdefault(workload.class_key, workload)
    merged: Counter[TypicalClass] = Counter()
    for key, count in counted.items():
        resources = members[key].resources
        if resources.mig_profile is None:
            merged[
                TypicalClass(
                    resources.cpu_milli,
                    resources.gpu_milli if resources.gpu_count else 0,
                    resources.gpu_count,
                    resources.gpu_model or "",
                )
            ] += count
    # Ties: the larger request first, so that the cut does not depend on the order given.
    ranked = sorted(merged.items(), key=lambda item: (item[1], item[0]), reverse=True)
    wanted = share * sum(merged.values())
    chosen: list[tuple[TypicalClass, int]] = []
    covered = 0
    for each, count in ranked[:max_classes]:
        if covered >= wanted:
            break
        chosen.append((each, count))
        covered += count
    return TypicalMix(tuple(each for each, _ in chosen), tuple(count for _, count in chosen))


@dataclass(frozen=True, eq=False)
class BoundMix:
    """The typical mix against one fleet.

    Attributes:
        levels: The distinct shares asked of a GPU, shape (level,).
        level_of: Index into `levels` of each class, shape (class,).
        matches: Which nodes have the class's model, shape (class, node).
        steps: Gradient, times the total weight, from which the score is 1, 2, … 99.
    """

    levels: NDArray[np.int64]
    level_of: NDArray[np.int64]
    gpu_count: Counts
    cpu_milli: Counts
    matches: NDArray[np.bool_]
    weights: Counts
    cpu_only_weight: int
    steps: NDArray[np.int64]


def bind_mix(mix: TypicalMix, fleet: Fleet) -> BoundMix:
    """Return the mix bound to a fleet; CPU-only classes count every idle GPU as fragment."""
    pairs = [
        (each, weight)
        for each, weight in zip(mix.classes, mix.weights, strict=True)
        if each.gpu_count
    ]
    classes = [each for each, _ in pairs]
    levels = sorted({each.gpu_milli for each in classes})
    total = max(1, sum(mix.weights))
    return BoundMix(
        levels=np.array(levels, dtype=np.int64),
        level_of=np.array([levels.index(each.gpu_milli) for each in classes], dtype=np.int64),
        gpu_count=np.array([each.gpu_count for each in classes], dtype=np.int64),
        cpu_milli=np.array([each.cpu_milli for each in classes], dtype=np.int64),
        matches=np.array(
            [_nodes_of_model(fleet, each.gpu_model) for each in classes], dtype=np.bool_
        ).reshape(len(classes), len(fleet)),
        weights=np.array([weight for _, weight in pairs], dtype=np.int64),
        cpu_only_weight=sum(mix.weights) - sum(weight for _, weight in pairs),
        steps=np.array([math.ceil(step * total) for step in _STEPS], dtype=np.int64),
    )


def _nodes_of_model(fleet: Fleet, model: str) -> NDArray[np.bool_]:
    if not model:
        return np.asarray(fleet.present_mask != 0)
    if model not in fleet.models:
        return np.zeros(len(fleet), dtype=np.bool_)
    return np.asarray((fleet.gpu_model == fleet.models.index(model)).any(axis=0))


def compute_fragments(
    mix: BoundMix, free: Counts, cpu: Counts, matches: NDArray[np.bool_]
) -> Counts:
    """Return the fragment of each node state, times the total weight of the mix.

    Args:
        mix: The bound mix.
        free: Free share of each GPU, shape (gpu, state).
        cpu: Free CPU, shape (state,).
        matches: Which states have the class's model, shape (class, state).
    """
    fits = free[None, :, :] >= mix.levels[:, None, None]
    idle = free.sum(axis=0, dtype=np.int64)
    enough = np.add.reduce(fits, axis=1, dtype=np.int64)
    unusable = idle - np.where(fits, free, 0).sum(axis=1, dtype=np.int64)
    level = mix.level_of
    hosts = matches & (cpu >= mix.cpu_milli[:, None])
    hosts &= enough[level] >= mix.gpu_count[:, None]
    fragments = np.where(hosts, unusable[level], idle)
    return np.asarray(mix.weights @ fragments + mix.cpu_only_weight * idle)


def compute_gradient_scores(
    need: Need, fleet: Fleet, where: Where, mix: BoundMix
) -> NDArray[np.int64]:
    """Return 0–100 per node: how little the class's placement there adds to the fragment.

    A share goes to the GPU where it adds least. Nodes where the class does not fit get a number
    without meaning.
    """
    free = fleet.gpu_free_milli[:, where].astype(np.int64)
    cpu = fleet.cpu_free[where]
    matches = mix.matches[:, where]
    gradient = _gradient(need, fleet, where, mix, free, cpu, matches)
    return np.searchsorted(mix.steps, gradient, side="right")


def _gradient(
    need: Need,
    fleet: Fleet,
    where: Where,
    mix: BoundMix,
    free: Counts,
    cpu: Counts,
    matches: NDArray[np.bool_],
) -> Counts:
    """Return the fragment before less the fragment after, times the total weight."""
    count = free.shape[1]
    cpu_after = cpu - need.resources.cpu_milli
    if need.is_share:
        states, taken = _share_states(need, fleet, where, free)
        variants = len(taken)
        before = compute_fragments(mix, free, cpu, matches)
        after = compute_fragments(
            mix, states, np.tile(cpu_after, variants), np.tile(matches, (1, variants))
        ).reshape(variants, count)
        after = np.where(taken, after, np.iinfo(np.int64).max)
        return np.asarray(before - after.min(axis=0))
    if need.wants_gpus:
        bits = np.arange(free.shape[0], dtype=np.uint16)[:, None]
        fit = fleet.gpu_free_mask[where] & need.granted_mask[where]
        is_free = ((fit >> bits) & np.uint16(1)).astype(np.int64)
        is_taken = is_free * (is_free.cumsum(axis=0) <= need.resources.gpu_count)
        states = free - is_taken * WHOLE_GPU_MILLI
    else:
        states = free
    both = compute_fragments(
        mix,
        np.concatenate((free, states), axis=1),
        np.concatenate((cpu, cpu_after)),
        np.concatenate((matches, matches), axis=1),
    )
    return np.asarray(both[:count] - both[count:])


def _share_states(
    need: Need, fleet: Fleet, where: Where, free: Counts
) -> tuple[Counts, NDArray[np.bool_]]:
    """Return the states after taking the share from each GPU in turn, and where that fits."""
    gpus, count = free.shape
    milli = need.resources.gpu_milli
    bits = np.arange(gpus, dtype=np.uint16)[:, None]
    allowed = ((need.granted_mask[where][None, :] >> bits) & np.uint16(1)) != 0
    taken = (free >= milli) & allowed
    states = np.repeat(free[:, None, :], gpus, axis=1)
    diagonal = np.arange(gpus)
    states[diagonal, diagonal] -= milli * taken
    return states.reshape(gpus, gpus * count), taken


def choose_share_gpu(need: Need, fleet: Fleet, node: int, mix: BoundMix) -> int:
    """Return the GPU index of a node where the share adds least fragment; the lowest on ties.

    Raises:
        ValueError: If the share fits on no GPU of the node.
    """
    where = np.array([node])
    free = fleet.gpu_free_milli[:, where].astype(np.int64)
    states, taken = _share_states(need, fleet, where, free)
    if not taken.any():
        raise ValueError(f"the share fits on no GPU of {fleet.nodes[node].name}")
    gpus = len(taken)
    cpu_after = np.tile(fleet.cpu_free[where] - need.resources.cpu_milli, gpus)
    after = compute_fragments(mix, states, cpu_after, np.tile(mix.matches[:, where], (1, gpus)))
    # The score's steps decide first, as they do between nodes; then the fuller GPU.
    after = np.where(taken[:, 0], after, np.iinfo(np.int64).max)
    best = after == after.min()
    return int(np.argmin(np.where(best, free[:, 0], np.iinfo(np.int64).max)))
