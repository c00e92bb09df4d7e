"""Submit: check what only the database knows, store the job, say so, in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from gpuplane.core.ids import JobId, TenantId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.scheduling.windows import find_next_window
from gpuplane.core.workloads import DeploymentType, JobSpec, JobType
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.events import service as events
from gpuplane.domains.jobs.errors import BadJob, NotPartOfProduct
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import workspaces
from gpuplane.domains.jobs.rules import DependencyState, Job, judge_gates
from gpuplane.domains.jobs.service.estimating import estimate_at_submit
from gpuplane.domains.jobs.service.submission import Submission
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.timing import next_due
from gpuplane.domains.secrets import service as secrets
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.service import JobFacts
from gpuplane.kit.errors import Conflict, TooManyRequests
from gpuplane.kit.ids import new_id

CONTAINER_KINDS = frozenset({"simulated", "kubernetes"})
PROCESS_KINDS = frozenset({"simulated", "local"})


COUNT_EVERY = 1_000
"""Submits of a tenant between two counts of its unfinished jobs: counting costs their number."""


@dataclass(slots=True)
class SubmitLimits:
    """Limits of submits, from settings, and how many each tenant may make before a new count.

    Args:
        unfinished_per_tenant: Most jobs of a tenant that are not over; 0 for no limit. Several
            servers may together exceed it by `COUNT_EVERY` each.
        array_size: Most jobs of one array.
    """

    unfinished_per_tenant: int = 100_000
    array_size: int = 10_000
    _left: dict[TenantId, int] = field(default_factory=dict)

    def take(self, session: ReadSession, tenant_id: TenantId, size: int) -> bool:
        """Count a submit; False when the tenant would have too many unfinished jobs."""
        most = self.unfinished_per_tenant
        if not most:
            return True
        left = self._left.get(tenant_id, 0)
        if left < size:
            left = min(most - repository.count_unfinished(session, tenant_id), COUNT_EVERY + size)
        self._left[tenant_id] = max(left - size, 0)
        return left >= size


@dataclass(frozen=True, slots=True)
class Checked:
    """A submission that was checked on a read session: the cluster it names, if it names one."""

    cluster: Cluster | None


def submit(
    session: WriteSession,
    submission: Submission,
    limits: SubmitLimits,
    now: int,
    checked: Checked | None = None,
) -> tuple[Job, ...]:
    """Store a job, or every job of an array, and return them in order of their index.

    A second submit under the same idempotency key returns the first one's jobs.

    Args:
        session: The transaction.
        submission: What is asked.
        limits: Limits of submits.
        now: The instant.
        checked: What a check just before gave, so that the writer is not held by it; what it read
            changes rarely, and a job that fits nowhere waits with that reason.

    Raises:
        BadJob: If a field cannot hold here; names it.
        NotPartOfProduct: If no part of the product stands behind this kind of work.
        TooManyRequests: If the tenant has too many unfinished jobs.
    """
    if submission.idempotency_key is not None:
        earlier = repository.find_by_key(session, submission.tenant_id, submission.idempotency_key)
        if earlier is not None:
            return _same_jobs(session, submission, earlier)
    spec = submission.spec
    if checked is None:
        checked = check_submission(session, submission, now)
    cluster = checked.cluster
    size = submission.array_size or 1
    _check_limits(session, submission, limits, size)
    states = _dependency_states(session, submission)
    rows = _make_jobs(submission, cluster, states, size, now)
    expected = estimate_at_submit(session, spec, cluster, now)
    if expected is not None:
        micro, currency = expected
        rows = [replace(job, estimated_cost_micro=micro, currency=currency) for job in rows]
    repository.insert_jobs(session, rows)
    digest = spec.execution.workspace_digest
    if digest is not None:
        workspaces.touch_workspace(session, submission.tenant_id, digest, now)
    usage.remember_jobs(session, [facts_of(job, cluster) for job in rows])
    events.record_many(
        session,
        [
            job_event(job, kind, now, actor=submission.actor, message=message)
            for job in rows
            for kind, message in _beginnings(job)
        ],
    )
    session.wake("scheduler" if rows[0].status is JobStatus.QUEUED else "monitor")
    if spec.scheduled_start or spec.deadline:
        session.wake("monitor")
    return tuple(rows)


def _same_jobs(session: ReadSession, submission: Submission, earlier: Job) -> tuple[Job, ...]:
    """Return the jobs of the first submit under a key; another body under it is refused."""
    rows: tuple[Job, ...] = (earlier,)
    if earlier.array_id is not None:
        rows = tuple(repository.list_array(session, earlier.array_id))
    asked = replace(submission.spec, priority=earlier.spec.priority)
    size = len(rows) if earlier.array_id is not None else None
    same = (asked, submission.project_id, submission.array_size) == (
        earlier.spec,
        earlier.project_id,
        size,
    )
    if not same:
        raise Conflict(
            "Another job was submitted under this idempotency key.",
            code="idempotency_key_reused",
            fix="Use a new key for another job.",
        )
    return rows


def check_submission(session: ReadSession, submission: Submission, now: int) -> Checked:
    """Check what only the database knows and return the cluster named, if one is.

    Raises:
        BadJob: If a field cannot hold here.
        NotPartOfProduct: If no part stands behind this kind of work.
    """
    spec = submission.spec
    _check_kind(spec)
    usable = clusters.list_usable(session, submission.tenant_id)
    cluster = _named_cluster(usable, submission)
    candidates = [cluster] if cluster else [each for each in usable if not each.simulated]
    if not candidates:
        raise BadJob(
            "No real cluster may be used by this tenant.",
            field="cluster",
            fix="Name a simulated cluster, or have an admin grant a cluster to the tenant.",
        )
    _check_backend(spec, candidates)
    _check_gpus(spec, candidates)
    _check_instants(spec, now)
    _check_named(session, submission)
    return Checked(cluster)


def draft_job(session: ReadSession, submission: Submission, now: int) -> Job:
    """Return the job a submission would be, queued now and stored nowhere."""
    cluster = _named_cluster(clusters.list_usable(session, submission.tenant_id), submission)
    draft = _blank(submission, cluster, new_id(), now)
    return replace(draft, status=JobStatus.QUEUED, queued_at=now)


def _check_kind(spec: JobSpec) -> None:
    if spec.deployment_type in (DeploymentType.HELM, DeploymentType.MODEL):
        what = "Helm releases" if spec.deployment_type is DeploymentType.HELM else "model endpoints"
        raise NotPartOfProduct(
            f"{what[0].upper()}{what[1:]} cannot be deployed here: no registered cluster has a part"
            " that installs them.",
            field="deployment_type",
            fix="Use deployment_type process, or docker on a simulated cluster.",
        )


def _named_cluster(usable: Sequence[Cluster], submission: Submission) -> Cluster | None:
    if submission.cluster is None:
        return None
    for cluster in usable:
        if submission.cluster in (cluster.name, str(cluster.id)):
            return cluster
    names = ", ".join(cluster.name for cluster in usable) or "none"
    raise BadJob(
        f"There is no cluster {submission.cluster!r} that this tenant may use.",
        field="cluster",
        fix=f"Clusters that may be used: {names}.",
    )


def _check_backend(spec: JobSpec, candidates: Sequence[Cluster]) -> None:
    needed = CONTAINER_KINDS if spec.deployment_type is DeploymentType.DOCKER else PROCESS_KINDS
    if not any(cluster.kind in needed for cluster in candidates):
        kinds = ", ".join(f"{cluster.name} ({cluster.kind})" for cluster in candidates)
        raise NotPartOfProduct(
            f"deployment_type {spec.deployment_type} cannot run on {kinds}.",
            field="deployment_type",
            fix="Use process on local clusters and docker where containers run.",
        )
    if not spec.execution.command and all(cluster.kind == "local" for cluster in candidates):
        raise BadJob(
            "A process needs a command.",
            field="spec.command",
            fix='Write it as a list, such as ["python3", "train.py"].',
        )


def _check_gpus(spec: JobSpec, candidates: Sequence[Cluster]) -> None:
    asked = spec.resources
    if asked.gpu_count == 0:
        return
    shapes = [
        (cluster.name, model, most)
        for cluster in candidates
        for model, (most, _total) in cluster.gpu_shapes.items()
        if asked.gpu_model in (None, model)
    ]
    most = max((each[2] for each in shapes), default=0)
    if asked.gpu_count <= most:
        return
    what = f"{asked.gpu_count} x {asked.gpu_model or 'GPU'}"
    where = ", ".join(cluster.name for cluster in candidates)
    if most == 0:
        have = sorted({model for cluster in candidates for model in cluster.gpu_shapes})
        raise BadJob(
            f"{where} has no {asked.gpu_model or 'GPU'}; {what} can never be placed there.",
            field="gpu_type" if asked.gpu_model else "gpu_count",
            fix=f"GPU models there: {', '.join(have)}."
            if have
            else "Use --gpus 0, or a cluster with GPUs such as the simulated demo.",
        )
    raise BadJob(
        f"No node of {where} has {what}; the largest has {most}.",
        field="gpu_count",
        fix=f"Ask at most {most} a replica, and more replicas for more.",
    )


def _check_instants(spec: JobSpec, now: int) -> None:
    if spec.deadline is not None and spec.deadline <= now:
        raise BadJob(
            "The deadline has passed already.", field="deadline", fix="Give one in the future."
        )
    start = spec.scheduled_start
    if spec.deadline is not None and start is not None and start >= spec.deadline:
        raise BadJob(
            "The scheduled start lies after the deadline.",
            field="scheduled_start",
            fix="Start before the deadline, or move the deadline.",
        )
    if spec.window is not None:
        opening = find_next_window(spec.window, max(now, start or now))
        last = spec.deadline
        if opening is None or (last is not None and opening[0] >= last):
            raise BadJob(
                "The window never opens before the deadline."
                if opening is not None
                else "The window never opens.",
                field="window",
                fix="Give a window that opens before the deadline, or leave one of them out.",
            )


def _check_secrets(session: ReadSession, submission: Submission) -> None:
    references = submission.spec.execution.secrets
    if not references:
        return
    names = [reference.name for reference in references]
    missing = secrets.missing_secrets(session, submission.project_id, names)
    if missing:
        raise BadJob(
            f"The project has no secret {missing[0]!r}.",
            field=f"spec.secrets[{names.index(missing[0])}].name",
            fix="Create it with `gpuplane secrets set`, or name another.",
        )


def _check_named(session: ReadSession, submission: Submission) -> None:
    """Refuse a working directory that was not uploaded, and jobs that are not there to be near."""
    digest = submission.spec.execution.workspace_digest
    if digest is not None and not workspaces.has_workspace(session, submission.tenant_id, digest):
        raise BadJob(
            "No working directory of this digest was uploaded by this tenant.",
            field="spec.workspace_digest",
            fix="Upload it with POST /api/v1/workspaces first.",
        )
    _check_secrets(session, submission)
    placement = submission.spec.placement
    for name, ids in (
        ("placement.co_locate_with", placement.co_locate_with),
        ("placement.separate_from", placement.separate_from),
    ):
        known = repository.load_jobs(session, ids)
        for index, job_id in enumerate(ids):
            found = known.get(JobId(job_id))
            if found is None or found.tenant_id != submission.tenant_id:
                raise BadJob(
                    f"There is no job {job_id} in this tenant.",
                    field=f"{name}[{index}]",
                    fix="Name a job of this tenant.",
                )


def _check_limits(
    session: ReadSession, submission: Submission, limits: SubmitLimits, size: int
) -> None:
    if size > limits.array_size:
        raise BadJob(
            f"An array has at most {limits.array_size} jobs, not {size}.",
            field="array.size",
            fix="Split it, or have limits.array_size raised.",
        )
    most = limits.unfinished_per_tenant
    if not limits.take(session, submission.tenant_id, size):
        raise TooManyRequests(
            f"This tenant may have {most} unfinished jobs, and would have more.",
            code="too_many_unfinished_jobs",
            fix="Wait for some to end, cancel some, or have the limit raised.",
            retry_after_s=60,
        )


def _dependency_states(session: ReadSession, submission: Submission) -> tuple[DependencyState, ...]:
    after = submission.spec.after
    known = repository.load_jobs(session, [each.job_id for each in after])
    states = []
    for index, each in enumerate(after):
        found = known.get(JobId(each.job_id))
        if found is None or found.tenant_id != submission.tenant_id:
            raise BadJob(
                f"There is no job {each.job_id} to come after.",
                field=f"after[{index}].job_id",
                fix="Name a job of this tenant.",
            )
        states.append(DependencyState(found.id, each.condition, found.status))
    return tuple(states)


def _make_jobs(
    submission: Submission,
    cluster: Cluster | None,
    states: Sequence[DependencyState],
    size: int,
    now: int,
) -> list[Job]:
    array_id = new_id() if submission.array_size is not None else None
    rows = []
    for index in range(size):
        job = _blank(submission, cluster, new_id(), now)
        if array_id is not None:
            job = replace(
                job,
                name=f"{job.name}-{index}",
                array_id=array_id,
                array_index=index,
                array_limit=submission.array_limit,
                idempotency_key=job.idempotency_key if index == 0 else None,
            )
        gate = judge_gates(job, states, min(index, submission.array_limit or size), now)
        if gate.is_open:
            job = replace(job, status=JobStatus.QUEUED, queued_at=now)
        elif gate.reason is not None:
            job = replace(
                job,
                reason=str(gate.reason.word),
                status_message=gate.reason.sentence,
                due_at=gate.look_again_at or (now if gate.is_hopeless else None),
            )
        rows.append(replace(job, due_at=next_due(job, now)))
    return rows


def _blank(submission: Submission, cluster: Cluster | None, job_id: UUID, now: int) -> Job:
    spec = submission.spec
    return Job(
        id=JobId(job_id),
        name=spec.name,
        tenant_id=submission.tenant_id,
        project_id=submission.project_id,
        user_id=submission.user_id,
        cluster_id=cluster.id if cluster else None,
        requested_cluster_id=cluster.id if cluster else None,
        source_type=submission.source_type,
        source_id=submission.source_id,
        queue="",
        spec=spec,
        labels=spec.labels,
        idempotency_key=submission.idempotency_key,
        array_id=None,
        array_index=None,
        array_limit=None,
        status=JobStatus.PENDING,
        condition=Condition.NONE,
        condition_at=None,
        reason="",
        status_message="",
        reason_counts=None,
        due_at=None,
        retry_count=0,
        failures_at=(),
        breaker_until=None,
        promised_until=None,
        attempt_count=0,
        current_attempt_id=None,
        warned=(),
        estimated_start=None,
        estimated_end=None,
        actual_start=None,
        actual_end=None,
        queued_at=None,
        admitted_at=None,
        estimated_cost_micro=None,
        actual_cost_micro=None,
        currency="USD",
        progress_ratio=None,
        last_checkpoint=None,
        last_checkpoint_at=None,
        outputs={},
        manifest=None,
        traceparent=submission.traceparent,
        created_at=now,
        updated_at=now,
        version=1,
    )


def _beginnings(job: Job) -> list[tuple[str, str]]:
    told = [("job.pending", f"{job.name} was submitted.")]
    if job.status is JobStatus.QUEUED:
        told.append(("job.queued", f"{job.name} stands in line."))
    return told


def facts_of(job: Job, cluster: Cluster | None) -> JobFacts:
    """Return what the ledger groups a job by."""
    return JobFacts(
        job_id=job.id,
        name=job.name,
        tenant_id=job.tenant_id,
        project_id=job.project_id,
        labels=job.labels,
        cost_centre=job.spec.cost_centre,
        queue=job.queue,
        priority=str(job.spec.priority),
        job_type=str(JobType(job.spec.job_type)),
        source_type=job.source_type,
        simulated=cluster.simulated if cluster else False,
    )
