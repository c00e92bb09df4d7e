"""Builders of core values for tests: a node, a fleet, a workload, a snapshot, in one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid5

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.fleet.facts import Allocation, GpuFacts, MigSlot, NodeFacts, Taint
from gpuplane.core.hardware import find_model
from gpuplane.core.ids import ClusterId, GpuId, JobId, NodeId, ReservationId
from gpuplane.core.quota.specs import ClusterQueueSpec, FlavorResource, unlimited_cluster_queue
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.decisions import Decision, NeedsPreemption, Placed
from gpuplane.core.scheduling.policy import Snapshot
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.topology.matrix import LinkMatrix, LinkPreference
from gpuplane.core.workloads import (
    PlacementRequest,
    Priority,
    ReplicaRequest,
    ResourceRequest,
    Spreading,
    Toleration,
)

NOW = 1_760_000_000_000
"""The instant of the tests, in ms since the epoch (2025-10-09T08:53:20Z)."""

_NAMES = UUID("00000000-0000-7000-8000-00000000c0de")
H100 = "nvidia-h100-80gb"
A100 = "nvidia-a100-80gb"


def an_id(name: str) -> UUID:
    """Return the id that always stands for this name."""
    return uuid5(_NAMES, name)


CLUSTER = ClusterId(an_id("cluster"))


def a_node(
    name: str = "node-0",
    gpu_count: int = 8,
    *,
    model: str = H100,
    cpu_milli: int = 128_000,
    memory_mib: int = 1_048_576,
    ephemeral_mib: int = 4_194_304,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    topology: LinkMatrix | None = None,
    mig: Mapping[int, Sequence[tuple[str, int]]] | None = None,
    unhealthy: Sequence[int] = (),
    reserved: Mapping[int, ReservationId] | None = None,
    **rest: Any,
) -> NodeFacts:
    """Return a node with equal GPUs.

    Args:
        mig: Instances (profile, first slice) by GPU index; these GPUs are in MIG mode.
    """
    known = find_model(model)
    assert known is not None, f"there is no model {model}"
    gpus = tuple(
        GpuFacts(
            gpu_id=GpuId(f"GPU-{an_id(f'{name}/{index}')}"),
            index=index,
            model=known.name,
            memory_mib=known.memory_mib,
            architecture=known.architecture,
            healthy=index not in unhealthy,
            mig_enabled=index in (mig or {}),
            mig_instances=tuple(MigSlot(*slot) for slot in (mig or {}).get(index, ())),
            reserved_for=(reserved or {}).get(index),
        )
        for index in range(gpu_count)
    )
    return NodeFacts(
        node_id=NodeId(an_id(f"node/{name}")),
        name=name,
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        ephemeral_mib=ephemeral_mib,
        gpus=gpus,
        topology=topology,
        labels=labels or {},
        taints=tuple(taints),
        **rest,
    )


def a_fleet(
    *nodes: NodeFacts,
    count: int = 0,
    cluster_id: ClusterId = CLUSTER,
    allocations: Sequence[Allocation] = (),
    **shape: Any,
) -> Fleet:
    """Return a fleet of the nodes given, or of `count` equal ones."""
    made = [*nodes, *(a_node(f"node-{index}", **shape) for index in range(count))]
    return Fleet.from_nodes(cluster_id, made, allocations)


@dataclass(frozen=True)
class WorkloadBuilder:
    """A workload in the making; every verb returns a new builder, `build()` the value."""

    workload: Workload

    def gpus(self, count: int, **resources: Any) -> WorkloadBuilder:
        return self.resources(gpu_count=count, **resources)

    def resources(self, **changes: Any) -> WorkloadBuilder:
        return self._with(resources=replace(self.workload.resources, **changes))

    def share(self, milli: int) -> WorkloadBuilder:
        return self.resources(gpu_count=1, gpu_milli=milli)

    def mig(self, profile: str) -> WorkloadBuilder:
        return self.resources(gpu_count=1, mig_profile=profile)

    def gang(self, count: int, minimum: int = 1) -> WorkloadBuilder:
        return self._with(replicas=ReplicaRequest(count, minimum, count, gang=True))

    def replicas(self, count: int, minimum: int = 1) -> WorkloadBuilder:
        return self._with(replicas=ReplicaRequest(count, minimum, count, gang=False))

    def links(self, links: LinkPreference, *, required: bool = False) -> WorkloadBuilder:
        return self.placement(links=links, links_required=required)

    def spreading(self, spreading: Spreading) -> WorkloadBuilder:
        return self.placement(spreading=spreading)

    def tolerating(self, *tolerations: Toleration) -> WorkloadBuilder:
        return self.placement(tolerations=tolerations)

    def placement(self, **changes: Any) -> WorkloadBuilder:
        placement: PlacementRequest = replace(self.workload.placement, **changes)
        return self._with(placement=placement)

    def priority(self, priority: Priority) -> WorkloadBuilder:
        return self._with(priority=priority)

    def age(self, seconds: int) -> WorkloadBuilder:
        at = NOW - seconds * 1000
        return self._with(submitted_at=at, queued_at=at)

    def having(self, **changes: Any) -> WorkloadBuilder:
        return self._with(**changes)

    def build(self) -> Workload:
        return self.workload

    def _with(self, **changes: Any) -> WorkloadBuilder:
        return WorkloadBuilder(replace(self.workload, **changes))


def a_workload(name: str = "job", queue: str = "default") -> WorkloadBuilder:
    """Return a builder of a workload of one GPU, 4 CPU, 16 GiB and 10 GiB of disk."""
    return WorkloadBuilder(
        Workload(
            job_id=JobId(an_id(f"job/{name}")),
            version=1,
            tenant="default",
            project="default",
            queue=queue,
            submitted_at=NOW,
            queued_at=NOW,
            resources=ResourceRequest(
                gpu_count=1, cpu_milli=4000, memory_mib=16_384, ephemeral_mib=10_240
            ),
        )
    )


def a_tree(*queues: ClusterQueueSpec, **rest: Any) -> QuotaTree:
    """Return a quota tree; without queues it has `default`, which admits whatever is asked."""
    return QuotaTree(queues or (unlimited_cluster_queue("default"),), **rest)


@dataclass(repr=False)
class World:
    """A small installation that decisions can be applied to.

    Nodes and quotas stay; running workloads come and go.
    """

    nodes: Sequence[NodeFacts]
    queues: Sequence[ClusterQueueSpec] = ()
    pending: list[Workload] = field(default_factory=list)
    running: list[RunningWorkload] = field(default_factory=list)
    quota: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 1

    def __repr__(self) -> str:
        """Say what matters for reading a failed property; the values themselves fill pages."""
        lines = [f"{node.name}: {len(node.gpus)} GPUs, {node.cpu_milli} CPU" for node in self.nodes]
        for running in self.running:
            nodes = sorted(str(each.node_id)[:8] for each in running.allocations)
            lines.append(f"running {_brief(running.workload)} on {', '.join(nodes)}")
        lines += [f"pending {_brief(workload)}" for workload in self.pending]
        return "World(\n  " + "\n  ".join(lines) + "\n)"

    def snapshot(self, **rest: Any) -> Snapshot:
        """Return the snapshot a loader would make of this."""
        tree = a_tree(*self.queues, **self.quota)
        for running in self.running:
            tree.add_usage(running.workload.queue, running.usage, running.workload.local_queue)
        return Snapshot(
            generation=self.generation,
            pending=tuple(self.pending),
            running=tuple(self.running),
            fleets=(self.snapshot_fleet(),),
            quotas=tree,
            **rest,
        )

    def snapshot_fleet(self) -> Fleet:
        """Return the fleet with everything taken that is held."""
        allocations = [each for running in self.running for each in running.allocations]
        return Fleet.from_nodes(CLUSTER, self.nodes, allocations)

    def apply(self, decision: Decision, now: int = NOW) -> None:
        """Start what is placed and ask victims to stop, as the product would."""
        self.generation += 1
        workloads = {workload.job_id: workload for workload in self.pending}
        for placed in decision.placed:
            workload = workloads.pop(placed.job_id)
            self.pending.remove(workload)
            self.running.append(running_of(workload, placed, now))
        for place, each in enumerate(decision.preempting):
            self._stop(each)
            promised = replace(workloads[each.job_id], promised_until=now + 90_000 + place)
            self.pending[self.pending.index(workloads[each.job_id])] = promised

    def _stop(self, verdict: NeedsPreemption) -> None:
        victims = set(verdict.victims)
        self.running = [
            replace(running, stopping=True) if running.workload.job_id in victims else running
            for running in self.running
        ]


def running_of(workload: Workload, placed: Placed, now: int = NOW) -> RunningWorkload:
    """Return the running workload that a placed verdict makes."""
    resources = workload.resources
    return RunningWorkload(
        workload=workload,
        cluster_id=placed.cluster_id,
        allocations=tuple(
            Allocation(
                job_id=workload.job_id,
                node_id=each.node_id,
                rank=each.rank,
                gpu_ids=each.gpu_ids,
                gpu_milli=each.gpu_milli,
                mig=each.mig,
                cpu_milli=resources.cpu_milli,
                memory_mib=resources.memory_mib,
                ephemeral_mib=resources.ephemeral_mib,
            )
            for each in placed.replicas
        ),
        started_at=now,
        usage={FlavorResource(use.flavor, use.resource): use.amount for use in placed.usage},
    )


def _brief(workload: Workload) -> str:
    asked, replicas = workload.resources, workload.replicas
    return (
        f"{str(workload.job_id)[:8]} {workload.priority.value} in {workload.queue}: "
        f"{replicas.count}x({asked.gpu_count} GPU {asked.gpu_model or ''} {asked.gpu_milli} milli "
        f"{asked.mig_profile or ''}, {asked.cpu_milli} CPU) min {replicas.minimum} "
        f"gang {replicas.gang} {workload.placement.spreading.value} "
        f"{workload.placement.links.value} required {workload.placement.links_required}, "
        f"{workload.estimated_duration_s} s, preemptible {workload.preemptible}, "
        f"preempts {workload.preempts_others}"
    )
