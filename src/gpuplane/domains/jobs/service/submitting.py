"""Submit: check what only the database knows, store the job, say so, in one transaction."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from gpuplane.core.addresses import is_below_any
from gpuplane.core.ids import JobId, TenantId
from gpuplane.core.lifecycle.jobs import Condition, JobStatus
from gpuplane.core.workloads import ChartRequest, JobType
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.events import service as events
from gpuplane.domains.events.service import NewEvent
from gpuplane.domains.jobs.errors import BadJob
from gpuplane.domains.jobs.repository import jobs as repository
from gpuplane.domains.jobs.repository import workspaces
from gpuplane.domains.jobs.rules import DependencyState, Job, judge_gates
from gpuplane.domains.jobs.service.acceptance import check_submission, named_cluster
from gpuplane.domains.jobs.service.estimating import estimate_at_submit
from gpuplane.domains.jobs.service.lookups import Lookups
from gpuplane.domains.jobs.service.submission import Submission
from gpuplane.domains.jobs.service.telling import job_event
from gpuplane.domains.jobs.service.timing import next_due
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.service import JobFacts
from gpuplane.kit.errors import Conflict, ProductError, TooManyRequests
from gpuplane.kit.ids import new_id

COUNT_EVERY = 1_000
"""Submits of a tenant between two counts of its unfinished jobs: counting costs their number."""


@dataclass(slots=True)
class SubmitLimits:
    """Limits of submits, from settings, and how many each tenant may make before a new count.

    Args:
        unfinished_per_tenant: Most jobs of a tenant that are not over; 0 for no limit. Several
            servers may together exceed it by `COUNT_EVERY` each.
        array_size: Most jobs of one array.
        chart_sources: Beginnings of addresses that charts of jobs may come from; None where this
            process does not know them, and the start alone refuses others.
        has_helm: Whether this server can install charts at all.
        has_chart: Whether a chart of a name and version is in this server's own folder.
        chart_check_s: How long a submit waits for its chart to be rendered; 0 checks at the start.
    """

    unfinished_per_tenant: int = 100_000
    array_size: int = 10_000
    chart_sources: tuple[str, ...] | None = None
    has_helm: bool = True
    has_chart: Callable[[str, str], bool] = lambda _name, _version: True
    chart_check_s: float = 0.0
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
class Submitted:
    """What became of a submission: its jobs in order of their index, and the cluster it named."""

    jobs: tuple[Job, ...]
    cluster: Cluster | None


@dataclass(slots=True)
class _Batch:
    """What a batch of submits is to store, gathered so that each table is written once."""

    rows: list[Job] = field(default_factory=list)
    facts: list[JobFacts] = field(default_factory=list)
    told: list[NewEvent] = field(default_factory=list)
    by_key: dict[tuple[TenantId, str], Submitted] = field(default_factory=dict)
    woken: set[str] = field(default_factory=set)


def submit(
    session: WriteSession, submission: Submission, limits: SubmitLimits, now: int
) -> tuple[Job, ...]:
    """Store a job, or every job of an array, and return them in order of their index.

    Raises:
        BadJob: If a field cannot hold here; names it.
        NotPartOfProduct: If no part of the product stands behind this kind of work.
        TooManyRequests: If the tenant has too many unfinished jobs.
    """
    (outcome,) = submit_many(Lookups(session), session, [submission], limits, now)
    if isinstance(outcome, ProductError):
        raise outcome
    return outcome.jobs


def submit_many(
    lookups: Lookups,
    session: WriteSession,
    submissions: Iterable[Submission],
    limits: SubmitLimits,
    now: int,
) -> list[Submitted | ProductError]:
    """Store many submissions and return for each its jobs, or why it is refused.

    Nothing is written for one that is refused. A second submit under the same idempotency key
    returns the first one's jobs.

    Args:
        lookups: What was looked up already, on the same session.
        session: The transaction.
        submissions: What is asked.
        limits: Limits of submits.
        now: The instant.
    """
    batch = _Batch()
    outcomes: list[Submitted | ProductError] = []
    for submission in submissions:
        try:
            outcomes.append(_accept(lookups, submission, limits, batch, now))
        except ProductError as refused:
            outcomes.append(refused)
    repository.insert_jobs(session, batch.rows)
    usage.remember_jobs(session, batch.facts)
    events.record_many(session, batch.told)
    for tenant_id, digest in dict.fromkeys(
        (job.tenant_id, job.spec.execution.workspace_digest) for job in batch.rows
    ):
        if digest is not None:
            workspaces.touch_workspace(session, tenant_id, digest, now)
    session.wake(*batch.woken)
    return outcomes


def _accept(
    lookups: Lookups, submission: Submission, limits: SubmitLimits, batch: _Batch, now: int
) -> Submitted:
    """Check one submission and add what it stores to the batch."""
    key = submission.idempotency_key
    if key is not None:
        earlier = batch.by_key.get((submission.tenant_id, key)) or _find_earlier(
            lookups.session, submission.tenant_id, key
        )
        if earlier is not None:
            return _same_jobs(submission, earlier)
    cluster = check_submission(lookups, submission, now)
    run = submission.spec.execution
    check_chart(run.chart, limits, has_workspace=run.workspace_digest is not None)
    size = submission.array_size or 1
    _check_limits(lookups.session, submission, limits, size)
    states = _dependency_states(lookups.session, submission)
    expected = estimate_at_submit(lookups, submission, cluster, now)
    rows = _make_jobs(submission, cluster, expected, states, size, now)
    batch.rows += rows
    batch.facts += [facts_of(job, cluster) for job in rows]
    batch.told += [
        job_event(job, kind, now, actor=submission.actor, message=message)
        for job in rows
        for kind, message in _beginnings(job)
    ]
    batch.woken.add("scheduler" if rows[0].status is JobStatus.QUEUED else "monitor")
    if submission.spec.scheduled_start or submission.spec.deadline:
        batch.woken.add("monitor")
    done = Submitted(tuple(rows), cluster)
    if key is not None:
        batch.by_key[submission.tenant_id, key] = done
    return done


def check_chart(
    asked: ChartRequest | None, limits: SubmitLimits, *, has_workspace: bool = False
) -> None:
    """Refuse a chart that is nowhere, from where none may come, or without its version.

    Args:
        asked: The chart, None for jobs without one.
        limits: What this server knows of charts.
        has_workspace: Whether a working directory is sent along.

    Raises:
        BadJob: Naming the field.
    """
    if asked is None or limits.chart_sources is None:
        return
    if not limits.has_helm:
        raise BadJob(
            "This server has no Helm to install charts with.",
            field="deployment_type",
            fix="Have an administrator set GPUPLANE_CLUSTERS_HELM.",
        )
    address = asked.repo or (asked.name if asked.name.startswith("oci://") else "")
    if not address:
        _check_own_chart(asked, limits, has_workspace=has_workspace)
        return
    field = "spec.chart.repo" if asked.repo else "spec.chart.name"
    if not is_below_any(address, limits.chart_sources):
        known = ", ".join(limits.chart_sources) or "none"
        raise BadJob(
            f"Charts may not come from {address}; places they may come from: {known}.",
            field=field,
            fix="Have an administrator add it to GPUPLANE_CLUSTERS_CHART_SOURCES.",
        )
    if not asked.version:
        raise BadJob(
            "A chart of the network needs its version.", field="spec.chart.version", fix="Name it."
        )


def _check_own_chart(asked: ChartRequest, limits: SubmitLimits, *, has_workspace: bool) -> None:
    if asked.name.startswith("./"):
        if not has_workspace:
            raise BadJob(
                f"{asked.name} lies in a working directory, and the job has none.",
                field="spec.workspace_digest",
                fix="Send it with --workdir, or name a chart.",
            )
    elif not limits.has_chart(asked.name, asked.version):
        raise BadJob(
            f"This server has no chart {asked.name} {asked.version}".rstrip() + " of its own.",
            field="spec.chart.name",
            fix="Name its repository in spec.chart.repo, or have an administrator put it into the "
            "folder GPUPLANE_CLUSTERS_CHARTS.",
        )


def _find_earlier(session: ReadSession, tenant_id: TenantId, key: str) -> Submitted | None:
    """Return what was submitted under an idempotency key before."""
    first = repository.find_by_key(session, tenant_id, key)
    if first is None:
        return None
    rows = (first,) if first.array_id is None else repository.list_array(session, first.array_id)
    cluster_id = first.requested_cluster_id
    named = None if cluster_id is None else clusters.find_cluster(session, str(cluster_id))
    return Submitted(tuple(rows), named)


def find_submitted(session: ReadSession, tenant_id: TenantId, key: str) -> Job | None:
    """Return the job (of an array the first) that was submitted under a key, or None."""
    return repository.find_by_key(session, tenant_id, key)


def find_of_source(session: ReadSession, source_type: str, source_id: str) -> JobId | None:
    """Return the newest job that a source made (a step of a pipeline), or None."""
    return repository.find_of_source(session, source_type, source_id)


def _same_jobs(submission: Submission, earlier: Submitted) -> Submitted:
    """Return the jobs of the first submit under a key; another body under it is refused."""
    first = earlier.jobs[0]
    asked = replace(submission.spec, priority=first.spec.priority)
    size = len(earlier.jobs) if first.array_id is not None else None
    same = (asked, submission.project_id, submission.array_size) == (
        first.spec,
        first.project_id,
        size,
    )
    if not same:
        raise Conflict(
            "Another job was submitted under this idempotency key.",
            code="idempotency_key_reused",
            fix="Use a new key for another job.",
        )
    return earlier


def draft_job(session: ReadSession, submission: Submission, now: int) -> Job:
    """Return the job a submission would be, queued now and stored nowhere."""
    cluster = named_cluster(clusters.list_usable(session, submission.tenant_id), submission)
    draft = blank_job(submission, cluster, new_id(), now)
    return replace(draft, status=JobStatus.QUEUED, queued_at=now)


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
    expected: tuple[int | None, str] | None,
    states: Sequence[DependencyState],
    size: int,
    now: int,
) -> list[Job]:
    array_id = new_id() if submission.array_size is not None else None
    rows = []
    for index in range(size):
        job = blank_job(submission, cluster, new_id(), now, expected)
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
        due_at = next_due(job, now)
        rows.append(job if job.due_at == due_at else replace(job, due_at=due_at))
    return rows


def blank_job(
    submission: Submission,
    cluster: Cluster | None,
    job_id: UUID,
    now: int,
    expected: tuple[int | None, str] | None = None,
) -> Job:
    """Return a new job that is nowhere yet, with the (micro-units, currency) it should cost."""
    spec = submission.spec
    cost_micro, currency = (None, "USD") if expected is None else expected
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
        estimated_cost_micro=cost_micro,
        actual_cost_micro=None,
        currency=currency,
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
