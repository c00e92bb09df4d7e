"""How good a choice of GPUs is beside every other one: the optimum, the mean, the worst, the first.

Owns figures for people who check the tables. Compares all sets of a size at once, which is never
done to decide: `tables` answers by look-up.
"""

from dataclasses import dataclass

import numpy as np

from gpuplane.core.topology.matrix import LinkMatrix, LinkPreference
from gpuplane.core.topology.scores import IntArray, compute_pair_sums
from gpuplane.core.topology.tables import TopologyClass, topology_class

LEFT_SIZES = (2, 4, 8)
"""Sizes of which the best set left behind is told: what jobs ask for most."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One choice beside all sets of its size. Links are summed over the pairs of a set.

    Attributes:
        gpus: The chosen GPUs by index.
        score: The choice's score for the preference, in the range of `scores`' table.
        links: Its sum: NVLinks where the node has any, else PIX 5, PXB 4, PHB 3, NODE 2, SYS 1.
        best_links: The largest sum of any set.
        best_sets: How many sets have that sum, of `sets` in all.
        first_links: The sum of the lowest indices.
        mean_links_milli: Mean sum of all sets, in thousandths, rounded half up.
        worst_links: The smallest sum.
        left: Sum of the best set of each size that stays free, where one does.
    """

    gpus: tuple[int, ...]
    score: int
    links: int
    best_links: int
    best_sets: int
    sets: int
    first_links: int
    mean_links_milli: int
    worst_links: int
    left: dict[int, int]


def compare_choice(
    matrix: LinkMatrix,
    count: int,
    preference: LinkPreference = LinkPreference.NONE,
    *,
    free_mask: int | None = None,
    required: bool = False,
) -> Comparison | None:
    """Return the choice of the tables beside every other set, or None if no set fits.

    Args:
        matrix: The node's links.
        count: GPUs wanted, at least 1.
        preference: What is asked of the links.
        free_mask: Free GPUs, bit `i` for row `i`; None for all.
        required: Whether a set that misses the preference is refused.

    Raises:
        ValueError: If the count is not positive, or the mask names a GPU that is not there.
    """
    if count < 1:
        raise ValueError(f"at least one GPU is to be chosen, not {count}")
    entry: TopologyClass = topology_class(matrix)
    free = (1 << matrix.gpu_count) - 1 if free_mask is None else free_mask
    chosen = entry.best_subset(free, count, preference, required=required)
    if chosen is None:
        return None
    sums = compute_link_sums(matrix)
    sizes = _sizes(matrix.gpu_count)
    masks = np.arange(sums.size)
    inside = (masks & ~free) == 0
    among = sums[inside & (sizes == count)]
    best = int(among.max())
    rest = (masks & ~(free & ~chosen)) == 0
    total = int(among.sum())
    return Comparison(
        gpus=_gpus_of(chosen),
        score=entry.preference_score(chosen, preference),
        links=int(sums[chosen]),
        best_links=best,
        best_sets=int((among == best).sum()),
        sets=among.size,
        first_links=int(sums[_lowest(free, count)]),
        mean_links_milli=(2000 * total + among.size) // (2 * among.size),
        worst_links=int(among.min()),
        left={
            size: int(sums[rest & (sizes == size)].max())
            for size in LEFT_SIZES
            if (free & ~chosen).bit_count() >= size
        },
    )


def compute_link_sums(matrix: LinkMatrix) -> IntArray:
    """Return the sum of links inside every set, shape (mask,)."""
    if any(any(row) for row in matrix.nvlinks):
        return compute_pair_sums(matrix.gpu_count, lambda i, j: matrix.nvlinks[i][j])
    return compute_pair_sums(matrix.gpu_count, lambda i, j: int(matrix.pcie[i][j]) + 1)


def _sizes(count: int) -> IntArray:
    return np.array([mask.bit_count() for mask in range(1 << count)], dtype=np.int64)


def _gpus_of(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def _lowest(free: int, count: int) -> int:
    return sum(1 << i for i in _gpus_of(free)[:count])
