"""Placement decisions a second on one core: cold classes, a warm class, batches, and 50,000 nodes.

Run from the root: `PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_decisions`.

Cold: a class never seen before is asked every filter and every score of the default policy, GPUs
are chosen and the columns are updated. Warm: the same with a class that is known. Batch: many of
one known class in one call. The fleet is partly loaded with work of many sizes, so that hardly two
nodes are alike, which is the hard case; figures named "alike" are of an empty fleet. Times are
processor time, because the machine may be shared. The plain reference is a decision in a few lines
of numpy, taken in the same run: a filter on four columns, three weighted terms and the best node,
with nothing remembered, no fragments, no explanation.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.figures import Limit, print_figure, print_machine
from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.scheduling.bench import Bench
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.fragments import TypicalMix
from gpuplane.core.scheduling.placement import place_batch, place_workload
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.named import named_topology
from tests.builders import A100, CLUSTER, H100, NOW, a_node, a_workload

COLD = Limit("at least", 8_000)
WARM = Limit("at least", 100_000)
BATCH = Limit("at least", 200_000)
COLD_50K = Limit("at least", 1_000)
GPUS = 8
SHARES = (100, 200, 250, 300, 400, 500, 700)


def make_class(number: int, rng: random.Random) -> Workload:
    """Return a workload of a class of its own: a share, whole GPUs, or none."""
    base = a_workload()
    kind = rng.choice(["whole", "whole", "share", "share", "cpu"])
    cpu, memory = rng.randrange(1, 13) * 1000, rng.randrange(2, 40) * 2048 + number
    if kind == "cpu":
        return base.gpus(0, cpu_milli=cpu, memory_mib=memory).build()
    if kind == "share":
        made = base.share(rng.choice(SHARES)).resources(cpu_milli=cpu // 2, memory_mib=memory // 2)
    else:
        count = rng.choice([1, 1, 1, 2, 4, 8])
        made = base.gpus(count, cpu_milli=cpu * count, memory_mib=memory * count)
    if rng.random() < 0.3:
        made = made.resources(gpu_model=rng.choice([H100, A100]))
    return made.build()


def make_fleet(nodes: int) -> Fleet:
    """Return a fleet of two models, eight GPUs a node behind NVSwitch."""
    wiring = named_topology("nvswitch-8", GPUS)
    return Fleet.from_nodes(
        CLUSTER,
        [
            a_node(f"node-{i:05}", GPUS, topology=wiring, model=H100 if i % 2 else A100)
            for i in range(nodes)
        ],
    )


def load_fleet(fleet: Fleet, share: float, rng: random.Random) -> None:
    """Take a share of all GPUs with single GPUs and shares of many sizes, at random."""
    left = int(share * len(fleet) * GPUS * 1000)
    while left > 0:
        node, gpu = rng.randrange(len(fleet)), rng.randrange(GPUS)
        milli = rng.choice([1000, 1000, *SHARES])
        if fleet.gpu_free_milli[gpu, node] >= milli:
            cpu, memory = rng.randrange(1, 11) * 1000, rng.randrange(1, 40) * 2048
            fleet.allocate(Take(node, 1 << gpu, milli, cpu, memory, 0))
            left -= milli
    fleet.settle()


def make_mix(rng: random.Random) -> TypicalMix:
    """Return the typical mix of forty classes, some more frequent than others."""
    some = [make_class(0, rng) for _ in range(40)]
    return compute_typical_mix(some * 25 + some[:10] * 50, share=0.95, max_classes=64)


def per_second(work: Callable[[], int], rounds: int) -> list[float]:
    """Return how many decisions a second of processor time each round makes."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        done = work()
        found.append(done / (time.process_time() - began))
    return found


def measure_plain(fleet: Fleet, rounds: int) -> float:
    """Return plain decisions a second: filter, three terms, best node."""
    free = fleet.gpu_free_mask
    weights = 40, 35, 25

    def decide() -> int:
        for number in range(200):
            count = np.bitwise_count(free)
            fits = (fleet.cpu_free >= 1000 + number) & (fleet.memory_free >= 4096) & (count >= 1)
            terms = 8 - count, 128_000 - fleet.cpu_free, 1_048_576 - fleet.memory_free
            score = sum(weight * term for weight, term in zip(weights, terms, strict=True))
            int(np.where(fits, score, -1).argmax())
        return 200

    return statistics.median(per_second(decide, rounds))


def measure_cold(fleet: Fleet, bench: Bench, classes: int, rounds: int) -> list[float]:
    """Return cold decisions a second; every class is new in every round."""
    rng = random.Random(7)
    fresh = (make_class(1 + number, rng) for number in range((rounds + 1) * classes))
    batches = [[next(fresh) for _ in range(classes)] for _ in range(rounds + 1)]

    def decide() -> int:
        mark = fleet.checkpoint()
        for workload in batches.pop():
            place_workload(workload, bench, None)
        fleet.rollback(mark)
        return classes

    decide()
    return per_second(decide, rounds)


def measure_warm(
    fleet: Fleet, bench: Bench, workload: Workload, count: int, rounds: int
) -> tuple[float, list[float]]:
    """Return decisions a second of one known class: in the first round, and in those after.

    In the first every placement leads a node into a state it was never in.
    """

    def decide() -> int:
        mark = fleet.checkpoint()
        placed = sum(place_workload(workload, bench, None) is not None for _ in range(count))
        fleet.rollback(mark)
        return placed

    assert bench.row(workload).find_best() is not None, "the fleet has room for the class"
    return per_second(decide, 1)[0], per_second(decide, rounds)


def measure_batch(
    fleet: Fleet, bench: Bench, workload: Workload, count: int, rounds: int
) -> tuple[float, list[float]]:
    """Return the same when all are placed in one call."""

    def decide() -> int:
        mark = fleet.checkpoint()
        placed = len(place_batch(workload, count, bench))
        fleet.rollback(mark)
        return placed

    assert bench.row(workload).find_best() is not None, "the fleet has room for the class"
    return per_second(decide, 1)[0], per_second(decide, rounds)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--many-nodes", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    print_machine()
    rng = random.Random(1)
    mix, policy = make_mix(rng), Policy(placement=PlacementPolicy.FRAGMENTATION)
    one = a_workload().gpus(1, cpu_milli=8_000, memory_mib=32_768, ephemeral_mib=0).build()
    other = replace(one, resources=replace(one.resources, cpu_milli=7_000))

    fleet = make_fleet(asked.nodes)
    empty = make_fleet(asked.nodes)
    load_fleet(fleet, 0.7, rng)
    states = len(set(fleet.state_of))
    print(f"{asked.nodes} nodes of {GPUS} GPUs, 70 % taken, {states} different states of a node")
    plain = ("plain numpy", measure_plain(fleet, asked.rounds))
    unit = "decisions/s"
    bench, alike = Bench(fleet, policy, mix, NOW, 1), Bench(empty, policy, mix, NOW, 1)
    print_figure("cold class", measure_cold(fleet, bench, 400, asked.rounds), unit, COLD, plain)
    cold = measure_cold(empty, alike, 400, asked.rounds)
    print_figure("cold class, nodes alike", cold, unit, COLD, plain)
    first, warm = measure_warm(fleet, bench, one, 3_000, asked.rounds)
    print_figure("warm class", warm, unit, WARM, plain)
    print_figure("warm class, every state new", [first], unit, None, plain)
    first, warm = measure_warm(empty, alike, one, 3_000, asked.rounds)
    print_figure("warm class, nodes alike", warm, unit, WARM, plain)
    first, many = measure_batch(fleet, bench, other, 3_000, asked.rounds)
    print_figure("batch", many, unit, BATCH, plain)
    print_figure("batch, every state new", [first], unit, None, plain)
    first, many = measure_batch(empty, alike, other, 30_000, asked.rounds)
    print_figure("batch, nodes alike", many, unit, BATCH, plain)

    if asked.many_nodes:
        fleet = make_fleet(asked.many_nodes)
        load_fleet(fleet, 0.7, rng)
        print(f"{asked.many_nodes} nodes of {GPUS} GPUs, 70 % taken")
        plain = ("plain numpy", measure_plain(fleet, asked.rounds))
        bench = Bench(fleet, policy, mix, NOW, 1)
        many = measure_cold(fleet, bench, 50, asked.rounds)
        print_figure("cold class", many, unit, COLD_50K, plain)


if __name__ == "__main__":
    main()
