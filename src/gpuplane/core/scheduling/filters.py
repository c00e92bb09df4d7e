"""The filters, in the one order in which they are applied and counted.

Each is a pure function (need, fleet, where) -> which of those nodes pass, with the word that says
why the others do not, and the condition under which a class is asked at all. Static ones look at
facts alone, so their answer is kept with the fleet under what they read of the need; the others are
asked again for every node that changed, and may look at nothing of a node but its state (see
`core.fleet.states`). Adding one: write the function, give it a word, put it into its list.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.fleet.columns import Bools, Fleet, Masks
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.needs import ANY_FABRIC, Need

Where = slice | NDArray[np.int64] | int
"""Node indices, all nodes, or one node: then a single truth or number is the answer."""

EVERYWHERE = slice(None)


def always(need: Need) -> bool:
    """Ask every class."""
    return True


def nothing(need: Need) -> Hashable:
    """Read nothing of the need."""
    return None


class Filter(NamedTuple):
    """A condition on nodes, the word for those that fail it, and which classes are asked.

    Args:
        reads: All that a static filter looks at of the need: classes that are equal in it get the
            same answer. None where so few are equal that keeping answers is no gain.
        follows_from_room: Every node that passes the dynamic filters passes this one too.
    """

    word: Word
    passes: Callable[[Need, Fleet, Where], Bools]
    applies: Callable[[Need], bool] = always
    reads: Callable[[Need], Hashable] | None = None
    follows_from_room: bool = False


def is_ready(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes that report ready."""
    return fleet.ready[where]


def is_schedulable(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes that are not cordoned."""
    return ~fleet.cordoned[where]


def ends_before_maintenance(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes whose next maintenance starts no earlier than the work would end."""
    return np.asarray(fleet.maintenance_at[where] >= need.ends_at)


def tolerates_taints(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes whose repelling taints are all tolerated."""
    return need.tolerated[where]


def matches_selector(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes that carry every label asked for."""
    matched = np.ones(len(fleet), dtype=np.bool_)
    for key, value in need.placement.node_selector.items():
        matched &= fleet.label_mask(key, value)
    return np.asarray(matched[where])


def has_model(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes with a GPU of the model asked for."""
    return np.asarray(need.present_model_mask[where] != 0)


def has_gpu_memory(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes with a GPU of that model that has enough memory."""
    return np.asarray(need.memory_mask[where] != 0)


def has_architecture(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes with such a GPU of the architecture asked for."""
    return np.asarray(need.architecture_mask[where] != 0)


def has_mig_profile(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes with a free instance of the MIG profile."""
    return np.asarray((mig_starts(need, fleet, where, need.eligible_mask) != 0).any(axis=0))


def is_on_fabric(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes on the RDMA fabric asked for, or on any when any will do."""
    wanted = need.resources.rdma_fabric
    on_it = np.array([name != "" and wanted in (ANY_FABRIC, name) for name in fleet.fabrics])
    return np.asarray(on_it[fleet.fabric[where]])


def is_large_enough(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes that could hold one replica if they were empty."""
    resources = need.resources
    fits = fleet.cpu_total[where] >= resources.cpu_milli
    fits &= fleet.memory_total[where] >= resources.memory_mib
    fits &= fleet.ephemeral_total[where] >= resources.ephemeral_mib
    if need.wants_gpus:
        fits &= np.bitwise_count(need.eligible_mask[where]) >= resources.gpu_count
    return np.asarray(fits)


def has_cpu(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes with enough free CPU."""
    fits: Bools = fleet.cpu_free[where] >= need.resources.cpu_milli
    return fits


def has_memory(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes with enough free memory."""
    fits: Bools = fleet.memory_free[where] >= need.resources.memory_mib
    return fits


def has_ephemeral_storage(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes with enough free ephemeral storage."""
    fits: Bools = fleet.ephemeral_free[where] >= need.resources.ephemeral_mib
    return fits


def has_gpus(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes with enough free GPUs, or one GPU with enough of a share free."""
    return _has_gpus(need, fleet, where, need.eligible_mask, is_partly=need.is_partly_eligible)


def has_links(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes where free GPUs are joined as required."""
    return np.asarray(link_scores(need, fleet, where, need.eligible_mask) >= 0)


def is_not_reserved(need: Need, fleet: Fleet, where: Where) -> Bools:
    """Pass nodes where what is needed is free without GPUs reserved for others."""
    if need.is_mig:
        return np.asarray((mig_starts(need, fleet, where, need.granted_mask) != 0).any(axis=0))
    is_partly = need.partly_granted is not None
    fits = _has_gpus(need, fleet, where, need.granted_mask, is_partly=is_partly)
    if need.link_scores is not None:
        fits &= link_scores(need, fleet, where, need.granted_mask) >= 0
    return fits


def _gpu_words(need: Need) -> Hashable:
    resources = need.resources
    return resources.gpu_model, resources.gpu_memory_mib, resources.gpu_architecture


STATIC_FILTERS = (
    Filter(Word.NOT_READY, is_ready, reads=nothing),
    Filter(Word.CORDONED, is_schedulable, reads=nothing),
    Filter(Word.MAINTENANCE, ends_before_maintenance, reads=lambda need: need.ends_at),
    Filter(
        Word.UNTOLERATED_TAINT,
        tolerates_taints,
        reads=lambda need: need.placement.tolerations,
    ),
    Filter(
        Word.SELECTOR,
        matches_selector,
        lambda need: bool(need.placement.node_selector),
        reads=lambda need: tuple(sorted(need.placement.node_selector.items())),
    ),
    Filter(
        Word.GPU_MODEL,
        has_model,
        lambda need: need.resources.gpu_model is not None,
        reads=_gpu_words,
    ),
    Filter(
        Word.GPU_MEMORY,
        has_gpu_memory,
        lambda need: need.resources.gpu_memory_mib is not None,
        reads=_gpu_words,
    ),
    Filter(
        Word.GPU_ARCHITECTURE,
        has_architecture,
        lambda need: need.resources.gpu_architecture is not None,
        reads=_gpu_words,
    ),
    Filter(
        Word.RDMA,
        is_on_fabric,
        lambda need: need.resources.rdma_fabric is not None,
        reads=lambda need: need.resources.rdma_fabric,
    ),
    Filter(Word.NODE_TOO_SMALL, is_large_enough, follows_from_room=True),
)
"""What a node is: asked once for all classes that read the same."""

DYNAMIC_FILTERS = (
    Filter(Word.MIG_UNAVAILABLE, has_mig_profile, lambda need: need.is_mig),
    Filter(Word.CPU, has_cpu),
    Filter(Word.MEMORY, has_memory),
    Filter(Word.EPHEMERAL_STORAGE, has_ephemeral_storage),
    Filter(Word.GPU_COUNT, has_gpus, lambda need: need.wants_gpus),
    Filter(Word.TOPOLOGY, has_links, lambda need: need.requires_links),
    Filter(Word.RESERVED, is_not_reserved, lambda need: need.avoids_reservations),
)
"""What is free on it: asked again for every node that changed."""

FILTERS = STATIC_FILTERS + DYNAMIC_FILTERS
_SHARED = tuple(each for each in STATIC_FILTERS if each.reads is not None)
_READS = tuple(dict.fromkeys(each.reads for each in _SHARED if each.reads is not None))
_FOLLOWING = tuple(each for each in STATIC_FILTERS if each.follows_from_room)
_OWN = tuple(each for each in STATIC_FILTERS if each not in _SHARED + _FOLLOWING)

PERMANENT_WORDS = frozenset(each.word for each in STATIC_FILTERS) - {
    Word.NOT_READY,
    Word.CORDONED,
    Word.MAINTENANCE,
}
"""Words of filters that no ending work will ever change."""


def list_active(need: Need, filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """Return the filters that this class is asked."""
    return tuple(each for each in filters if each.applies(need))


def compute_passing(need: Need, fleet: Fleet, where: Where, active: Sequence[Filter]) -> Bools:
    """Return which nodes pass every one of the filters, at least one."""
    passing = active[0].passes(need, fleet, where)
    for each in active[1:]:
        passing = passing & each.passes(need, fleet, where)
    return passing


def passes_all(need: Need, fleet: Fleet, node: int, active: Sequence[Filter]) -> bool:
    """Tell whether one node passes every one of the filters."""
    for each in active:  # noqa: SIM110 - a generator costs as much as a filter here
        if not each.passes(need, fleet, node):
            return False
    return True


def compute_lasting(need: Need, fleet: Fleet) -> Bools:
    """Return which nodes pass every static filter that does not follow from room.

    What is returned may be shared: it is not to be written to.
    """
    key = tuple([read(need) for read in _READS])
    passing = fleet.keep(
        ("lasting", key),
        lambda: compute_passing(need, fleet, EVERYWHERE, list_active(need, _SHARED)),
    )
    for each in _OWN:
        if each.applies(need):
            passing = passing & each.passes(need, fleet, EVERYWHERE)
    return passing


def compute_suiting(need: Need, fleet: Fleet) -> Bools:
    """Return which nodes pass every static filter."""
    active = list_active(need, _FOLLOWING)
    return compute_lasting(need, fleet) & compute_passing(need, fleet, EVERYWHERE, active)


def count_refused(need: Need, fleet: Fleet) -> tuple[list[tuple[Word, int]], Bools]:
    """Return how many nodes each filter refuses of those still in, and who is left."""
    left = np.ones(len(fleet), dtype=np.bool_)
    counts = []
    for each in list_active(need, FILTERS):
        passing = left & each.passes(need, fleet, EVERYWHERE)
        refused = int(left.sum()) - int(passing.sum())
        if refused:
            counts.append((each.word, refused))
        left = passing
    return counts, left


def free_masks(need: Need, fleet: Fleet, where: Where, allowed: Masks) -> Masks:
    """Return the wholly free GPUs of those allowed, as masks."""
    return fleet.gpu_free_mask[where] & allowed[where]


def link_scores(need: Need, fleet: Fleet, where: Where, allowed: Masks) -> NDArray[np.int16]:
    """Return the score of the best free set of each node, -1 where none fits."""
    assert need.link_scores is not None
    free = free_masks(need, fleet, where, allowed)
    return need.link_scores[fleet.topology_index[where], free]


def mig_starts(need: Need, fleet: Fleet, where: Where, allowed: Masks) -> Masks:
    """Return the free instances of the class's profile, shape (gpu, node)."""
    column = fleet.mig_free.get(need.resources.mig_profile or "")
    if column is None:
        return np.zeros_like(fleet.gpu_free_milli[:, where])
    bits = np.arange(fleet.gpu_count_max, dtype=np.uint16)[:, None]
    allowed_bits = (allowed[where][None, :] >> bits) & np.uint16(1)
    return column[:, where] * allowed_bits


def _has_gpus(need: Need, fleet: Fleet, where: Where, allowed: Masks, *, is_partly: bool) -> Bools:
    """Return where enough is free on allowed GPUs.

    Where a node's GPUs are allowed all or none, what is free on the node at large says it.
    """
    resources = need.resources
    if not is_partly:
        free = fleet.gpu_free_most if need.is_share else fleet.gpu_free_count
        wanted = resources.gpu_milli if need.is_share else resources.gpu_count
        fits: Bools = (free[where] >= wanted) & (allowed[where] != 0)
        return fits
    if not need.is_share:
        whole = free_masks(need, fleet, where, allowed)
        return np.asarray(np.bitwise_count(whole) >= resources.gpu_count)
    bits = np.arange(fleet.gpu_count_max, dtype=np.uint16)[:, None]
    is_allowed = (allowed[where][None, :] >> bits) & np.uint16(1)
    enough = fleet.gpu_free_milli[:, where] >= resources.gpu_milli
    return np.asarray((enough & (is_allowed != 0)).any(axis=0))
