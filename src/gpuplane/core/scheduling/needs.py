"""A workload class bound to one fleet: what one replica needs, in that fleet's columns.

Owns what stays true while a cycle runs (which GPUs and nodes could ever serve the class); what
changes with every placement is read by the filters.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Bools, Fleet, Masks
from gpuplane.core.fleet.facts import Taint
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.tables import stack_score_tables, topology_class
from gpuplane.core.workloads import PlacementRequest, ResourceRequest, Toleration

REPELLING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Taint effects that keep work away; `PreferNoSchedule` only asks."""

ANY_FABRIC = "any"
"""The word that accepts every RDMA fabric but none at all."""


@dataclass(frozen=True, eq=False)
class Need:
    """One replica's request and the parts of the fleet that could serve it.

    Attributes:
        ends_at: When a replica started now would end, as far as a maintenance must not come first.
        model_mask: GPUs of the model asked for, shape (node,); all of a node's when none is.
        eligible_mask: GPUs that fit model, memory and architecture and are given out at all.
        granted_mask: `eligible_mask` without GPUs that are reserved for others.
        link_scores: Score of the best free set by topology, count and mask, or None when the
            class asks nothing of the links; the last topology is "unknown".
        wants_gpus: Whole GPUs or a share are asked for, no MIG instance.
        avoids_reservations: Some GPUs are reserved, and some devices are asked for.
    """

    resources: ResourceRequest
    placement: PlacementRequest
    now: int
    ends_at: int
    present_model_mask: Masks
    memory_mask: Masks
    architecture_mask: Masks
    eligible_mask: Masks
    granted_mask: Masks
    tolerated: Bools
    link_scores: NDArray[np.int16] | None

    is_mig: bool
    is_share: bool
    wants_gpus: bool
    requires_links: bool
    avoids_reservations: bool


def bind_need(workload: Workload, fleet: Fleet, now: int, ends_at: int) -> Need:
    """Return the class of a workload bound to a fleet."""
    resources = workload.resources
    model = _model_mask(fleet, resources.gpu_model)
    memory = model & _memory_mask(fleet, resources.gpu_memory_mib)
    architecture = memory & _architecture_mask(fleet, resources.gpu_architecture)
    offered = fleet.mig_mask & fleet.healthy_mask if resources.mig_profile else fleet.usable_mask
    eligible = architecture & offered
    granted = eligible & ~_reserved_for_others(fleet, workload)
    is_mig = resources.mig_profile is not None
    wants_gpus = resources.gpu_count > 0 and not is_mig
    scores = _link_scores(fleet, workload.placement, resources)
    return Need(
        resources=resources,
        placement=workload.placement,
        now=now,
        ends_at=ends_at,
        present_model_mask=model,
        memory_mask=memory,
        architecture_mask=architecture,
        eligible_mask=eligible,
        granted_mask=granted,
        tolerated=_tolerated(fleet, workload.placement.tolerations),
        link_scores=scores,
        is_mig=is_mig,
        is_share=wants_gpus and resources.gpu_milli < WHOLE_GPU_MILLI,
        wants_gpus=wants_gpus,
        requires_links=scores is not None and workload.placement.links_required,
        avoids_reservations=bool(fleet.reservations) and (wants_gpus or is_mig),
    )


def _model_mask(fleet: Fleet, model: str | None) -> Masks:
    if model is None:
        return fleet.present_mask
    if model not in fleet.models:
        return np.zeros(len(fleet), dtype=np.uint16)
    return fleet.gpu_bits(np.asarray(fleet.gpu_model == fleet.models.index(model)))


def _memory_mask(fleet: Fleet, memory_mib: int | None) -> Masks:
    if memory_mib is None:
        return fleet.present_mask
    return fleet.gpu_bits(np.asarray(fleet.gpu_memory_mib >= memory_mib)) & fleet.present_mask


def _architecture_mask(fleet: Fleet, architecture: str | None) -> Masks:
    if architecture is None:
        return fleet.present_mask
    if architecture not in fleet.architectures:
        return np.zeros(len(fleet), dtype=np.uint16)
    wanted = fleet.architectures.index(architecture)
    return fleet.gpu_bits(np.asarray(fleet.gpu_architecture == wanted))


def _reserved_for_others(fleet: Fleet, workload: Workload) -> Masks:
    if not fleet.reservations:
        return np.zeros(len(fleet), dtype=np.uint16)
    others = fleet.reserved >= 0
    if workload.reservation_id in fleet.reservations:
        others &= fleet.reserved != fleet.reservations.index(workload.reservation_id)
    return fleet.gpu_bits(np.asarray(others))


def _tolerated(fleet: Fleet, tolerations: tuple[Toleration, ...]) -> Bools:
    by_set = [
        all(_is_tolerated(taint, tolerations) for taint in taints if _repels(taint))
        for taints in fleet.taint_sets
    ]
    return np.asarray(np.array(by_set, dtype=np.bool_)[fleet.taint_set])


def _repels(taint: Taint) -> bool:
    return taint.effect in REPELLING_EFFECTS


def _is_tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    """Tell whether one of the tolerations matches, by Kubernetes' rules."""
    for toleration in tolerations:
        if toleration.effect and toleration.effect != taint.effect:
            continue
        if not toleration.key:
            if toleration.operator == "Exists":
                return True
            continue
        if toleration.key != taint.key:
            continue
        if toleration.operator == "Exists" or toleration.value == taint.value:
            return True
    return False


def _link_scores(
    fleet: Fleet, placement: PlacementRequest, resources: ResourceRequest
) -> NDArray[np.int16] | None:
    """Return the stacked score tables with a last one for nodes whose links are not known."""
    if resources.gpu_count == 0 or resources.mig_profile or resources.gpu_milli < WHOLE_GPU_MILLI:
        return None
    if placement.links is LinkPreference.NONE:
        return None
    count = resources.gpu_count
    width = fleet.gpu_count_max
    classes = [topology_class(matrix) for matrix in fleet.topologies]
    stack = stack_score_tables(
        classes, placement.links, required=placement.links_required, width=width
    )
    scores = np.full((len(classes) + 1, 1 << width), -1, dtype=np.int16)
    if count <= width:
        scores[: len(classes)] = stack[:, count]
        if count == 1 or not placement.links_required:
            # Nothing is known of the links: no more than the base score, and never "required".
            scores[-1] = 50
    return scores
