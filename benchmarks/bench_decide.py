"""How long one cycle takes: a cold one onto an empty fleet, and warm ones on a full fleet.

Cold: pending single-GPU workloads of many classes, all of which start. Warm: the fleet is full of
running work and thousands wait in queues that borrow; before each cycle a few end, a few come and
time passes, and the cycle before has left its memory.

Run from the root: `PYTHONPATH=src:. .venv/bin/python -m benchmarks.bench_decide`.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

from benchmarks.figures import Limit, print_figure, print_machine, quantile
from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.ids import JobId
from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    PreemptionPolicy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.memory import Memory
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy, Snapshot
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.topology.named import named_topology
from gpuplane.core.workloads import Priority
from gpuplane.entry.server import COLLECT_AFTER
from tests.builders import CLUSTER, H100, NOW, a_node, a_tree, a_workload, running_of

COLD_REFERENCE = ("at most, 10,000 of 50 classes on 1,000 nodes", 1.5)
WARM_LIMIT_MS = 50.0
"""Issue: p99 of a warm cycle with 10,000 pending in at most 200 classes on 5,000 nodes."""
QUEUES, COHORTS = 30, 5
SIZES = (1, 1, 1, 2, 2, 4, 8, 8)


def make_fleet(nodes: int, gpus: int) -> Fleet:
    """Return equal nodes on NVSwitch, four to a rack."""
    wiring = named_topology("nvswitch-8", 8) if gpus == 8 else None
    return Fleet.from_nodes(
        CLUSTER,
        [
            a_node(f"node-{i:05}", gpus, topology=wiring, rack=f"rack-{i // 4:04}")
            for i in range(nodes)
        ],
    )


def make_snapshot(pending: int, classes: int, nodes: int, gpus: int) -> Snapshot:
    """Return workloads that differ in CPU, memory, size and priority, mixed by age."""
    priorities = list(Priority)[1:]
    base = a_workload()
    workloads = []
    for index in range(pending):
        kind = index * 7919 % classes
        made = base.gpus(1, cpu_milli=1000 + 200 * kind, memory_mib=4096 + 512 * kind)
        workload = made.age(index % 3600).priority(priorities[index % 3]).build()
        workloads.append(replace(workload, job_id=JobId(UUID(int=index + 1))))
    return Snapshot(1, tuple(workloads), (), (make_fleet(nodes, gpus),), a_tree())


@dataclass
class Installation:
    """A full fleet with a long queue, changed a little before every cycle."""

    pending_count: int
    classes: int
    nodes: int
    queues: int
    changes: int
    random: Random
    is_mixed: bool = False
    """Every class comes to every queue at every priority, instead of to one queue at one."""
    now: int = NOW
    made: int = 0
    waiting: dict[JobId, Workload] = field(default_factory=dict)
    running: dict[JobId, RunningWorkload] = field(default_factory=dict)
    takes: dict[JobId, tuple[Take, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fleet = make_fleet(self.nodes, 8)
        pair = FlavorResource(H100, GPU)
        quota = ResourceQuota(self.nodes * 8 * 1000 // self.queues)
        self.tree = QuotaTree(
            ClusterQueueSpec(
                name=f"queue-{i:02}",
                cohort=f"cohort-{i % COHORTS}",
                resource_groups=(ResourceGroup((GPU,), (H100,)),),
                quotas={pair: quota},
                preemption=PreemptionPolicy(
                    WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.ANY
                ),
            )
            for i in range(self.queues)
        )
        self.policy = Policy()
        self.memory = Memory()
        self.snapshot_number = 0

    def fill(self) -> None:
        """Start work until the fleet is full, then let the queue grow long."""
        while self.fleet.gpu_free_mask.any():
            self.come(2_000)
            started = self.apply(self.decide())
            if not started:
                break
        self.come(self.pending_count - len(self.waiting))

    def come(self, count: int) -> None:
        """Let work come, of classes that differ in GPUs, CPU and memory."""
        for _ in range(max(0, count)):
            self.made += 1
            kind = self.random.randrange(self.classes)
            gpus = SIZES[kind % len(SIZES)]
            place = self.random.randrange(self.queues) if self.is_mixed else kind % self.queues
            level = self.random.randrange(3) if self.is_mixed else kind // self.queues % 3
            builder = a_workload("job", f"queue-{place:02}").priority(list(Priority)[2 + level])
            builder = builder.gpus(gpus, cpu_milli=(1000 + 10 * kind) * gpus)
            workload = builder.build()
            if kind % 10 == 9:
                workload = builder.gang(4).build()
            job_id = JobId(UUID(int=self.made))
            at = self.now - self.random.randrange(600_000)
            self.waiting[job_id] = replace(
                workload,
                job_id=job_id,
                submitted_at=at,
                queued_at=at,
                estimated_duration_s=600 * (1 + kind % 12),
            )

    def go_on(self) -> None:
        """Let a little happen, and some seconds pass."""
        self.now += self.random.randrange(1_000, 10_000)
        for job_id in self.random.sample(sorted(self.running, key=int_of), self.changes):
            running = self.running.pop(job_id)
            for take in self.takes.pop(job_id):
                self.fleet.release(take)
            self.tree.remove_usage(running.workload.queue, running.usage)
        self.fleet.settle()
        self.come(self.pending_count - len(self.waiting))

    def snapshot(self) -> Snapshot:
        """Return what there is now."""
        self.snapshot_number += 1
        return Snapshot(
            self.snapshot_number,
            tuple(self.waiting.values()),
            tuple(self.running.values()),
            (self.fleet,),
            self.tree,
            preempted_last_hour={CLUSTER: self.policy.preemption.per_cluster_hour},
        )

    def decide(self) -> Decision:
        """Decide once with the memory."""
        return decide(self.snapshot(), self.policy, self.now, 1, self.memory)

    def apply(self, decision: Decision) -> int:
        """Start what is placed; return how much that was."""
        for placed in decision.placed:
            workload = self.waiting.pop(placed.job_id)
            running = running_of(workload, placed, self.now)
            takes = tuple(self.fleet.take_of(each) for each in running.allocations)
            for take in takes:
                self.fleet.allocate(take)
            self.running[placed.job_id], self.takes[placed.job_id] = running, takes
            self.tree.add_usage(workload.queue, running.usage)
        self.fleet.settle()
        return len(decision.placed)


def int_of(job_id: JobId) -> int:
    return job_id.int


def measure_cold(arguments: argparse.Namespace) -> None:
    """Print how long a cycle without a memory takes."""
    snapshot = make_snapshot(arguments.pending, arguments.classes, arguments.nodes, arguments.gpus)
    policy = Policy(placement=PlacementPolicy(arguments.policy))
    walls, cpus = [], []
    for _ in range(arguments.runs):
        started, started_cpu = time.perf_counter(), time.process_time()
        decision = decide(snapshot, policy, NOW, 1)
        walls.append(time.perf_counter() - started)
        cpus.append(time.process_time() - started_cpu)
    print(f"cold: {arguments.pending} pending in {arguments.classes} classes,", end=" ")
    print(f"{arguments.nodes} nodes; verdicts {decision.counts}")
    print_figure("cold cycle", walls, "s", reference=COLD_REFERENCE)
    print_figure("cold cycle, processor time", cpus, "s", reference=COLD_REFERENCE)
    print(f"{arguments.pending / statistics.median(cpus):.0f} decisions/s of processor time")


def measure_warm(
    arguments: argparse.Namespace, queues: int, changes: int, *, is_mixed: bool = False
) -> None:
    """Print how long cycles with a memory take when little has changed since the last one."""
    world = Installation(
        arguments.warm_pending,
        arguments.warm_classes,
        arguments.warm_nodes,
        queues,
        changes,
        Random(7),
        is_mixed,
    )
    world.fill()
    world.apply(world.decide())
    cpus, walls, placed = [], [], 0
    for _ in _settled(arguments.cycles):
        world.go_on()
        snapshot = world.snapshot()
        began, began_cpu = time.perf_counter(), time.process_time()
        decision = decide(snapshot, world.policy, world.now, 1, world.memory)
        cpus.append((time.process_time() - began_cpu) * 1000)
        walls.append((time.perf_counter() - began) * 1000)
        placed += world.apply(decision)
    mixed = ", every class in every queue at every priority" if is_mixed else ""
    print(
        f"warm: {len(world.waiting)} pending in {arguments.warm_classes} classes{mixed},", end=" "
    )
    print(
        f"{queues} queues, {len(world.running)} running on {arguments.warm_nodes} nodes;", end=" "
    )
    print(f"{changes} ends a cycle, {placed / arguments.cycles:.1f} starts")
    limit = Limit("at most", WARM_LIMIT_MS)
    p99 = quantile(cpus, 0.99)
    print_figure("warm cycle, processor time, p99", cpus, "ms", limit, judged=p99)
    print_figure("warm cycle, p99", walls, "ms", limit, judged=quantile(walls, 0.99))


def _settled(cycles: int) -> Iterator[int]:
    """Count cycles with the garbage collector as the server sets it."""
    gc.collect()
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER)
    yield from range(cycles)
    gc.set_threshold(*before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--policy", default="fragmentation")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cycles", type=int, default=200, help="warm cycles")
    parser.add_argument("--warm-pending", type=int, default=10_000)
    parser.add_argument("--warm-classes", type=int, default=200)
    parser.add_argument("--warm-nodes", type=int, default=5_000)
    parser.add_argument("--only", choices=("cold", "warm"))
    arguments = parser.parse_args()
    print_machine()
    if arguments.only != "warm":
        measure_cold(arguments)
    if arguments.only != "cold":
        for queues, changes in ((1, 10), (QUEUES, 0), (QUEUES, 10)):
            measure_warm(arguments, queues, changes)
        measure_warm(arguments, QUEUES, 10, is_mixed=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
