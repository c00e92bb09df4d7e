"""How much of the openb cluster each placement policy gives out, beside the authors' figures.

Protocol: Weng et al., "Beware of Fragmentation", USENIX ATC 2023: pods shuffled by seed, tuned to
130 % of the GPUs, never leaving, dropped when they do not fit; seeds 42 to 51. References are the
means of the authors' stored results over the same ten seeds (their generator is not ours, so means
are compared). Needs the published data; `GPUPLANE_DATA` names its folder.

Run from the root: `PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_openb`; with
`--workloads all --seeds 3` over every workload that the authors have figures for.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.figures import Limit, print_figure, print_machine
from gpuplane.core.simulation.placement.ahead import LookAhead, MovingPlacer
from gpuplane.core.simulation.placement.files import TraceNode, TracePod, parse_nodes, parse_pods
from gpuplane.core.simulation.placement.replays import (
    Order,
    Placer,
    Report,
    capacity_of,
    list_arrivals,
    list_nodes,
    make_placer,
    policy_of,
    replay,
)

DATA = Path(os.environ.get("GPUPLANE_DATA", Path(__file__).resolve().parents[2] / "shared/data"))
OPENB = DATA / "openb"
FIRST_SEED = 42
PER_MILLE = 1300
AUTHORS = {
    "fgd": "06-FGD",
    "bestfit": "05-BestFit",
    "gpupacking": "04-GpuPacking",
    "gpuclustering": "03-GpuClustering",
    "dotprod": "02-DotProd",
    "random": "01-Random",
}
"""Our name of each published policy, and theirs in the stored results."""
LIMITS = {"fragmentation": 95.4, "balanced": 93.1}
"""At least, in % of the GPUs, as a mean over the ten seeds of the default workload."""
BESIDE = {"fragmentation": "fgd", "balanced": "bestfit", "mostLoaded": "gpupacking"}
"""The published policy that one of ours is held against."""
LOOK_AHEAD, MOVES = 1000, 1000
LOOK_AHEAD_LIMIT = 96.0


def read_nodes() -> tuple[TraceNode, ...]:
    with (OPENB / "openb_node_list_gpu_node.csv").open(newline="") as lines:
        return parse_nodes(lines)


def read_pods(workload: str) -> tuple[TracePod, ...]:
    with gzip.open(OPENB / f"openb_pod_list_{workload}.csv.gz", "rt", newline="") as lines:
        return parse_pods(lines)


def read_references() -> dict[tuple[str, str], float]:
    """Return the authors' mean allocation at 130 % of arrivals, in %, by workload and policy."""
    with (OPENB / "expected" / "reference_means.csv").open(newline="") as lines:
        return {
            (row["workload"].removeprefix("openb_pod_list_"), row["policy"]): float(
                row["alloc_at_130"]
            )
            for row in csv.DictReader(lines)
        }


class Runs:
    """The reports of one policy over the seeds."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.cpu_s: list[float] = []
        self.moves: list[int] = []
        self.waits: list[int] = []

    def run(self, arrivals: Iterable[TracePod], placer: Placer, capacity: int) -> None:
        began = time.process_time()
        self.reports.append(replay(arrivals, placer, capacity))
        self.cpu_s.append(time.process_time() - began)

    def print(self, name: str, limit: Limit | None, reference: tuple[str, float] | None) -> None:
        shares = [100 * each.curve[max(each.curve)] for each in self.reports]
        mean = statistics.mean(shares)
        text = f"{name}, allocation at {PER_MILLE // 10} % (judged: mean)"
        print_figure(text, shares, "%", limit, reference, judged=mean)
        at_90 = [
            next(each for each in report.checkpoints if each.arrivals_percent == 90)
            for report in self.reports
        ]
        refused = [each.refused.get(8, 0) for each in at_90]
        useless = statistics.mean(100 * each.fragment_ratio for each in at_90)
        print(f"  8-GPU pods refused by 90 % of arrivals, per seed: {refused}")
        print(f"  useless to the typical pod at 90 % of arrivals: {useless:.2f} % of the GPUs")
        if self.moves:
            print(f"  moves per seed: {self.moves}; longest wait in arrivals: {max(self.waits)}")
        print_figure("  one replay, processor time", self.cpu_s, "s")


def measure(
    policy: str, nodes: tuple[TraceNode, ...], pods: tuple[TracePod, ...], seeds: range
) -> Runs:
    runs, capacity = Runs(), capacity_of(nodes)
    for seed in seeds:
        arrivals = list_arrivals(pods, capacity, Order.SHUFFLE, PER_MILLE, seed)
        placer = make_placer(policy, list_nodes(nodes, Order.SHUFFLE, seed), pods, seed)
        runs.run(arrivals, placer, capacity)
    return runs


def measure_ahead(nodes: tuple[TraceNode, ...], pods: tuple[TracePod, ...], seeds: range) -> Runs:
    """Run the default policy with a window of pending pods and planned moves."""
    runs, capacity = Runs(), capacity_of(nodes)
    for seed in seeds:
        arrivals = list_arrivals(pods, capacity, Order.SHUFFLE, PER_MILLE, seed)
        listed = list_nodes(nodes, Order.SHUFFLE, seed)
        placer = MovingPlacer(listed, pods, policy_of("fragmentation"), seed, MOVES)
        ahead = LookAhead(arrivals, placer, LOOK_AHEAD)
        runs.run(ahead, placer, capacity)
        runs.moves.append(placer.moves)
        runs.waits.append(ahead.longest_wait)
    return runs


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workloads", default="default", help="names joined by commas, or all")
    parser.add_argument("--policies", help="names joined by commas; all that matter unless given")
    asked = parser.parse_args()
    print_machine()
    if not OPENB.is_dir():
        print(f"left out: the openb trace is not in {OPENB}; GPUPLANE_DATA names its folder")
        return
    references, nodes = read_references(), read_nodes()
    known = sorted({workload for workload, _ in references})
    workloads = known if asked.workloads == "all" else asked.workloads.split(",")
    policies = [*AUTHORS, "fragmentation", "balanced", "mostLoaded", "leastLoaded"]
    if asked.policies:
        policies = asked.policies.split(",")
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    for workload in workloads:
        pods = read_pods(workload)
        print(f"-- {workload}: {len(pods)} pods in the list, seeds {seeds.start}-{seeds.stop - 1}")
        for policy in policies:
            theirs = AUTHORS.get(BESIDE.get(policy, policy))
            published = references.get((workload, theirs)) if theirs else None
            reference = None if published is None else (f"authors' {theirs}", published)
            least = LIMITS.get(policy) if workload == "default" else None
            limit = None if least is None else Limit("at least", least)
            measure(policy, nodes, pods, seeds).print(policy, limit, reference)
        if not asked.policies:
            name = f"fragmentation, {LOOK_AHEAD} pods ahead, up to {MOVES} moves"
            ahead = measure_ahead(nodes, pods, seeds)
            least = LOOK_AHEAD_LIMIT if workload == "default" else None
            ahead.print(name, None if least is None else Limit("at least", least), None)


if __name__ == "__main__":
    main()
