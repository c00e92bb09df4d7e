"""What a set of GPUs is worth: bandwidth, NUMA latency and PCIe affinity, as exact integers.

Owns the one formula behind every topology score. Never looks for a set (`tables` does).

    score = clamp(BASE + sum of the preference's points over the pairs / number of pairs, BASE, top)

A pair earns at most 50 points for bandwidth, 20 for latency, 10 for affinity. Which of them count
follows from the preference, so that its range is the one of the specification:

    preference   counts                               range
    none         nothing                              50
    nvlink       bandwidth 50                         50-100
    same_numa    latency 20, bandwidth 20             50-90
    same_pcie    latency 20, affinity 10              50-80

Source: topology scheduler specification, figure "Topology Scoring Algorithm" (bases, factors);
docs/decisions/0007 says how the weights follow from it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.topology.matrix import LinkMatrix, LinkPreference, PcieLink

BASE_SCORE = 50

# A path over PCIe earns equal steps from SYS 0 to PIX 4, so that the order of sets is the order of
# the sum of their ranks: a step is a 20th of a pair's bandwidth on a node without NVLink. On a node
# with some a link is this many steps, more than all pairs of sixteen GPUs have together (480): the
# number of NVLinks goes before every path over PCIe, exactly, whatever the set.
_STEPS_PER_NVLINK = 500
_STEPS_WITHOUT_NVLINK = 20
# Affinity in fifths: below a host bridge (PIX, PXB) traffic stays inside the switch.
_PCIE_AFFINITY_FIFTHS = {
    PcieLink.SYS: 0,
    PcieLink.NODE: 1,
    PcieLink.PHB: 2,
    PcieLink.PXB: 4,
    PcieLink.PIX: 5,
}
_POINTS = {
    LinkPreference.NONE: (0, 0, 0),
    LinkPreference.NVLINK: (50, 0, 0),
    LinkPreference.SAME_NUMA: (20, 20, 0),
    LinkPreference.SAME_PCIE: (0, 20, 10),
}
"""Most points of a pair for (bandwidth, latency, affinity)."""

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SetSums:
    """Sums over the pairs inside every set of GPUs, each of shape (mask,).

    Attributes:
        whole: What a pair has at most of bandwidth, latency and affinity on this node.
        pairs: Number of pairs.
        bandwidth: Sum of bandwidth shares.
        latency: Sum of latency shares (`whole` where both GPUs are on one NUMA node).
        affinity: Sum of affinity shares.
        near: Sum of PCIe path ranks, SYS 0 to PIX 4.
    """

    whole: int
    pairs: IntArray
    bandwidth: IntArray
    latency: IntArray
    affinity: IntArray
    near: IntArray


def compute_sums(matrix: LinkMatrix) -> SetSums:
    """Return the sums for all sets of the matrix's GPUs."""
    most = max((links for row in matrix.nvlinks for links in row), default=0)
    whole = most * _STEPS_PER_NVLINK if most else _STEPS_WITHOUT_NVLINK

    def bandwidth(i: int, j: int) -> int:
        links = matrix.nvlinks[i][j]
        return links * _STEPS_PER_NVLINK if links else int(matrix.pcie[i][j])

    def latency(i: int, j: int) -> int:
        return whole if matrix.numa[i] == matrix.numa[j] else 0

    def affinity(i: int, j: int) -> int:
        return whole * _PCIE_AFFINITY_FIFTHS[matrix.pcie[i][j]] // 5

    count = matrix.gpu_count
    return SetSums(
        whole=whole,
        pairs=compute_pair_sums(count, lambda _i, _j: 1),
        bandwidth=compute_pair_sums(count, bandwidth),
        latency=compute_pair_sums(count, latency),
        affinity=compute_pair_sums(count, affinity),
        near=compute_pair_sums(count, lambda i, j: int(matrix.pcie[i][j])),
    )


def compute_points(sums: SetSums, preference: LinkPreference) -> IntArray:
    """Return each set's points times `whole`, summed over its pairs, shape (mask,)."""
    for_bandwidth, for_latency, for_affinity = _POINTS[preference]
    return (
        for_bandwidth * sums.bandwidth + for_latency * sums.latency + for_affinity * sums.affinity
    )


def compute_scores(sums: SetSums, preference: LinkPreference) -> NDArray[np.int16]:
    """Return each set's score for a preference, 50 to the top of its range, shape (mask,).

    A single GPU has no link to wait for: it has the top of the range.
    """
    points = compute_points(sums, preference)
    whole = np.maximum(sums.pairs, 1) * sums.whole
    scores = BASE_SCORE + (2 * points + whole) // (2 * whole)
    top = BASE_SCORE + sum(_POINTS[preference])
    scores = np.where(sums.pairs == 0, top, np.clip(scores, BASE_SCORE, top))
    return scores.astype(np.int16)


def compute_quality(sums: SetSums) -> NDArray[np.int16]:
    """Return each set's mean bandwidth share in 0 to 100, shape (mask,)."""
    whole = np.maximum(sums.pairs, 1) * sums.whole
    quality = (200 * sums.bandwidth + whole) // (2 * whole)
    return np.where(sums.pairs == 0, 100, quality).astype(np.int16)


def compute_allowed(matrix: LinkMatrix, preference: LinkPreference) -> BoolArray:
    """Return which sets satisfy a preference that is required, shape (mask,).

    NVLINK: every pair has a direct NVLink or one over NVSwitch. SAME_NUMA: one NUMA node.
    SAME_PCIE: every pair is proven to stay below one host bridge (PIX or PXB).
    """

    def unfit(i: int, j: int) -> int:
        if preference is LinkPreference.NVLINK:
            return int(matrix.nvlinks[i][j] == 0)
        if preference is LinkPreference.SAME_NUMA:
            return int(matrix.numa[i] != matrix.numa[j])
        if preference is LinkPreference.SAME_PCIE:
            return int(matrix.pcie[i][j] < PcieLink.PXB)
        return 0

    return np.asarray(compute_pair_sums(matrix.gpu_count, unfit) == 0)


def compute_pair_sums(count: int, weight: Callable[[int, int], int]) -> IntArray:
    """Return the sum of a weight over the pairs inside every set, shape (2 ** count,).

    Sets with highest GPU `i` are the sets without it plus what `i` adds to each of them.
    """
    total = np.zeros(1 << count, dtype=np.int64)
    for i in range(count):
        added = np.zeros(1 << i, dtype=np.int64)
        for j in range(i):
            added[1 << j : 2 << j] = added[: 1 << j] + weight(i, j)
        total[1 << i : 2 << i] = total[: 1 << i] + added
    return total
