"""A workload class bound to one fleet: what one replica needs, in that fleet's columns.

Owns what stays true while a fleet's facts do (which GPUs and nodes could ever serve the class),
kept with the fleet by what it was made from, so that a class never seen before costs a few
look-ups. What changes with every placement is read by the filters.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Bools, Fleet, Ints, Masks
from gpuplane.core.fleet.facts import Taint
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkPreference
from gpuplane.core.topology.tables import stack_score_tables, topology_class
from gpuplane.core.workloads import PlacementRequest, ResourceRequest, Toleration

REPELLING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Taint effects that keep work away; `PreferNoSchedule` only asks."""

OR = "|"
"""Joins the names of GPU models of which any will do."""

DATA_LABEL_PREFIX = "data.gpuplane.io/"
"""A node with the label `data.gpuplane.io/NAME: cached` has the data set NAME at hand."""
DATA_AT_HAND = "cached"

ANY_FABRIC = "any"
"""The word that accepts every RDMA fabric but none at all."""


class Need(NamedTuple):
    """One replica's request and the parts of the fleet that could serve it.

    Attributes:
        ends_at: The first maintenance that starts no earlier than a replica started now would end;
            a node is refused if its own comes before that.
        model_mask: GPUs of the model asked for, shape (node,); all of a node's when none is.
        eligible_mask: GPUs that fit model, memory and architecture and are given out at all.
        granted_mask: `eligible_mask` without GPUs that are reserved for others.
        is_withheld: GPUs are kept clear for a reservation: nodes in one state are not alike.
        is_partly_eligible: Some node has GPUs that are given out and fit, and others that do not.
        partly_granted: Nodes where some GPUs that are given out are granted and some are not, shape
            (node,), or None when there are none.
        link_scores: Score of the best free set by topology, count and mask, or None when the
            class asks nothing of the links; the last topology is "unknown".
        data_percent: Share of the named data sets that each node has at hand, 0-100, shape (node,),
            or None when none is named.
        wants_gpus: Whole GPUs or a share are asked for, no MIG instance.
        avoids_reservations: Some GPUs are reserved, and some devices are asked for.
    """

    resources: ResourceRequest
    placement: PlacementRequest
    ends_at: int
    present_model_mask: Masks
    memory_mask: Masks
    architecture_mask: Masks
    eligible_mask: Masks
    granted_mask: Masks
    is_partly_eligible: bool
    is_withheld: bool
    partly_granted: Bools | None
    tolerated: Bools
    link_scores: NDArray[np.int16] | None
    data_percent: Ints | None

    is_mig: bool
    is_share: bool
    wants_gpus: bool
    requires_links: bool
    avoids_reservations: bool


class _Gpus(NamedTuple):
    """GPUs that could serve a request, as masks of shape (node,)."""

    model: Masks
    memory: Masks
    architecture: Masks
    eligible: Masks
    is_partly: bool


def bind_need(
    workload: Workload, fleet: Fleet, ends_at: int, withheld: Masks | None = None
) -> Need:
    """Return the class of a workload bound to a fleet.

    Args:
        workload: Any workload of the class.
        fleet: The fleet.
        ends_at: As `Need.ends_at`.
        withheld: GPUs kept clear for reservations that have not begun, shape (node,), or None.
    """
    resources, placement = workload.resources, workload.placement
    is_mig = resources.mig_profile is not None
    asked = (resources.gpu_model, resources.gpu_memory_mib, resources.gpu_architecture, is_mig)
    gpus = fleet.keep(("gpus", asked), lambda: _find_gpus(fleet, resources))
    holder = (workload.reservation_id, workload.only_reserved)
    granted, partly_granted = fleet.keep(
        ("granted", asked, holder), lambda: _find_granted(fleet, workload, gpus.eligible)
    )
    if withheld is not None:
        granted = granted & ~withheld
        partly_granted = _find_partly(fleet, granted)
    wants_gpus = resources.gpu_count > 0 and not is_mig
    scores = _link_scores(fleet, placement, resources)
    tolerated = fleet.keep(
        ("tolerated", placement.tolerations), lambda: _tolerated(fleet, placement.tolerations)
    )
    return Need(
        resources=resources,
        placement=placement,
        ends_at=ends_at,
        present_model_mask=gpus.model,
        memory_mask=gpus.memory,
        architecture_mask=gpus.architecture,
        eligible_mask=gpus.eligible,
        granted_mask=granted,
        is_partly_eligible=gpus.is_partly,
        is_withheld=withheld is not None,
        partly_granted=partly_granted,
        tolerated=tolerated,
        link_scores=scores,
        data_percent=_data_percent(fleet, placement),
        is_mig=is_mig,
        is_share=wants_gpus and resources.gpu_milli < WHOLE_GPU_MILLI,
        wants_gpus=wants_gpus,
        requires_links=scores is not None and placement.links_required,
        avoids_reservations=(wants_gpus or is_mig)
        and (bool(fleet.reservations) or withheld is not None or workload.only_reserved),
    )


def _find_gpus(fleet: Fleet, resources: ResourceRequest) -> _Gpus:
    model = _model_mask(fleet, resources.gpu_model)
    memory = model & _memory_mask(fleet, resources.gpu_memory_mib)
    architecture = memory & _architecture_mask(fleet, resources.gpu_architecture)
    offered = fleet.mig_mask & fleet.healthy_mask if resources.mig_profile else fleet.usable_mask
    eligible = architecture & offered
    is_partly = _find_partly(fleet, eligible) is not None
    return _Gpus(model, memory, architecture, eligible, is_partly)


def _find_granted(fleet: Fleet, workload: Workload, eligible: Masks) -> tuple[Masks, Bools | None]:
    """Return the GPUs it may have, and the nodes where those are some of what is given out."""
    granted = eligible & ~_reserved_for_others(fleet, workload)
    return granted, _find_partly(fleet, granted)


def _find_partly(fleet: Fleet, allowed: Masks) -> Bools | None:
    partly = (allowed != 0) & (allowed != fleet.usable_mask)
    return partly if partly.any() else None


def _model_mask(fleet: Fleet, model: str | None) -> Masks:
    if model is None:
        return fleet.present_mask
    wanted = [i for i, name in enumerate(fleet.models) if name in model.split(OR)]
    return fleet.gpu_bits(np.isin(fleet.gpu_model, wanted))


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
    if workload.only_reserved:
        return ~fleet.gpu_bits(_reserved_for(fleet, workload))
    if not fleet.reservations:
        return np.zeros(len(fleet), dtype=np.uint16)
    others = np.asarray(fleet.reserved >= 0) & ~_reserved_for(fleet, workload)
    return fleet.gpu_bits(np.asarray(others))


def _reserved_for(fleet: Fleet, workload: Workload) -> Bools:
    """Return which GPUs are the workload's own reservation's, shape (gpu, node)."""
    if workload.reservation_id not in fleet.reservations:
        return np.zeros_like(fleet.reserved, dtype=np.bool_)
    return np.asarray(fleet.reserved == fleet.reservations.index(workload.reservation_id))


def _tolerated(fleet: Fleet, tolerations: tuple[Toleration, ...]) -> Bools:
    by_set = [
        all(_is_tolerated(taint, tolerations) for taint in taints if _repels(taint))
        for taints in fleet.taint_sets
    ]
    return np.asarray(np.array(by_set, dtype=np.bool_)[fleet.taint_set])


def _data_percent(fleet: Fleet, placement: PlacementRequest) -> Ints | None:
    names = sorted(set(placement.data))
    if not names:
        return None
    held = np.zeros(len(fleet), dtype=np.int64)
    for name in names:
        held += fleet.label_mask(DATA_LABEL_PREFIX + name, DATA_AT_HAND)
    return np.asarray(100 * held // len(names))


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
    key = ("links", placement.links, placement.links_required, resources.gpu_count)
    return fleet.keep(key, lambda: _stack_links(fleet, placement, resources.gpu_count))


def _stack_links(fleet: Fleet, placement: PlacementRequest, count: int) -> NDArray[np.int16]:
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
