"""Why a job stands where it stands, when it runs, and what a cluster does over time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from gpuplane.core.ids import ClusterId, JobId
from gpuplane.core.lifecycle.jobs import WAITING, JobStatus
from gpuplane.core.reasons import Word
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import Event
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import offers as offers_repository
from gpuplane.domains.jobs.rules import Attempt, Job
from gpuplane.domains.jobs.rules.fixes import (
    FIXES,
    describe_dead,
    describe_declaring,
    describe_mending,
    describe_standing,
    describe_waking,
    describe_writing,
)
from gpuplane.domains.jobs.rules.offers import Offer
from gpuplane.domains.jobs.rules.remarks import Remark
from gpuplane.domains.jobs.rules.scaling import count_missing
from gpuplane.domains.jobs.rules.serving import describe_serving
from gpuplane.domains.jobs.rules.silence import describe_unheard
from gpuplane.domains.jobs.service.listing import Names, load_names
from gpuplane.domains.jobs.service.rights import get_job
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.placements import service as placements
from gpuplane.domains.queues import service as queues
from gpuplane.kit.access import Permission, Principal
from gpuplane.kit.pagination import Page, PageRequest

SORT_EVENTS = events.SORT_TIME
MAX_TIMELINE = 5_000
"""Attempts of one timeline at most: more is a shorter window."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands and why."""

    job: Job
    reason: str
    sentence: str
    fix: str
    counts: Mapping[str, int]
    explanation: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One attempt on a timeline; the job is None when the reader may not know whose it is."""

    attempt: Attempt
    job: Job | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a cluster did and does in a window."""

    cluster: Cluster
    rows: tuple[TimelineRow, ...]
    names: Names
    is_whole: bool
    visible: frozenset[JobId]
    queued: tuple[Job | None, ...] = ()
    """Jobs that wait where the cluster's own Kueue decides when they start, which nobody is told;
    None for those that the reader may not know."""


@dataclass(frozen=True, slots=True)
class ModelResources:
    """GPUs of one model: all, and what becomes of them from now on."""

    model: str
    total: int
    free: int
    busy: int
    reserved: int
    down: int
    freed_at: tuple[tuple[int, int], ...]
    """(instant, GPUs free from then on) as jobs are expected to end."""
    without_end: int
    """GPUs held by jobs of which no end is known."""


@dataclass(frozen=True, slots=True)
class ClusterResources:
    """What a cluster has, what is free of it now, and when more will be."""

    cluster: Cluster
    models: tuple[ModelResources, ...]
    node_count: int
    ready_nodes: int
    cpu_milli: tuple[int, int]
    """(free, all) of ready nodes."""
    memory_mib: tuple[int, int]


def explain_job(session: ReadSession, principal: Principal, job_id: UUID) -> Standing:
    """Return why a job stands where it stands, as it was last decided."""
    job = get_job(session, principal, job_id)
    reason = job.reason
    sentence = job.status_message or describe_standing(job.status, job.condition)
    explanation: tuple[str, ...] = ()
    serving = Remark()
    if job.current_attempt_id is not None:
        attempt = attempts_repository.find_attempt(session, job.current_attempt_id)
        if attempt is not None and attempt.explanation is not None:
            explanation = tuple(str(each) for each in attempt.explanation.get("sentences", ()))
        if attempt is not None and not reason and attempt.growth_reason:
            reason, sentence = attempt.growth_reason, _describe_growth(attempt)
        if attempt is not None and job.status is JobStatus.SCHEDULED and not job.reason:
            # Why it was placed is told below; here, what it waits for since.
            told = (each.message for each in attempt.replicas if each.message)
            sentence = next(told, sentence)
        serving = Remark() if attempt is None or job.reason else describe_serving(job, attempt)
        if serving.sentence:  # what serves nobody comes before why there is not more of it
            explanation = (sentence, *explanation) if reason else explanation
            sentence = serving.sentence
    fix = FIXES.get(reason, "") if reason != Word.COMPLETED else ""
    fix = serving.fix or fix
    offer = offers_repository.find_of_job(session, job.id) if reason == Word.OFFERED else None
    unheard = tell_unheard(job, _find_holder(session, job, offer))
    if unheard.sentence:  # all else is as of the time when the cluster was last heard of
        explanation = (sentence, *explanation)
        word = job.reason or str(Word.CLUSTER_NOT_AVAILABLE)
        return Standing(job, word, *unheard, job.reason_counts or {}, explanation)
    if offer is not None and offer.admitted_at is None:
        unwritten = _find_unwritten(session, job, offer)
        dead = _find_dead_workers(session, job, offer)
        fix = unwritten.fix or _find_mending(session, offer) or dead.fix or fix
        sentence = unwritten.sentence or dead.sentence or sentence
        explanation = (*explanation, *dead.lines)
    return Standing(job, reason, sentence, fix, job.reason_counts or {}, explanation)


def tell_unheard(job: Job, cluster: Cluster | None) -> Remark:
    """Return that the cluster which has a job does not answer; empty where it does, or none has."""
    if cluster is None:
        return Remark()
    return describe_unheard(job, cluster.name, clusters.describe_silence(cluster))


def _find_holder(session: ReadSession, job: Job, offer: Offer | None) -> Cluster | None:
    """Return the cluster that has a job: its attempt, or else what is offered of it."""
    if job.current_attempt_id is not None:
        return cluster_of(session, job.cluster_id)
    return None if offer is None else cluster_of(session, offer.cluster_id)


def _find_unwritten(session: ReadSession, job: Job, offer: Offer) -> Remark:
    """Return which queue of an offered job is not there; empty where all of them are."""
    cluster = clusters.get_cluster(session, offer.cluster_id).name
    tenant = identity.tenants_by_ids(session, {job.tenant_id})[job.tenant_id].name
    door = (tenant, offer.queue_name)
    said = queues.find_unwritten(session, offer.cluster_id, door, offer.cluster_queue)
    if said:
        return Remark(said, describe_writing(cluster))
    if queues.has_door(session, offer.cluster_id, tenant, offer.queue_name):
        return Remark()
    return Remark(
        f"LocalQueue {offer.queue_name} of {tenant} is declared on {cluster} no more.",
        describe_declaring(cluster, tenant, offer.queue_name, offer.cluster_queue),
    )


def _find_mending(session: ReadSession, offer: Offer) -> str:
    """Return what to do about the queue of an offered job, empty where nothing is wrong with it."""
    flavors = queues.find_dead_flavors(session, offer.cluster_id, offer.cluster_queue)
    if not flavors:
        return ""
    cluster = clusters.get_cluster(session, offer.cluster_id)
    return describe_mending(cluster.name, offer.cluster_queue, flavors)


@dataclass(frozen=True, slots=True)
class _DeadWorkers:
    """What of the clusters that a job may be dispatched to admits nothing.

    Args:
        lines: A sentence for each that does not.
        sentence: All of them, where no other is left; else empty.
        fix: What to do about the first.
    """

    lines: tuple[str, ...] = ()
    sentence: str = ""
    fix: str = ""


def _find_dead_workers(session: ReadSession, job: Job, offer: Offer) -> _DeadWorkers:
    """Return which workers of an offered job's manager have a queue that admits nothing."""
    manager = clusters.get_cluster(session, offer.cluster_id)
    if offer.cluster_queue not in queues.dispatching_queues(manager):
        return _DeadWorkers()
    names = queues.dispatch_workers(manager)
    known = {each.name: each for each in clusters.list_clusters(session)}
    workers = [
        known[name] for name in names if name in known and offer.worker_id in (None, known[name].id)
    ]
    tenant = identity.tenants_by_ids(session, {job.tenant_id})[job.tenant_id].name
    lines, fixes = [], []
    for worker in workers:
        dead = queues.find_inactive(session, worker.id, tenant, offer.queue_name)
        if dead is None:
            continue
        lines.append(describe_dead(worker.name, dead.kind, dead.name, dead.message))
        fixes.append(
            describe_mending(worker.name, dead.name, dead.flavors)
            if dead.flavors
            else describe_waking(worker.name, dead.kind, dead.name)
        )
    is_all = bool(lines) and len(lines) == len(workers)
    return _DeadWorkers(tuple(lines), " ".join(lines) if is_all else "", fixes[0] if is_all else "")


def _describe_growth(attempt: Attempt) -> str:
    """Return why a running service has fewer replicas than it is to have."""
    missing = count_missing(attempt)
    verb = "waits" if missing == 1 else "wait"
    return f"{missing} of {attempt.replicas_wanted} replicas {verb}: {attempt.growth_message}"


def is_waiting(job: Job) -> bool:
    """Return whether a job waits for devices or for a gate."""
    return job.status in WAITING


def list_events(
    session: ReadSession, principal: Principal, job_id: UUID, page: PageRequest
) -> Page[Event]:
    """Return one page of what happened to a job, in order of time."""
    job = get_job(session, principal, job_id)
    return events.list_events_of(session, "job", job.id, page)


def load_timeline(
    session: ReadSession, principal: Principal, key: str, since: int, until: int
) -> Timeline:
    """Return the attempts that touched a window; those of others show when, not whose."""
    cluster = clusters.get_cluster(session, key)
    found = attempts_repository.list_in_window(session, cluster.id, since, until, MAX_TIMELINE + 1)
    shown = found[:MAX_TIMELINE]
    jobs = repository.load_jobs(session, list({attempt.job_id for attempt in shown}))
    queued = (
        repository.list_queued_on(session, cluster.id, MAX_TIMELINE + 1)
        if cluster.admits_by_kueue
        else []
    )
    visible = {
        job.id: job
        for job in (*jobs.values(), *queued)
        if principal.may(Permission.JOB_READ, job.tenant_id, job.project_id)
    }
    return Timeline(
        cluster=cluster,
        rows=tuple(TimelineRow(each, visible.get(each.job_id)) for each in shown),
        names=load_names(session, list(visible.values())),
        is_whole=max(len(found), len(queued)) <= MAX_TIMELINE,
        visible=frozenset(visible),
        queued=tuple(visible.get(each.id) for each in queued[:MAX_TIMELINE]),
    )


def load_visible_jobs(
    session: ReadSession, principal: Principal, job_ids: Sequence[JobId]
) -> dict[JobId, Job]:
    """Return those of these jobs that the caller may read."""
    return {
        job.id: job
        for job in repository.load_jobs(session, job_ids).values()
        if principal.may(Permission.JOB_READ, job.tenant_id, job.project_id)
    }


def load_resources(session: ReadSession, key: str, now: int) -> ClusterResources:
    """Return what is free on a cluster now, and when more is expected to be."""
    cluster = clusters.get_cluster(session, key)
    present = [node for node in nodes.list_nodes(session, cluster.id) if node.present]
    held = placements.held_by_jobs(session, cluster.id)
    reserved = set(placements.reserved_devices(session, cluster.id))
    jobs = repository.load_jobs(session, list(held))
    share: dict[str, int] = {}
    until: dict[str, int | None] = {}
    for job_id, replicas in held.items():
        job = jobs.get(job_id)
        end = None if job is None else _expected_end(job)
        for replica in replicas:
            for gpu in replica.gpu_ids:
                share[gpu] = share.get(gpu, 0) + replica.gpu_milli
                known = until.get(gpu, 0)
                until[gpu] = None if end is None or known is None else max(known, end)
    models: dict[str, list[tuple[str, bool]]] = {}
    for node in present:
        for each in node.gpus:
            if each.present:
                usable = each.healthy and node.ready and not node.cordoned
                models.setdefault(each.model, []).append((each.gpu_id, usable))
    ready = [node for node in present if node.ready]
    cpu = sum(one.cpu_milli for every in held.values() for one in every)
    memory = sum(one.memory_mib for every in held.values() for one in every)
    cpu_all = sum(node.cpu_milli for node in ready)
    memory_all = sum(node.memory_mib for node in ready)
    return ClusterResources(
        cluster=cluster,
        models=tuple(
            _model_resources(model, gpus, share, until, reserved, now)
            for model, gpus in sorted(models.items())
        ),
        node_count=len(present),
        ready_nodes=len(ready),
        cpu_milli=(max(0, cpu_all - cpu), cpu_all),
        memory_mib=(max(0, memory_all - memory), memory_all),
    )


def cluster_of(session: ReadSession, cluster_id: ClusterId | None) -> Cluster | None:
    """Return a cluster by id, or None."""
    return None if cluster_id is None else clusters.find_cluster(session, cluster_id)


def _model_resources(
    model: str,
    gpus: Sequence[tuple[str, bool]],
    share: Mapping[str, int],
    until: Mapping[str, int | None],
    reserved: Collection[str],
    now: int,
) -> ModelResources:
    down = sum(1 for gpu, usable in gpus if not usable and gpu not in share)
    busy = [gpu for gpu, _ in gpus if gpu in share]
    set_aside = sum(1 for gpu, usable in gpus if usable and gpu not in share and gpu in reserved)
    free = len(gpus) - down - len(busy) - set_aside
    ends = sorted(max(now, end) for gpu in busy if (end := until.get(gpu)) is not None)
    steps: dict[int, int] = {}
    for count, end in enumerate(ends, start=1):
        steps[end] = free + count
    return ModelResources(
        model=model,
        total=len(gpus),
        free=free,
        busy=len(busy),
        reserved=set_aside,
        down=down,
        freed_at=tuple(steps.items()),
        without_end=sum(1 for gpu in busy if until.get(gpu) is None),
    )


def _expected_end(job: Job) -> int | None:
    if job.estimated_end is not None:
        return job.estimated_end
    if job.actual_start is not None and job.spec.max_duration_s is not None:
        return job.actual_start + job.spec.max_duration_s * 1000
    return None
