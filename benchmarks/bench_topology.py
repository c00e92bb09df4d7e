"""What the tables inside a node cost: building them, asking them, and planning MIG cuts.

Processor time, because the machine is shared. Run from the root:
`PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_topology`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations

from benchmarks.figures import print_figure, print_machine
from gpuplane.core.ids import GpuId
from gpuplane.core.mig.layouts import best_placement, free_placements, mig_rules
from gpuplane.core.mig.profiles import KNOWN_TABLES
from gpuplane.core.mig.rebalance import MigGpu, plan_room, plan_shares
from gpuplane.core.topology.matrix import LinkMatrix, LinkPreference
from gpuplane.core.topology.named import named_topology
from gpuplane.core.topology.scores import compute_points, compute_sums
from gpuplane.core.topology.tables import TopologyClass

ROUNDS = 5
ASKED = 20_000
"""Look-ups of one round."""


def spent_ms(work: Callable[[], object]) -> float:
    """Return the processor time of a call, in milliseconds."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def build(matrix: LinkMatrix) -> None:
    """Build every table of one preference: scores, and the best set of every size."""
    entry = TopologyClass(matrix)
    entry.score_table(LinkPreference.NVLINK, required=False)
    entry.subset_table(LinkPreference.NVLINK, required=False)


def search(matrix: LinkMatrix, free: int, count: int) -> int:
    """Return the best set as a search without tables finds it, the reference of a look-up."""
    points = _POINTS[matrix.gpu_count]
    gpus = [bit for bit in range(matrix.gpu_count) if free >> bit & 1]
    sets = (sum(1 << gpu for gpu in chosen) for chosen in combinations(gpus, count))
    return max(sets, key=lambda mask: points[mask])


_POINTS: dict[int, list[int]] = {}


def bench_node(name: str, matrix: LinkMatrix) -> None:
    """Print what one node's tables cost."""
    builds = [spent_ms(lambda: build(matrix)) for _ in range(ROUNDS)]
    print_figure(f"{name}: all tables of a preference", builds, "ms")
    entry = TopologyClass(matrix)
    rows = [_row_ms(entry, count) for count in range(1, matrix.gpu_count + 1)]
    print_figure(f"{name}: the row of one count, at its first use", rows, "ms")
    masks = [(i * 40_503) % (1 << matrix.gpu_count) for i in range(ASKED)]
    half = matrix.gpu_count // 2
    row = entry.subset_row(half, LinkPreference.NVLINK, required=False)

    def ask() -> int:
        return sum(int(row[mask]) > 0 for mask in masks)

    _POINTS[matrix.gpu_count] = compute_points(compute_sums(matrix), LinkPreference.NVLINK).tolist()
    every = (1 << matrix.gpu_count) - 1
    reference = spent_ms(lambda: search(matrix, every, half)) * 1000
    asked = [spent_ms(ask) * 1000 / ASKED for _ in range(ROUNDS)]
    print_figure(
        f"{name}: one choice of {half}",
        asked,
        "us",
        reference=("searched without tables", reference),
    )


def _row_ms(entry: TopologyClass, count: int) -> float:
    return spent_ms(lambda: entry.subset_row(count, LinkPreference.NVLINK, required=False))


def bench_mig() -> None:
    """Print what MIG choices and plans cost."""
    table = KNOWN_TABLES["nvidia-h100-80gb"]
    rules = [spent_ms(lambda: mig_rules.__wrapped__(table)) for _ in range(ROUNDS)]
    print_figure("MIG: tables of a model", rules, "ms")
    profile = table.profiles[0]
    masks = [mask for mask in range(256) if free_placements(mask, profile)]

    def choose() -> None:
        for _ in range(ASKED // len(masks)):
            for mask in masks:
                best_placement(table, mask, profile)

    tried = ASKED // len(masks) * len(masks)
    chosen = [spent_ms(choose) * 1000 / tried for _ in range(ROUNDS)]
    print_figure("MIG: one placement that keeps most open", chosen, "us")
    gpus = [MigGpu(GpuId(f"GPU-{i:04}"), table) for i in range(512)]
    room = [spent_ms(lambda: plan_room(gpus, "3g.40gb", 1)) for _ in range(ROUNDS)]
    print_figure("MIG: room for one instance among 512 GPUs", room, "ms")
    shares = {"1g.10gb": 70, "2g.20gb": 20, "3g.40gb": 10}
    shared = [spent_ms(lambda: plan_shares(gpus[:64], shares)) for _ in range(ROUNDS)]
    print_figure("MIG: 64 GPUs in shares of 70, 20, 10", shared, "ms")


def main() -> None:
    """Print every figure."""
    print_machine()
    bench_node("8 GPUs, cube mesh", named_topology("nvlink-cube-mesh-8", 8))
    bench_node("16 GPUs, NVSwitch", named_topology("nvswitch-16", 16))
    bench_node("16 GPUs, two sockets of PCIe", named_topology("pcie-dual-socket-16", 16))
    bench_mig()


if __name__ == "__main__":
    main()
