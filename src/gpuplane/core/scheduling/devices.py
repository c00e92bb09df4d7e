"""Which devices of a chosen node a replica gets.

Owns the choice inside one node: link tables for whole GPUs, best fit for shares, for MIG the
instance that keeps most future placements open. Never compares nodes.
"""

import numpy as np

from gpuplane.core.fleet.columns import Fleet, Take, bits_of
from gpuplane.core.mig.layouts import compute_loss
from gpuplane.core.scheduling.bench import Row
from gpuplane.core.scheduling.filters import mig_starts
from gpuplane.core.scheduling.fragmentation import choose_share_gpu
from gpuplane.core.scheduling.needs import Need
from gpuplane.core.scheduling.policy import PlacementPolicy
from gpuplane.core.topology.tables import SubsetTable, topology_class

_FRAGMENT_AWARE = frozenset({PlacementPolicy.FRAGMENTATION, PlacementPolicy.BALANCED})


def choose_devices(row: Row, node: int) -> Take:
    """Return what one replica of the class takes from a node that fits it.

    Raises:
        ValueError: If the node does not fit the class.
    """
    need, resources = row.need, row.need.resources
    gpu_mask = 0
    mig = None
    if need.is_mig:
        gpu, start = _choose_instance(need, row.fleet, node)
        mig = (gpu, resources.mig_profile or "", start)
    elif need.is_share:
        gpu_mask = 1 << _choose_share(row, node)
    elif need.wants_gpus:
        gpu_mask = _choose_gpus(row, node)
    return Take(
        node,
        gpu_mask,
        resources.gpu_milli,
        resources.cpu_milli,
        resources.memory_mib,
        resources.ephemeral_mib,
        mig,
    )


def _choose_gpus(row: Row, node: int) -> int:
    need, fleet = row.need, row.fleet
    count = need.resources.gpu_count
    # Of the state, so that no column is written for it.
    free = fleet.states.gpus[fleet.state_of[node]].mask & int(need.granted_mask[node])
    place = int(fleet.topology_index[node])
    if place >= 0:
        found = int(_subset_row(row, place)[free])
        if found:
            return found
    bits = bits_of(free)[:count]
    if len(bits) < count:
        raise ValueError(f"{fleet.nodes[node].name} has {len(bits)} GPUs free, {count} asked")
    return sum(1 << bit for bit in bits)


def _subset_row(row: Row, place: int) -> SubsetTable:
    table = row.subset_rows.get(place)
    if table is None:
        placement = row.need.placement
        table = topology_class(row.fleet.topologies[place]).subset_row(
            row.need.resources.gpu_count, placement.links, required=placement.links_required
        )
        row.subset_rows[place] = table
    return table


def _choose_share(row: Row, node: int) -> int:
    need, fleet, context = row.need, row.fleet, row.context
    if context.policy.placement in _FRAGMENT_AWARE:
        return choose_share_gpu(need, fleet, node, context.mix)
    granted = int(need.granted_mask[node])
    free = fleet.gpu_free_milli[:, node]
    fitting = [(int(free[g]), g) for g in bits_of(granted) if free[g] >= need.resources.gpu_milli]
    if not fitting:
        raise ValueError(f"the share fits on no GPU of {fleet.nodes[node].name}")
    return min(fitting)[1]


def _choose_instance(need: Need, fleet: Fleet, node: int) -> tuple[int, int]:
    """Return (GPU, first slice) of the free instance that keeps most future placements open.

    Counted are the placements around what is held on a GPU, because free instances can be cut
    anew. Among equals the GPU with the fewest instances free, then the lowest, then the highest
    start, as in `best_placement`.
    """
    starts = mig_starts(need, fleet, np.array([node]), need.granted_mask)[:, 0]
    choices = [
        (_loss(need, fleet, node, gpu, start), _free_instances(fleet, node, gpu), gpu, -start)
        for gpu in np.flatnonzero(starts).tolist()
        for start in bits_of(int(starts[gpu]))
    ]
    if not choices:
        raise ValueError(f"no instance of the profile is free on {fleet.nodes[node].name}")
    _, _, gpu, start = min(choices)
    return gpu, -start


def _loss(need: Need, fleet: Fleet, node: int, gpu: int, start: int) -> tuple[int, int]:
    """Return what the GPU loses by this instance; nothing where its table is not known."""
    facts = next(each for each in fleet.nodes[node].gpus if each.index == gpu)
    table = facts.cuts
    profile = None if table is None else table.find_profile(need.resources.mig_profile or "")
    if table is None or profile is None:
        return 0, 0
    held = 0
    for slot in facts.mig_instances:
        known = table.find_profile(slot.profile)
        if known is not None and not fleet.mig_free[slot.profile][gpu, node] >> slot.start & 1:
            held |= known.mask_at(slot.start)
    return compute_loss(table, held, profile, start)


def _free_instances(fleet: Fleet, node: int, gpu: int) -> int:
    return sum(int(column[gpu, node]).bit_count() for column in fleet.mig_free.values())
