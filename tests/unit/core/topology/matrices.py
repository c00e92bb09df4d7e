"""Link matrices for tests: small ones of our own, and the real listings where a clone has them.

The real ones are `nvidia-smi topo -m` outputs kept outside the repository; `GPUPLANE_DATA` names
their folder (default: `../shared/data` beside the repository).
"""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuplane.core.topology.matrix import (
    LinkMatrix,
    LinkPreference,
    PcieLink,
    matrix_from_rows,
    parse_topo_matrix,
)

Ints = NDArray[np.int64]

CUBE_MESH = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_1\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS\t
mlx5_1\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\t X \t
"""

MIXED_5 = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      SYS     SYS     SYS     SYS     8-15,24-31      1               N/A
GPU1    SYS      X      PHB     NODE    NODE    0-7,16-23       0               N/A
GPU2    SYS     PHB      X      NODE    NODE    0-7,16-23       0               N/A
GPU3    SYS     NODE    NODE     X      PHB     0-7,16-23       0               N/A
GPU4    SYS     NODE    NODE    PHB      X      0-7,16-23       0               N/A
"""


def nested_switches() -> LinkMatrix:
    """Eight GPUs on PCIe: pairs on one switch (PIX), two pairs below a bigger one (PXB)."""
    return _tree(8)


def nested_switches_16() -> LinkMatrix:
    """Sixteen GPUs on PCIe, four to a switch of switches, eight to a socket."""
    return _tree(16)


def bridged_pairs() -> LinkMatrix:
    """Four cards on PCIe of which neighbours carry an NVLink bridge."""
    return matrix_from_rows(
        ["X NV4 NODE SYS", "NV4 X NODE SYS", "NODE NODE X NV4", "SYS SYS NV4 X"], [0, 0, 0, 1]
    )


def _tree(count: int) -> LinkMatrix:
    def path(i: int, j: int) -> PcieLink:
        if i // 2 == j // 2:
            return PcieLink.PIX
        if i // 4 == j // 4:
            return PcieLink.PXB
        return PcieLink.NODE if i // 8 == j // 8 and count > 8 else PcieLink.SYS

    half = count // 2
    return LinkMatrix(
        tuple((0,) * count for _ in range(count)),
        tuple(tuple(path(i, j) for j in range(count)) for i in range(count)),
        tuple(int(i >= half) for i in range(count)),
    )


def data_folder() -> Path | None:
    """Return the folder of real listings, or None in a bare clone."""
    default = Path(__file__).resolve().parents[5] / "shared" / "data"
    folder = Path(os.environ.get("GPUPLANE_DATA", default))
    return folder if (folder / "topology").is_dir() else None


def real_matrices() -> dict[str, LinkMatrix]:
    """Return every real listing by file name; skips the test where there are none."""
    folder = data_folder()
    if folder is None:
        pytest.skip("no real topology listings here (set GPUPLANE_DATA)")
    files = sorted((folder / "topology").glob("*.txt"))
    return {file.name: parse_topo_matrix(file.read_text()) for file in files}


def gpus_of(mask: int) -> list[int]:
    """Return the indices of the set bits."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


class Oracle:
    """The same choice made the slow way: every set compared, from the written rules alone."""

    FIFTHS: ClassVar = {
        PcieLink.SYS: 0,
        PcieLink.NODE: 1,
        PcieLink.PHB: 2,
        PcieLink.PXB: 4,
        PcieLink.PIX: 5,
    }
    POINTS: ClassVar = {
        LinkPreference.NONE: (50, 0, 0),
        LinkPreference.NVLINK: (50, 0, 0),
        LinkPreference.SAME_NUMA: (20, 20, 0),
        LinkPreference.SAME_PCIE: (0, 20, 10),
    }

    def __init__(self, matrix: LinkMatrix) -> None:
        self.matrix = matrix
        self.most = max((links for row in matrix.nvlinks for links in row), default=0)
        self.whole = 500 * self.most or 20
        self._sums: dict[int, tuple[int, int, int, int]] = {}
        self._left: dict[int, tuple[object, ...]] = {}

    def sums(self, mask: int) -> tuple[int, int, int, int]:
        """Return (bandwidth, same-NUMA pairs, path ranks, affinity) of a set."""
        if mask not in self._sums:
            bandwidth = numa = near = affinity = 0
            for i, j in combinations(gpus_of(mask), 2):
                path = self.matrix.pcie[i][j]
                bandwidth += 500 * self.matrix.nvlinks[i][j] or int(path)
                numa += self.matrix.numa[i] == self.matrix.numa[j]
                near += int(path)
                affinity += self.whole * self.FIFTHS[path] // 5
            self._sums[mask] = (bandwidth, numa, near, affinity)
        return self._sums[mask]

    def worth(self, mask: int, preference: LinkPreference) -> tuple[int, ...]:
        bandwidth, numa, near, affinity = self.sums(mask)
        b, n, a = self.POINTS[preference]
        return (b * bandwidth + n * self.whole * numa + a * affinity, bandwidth, numa, near)

    def allowed(self, mask: int, preference: LinkPreference) -> bool:
        pairs = list(combinations(gpus_of(mask), 2))
        if preference is LinkPreference.NVLINK:
            return all(self.matrix.nvlinks[i][j] for i, j in pairs)
        if preference is LinkPreference.SAME_NUMA:
            return all(self.matrix.numa[i] == self.matrix.numa[j] for i, j in pairs)
        if preference is LinkPreference.SAME_PCIE:
            return all(self.matrix.pcie[i][j] >= PcieLink.PXB for i, j in pairs)
        return True

    def left_behind(self, mask: int) -> tuple[object, ...]:
        """Return what a free mask still offers: its best eight, four, two, and all of it."""
        if mask not in self._left:
            offers: list[object] = [
                max((self.worth(s, LinkPreference.NVLINK) for s in sets_of(mask, k)), default=())
                for k in (8, 4, 2)
            ]
            self._left[mask] = (*offers, self.worth(mask, LinkPreference.NVLINK))
        return self._left[mask]

    def best(
        self, free: int, count: int, preference: LinkPreference, *, required: bool = False
    ) -> int | None:
        """Return the best set by the rules in the docstring of `tables`."""
        sets = [
            mask for mask in sets_of(free, count) if not required or self.allowed(mask, preference)
        ]
        if not sets:
            return None
        return max(
            sets,
            key=lambda mask: (
                self.worth(mask, preference),
                self.left_behind(free & ~mask),
                -mask,
            ),
        )

    def score(self, mask: int, preference: LinkPreference) -> int:
        """Return the score of a set, rounded half up."""
        tops = {"none": 50, "nvlink": 100, "same_numa": 90, "same_pcie": 80}
        pairs = len(gpus_of(mask)) * (len(gpus_of(mask)) - 1) // 2
        if preference is LinkPreference.NONE:
            return 50
        if not pairs:
            return tops[preference.value]
        points = self.worth(mask, preference)[0]
        whole = self.whole * pairs
        return 50 + (2 * points + whole) // (2 * whole)


def worth_of_sets(matrix: LinkMatrix, preference: LinkPreference) -> Ints:
    """Return the place of every set in the order of worth, by the written rules, shape (mask,)."""
    oracle = Oracle(matrix)
    asked = LinkPreference.NVLINK if preference is LinkPreference.NONE else preference
    masks = np.arange(1 << matrix.gpu_count)
    parts = [np.zeros(masks.size, dtype=np.int64) for _ in range(4)]
    for i, j in combinations(range(matrix.gpu_count), 2):
        both = (masks >> i & masks >> j & 1) == 1
        for part, value in zip(parts, oracle.worth(1 << i | 1 << j, asked), strict=True):
            part[both] += value
    order = np.lexsort(parts[::-1])
    steps = np.any([np.diff(part[order]) != 0 for part in parts], axis=0)
    places = np.empty(masks.size, dtype=np.int64)
    places[order] = np.concatenate(([0], np.cumsum(steps)))
    return places


def best_worths(matrix: LinkMatrix, preference: LinkPreference, *, required: bool) -> Ints:
    """Return the best place of a set by count and free mask, -1 for none, by comparing them all."""
    oracle, masks = Oracle(matrix), np.arange(1 << matrix.gpu_count)
    allowed = np.ones(masks.size, dtype=np.bool_)
    if required:
        for i, j in combinations(range(matrix.gpu_count), 2):
            if not oracle.allowed(1 << i | 1 << j, preference):
                allowed &= (masks >> i & masks >> j & 1) == 0
    worth = worth_of_sets(matrix, preference)
    sizes = np.bitwise_count(masks)
    counts = np.arange(matrix.gpu_count + 1)[:, None]
    best = np.where((sizes == counts) & allowed, worth, -1)
    for bit in range(matrix.gpu_count):
        halves = best.reshape(len(counts), -1, 2, 1 << bit)
        np.maximum(halves[:, :, 1], halves[:, :, 0], out=halves[:, :, 1])
    return best


def sets_of(free: int, count: int) -> list[int]:
    """Return every set of `count` GPUs inside a mask."""
    return [sum(1 << i for i in chosen) for chosen in combinations(gpus_of(free), count)]
