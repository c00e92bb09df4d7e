"""Which GPUs of a node to hand out together: exact tables, indexed by the mask of free GPUs.

Owns the choice inside one node. Nodes with the same matrix share one `TopologyClass`; once its
tables stand, a choice is a lookup. Never sees a node, a workload or how many nodes there are.

The best set of a size is the one with most points for the preference; among equals the one with
most bandwidth, then most pairs on one NUMA node, then nearest over PCIe, then the one that leaves
the best eight, four and two GPUs behind, then the lowest mask. Ties therefore never depend on
the order of evaluation.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpuplane.core.topology.matrix import LinkMatrix, LinkPreference
from gpuplane.core.topology.named import MAX_NODE_GPUS
from gpuplane.core.topology.scores import (
    BoolArray,
    IntArray,
    SetSums,
    compute_allowed,
    compute_points,
    compute_quality,
    compute_scores,
    compute_sums,
)

MAX_CLASSES = 1024
"""Classes kept at once. A fleet has as many as it has kinds of machines; 8-GPU tables take about
100 kB each, and a class that falls out is computed again to the same bytes."""

_CHUNK_CELLS = 1 << 21
"""Cells of one step of the exhaustive comparison, so that memory stays below 64 MiB."""

ScoreTable = NDArray[np.int16]
SubsetTable = NDArray[np.uint16]
_RankArray = NDArray[np.int32]


class TopologyClass:
    """The tables of all nodes that are wired alike; build one with `topology_class`."""

    def __init__(self, matrix: LinkMatrix) -> None:
        if not 1 <= matrix.gpu_count <= MAX_NODE_GPUS:
            raise ValueError(f"a node has 1 to {MAX_NODE_GPUS} GPUs, not {matrix.gpu_count}")
        self.matrix = matrix
        self.gpu_count = matrix.gpu_count
        self._sums: SetSums = compute_sums(matrix)
        self._quality = compute_quality(self._sums).tolist()
        self._sizes = _popcounts(self.gpu_count)
        self._orders: dict[LinkPreference, _RankArray] = {}
        self._set_scores_of: dict[LinkPreference, ScoreTable] = {}
        self._allowed_for: dict[LinkPreference, BoolArray] = {}
        self._scores: dict[tuple[LinkPreference, bool], ScoreTable] = {}
        self._rows: dict[tuple[LinkPreference, bool, int], SubsetTable] = {}
        self._left_behind: _RankArray | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopologyClass) and self.matrix == other.matrix

    def __hash__(self) -> int:
        return hash(self.matrix)

    def best_subset(
        self,
        free_mask: int,
        count: int,
        preference: LinkPreference,
        *,
        required: bool = False,
    ) -> int | None:
        """Return the mask of the best `count` free GPUs, or None if no set fits.

        Args:
            free_mask: Free GPUs, bit `i` for the GPU of the matrix's row `i`.
            count: GPUs wanted, at least 0.
            preference: What the workload asks of the links.
            required: Whether a set that misses the preference is refused.

        Raises:
            ValueError: If the mask names a GPU that the node does not have.
        """
        self._check(free_mask)
        if count > self.gpu_count:
            return None
        found = int(self.subset_row(count, preference, required=required)[free_mask])
        return found if found or count == 0 else None

    def score(self, mask: int) -> int:
        """Return the mean bandwidth of a set's pairs, 0 to 100; a single GPU has 100."""
        self._check(mask)
        return int(self._quality[mask])

    def preference_score(self, mask: int, preference: LinkPreference) -> int:
        """Return a set's score for a preference, in the range of `scores`' table."""
        self._check(mask)
        return int(self._set_scores(preference)[mask])

    def satisfies(self, mask: int, preference: LinkPreference) -> bool:
        """Return whether a set fulfils a preference as if it were required."""
        self._check(mask)
        return bool(self._allowed(preference, required=True)[mask])

    def score_table(self, preference: LinkPreference, *, required: bool) -> ScoreTable:
        """Return the score of the best set by size and free mask.

        Returns:
            Scores of `scores`' table, -1 where no set fits, shape (gpu_count + 1, 2 ** gpu_count),
            read-only.
        """
        key = (preference, required)
        if key not in self._scores:
            order = self._order(preference)
            best = self._best_ranks(order, self._allowed(preference, required=required))
            by_rank = np.full(int(order.max()) + 2, -1, dtype=np.int16)
            table = np.full(best.shape, -1, dtype=np.int16)
            scores = self._set_scores(preference)
            for size in range(self.gpu_count + 1):
                members = self._sizes == size
                by_rank[order[members]] = scores[members]
                table[size] = np.where(best[size] < 0, -1, by_rank[best[size]])
            table.setflags(write=False)
            self._scores[key] = table
        return self._scores[key]

    def subset_row(self, count: int, preference: LinkPreference, *, required: bool) -> SubsetTable:
        """Return the best set of one size by free mask, 0 where none fits, shape (2 ** gpu_count,).

        The row is computed at its first use, by comparing every set once.
        """
        if not 0 <= count <= self.gpu_count:
            raise ValueError(f"the node has {self.gpu_count} GPUs, {count} are asked for")
        if preference is LinkPreference.NONE:
            # Nothing is asked: good links are still the better gift, and nothing is refused.
            preference, required = LinkPreference.NVLINK, False
        key = (preference, required, count)
        if key not in self._rows:
            row = self._compute_row(count, preference, required=required)
            row.setflags(write=False)
            self._rows[key] = row
        return self._rows[key]

    def subset_table(self, preference: LinkPreference, *, required: bool) -> SubsetTable:
        """Return the best set by size and free mask, 0 where none fits.

        Returns:
            Masks, shape (gpu_count + 1, 2 ** gpu_count).
        """
        sizes = range(self.gpu_count + 1)
        return np.stack([self.subset_row(k, preference, required=required) for k in sizes])

    def _check(self, mask: int) -> None:
        if not 0 <= mask < 1 << self.gpu_count:
            raise ValueError(f"mask {mask:#x} names a GPU beyond the node's {self.gpu_count}")

    def _set_scores(self, preference: LinkPreference) -> ScoreTable:
        if preference not in self._set_scores_of:
            self._set_scores_of[preference] = compute_scores(self._sums, preference)
        return self._set_scores_of[preference]

    def _allowed(self, preference: LinkPreference, *, required: bool) -> BoolArray:
        asked = preference if required else LinkPreference.NONE
        if asked not in self._allowed_for:
            self._allowed_for[asked] = compute_allowed(self.matrix, asked)
        return self._allowed_for[asked]

    def _order(self, preference: LinkPreference) -> _RankArray:
        """Return each set's rank for a preference, larger is better, shape (mask,)."""
        if preference not in self._orders:
            sums = self._sums
            # 16 GPUs have 120 pairs: 65,536 ranks, 120 times 64 links of 500 steps, 120, 480.
            key = _ranks(compute_points(sums, preference)).astype(np.int64)
            same_numa = sums.latency // sums.whole
            for part, bits in ((sums.bandwidth, 22), (same_numa, 7), (sums.near, 9)):
                key = (key << bits) | part
            self._orders[preference] = _ranks(key)
        return self._orders[preference]

    def _best_ranks(self, order: _RankArray, allowed: BoolArray) -> _RankArray:
        """Return the best rank of an allowed set by size and free mask, -1 for none."""
        masks = np.arange(1 << self.gpu_count)
        best = np.full((self.gpu_count + 1, masks.size), -1, dtype=np.int32)
        best[self._sizes[allowed], masks[allowed]] = order[allowed]
        for bit in range(self.gpu_count):
            # The sets inside a mask are those without the bit, and those with it.
            halves = best.reshape(self.gpu_count + 1, -1, 2, 1 << bit)
            np.maximum(halves[:, :, 1], halves[:, :, 0], out=halves[:, :, 1])
        return best

    def _left_behind_ranks(self) -> _RankArray:
        """Return each free mask's rank by the best eight, four, two and all GPUs in it."""
        if self._left_behind is None:
            order = self._order(LinkPreference.NVLINK)
            every = np.ones(order.size, dtype=np.bool_)
            best = self._best_ranks(order, every) + 1
            key = np.zeros(order.size, dtype=np.uint64)
            for size in (8, 4, 2):
                part = best[size] if size <= self.gpu_count else np.zeros_like(best[0])
                key = (key << np.uint64(16)) | part.astype(np.uint64)
            key = (key << np.uint64(16)) | (order + 1).astype(np.uint64)
            self._left_behind = _ranks(key)
        return self._left_behind

    def _compute_row(
        self, count: int, preference: LinkPreference, *, required: bool
    ) -> SubsetTable:
        """Return the best set of a size for every free mask, by comparing all sets inside it."""
        allowed = self._allowed(preference, required=required)
        worth = np.where(allowed, self._order(preference) + 1, 0).astype(np.uint32) << 16
        left = self._left_behind_ranks().astype(np.uint32)
        row = np.zeros(1 << self.gpu_count, dtype=np.uint16)
        for size in range(count, self.gpu_count + 1):
            free = np.flatnonzero(self._sizes == size)
            choices = _choices(size, count)
            step = max(1, _CHUNK_CELLS // len(choices))
            for start in range(0, free.size, step):
                part = free[start : start + step]
                sets = _spread(part, size, self.gpu_count, choices)
                keys = worth[sets] | left[part[:, None] ^ sets]
                # Columns ascend, so the first of equals is the lowest mask.
                chosen = keys.argmax(axis=1)
                rows = np.arange(part.size)
                fits = keys[rows, chosen] >> 16 > 0
                row[part] = np.where(fits, sets[rows, chosen], 0)
        return row


@lru_cache(maxsize=MAX_CLASSES)
def _shared_class(matrix: LinkMatrix) -> TopologyClass:
    return TopologyClass(matrix)


def topology_class(matrix: LinkMatrix) -> TopologyClass:
    """Return the class of a matrix; equal wiring gives the same instance.

    Raises:
        ValueError: If the node has no GPU or more than `MAX_NODE_GPUS`.
    """
    return _shared_class(matrix.with_plain_numa())


def stack_score_tables(
    classes: Sequence[TopologyClass],
    preference: LinkPreference,
    *,
    required: bool,
    width: int = 8,
) -> ScoreTable:
    """Return the score tables of several classes as one array for a lookup over nodes.

    Args:
        classes: Classes of at most `width` GPUs.
        preference: What the workload asks of the links.
        required: Whether a set that misses the preference is refused.
        width: GPUs that a mask of the result can name.

    Returns:
        Scores, -1 where no set fits, shape (class, width + 1, 2 ** width).
    """
    stack = np.full((len(classes), width + 1, 1 << width), -1, dtype=np.int16)
    for index, entry in enumerate(classes):
        table = entry.score_table(preference, required=required)
        stack[index, : table.shape[0], : table.shape[1]] = table
    return stack


def _ranks(keys: IntArray | NDArray[np.uint64]) -> _RankArray:
    """Return the dense rank of each key, 0 for the smallest."""
    return np.unique(keys, return_inverse=True)[1].reshape(keys.shape).astype(np.int32)


def _popcounts(bits: int) -> IntArray:
    counts = np.zeros(1 << bits, dtype=np.int64)
    for bit in range(bits):
        counts[1 << bit : 2 << bit] = counts[: 1 << bit] + 1
    return counts


@lru_cache(maxsize=(MAX_NODE_GPUS + 1) ** 2)
def _choices(size: int, count: int) -> NDArray[np.float32]:
    """Return which of `size` places each choice of `count` takes, shape (choice, size).

    Ascending by mask. Floats, because their matrix product is fast and exact below 2 ** 24.
    """
    masks = np.flatnonzero(_popcounts(size) == count)
    return (masks[:, None] >> np.arange(size) & 1).astype(np.float32)


def _spread(masks: IntArray, size: int, bits: int, choices: NDArray[np.float32]) -> IntArray:
    """Return each choice laid on the set bits of each mask, shape (mask, choice)."""
    places = np.nonzero(masks[:, None] >> np.arange(bits) & 1)[1].reshape(masks.size, size)
    values = (1 << places).astype(np.float32)
    return (values @ choices.T).astype(np.int64)
