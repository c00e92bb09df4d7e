"""Replays a list of pods on a list of nodes, one after another, as the published comparison does.

Owns the protocol (pods never leave, each is tried once, one that does not fit is dropped), the
placer that asks the decision core, and the report. Never ranks a node itself.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 6, and its simulator.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from uuid import UUID

import numpy as np

from gpuplane.core.amounts import WHOLE_GPU_MILLI
from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.fleet.facts import GpuFacts, NodeFacts
from gpuplane.core.ids import ClusterId, GpuId, JobId, NodeId
from gpuplane.core.scheduling.bench import Bench
from gpuplane.core.scheduling.fragmentation import compute_typical_mix
from gpuplane.core.scheduling.placement import Spots, place_workload
from gpuplane.core.scheduling.policy import PlacementPolicy, Policy
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.simulation.placement.arrivals import (
    list_file_arrivals,
    list_shuffled_arrivals,
    name_nodes_by_chance,
    name_nodes_in_order,
)
from gpuplane.core.simulation.placement.files import TraceNode, TracePod
from gpuplane.core.simulation.placement.reference import (
    Fragments,
    Nodes,
    ReferencePlacer,
    ReferencePolicy,
    compute_typical_pods,
)
from gpuplane.core.workloads import ResourceRequest

NOW = 0
"""The trace's clock stands still: nothing in it ends."""
CHECKPOINT_PERCENTS = (40, 60, 80, 90, 95, 100, 110, 120, 130)
"""Arrivals, in percent of the GPUs, at which the report looks at the cluster."""


class Order(StrEnum):
    """In which order pods arrive."""

    FILE = "file"
    SHUFFLE = "shuffle"


STABLE_RANDOM = "stableRandom"
"""Our policy `random`, which ranks nodes by a stable hash; the published one keeps the name."""

POLICIES: tuple[str, ...] = (
    *(each.value for each in ReferencePolicy),
    *(each.value for each in PlacementPolicy if each is not PlacementPolicy.RANDOM),
    STABLE_RANDOM,
)
"""Every policy that a replay can be asked for, the published ones first."""


class Placer(Protocol):
    """Whoever places pods one by one."""

    def place(self, pod: TracePod) -> bool:
        """Place the pod; tell whether it fitted."""
        ...

    def cpu_milli_left(self) -> int:
        """Return the CPU that is free on all nodes."""
        ...

    def fragment_milli(self) -> float:
        """Return the idle GPU share that a typical pod cannot use, expected, of all nodes."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The cluster when arrivals first reached a percentage of the GPUs.

    Args:
        refused: Pods dropped so far, by number of GPUs.
        fragment_ratio: Idle GPU share that a typical pod cannot use, as a part of all GPUs.
    """

    arrivals_percent: int
    allocation_ratio: float
    fragment_ratio: float
    refused: dict[int, int]


@dataclass(slots=True)
class Report:
    """What a replay came to.

    Attributes:
        refused: Pods dropped, by number of GPUs. `refused_shares`: those of them that asked for a
            part of one GPU.
        curve: Mean allocation ratio of all moments whose arrivals round to a percentage.
    """

    capacity_milli: int
    arrived: int = 0
    arrived_milli: int = 0
    placed: int = 0
    allocated_milli: int = 0
    cpu_milli_left: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    refused_shares: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    curve: dict[int, float] = field(default_factory=dict)

    @property
    def allocation_ratio(self) -> float:
        """GPU share given out at the end, as a part of all."""
        return self.allocated_milli / max(1, self.capacity_milli)


def replay(arrivals: Iterable[TracePod], placer: Placer, capacity_milli: int) -> Report:
    """Return what comes of placing the pods in this order.

    Args:
        arrivals: Every pod that arrives, in its order.
        placer: Starts empty; holds the pods afterwards.
        capacity_milli: GPU share of all nodes.
    """
    report = Report(capacity_milli)
    due = list(CHECKPOINT_PERCENTS)
    sums: dict[int, list[int]] = {}
    for pod in arrivals:
        report.arrived += 1
        report.arrived_milli += pod.total_milli
        if placer.place(pod):
            report.placed += 1
            report.allocated_milli += pod.total_milli
        else:
            report.refused[pod.gpu_count] += 1
            report.refused_shares += pod.is_share
        percent = (200 * report.arrived_milli + capacity_milli) // max(1, 2 * capacity_milli)
        entry = sums.setdefault(percent, [0, 0])
        entry[0] += report.allocated_milli
        entry[1] += 1
        while due and percent >= due[0]:
            report.checkpoints.append(_look(due.pop(0), report, placer))
    whole = max(1, capacity_milli)
    report.curve = {at: total / count / whole for at, (total, count) in sorted(sums.items())}
    report.cpu_milli_left = placer.cpu_milli_left()
    return report


def _look(percent: int, report: Report, placer: Placer) -> Checkpoint:
    return Checkpoint(
        percent,
        report.allocation_ratio,
        placer.fragment_milli() / max(1, report.capacity_milli),
        dict(sorted(report.refused.items())),
    )


class CorePlacer:
    """Places pods with the code that `decide` places workloads with: one fleet, one bench.

    The typical mix is that of the list, as in the published comparison.
    """

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        pods: Sequence[TracePod],
        policy: Policy,
        seed: int,
    ) -> None:
        """Start with empty nodes; ties go to the first of them.

        Args:
            nodes: In the order in which ties go.
            pods: The original list: its mix is the typical one.
            policy: How nodes are ranked.
            seed: Of the policy that ranks by chance.
        """
        self._kinds: dict[TracePod, Workload] = {}
        self.fleet = make_fleet(nodes)
        mix = compute_typical_mix(
            [self.workload_of(pod) for pod in pods],
            share=policy.typical_share,
            max_classes=policy.max_typical,
        )
        self.bench = Bench(self.fleet, policy, mix, NOW, seed)
        self._plain = Nodes.of(nodes)
        self._fragments = Fragments(self._plain, compute_typical_pods(pods))

    def place(self, pod: TracePod) -> bool:
        """Place the pod; tell whether it fitted."""
        return self.find_spots(pod) is not None

    def find_spots(self, pod: TracePod) -> Spots | None:
        """Place the pod and return where, or None."""
        return place_workload(self.workload_of(pod), self.bench, None)

    def workload_of(self, pod: TracePod) -> Workload:
        """Return the workload that stands for all pods of one kind."""
        key = TracePod("", pod.cpu_milli, pod.memory_mib, pod.gpu_count, pod.gpu_milli, pod.models)
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = make_workload(key, len(self._kinds))
        return found

    def cpu_milli_left(self) -> int:
        """Return the CPU that is free on all nodes."""
        return int(self.fleet.cpu_free.sum())

    def fragment_milli(self) -> float:
        """Return the idle GPU share that a typical pod cannot use, expected, of all nodes."""
        width = self._plain.free.shape[1]
        self._plain.free = self.fleet.gpu_free_milli[:width].T.astype(np.int64)
        self._plain.cpu = self.fleet.cpu_free.copy()
        return self._fragments.of_cluster()


def capacity_of(nodes: Sequence[TraceNode]) -> int:
    """Return the GPU share of all nodes."""
    return sum(node.gpu_count for node in nodes) * WHOLE_GPU_MILLI


def list_arrivals(
    pods: Sequence[TracePod],
    capacity_milli: int,
    order: Order,
    arrivals_per_mille: int,
    seed: int,
) -> list[TracePod]:
    """Return the pods that arrive, in their order."""
    if order is Order.FILE:
        return list_file_arrivals(pods, capacity_milli, arrivals_per_mille)
    return list_shuffled_arrivals(pods, capacity_milli, arrivals_per_mille, seed)


def list_nodes(nodes: Sequence[TraceNode], order: Order, seed: int) -> list[TraceNode]:
    """Return the nodes in the order in which ties go: by name, or by chance per seed."""
    if order is Order.FILE:
        return name_nodes_in_order(nodes)
    return name_nodes_by_chance(nodes, seed)


def make_placer(
    policy: str, nodes: Sequence[TraceNode], pods: Sequence[TracePod], seed: int
) -> ReferencePlacer | CorePlacer:
    """Return the placer of a policy of `POLICIES`, with the nodes empty.

    Raises:
        ValueError: If there is no such policy.
    """
    if policy in set(ReferencePolicy):
        return ReferencePlacer(nodes, pods, ReferencePolicy(policy), seed)
    return CorePlacer(nodes, pods, policy_of(policy), seed)


def policy_of(name: str) -> Policy:
    """Return the policy of ours that has this name here.

    Raises:
        ValueError: If there is none.
    """
    ours = PlacementPolicy.RANDOM if name == STABLE_RANDOM else PlacementPolicy(name)
    return Policy(placement=ours)


def make_fleet(nodes: Sequence[TraceNode]) -> Fleet:
    """Return the fleet of a node list; what the list does not tell is unlimited or absent."""
    facts = [
        NodeFacts(
            node_id=NodeId(UUID(int=index)),
            name=node.name,
            cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib,
            gpus=tuple(
                GpuFacts(GpuId(f"GPU-{index}-{gpu}"), gpu, node.model, 0)
                for gpu in range(node.gpu_count)
            ),
        )
        for index, node in enumerate(nodes)
    ]
    return Fleet.from_nodes(ClusterId(UUID(int=0)), facts)


def make_workload(pod: TracePod, number: int) -> Workload:
    """Return a pod as the decision core sees it.

    Args:
        pod: Of the list.
        number: What its job id is made of; its own for every pod that can be told apart.
    """
    return Workload(
        job_id=JobId(UUID(int=number)),
        version=1,
        tenant="trace",
        project="trace",
        queue="trace",
        submitted_at=NOW,
        queued_at=NOW,
        resources=ResourceRequest(
            gpu_count=pod.gpu_count,
            gpu_model=pod.models or None,
            gpu_milli=pod.gpu_milli if pod.gpu_count else WHOLE_GPU_MILLI,
            cpu_milli=pod.cpu_milli,
            memory_mib=pod.memory_mib,
            ephemeral_mib=0,
        ),
    )
