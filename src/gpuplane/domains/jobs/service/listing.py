"""Lists of jobs, and what is shown beside each: the names of where and whose it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from gpuplane.core.ids import AttemptId, ClusterId, JobId, ProjectId, TenantId, UserId
from gpuplane.core.workloads import JobType
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.billing import service as billing
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs.repository import attempts as attempts_repository
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import listing
from gpuplane.domains.jobs.repository.attempts import Tries
from gpuplane.domains.jobs.rules import Attempt, DependencyState, Job, JobFilter
from gpuplane.domains.jobs.rules.outputs import mask_outputs
from gpuplane.domains.jobs.rules.scaling import count_most
from gpuplane.domains.jobs.service.lookups import Lookups
from gpuplane.domains.jobs.service.rights import get_job
from gpuplane.domains.jobs.service.submission import Submission
from gpuplane.domains.jobs.service.submitting import Submitted
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.placements import service as placements
from gpuplane.kit.access import Permission, Principal
from gpuplane.kit.pagination import Page, PageRequest

SORT_NEWEST = "-created_at"
SORTS = ("created_at", "-created_at", "name", "-name")


class Held(NamedTuple):
    """What an attempt held: GPUs at most at one time, and the nodes that it was ever on."""

    most_gpus: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """What people call the things that jobs name by id."""

    tenants: Mapping[TenantId, str]
    projects: Mapping[ProjectId, str]
    users: Mapping[UserId, str]
    clusters: Mapping[ClusterId, Cluster]
    costs: Mapping[JobId, int | None]
    """What jobs that hold devices have cost until now, in micro-units; None without any price."""
    attempts: Mapping[JobId, Tries] = field(default_factory=dict)
    """What the attempts of jobs come to, for those that were given a number at least."""
    scales: Mapping[JobId, Attempt] = field(default_factory=dict)
    """The attempts of services that scale, for those that run."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with everything that is shown beside it."""

    job: Job
    names: Names
    outputs: Mapping[str, object]
    attempts: tuple[Attempt, ...]
    dependencies: tuple[DependencyState, ...]
    array: tuple[JobId, ...]


def list_jobs(
    session: ReadSession,
    principal: Principal,
    wanted: JobFilter,
    page: PageRequest,
    sort: str,
    now: int,
) -> tuple[Page[Job], Names]:
    """Return one page of the jobs the caller may read, with the names to show."""
    scope = principal.rows(Permission.JOB_READ)
    places: list[tuple[str, UUID]] | None = None
    if not scope.everything:
        places = [("tenant_id", each) for each in sorted(scope.tenant_ids)]
        places += [("project_id", each) for each in sorted(scope.project_ids)]
    found = listing.list_jobs(session, wanted, places, page, sort)
    names = load_names(session, found.items)
    tried = [job.id for job in found.items if job.attempt_count]
    return found, replace(names, attempts=attempts_repository.sum_attempts(session, tried, now))


def load_names(session: ReadSession, jobs: Sequence[Job], now: int | None = None) -> Names:
    """Return what people call the things these jobs name.

    Args:
        session: Where to read.
        jobs: The jobs to be shown.
        now: When given, what jobs without an end have cost until then is computed too.
    """
    tenants = identity.tenants_by_ids(session, {job.tenant_id for job in jobs})
    projects = identity.projects_by_ids(session, {job.project_id for job in jobs})
    users = identity.users_by_ids(session, {job.user_id for job in jobs})
    costs: dict[JobId, int | None] = {}
    if now is not None:
        open_ones = {job.id: job for job in jobs if job.current_attempt_id is not None}
        for job_id, cost in billing.actual_costs(session, list(open_ones), now).items():
            costs[job_id] = cost.known_micro(open_ones[job_id].currency)
    services = [
        job.current_attempt_id
        for job in jobs
        if job.current_attempt_id is not None and job.spec.job_type is JobType.SERVICE
    ]
    return Names(
        tenants={key: each.name for key, each in tenants.items()},
        projects={key: each.name for key, each in projects.items()},
        users={key: each.name for key, each in users.items()},
        clusters={each.id: each for each in clusters.list_clusters(session)},
        costs=costs,
        scales={each.job_id: each for each in attempts_repository.load_scaled(session, services)},
    )


def view_job(session: ReadSession, principal: Principal, job_id: UUID, now: int) -> JobView:
    """Return one job with everything shown beside it."""
    return view_of(session, get_job(session, principal, job_id), now)


def view_submitted(
    lookups: Lookups, submission: Submission, project: str, submitted: Submitted
) -> JobView:
    """Return the first of the jobs just submitted, with the array they are."""
    first, cluster = submitted.jobs[0], submitted.cluster
    names = Names(
        tenants={submission.tenant_id: lookups.tenant_name(submission.tenant_id)},
        projects={submission.project_id: project},
        users={submission.user_id: submission.actor},
        clusters={} if cluster is None else {cluster.id: cluster},
        costs={},
    )
    array = tuple(job.id for job in submitted.jobs) if first.array_id is not None else ()
    return JobView(first, names, dict(first.outputs), (), (), array)


def view_of(session: ReadSession, job: Job, now: int) -> JobView:
    """Return a job, which the caller may read, with everything shown beside it."""
    sealed = repository.list_sealed_outputs(session, job.id)
    array: tuple[JobId, ...] = ()
    if job.array_id is not None:
        array = tuple(repository.list_array_ids(session, job.array_id))
    attempts = tuple(attempts_repository.list_attempts(session, job.id))
    tries = attempts_repository.sum_attempts(session, [job.id], now)
    return JobView(
        job=job,
        names=replace(load_names(session, [job], now), attempts=tries),
        outputs=mask_outputs(job.outputs, list(sealed)),
        attempts=attempts,
        dependencies=repository.list_dependencies(session, job.id),
        array=array,
    )


def list_attempts(
    session: ReadSession, principal: Principal, job_id: UUID
) -> tuple[Job, tuple[Attempt, ...]]:
    """Return a job with its attempts, first to last."""
    job = get_job(session, principal, job_id)
    return job, tuple(attempts_repository.list_attempts(session, job.id))


def list_held(session: ReadSession, job: Job, attempts: Sequence[Attempt]) -> dict[AttemptId, Held]:
    """Return what each of a job's attempts held in all its time, also by replicas that left."""
    rows = placements.list_for_jobs(session, [job.id])
    names = {each.node_id: each.node_name for one in attempts for each in one.replicas}
    left = {row.cluster_id for row in rows if row.node_id not in names}
    for cluster_id in left:
        names |= {each.id: each.name for each in nodes.list_nodes(session, cluster_id)}
    found = {}
    for attempt in attempts:
        own = [row for row in rows if row.attempt_id == attempt.id]
        spans = [(row.from_at, row.to_at) for row in own if row.gpu_id is not None]
        where = {names[row.node_id] for row in own if row.node_id in names}
        found[attempt.id] = Held(count_most(spans), tuple(sorted(where)))
    return found


def list_checkpoints(
    session: ReadSession, principal: Principal, job_id: UUID
) -> list[dict[str, object]]:
    """Return the checkpoints a job keeps, newest first."""
    job = get_job(session, principal, job_id)
    return [dict(row) for row in attempts_repository.list_checkpoints(session, job.id)]
