"""Loads what a decision is made from: nodes as facts, what is held, queues, waiting jobs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.fleet.facts import Allocation, GpuFacts, MigSlot, NodeFacts, Taint
from gpuplane.core.hardware import find_model
from gpuplane.core.ids import ClusterId, GpuId, JobId, ProjectId, ReservationId, TenantId
from gpuplane.core.quota.specs import LocalQueueSpec
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.scheduling.policy import Snapshot
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.topology.matrix import LinkMatrix
from gpuplane.core.topology.named import described_topology
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.billing import service as billing
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterState, MaintenanceWindow
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Door, Doors, Job, RunningJob
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements import service as placements
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import QueueSpecs


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One cluster as read: what it has, what is held there, and its queues."""

    cluster: Cluster
    nodes: tuple[Node, ...]
    windows: tuple[MaintenanceWindow, ...]
    held: Mapping[JobId, tuple[Allocation, ...]]
    reserved: Mapping[GpuId, ReservationId]
    queues: QueueSpecs
    prices: Mapping[str, int]
    """Model to micro-units per GPU-hour."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything one turn of the scheduler reads, from one consistent view."""

    queued: tuple[Job, ...]
    holding: tuple[RunningJob, ...]
    clusters: tuple[ClusterView, ...]
    tenants: Mapping[TenantId, str]
    projects: Mapping[ProjectId, str]
    choices: Mapping[ProjectId, identity.ClusterChoice]
    grants: frozenset[tuple[ClusterId, UUID]]
    preempted: Mapping[object, int]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A snapshot of one cluster, ready to decide on, and the doors its workloads go through."""

    snapshot: Snapshot
    doors: Doors
    doorless: tuple[Job, ...]


class NodeCache:
    """Nodes by cluster, read again only when the cluster's inventory generation moved."""

    def __init__(self) -> None:
        self._nodes: dict[ClusterId, tuple[int, tuple[Node, ...]]] = {}

    def load(self, session: ReadSession, cluster: Cluster) -> tuple[Node, ...]:
        """Return a cluster's nodes that are present."""
        cached = self._nodes.get(cluster.id)
        if cached is not None and cached[0] == cluster.inventory_generation:
            return cached[1]
        found = tuple(node for node in nodes.list_nodes(session, cluster.id) if node.present)
        self._nodes[cluster.id] = (cluster.inventory_generation, found)
        return found


def load_world(session: ReadSession, cache: NodeCache, now: int) -> World:
    """Read everything a turn decides on."""
    queued = tuple(jobs.list_queued(session))
    holding = tuple(jobs.list_holding(session))
    people = [*queued, *(running.job for running in holding)]
    tenants = identity.tenants_by_ids(session, {job.tenant_id for job in people})
    projects = identity.projects_by_ids(session, {job.project_id for job in people})
    return World(
        queued=queued,
        holding=holding,
        clusters=tuple(
            _load_cluster(session, cluster, cache, now)
            for cluster in clusters.list_clusters(session)
            if cluster.state is ClusterState.AVAILABLE
        ),
        tenants={key: tenant.name for key, tenant in tenants.items()},
        projects={key: project.name for key, project in projects.items()},
        choices=identity.load_cluster_choices(session),
        grants=frozenset(clusters.list_grants(session)),
        preempted=jobs.count_recent_preemptions(session, now),
    )


def _load_cluster(
    session: ReadSession, cluster: Cluster, cache: NodeCache, now: int
) -> ClusterView:
    book = billing.load_book(session)
    prices = {
        model: price.price_micro
        for model in cluster.gpu_shapes
        if (price := book.find_price(cluster.id, model, now)) is not None
    }
    return ClusterView(
        cluster=cluster,
        nodes=cache.load(session, cluster),
        windows=clusters.list_maintenance(session, cluster.id, now),
        held=placements.held_by_jobs(session, cluster.id),
        reserved=placements.reserved_devices(session, cluster.id),
        queues=queues.load_specs(session, cluster.id),
        prices=prices,
    )


def candidates_of(world: World, job: Job) -> tuple[ClusterView, ...]:
    """Return the clusters a job may run on, best first.

    A named cluster is the only one. Else the project's real clusters: required ones alone if it
    names any, never excluded ones, preferred ones first, then by name.
    """
    if job.requested_cluster_id is not None:
        return tuple(view for view in world.clusters if view.cluster.id == job.requested_cluster_id)
    choice = world.choices.get(job.project_id)
    usable = [
        view
        for view in world.clusters
        if not view.cluster.simulated
        and (view.cluster.is_open_to_all or (view.cluster.id, job.tenant_id) in world.grants)
    ]
    if choice is None:
        return tuple(usable)
    if choice.required:
        usable = [view for view in usable if view.cluster.id in choice.required]
    usable = [view for view in usable if view.cluster.id not in choice.excluded]
    return tuple(sorted(usable, key=lambda view: view.cluster.id not in choice.preferred))


def prepare(world: World, view: ClusterView, pending: Sequence[Job], now: int) -> Prepared:
    """Return the snapshot of one cluster for the jobs that may run there."""
    tenants = sorted(set(world.tenants.values()))
    doors_known = queues.known_doors(view.queues, tenants)
    workloads: list[Workload] = []
    local: dict[JobId, str] = {}
    cluster_queue: dict[JobId, str] = {}
    doorless: list[Job] = []
    for job in pending:
        tenant = world.tenants.get(job.tenant_id, str(job.tenant_id))
        project = world.projects.get(job.project_id, str(job.project_id))
        spec = queues.choose_door(view.queues, tenant, str(job.spec.job_type), job.spec.queue)
        if spec is None:
            doorless.append(job)
            continue
        door = Door(door_key(spec), spec.cluster_queue)
        local[job.id], cluster_queue[job.id] = (
            f"{view.cluster.name}/{spec.name}",
            door.cluster_queue,
        )
        workloads.append(jobs.workload_of(job, tenant, project, door))
    quotas = QuotaTree(view.queues.cluster_queues, view.queues.cohorts, doors_known)
    running = []
    known = set(quotas.cluster_queues)
    for each in world.holding:
        if each.attempt.cluster_id != view.cluster.id:
            continue
        tenant = world.tenants.get(each.job.tenant_id, str(each.job.tenant_id))
        project = world.projects.get(each.job.project_id, str(each.job.project_id))
        workload = jobs.running_of(each, tenant, project, view.held)
        running.append(workload)
        if workload.workload.queue in known and workload.usage:
            quotas.add_usage(workload.workload.queue, workload.usage)
    snapshot = Snapshot(
        generation=view.cluster.inventory_generation,
        pending=tuple(workloads),
        running=tuple(running),
        fleets=(fleet_of(view, now),),
        quotas=quotas,
        frozen=view.cluster.frozen,
        frozen_note=view.cluster.frozen_reason,
        preempted_last_hour={view.cluster.id: world.preempted.get(view.cluster.id, 0)},
    )
    return Prepared(snapshot, Doors(local, cluster_queue), tuple(doorless))


def door_key(spec: LocalQueueSpec) -> str:
    """Return the key under which a quota tree knows a LocalQueue."""
    return f"{spec.tenant}/{spec.name}"


def fleet_of(view: ClusterView, now: int) -> Fleet:
    """Return the columns of a cluster with everything taken that is held."""
    windows: dict[str | None, int] = defaultdict(lambda: 2**62)
    for window in view.windows:
        key = window.node_name
        windows[key] = min(windows[key], window.start_at)
    whole = windows[None]
    facts = [
        _facts(node, min(whole, windows[node.name]), view.reserved, view.prices)
        for node in view.nodes
    ]
    known = {each.node_id for each in facts}
    held = [each for every in view.held.values() for each in every if each.node_id in known]
    return Fleet.from_nodes(view.cluster.id, facts, held)


def _facts(
    node: Node,
    maintenance_at: int,
    reserved: Mapping[GpuId, ReservationId],
    prices: Mapping[str, int],
) -> NodeFacts:
    gpus = tuple(gpu for gpu in node.gpus if gpu.present)
    return NodeFacts(
        node_id=node.id,
        name=node.name,
        version=node.version,
        ready=node.ready,
        cordoned=node.cordoned,
        maintenance_at=maintenance_at if maintenance_at < 2**62 else None,
        cpu_milli=node.cpu_milli,
        memory_mib=node.memory_mib,
        ephemeral_mib=node.ephemeral_mib,
        gpus=tuple(
            GpuFacts(
                gpu_id=gpu.gpu_id,
                index=gpu.gpu_index,
                model=gpu.model,
                memory_mib=gpu.memory_mib,
                architecture=_architecture(gpu.model),
                healthy=gpu.healthy,
                mig_enabled=gpu.mig_enabled,
                mig_instances=tuple(MigSlot(name, start) for name, start in gpu.mig_instances),
                reserved_for=reserved.get(gpu.gpu_id),
            )
            for gpu in gpus
        ),
        topology=_topology(node.topology, len(gpus)),
        labels=node.labels,
        taints=tuple(Taint(*taint) for taint in node.taints),
        rack=node.rack,
        block=node.block,
        rdma_fabric=node.rdma_fabric,
        price_micro_per_gpu_hour=prices.get(gpus[0].model, 0) if gpus else 0,
    )


def _architecture(model: str) -> str:
    known = find_model(model)
    return known.architecture if known is not None else ""


def _topology(described: str | None, gpu_count: int) -> LinkMatrix | None:
    if not described or not gpu_count:
        return None
    try:
        return described_topology(described, gpu_count)
    except ValueError:
        return None  # a GPU is gone from the matrix: links are unknown, not wrong
