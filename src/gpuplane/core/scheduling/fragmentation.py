"""The fragmentation gradient: how much GPU capacity a placement makes useless to the typical mix.

Owns which requests are typical and how a placement scores by what it adds to the fragment; never
which node is taken. Fragments are worked out by `fragments.py`.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023, sections 3 and 4; score = truncated 100 x logistic of the
gradient in whole GPUs, as in the authors' simulator.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.scheduling.filters import Where
from gpuplane.core.scheduling.fragments import (
    NOTHING,
    BoundMix,
    Counts,
    Request,
    TypicalClass,
    TypicalMix,
)
from gpuplane.core.scheduling.large import LargeClass, choose_large
from gpuplane.core.scheduling.needs import Need
from gpuplane.core.scheduling.workload import Workload


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
    return cut_typical_mix(counted, members, share=share, max_classes=max_classes)


def cut_typical_mix(
    counted: Mapping[str, int], members: Mapping[str, Workload], *, share: float, max_classes: int
) -> TypicalMix:
    """Return the same from the replicas of each class and some workload of each."""
    merged: Counter[TypicalClass] = Counter()
    large: Counter[LargeClass] = Counter()
    for key, count in counted.items():
        resources = members[key].resources
        if resources.mig_profile is None:
            if resources.gpu_count > 1:
                large[
                    LargeClass(
                        resources.gpu_count,
                        resources.cpu_milli,
                        resources.memory_mib,
                        resources.gpu_model or "",
                    )
                ] += count
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
    return TypicalMix(
        tuple(each for each, _ in chosen),
        tuple(count for _, count in chosen),
        choose_large(large),
    )


def compute_gradient_scores(need: Need, fleet: Fleet, where: Where, mix: BoundMix) -> Counts:
    """Return 0–100 per node: how little the class's placement there adds to the fragment.

    A share goes to the GPU where it adds least. Nodes where the class does not fit get a number
    without meaning.
    """
    if isinstance(where, int):
        return _compute_one(need, fleet, where, mix)
    gradient = mix.gradient(where, _request_of(need), need.resources.cpu_milli)
    if need.is_share and need.partly_granted is not None:
        nodes = np.arange(len(fleet))[where]
        for place in np.flatnonzero(need.partly_granted[where]).tolist():
            fitting = _list_shared(need, fleet, int(nodes[place]), mix)
            if fitting:
                gradient[place] = mix.before(int(nodes[place])) - min(fitting)[0]
    return mix.mesh.scores(gradient)


def _compute_one(need: Need, fleet: Fleet, node: int, mix: BoundMix) -> Counts:
    if need.is_share and need.partly_granted is not None and need.partly_granted[node]:
        return np.asarray(compute_gradient_scores(need, fleet, np.array([node]), mix)[0])
    gradient = mix.gradient_on(node, _request_of(need), need.resources.cpu_milli)
    return cast("Counts", np.int64(mix.mesh.score(gradient)))  # a number, as for every column


def _request_of(need: Need) -> Request:
    if need.is_share:
        return Request(milli=need.resources.gpu_milli)
    return Request(need.resources.gpu_count) if need.wants_gpus else NOTHING


def _list_shared(need: Need, fleet: Fleet, node: int, mix: BoundMix) -> list[tuple[int, int, int]]:
    """Return (fragment left, free share, GPU) for each GPU of a node that the share may go to."""
    milli, granted = need.resources.gpu_milli, int(need.granted_mask[node])
    left = mix.compute_shared(node, need.resources.cpu_milli, milli)
    return [
        (left[free], free, gpu)
        for gpu, free in enumerate(fleet.states.values[fleet.state_of[node]].gpus)
        if free >= milli and granted >> gpu & 1
    ]


def choose_share_gpu(need: Need, fleet: Fleet, node: int, mix: BoundMix) -> int:
    """Return the GPU index of a node where the share adds least fragment.

    On ties the fuller GPU, then the lowest.

    Raises:
        ValueError: If the share fits on no GPU of the node.
    """
    fitting = _list_shared(need, fleet, node, mix)
    if not fitting:
        raise ValueError(f"the share fits on no GPU of {fleet.nodes[node].name}")
    return min(fitting)[2]
