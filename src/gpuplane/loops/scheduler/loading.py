"""Loads what a decision is made from: nodes as facts, what is held, queues, waiting jobs."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

from gpuplane.core.fleet.columns import Fleet
from gpuplane.core.fleet.facts import GpuFacts, MigChange, MigSlot, NodeFacts, Taint
from gpuplane.core.hardware import find_model
from gpuplane.core.ids import ClusterId, GpuId, JobId, ProjectId, ReservationId, TenantId
from gpuplane.core.prediction.predicting import Prediction
from gpuplane.core.quota.specs import LocalQueueSpec
from gpuplane.core.quota.tree import QuotaTree
from gpuplane.core.reasons import Reason
from gpuplane.core.scheduling.eligibility import ClusterFacts, ClusterRequest, rank_clusters
from gpuplane.core.scheduling.policy import Snapshot
from gpuplane.core.scheduling.repartition import index_recutting
from gpuplane.core.scheduling.reservations import Reservation as CalendarEntry
from gpuplane.core.scheduling.workload import RunningWorkload, Workload
from gpuplane.core.topology.matrix import LinkMatrix
from gpuplane.core.topology.named import described_topology
from gpuplane.core.workloads import JobType, Priority
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, MaintenanceWindow
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Door, Doors, Job
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements.service import Repartition, Reservation, choose_reservation
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import QueueSpecs, Seen
from gpuplane.loops.scheduler.known import KnownWorkloads

SCALING_KINDS = frozenset({"simulated", "kubernetes"})
"""Kinds of clusters on which services grow and shrink; the supervisors of `local` are told their
replicas once."""

NEVER = 2**62
"""Later than any instant: no maintenance is announced."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One cluster as read: what it has, what is announced and reserved there, and its queues."""

    cluster: Cluster
    nodes: tuple[Node, ...]
    windows: tuple[MaintenanceWindow, ...]
    reserved: Mapping[GpuId, ReservationId]
    usable: Mapping[ProjectId, Sequence[Reservation]]
    """The reservations that are active there, by the project whose jobs may use them."""
    queues: QueueSpecs
    prices: Mapping[str, int]
    """Model to micro-units per GPU-hour."""
    upcoming: Sequence[Reservation] = ()
    """The reservations that have not begun there."""
    cuts: Sequence[Repartition] = ()
    """The GPUs there that are being cut anew, or could not be a moment ago."""
    seen: Sequence[Seen] = ()
    """ClusterQueues and flavors as its Kueue has them; none where it does not admit by Kueue."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything one turn of the scheduler reads, from one consistent view."""

    queued: tuple[Job, ...]
    holding: Mapping[ClusterId, Sequence[RunningWorkload]]
    clusters: tuple[ClusterView, ...]
    tenants: Mapping[TenantId, str]
    projects: Mapping[ProjectId, str]
    choices: Mapping[ProjectId, identity.ClusterChoice]
    grants: frozenset[tuple[ClusterId, UUID]]
    preempted: Mapping[object, tuple[int, ...]]
    """When each preemption of the last hour counts no more, by cluster."""
    inherited: Mapping[JobId, Priority] = field(default_factory=dict)
    """The highest class that waits for a job, for jobs that something waits for."""
    predictions: Mapping[JobId, Prediction] = field(default_factory=dict)
    """What to expect of the queued jobs, from those before them."""
    growing: Mapping[JobId, jobs.Growth] = field(default_factory=dict)
    """The next replica of each service that wants one, by the name that it is decided on under."""
    closed: tuple[Cluster, ...] = ()
    """The clusters that take no work just now: told to those that may use no other."""
    ranked: dict[object, tuple[tuple[ClusterView, ...], Reason]] = field(default_factory=dict)
    """Clusters to ask, by what decides about them, filled in as jobs are looked at."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A snapshot of one cluster, ready to decide on, and the doors its workloads go through."""

    snapshot: Snapshot
    doors: Doors
    doorless: tuple[Job, ...]


def candidates_of(world: World, job: Job) -> tuple[ClusterView, ...]:
    """Return the clusters a job may run on, best first."""
    return _rank_clusters(world, job)[0]


def find_no_cluster_reason(world: World, job: Job) -> Reason:
    """Return why a job may run on none of the clusters."""
    return _rank_clusters(world, job)[1]


def _rank_clusters(world: World, job: Job) -> tuple[tuple[ClusterView, ...], Reason]:
    """Return the clusters to ask and the reason if there are none; once for all jobs alike."""
    named, kind = job.requested_cluster_id, job.spec.data_classification
    key = (job.tenant_id, job.project_id, named, kind)
    found = world.ranked.get(key)
    if found is None:
        found = world.ranked[key] = _rank_anew(world, job)
    return found


def _rank_anew(world: World, job: Job) -> tuple[tuple[ClusterView, ...], Reason]:
    choice = world.choices.get(job.project_id, identity.ClusterChoice())
    request = ClusterRequest(
        tenant_id=job.tenant_id,
        named=job.requested_cluster_id,
        required=choice.required,
        preferred=choice.preferred,
        excluded=choice.excluded,
        data_classification=job.spec.data_classification,
    )
    facts = [
        ClusterFacts(
            each.id,
            each.name,
            each.simulated,
            each.is_open_to_all or (each.id, job.tenant_id) in world.grants,
            each.dedicated_to,
            clusters.describe_closed(each),
        )
        for each in (*(view.cluster for view in world.clusters), *world.closed)
    ]
    ranked, reason = rank_clusters(request, facts)
    views = {view.cluster.id: view for view in world.clusters}
    return tuple(views[each] for each in ranked), reason


def prepare(
    world: World,
    view: ClusterView,
    fleet: Fleet,
    pending: Sequence[Job],
    before: KnownWorkloads | None = None,
) -> Prepared:
    """Return the snapshot of one cluster for the jobs that may run there.

    Args:
        world: What was read.
        view: The cluster.
        fleet: Its columns, with everything taken that is held.
        pending: The jobs in question.
        before: Workloads of the turn before, used again where nothing in them changed.
    """
    before = KnownWorkloads() if before is None else before
    before.begin()
    tenants = sorted(set(world.tenants.values()))
    doors_known = queues.known_doors(view.queues, tenants)
    workloads: list[Workload] = []
    local: dict[JobId, str] = {}
    cluster_queue: dict[JobId, str] = {}
    doorless: list[Job] = []
    doors_chosen: dict[object, tuple[str, Door] | None] = {}
    for job in pending:
        tenant = world.tenants.get(job.tenant_id, str(job.tenant_id))
        project = world.projects.get(job.project_id, str(job.project_id))
        asked = (tenant, job.spec.job_type, job.spec.queue, job.spec.priority)
        if asked not in doors_chosen:
            doors_chosen[asked] = _choose_door(view, *asked)
        chosen, growth = doors_chosen[asked], world.growing.get(job.id)
        if chosen is None or _is_elsewhere(growth, chosen[1]):
            doorless.append(job)
            continue
        local[job.id], door = chosen
        cluster_queue[job.id] = door.cluster_queue
        held = view.usable.get(job.project_id)
        made_of = _MadeOf(
            tenant,
            project,
            door,
            world.predictions.get(job.id),
            world.inherited.get(job.id),
            choose_reservation(held, job.spec.resources.gpu_model) if held else None,
        )
        workloads.append(before.find(job, made_of, partial(_make_workload, job, made_of)))
    quotas = QuotaTree(view.queues.cluster_queues, view.queues.cohorts, doors_known)
    running = [_lend(each, world.inherited) for each in world.holding.get(view.cluster.id, ())]
    known = set(quotas.cluster_queues)
    for workload in running:
        if workload.workload.queue in known and workload.usage:
            came_through = _open_door(quotas, workload.workload)
            quotas.add_usage(workload.workload.queue, workload.usage, came_through)
    choice = {
        job.id: _explain_choice(world, view, job)
        for job in pending
        if job.requested_cluster_id is None
    }
    snapshot = Snapshot(
        generation=view.cluster.inventory_generation,
        pending=tuple(workloads),
        running=tuple(running),
        fleets=(fleet,),
        quotas=quotas,
        frozen=view.cluster.frozen,
        frozen_note=view.cluster.frozen_reason,
        preempted_last_hour={view.cluster.id: len(world.preempted.get(view.cluster.id, ()))},
        preemptions_leave_at={view.cluster.id: world.preempted.get(view.cluster.id, ())},
        reservations=tuple(_calendar_entry(world, each) for each in view.upcoming),
        recutting=index_recutting(
            (each.job_id, _change_of(each)) for each in view.cuts if each.is_underway
        ),
        uncut=frozenset(each.gpu_id for each in view.cuts),
    )
    scales = view.cluster.kind in SCALING_KINDS and not queues.admits_itself(view.cluster)
    doors = Doors(local, cluster_queue, choice, world.predictions, scales)
    return Prepared(snapshot, doors, tuple(doorless))


def _choose_door(
    view: ClusterView, tenant: str, job_type: JobType, name: str | None, priority: Priority
) -> tuple[str, Door] | None:
    """Return the name of the LocalQueue a job goes through and its door, None without one."""
    spec = queues.choose_door(view.queues, tenant, str(job_type), name, priority)
    if spec is None:
        return None
    return f"{view.cluster.name}/{spec.name}", Door(door_key(spec), spec.cluster_queue)


def _is_elsewhere(growth: jobs.Growth | None, door: Door) -> bool:
    """Return whether a replica would count against another queue than those before it."""
    return growth is not None and growth.cluster_queue not in ("", door.cluster_queue)


class _MadeOf(NamedTuple):
    """What a workload is made of besides its job."""

    tenant: str
    project: str
    door: Door
    prediction: Prediction | None
    inherited: Priority | None
    reservation: ReservationId | None


def _make_workload(job: Job, made_of: _MadeOf) -> Workload:
    tenant, project, door, prediction, inherited, reservation = made_of
    asked = jobs.workload_of(job, tenant, project, door, prediction)
    if inherited is None and reservation is None:
        return asked
    return replace(asked, inherited_priority=inherited, reservation_id=reservation)


def _change_of(cut: Repartition) -> MigChange:
    return MigChange(
        cut.node_id,
        cut.node_name,
        cut.gpu_id,
        cut.gpu_index,
        tuple(MigSlot(*slot) for slot in cut.destroy),
        tuple(MigSlot(*slot) for slot in cut.create),
    )


def _calendar_entry(world: World, each: Reservation) -> CalendarEntry:
    return CalendarEntry(
        each.id,
        each.cluster_id,
        each.model,
        each.gpu_count,
        each.start_at,
        each.end_at,
        world.tenants.get(each.tenant_id, str(each.tenant_id)),
        world.projects.get(each.project_id, str(each.project_id)),
    )


def _lend(running: RunningWorkload, inherited: Mapping[JobId, Priority]) -> RunningWorkload:
    """Return running work with the class of what waits for it."""
    lent = inherited.get(running.workload.job_id)
    if lent is None:
        return running
    return replace(running, workload=replace(running.workload, inherited_priority=lent))


def _explain_choice(world: World, view: ClusterView, job: Job) -> str:
    """Return why this cluster, for a job that named none."""
    names = [each.cluster.name for each in candidates_of(world, job)]
    if len(names) == 1:
        return f"Cluster {view.cluster.name} is the only real one that its project may use."
    before = names[: names.index(view.cluster.name)]
    tried = f"; {', '.join(before)} could not start it now" if before else ""
    return f"Cluster {view.cluster.name} is the best of {', '.join(names)}{tried}."


def _open_door(quotas: QuotaTree, workload: Workload) -> str | None:
    """Return the key of the LocalQueue it came through, None when that leads elsewhere by now."""
    door = workload.local_queue
    if door is None or door not in quotas.local_queues:
        return None
    return door if quotas.get_local_spec(door).cluster_queue == workload.queue else None


def door_key(spec: LocalQueueSpec) -> str:
    """Return the key under which a quota tree knows a LocalQueue."""
    return f"{spec.tenant}/{spec.name}"


def facts_basis(view: ClusterView) -> tuple[object, ...]:
    """Return everything that the facts of a cluster are made of: when equal, so are they."""
    return view.nodes, view.windows, view.reserved, view.prices, view.cuts


def facts_of(view: ClusterView) -> list[NodeFacts]:
    """Return the nodes of a cluster as facts, with what is announced and reserved."""
    windows: dict[str | None, int] = defaultdict(lambda: NEVER)
    for window in view.windows:
        key = window.node_name
        windows[key] = min(windows[key], window.start_at)
    whole = windows[None]
    doomed = {(cut.gpu_id, *slot) for cut in view.cuts if cut.is_underway for slot in cut.destroy}
    return [
        _facts(node, min(whole, windows[node.name]), view.reserved, view.prices, doomed)
        for node in view.nodes
    ]


def _facts(
    node: Node,
    maintenance_at: int,
    reserved: Mapping[GpuId, ReservationId],
    prices: Mapping[str, int],
    doomed: Collection[tuple[GpuId, str, int]],
) -> NodeFacts:
    gpus = tuple(gpu for gpu in node.gpus if gpu.present)
    return NodeFacts(
        node_id=node.id,
        name=node.name,
        version=node.version,
        ready=node.ready,
        cordoned=node.cordoned,
        maintenance_at=maintenance_at if maintenance_at < NEVER else None,
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
                mig_instances=tuple(
                    MigSlot(name, start)
                    for name, start in gpu.mig_instances
                    if (gpu.gpu_id, name, start) not in doomed
                ),
                reserved_for=reserved.get(gpu.gpu_id),
                mig_table=gpu.mig_table,
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
