"""How long one cycle takes: pending single-GPU workloads of many classes onto an empty fleet.

Run from the root: `PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_decide`.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import time
from dataclasses import replace

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy, Snapshot
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import Priority
from tests.builders import CLUSTER, NOW, a_node, a_tree, a_workload

REFERENCE_S = 1.5
"""At most, for 10,000 workloads of 50 classes on 1,000 nodes of 8 GPUs, one core."""


def make_snapshot(pending: int, classes: int, nodes: int, gpus: int) -> Snapshot:
    """Return workloads that differ in CPU, memory, size and priority, mixed by age."""
    wiring = named_topology("nvswitch-8", 8) if gpus == 8 else None
    fleet = Fleet.from_nodes(
        CLUSTER, [a_node(f"node-{i:05}", gpus, topology=wiring) for i in range(nodes)]
    )
    priorities = list(Priority)[1:]
    base = a_workload()
    workloads = []
    for index in range(pending):
        kind = index * 7919 % classes
        made = base.gpus(1, cpu_milli=1000 + 200 * kind, memory_mib=4096 + 512 * kind)
        workload = made.age(index % 3600).priority(priorities[index % 3]).build()
        job_id = type(workload.job_id)(int=index + 1)
        workloads.append(replace(workload, job_id=job_id))
    return Snapshot(1, tuple(workloads), (), (fleet,), a_tree())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--policy", default="fragmentation")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    snapshot = make_snapshot(arguments.pending, arguments.classes, arguments.nodes, arguments.gpus)
    policy = Policy(placement=PlacementPolicy(arguments.policy))
    walls, cpus = [], []
    for _ in range(arguments.runs):
        started, started_cpu = time.perf_counter(), time.process_time()
        decision = decide(snapshot, policy, NOW, 1)
        walls.append(time.perf_counter() - started)
        cpus.append(time.process_time() - started_cpu)
    median = statistics.median(walls)
    print(
        f"machine {platform.processor() or platform.machine()}, Python {platform.python_version()}"
    )
    print(f"{arguments.pending} pending in {arguments.classes} classes, {arguments.nodes} nodes")
    print(f"verdicts {decision.counts}")
    print(f"decide median {median:.3f} s, spread {min(walls):.3f}-{max(walls):.3f} s")
    print(
        f"CPU time median {statistics.median(cpus):.3f} s (what a shared machine does not change)"
    )
    print(f"reference {REFERENCE_S} s, ratio {median / REFERENCE_S:.2f}")
    print(f"{arguments.pending / median:.0f} decisions/s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
