"""Kueue's own scale test as arrivals on virtual time: cohorts of queues that borrow and reclaim.

Owns the numbers of the scenario; plays nothing.

Source: kubernetes-sigs/kueue, test/performance/scheduler/configs/baseline/generator.yaml: per
queue 350 small, 100 medium and 50 large workloads, each kind created at its own interval, the
first one interval after the start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.fleet.facts import NodeFacts
from gpuplane.core.ids import ClusterId, JobId, NodeId
from gpuplane.core.quota.specs import (
    CPU,
    ClusterQueueSpec,
    FlavorResource,
    PreemptionPolicy,
    ReclaimWithinCohort,
    ResourceGroup,
    ResourceQuota,
    WithinClusterQueue,
)
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.policy import Backfill, Policy, PreemptionLimits
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.simulation.live import Arrival
from gpuplane.core.workloads import Priority, ResourceRequest

FLAVOR = "rf"
COHORTS = 5
QUEUES_A_COHORT = 6
NOMINAL_CORES = 20
BORROWING_LIMIT_CORES = 100
CORE = 1000
NODES_A_RACK = 64
NODE_CORES = 96
"""Nodes of Kueue's scenario with topology: 10 racks of 64 nodes of 96 cores."""
CLUSTER = ClusterId(UUID(int=1))


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of workload: how many a queue gets, and one after how long."""

    name: str
    count: int
    every_ms: int
    runs_ms: int
    cores: int
    priority: Priority


KINDS = (
    Kind("small", 350, 100, 200, 1, Priority.LOW),
    Kind("medium", 100, 500, 500, 5, Priority.NORMAL),
    Kind("large", 50, 1_200, 1_000, 20, Priority.HIGH),
)
"""Kueue's priorities 50, 100 and 200 as three classes of ours in the same order."""


def make_quotas(cohorts: int = COHORTS, queues: int = QUEUES_A_COHORT) -> QuotaTree:
    """Return the queues of the scenario, or of a smaller one, with nothing used."""
    pair = FlavorResource(FLAVOR, CPU)
    quota = ResourceQuota(NOMINAL_CORES * CORE, BORROWING_LIMIT_CORES * CORE)
    preemption = PreemptionPolicy(WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.ANY)
    return QuotaTree(
        ClusterQueueSpec(
            name=_queue_name(cohort, queue),
            cohort=f"cohort-{cohort}",
            resource_groups=(ResourceGroup((CPU,), (FLAVOR,)),),
            quotas={pair: quota},
            preemption=preemption,
        )
        for cohort in range(cohorts)
        for queue in range(queues)
    )


def make_one_large_node(cores: int = COHORTS * QUEUES_A_COHORT * NOMINAL_CORES) -> Fleet:
    """Return a fleet in which quotas alone decide, as in the scenario without topology."""
    return Fleet(CLUSTER, [_node(0, "all", cores, "")])


def make_racks(racks: int = 10, nodes_a_rack: int = NODES_A_RACK) -> Fleet:
    """Return the nodes of Kueue's scenario with topology, in racks."""
    return Fleet(
        CLUSTER,
        [
            _node(index, f"node-{index:04}", NODE_CORES, f"rack-{index // nodes_a_rack:02}")
            for index in range(racks * nodes_a_rack)
        ],
    )


def make_policy(min_run_s: int = 0) -> Policy:
    """Return the policy under which queues behave as Kueue's: nobody is spared, nothing held.

    Kueue keeps no place for a blocked head of a BestEffortFIFO queue and bounds no preemption.

    Args:
        min_run_s: Spare who has run for less: at more than 0 no longer Kueue's behaviour.
    """
    unlimited = 1 << 30
    return Policy(
        backfill=Backfill.GREEDY,
        preemption=PreemptionLimits(
            min_run_s=min_run_s,
            per_cluster_hour=unlimited,
            grace_s=0,
            max_searches=unlimited,
        ),
    )


def list_arrivals(
    began_at: int, cohorts: int = COHORTS, queues: int = QUEUES_A_COHORT, share: float = 1.0
) -> Iterator[Arrival]:
    """Yield every workload of the scenario.

    Args:
        began_at: When the test begins, in ms since the epoch.
        cohorts: How many cohorts there are.
        queues: Queues of each.
        share: Part of each kind's count that comes, in [0, 1].
    """
    number = 0
    for cohort in range(cohorts):
        for queue in range(queues):
            for kind in KINDS:
                for place in range(round(kind.count * share)):
                    number += 1
                    at = began_at + (place + 1) * kind.every_ms
                    yield Arrival(at, _workload(number, cohort, queue, kind, at), kind.runs_ms)


def _workload(number: int, cohort: int, queue: int, kind: Kind, at: int) -> Workload:
    return Workload(
        job_id=JobId(UUID(int=number)),
        version=1,
        tenant="scale",
        project=kind.name,
        queue=_queue_name(cohort, queue),
        submitted_at=at,
        queued_at=at,
        priority=kind.priority,
        resources=ResourceRequest(cpu_milli=kind.cores * CORE, memory_mib=0, ephemeral_mib=0),
    )


def _queue_name(cohort: int, queue: int) -> str:
    return f"cq-{queue}-cohort-{cohort}"


def _node(index: int, name: str, cores: int, rack: str) -> NodeFacts:
    return NodeFacts(
        node_id=NodeId(UUID(int=index + 1)),
        name=name,
        version=1,
        ready=True,
        cordoned=False,
        cpu_milli=cores * CORE,
        memory_mib=0,
        ephemeral_mib=0,
        gpus=(),
        rack=rack,
    )
