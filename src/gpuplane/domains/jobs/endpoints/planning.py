"""HTTP of time and money: why, schedule, estimate, and a cluster's timeline and resources."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query

from gpuplane.core.amounts import MIB_PER_GIB, MS_PER_S
from gpuplane.core.prediction.durations import Basis
from gpuplane.db.calls import CallDep
from gpuplane.domains.jobs import service
from gpuplane.domains.jobs.endpoints.charts import refuse_unfit_chart
from gpuplane.domains.jobs.endpoints.expecting import (
    change_body,
    expected_sentences,
    prediction_body,
)
from gpuplane.domains.jobs.endpoints.submitting import checked_submission
from gpuplane.domains.jobs.schemas import (
    ClusterResourcesOut,
    EstimateOut,
    FilterCountOut,
    FreedOut,
    JobIn,
    ModelResourcesOut,
    PriceOptionOut,
    ScheduleOut,
    TimelineOut,
    TimelineRowOut,
    WhyOut,
    WorkerCostOut,
)
from gpuplane.domains.jobs.service import Job, Outlook, Timeline, TimelineRow
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import InstantIn
from gpuplane.kit.errors import InvalidInput

router = APIRouter()

DAY_MS = 86_400_000
ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]


@router.get("/jobs/{job_id}/why")
@requires(Permission.JOB_READ)
async def explain_job(
    call: CallDep,
    job_id: UUID,
    *,
    change: Annotated[
        bool, Query(description="Look for the smallest change that would let it start now.")
    ] = False,
) -> WhyOut:
    """Say why a job stands where it stands: one dominant reason and the counts per filter."""
    found = await call.read(lambda s: service.explain_job(s, call.principal, job_id))
    reason, sentence, fix = found.reason, found.sentence, found.fix
    counts, smallest = dict(found.counts), None
    explanation, predicted = list(found.explanation), None
    if change:
        outlook = await service.planner_of(call.ports).outlook_of_job(found.job.id)
        if outlook is not None:
            explanation += [*outlook.explanation, *expected_sentences(outlook)]
            predicted = prediction_body(outlook)
            if outlook.reason is not None:
                reason, sentence = str(outlook.reason.word), outlook.reason.sentence
                fix = outlook.reason.fix or fix
                counts = dict(outlook.counts or {})
            if outlook.change is not None:
                smallest = change_body(outlook.change)
    return WhyOut(
        job_id=found.job.id,
        status=str(found.job.status),
        condition=str(found.job.condition),
        reason=reason,
        sentence=sentence,
        fix=fix,
        counts=[FilterCountOut(word=word, nodes=nodes) for word, nodes in counts.items()],
        change=smallest,
        prediction=predicted,
        explanation=explanation,
    )


@router.get("/jobs/{job_id}/schedule")
@requires(Permission.JOB_READ)
async def get_schedule(call: CallDep, job_id: UUID) -> ScheduleOut:
    """Say when a job is expected to run, or ran."""
    found = await call.read(lambda s: service.explain_job(s, call.principal, job_id))
    job = found.job
    start, end, position = job.estimated_start, job.estimated_end, None
    explanation = list(found.explanation)
    cluster = await call.read(lambda s: service.cluster_of(s, job.cluster_id))
    name = None if cluster is None else cluster.name
    if service.is_waiting(job):
        explanation.append(found.sentence)
        outlook = await service.planner_of(call.ports).outlook_of_job(job.id)
        if outlook is not None:
            start, position, name = outlook.earliest_start, outlook.position, outlook.cluster
            end = _end_of(start, outlook)
            explanation += expected_sentences(outlook)
        elif job.spec.scheduled_start is not None:
            start = job.spec.scheduled_start
    elif job.actual_start is not None:
        start, end = job.actual_start, job.actual_end or job.estimated_end
    deadline = job.spec.deadline
    return ScheduleOut(
        job_id=job.id,
        status=str(job.status),
        cluster=name,
        position=position,
        scheduled_start=job.spec.scheduled_start,
        estimated_start=start,
        estimated_end=end,
        actual_start=job.actual_start,
        actual_end=job.actual_end,
        deadline=deadline,
        meets_deadline=None if deadline is None or end is None else end <= deadline,
        explanation=explanation,
    )


@router.post("/jobs/estimate")
@requires(Permission.JOB_WRITE)
async def estimate_job(call: CallDep, body: JobIn) -> EstimateOut:
    """Say where, when and for how much a job would run, and what would be cheaper."""
    now = call.now
    submission = await call.read(lambda s: checked_submission(s, call, body))
    await refuse_unfit_chart(call, submission)
    outlook = await service.planner_of(call.ports).outlook_of(submission)
    found = await call.read(lambda s: service.estimate(s, submission, outlook, now))
    start = outlook.earliest_start
    return EstimateOut(
        cluster=outlook.cluster,
        simulated=outlook.simulated,
        fits_now=outlook.starts_now,
        earliest_start=start,
        expected_end=_end_of(start, outlook),
        nodes=list(outlook.nodes),
        hourly_cost=found.hourly_micro,
        estimated_cost=found.estimated_micro,
        max_cost=found.max_micro,
        currency=found.currency,
        reason="" if outlook.reason is None else str(outlook.reason.word),
        sentence="It would start at once."
        if outlook.starts_now
        else ("It would wait." if outlook.reason is None else outlook.reason.sentence),
        explanation=[*outlook.explanation, *expected_sentences(outlook), *found.notes],
        prediction=prediction_body(outlook),
        cheaper=[
            PriceOptionOut(
                sentence=each.sentence,
                cluster=each.cluster,
                gpu_type=each.gpu_model,
                priority=str(submission.spec.priority),
                cost=each.cost_micro,
                saving=each.saving_micro,
                earliest_start=None,
            )
            for each in found.cheaper
        ],
        by_worker=[
            WorkerCostOut(
                cluster=each.cluster,
                hourly_cost=each.hourly_micro,
                estimated_cost=each.estimated_micro,
                max_cost=each.max_micro,
                currency=each.currency,
            )
            for each in found.by_worker
        ],
    )


@router.get("/clusters/{cluster}/schedule")
@requires(Permission.CLUSTER_READ)
async def get_timeline(
    call: CallDep,
    cluster: ClusterKey,
    since: InstantIn | None = None,
    until: InstantIn | None = None,
) -> TimelineOut:
    """Return what a cluster did, does and is expected to do, attempt by attempt."""
    now = call.now
    low = now - DAY_MS if since is None else since
    high = max(low, now) + DAY_MS if until is None else until
    if high <= low:
        raise InvalidInput(
            "The window ends before it begins.", field="until", fix="Give a later until."
        )
    found = await call.read(lambda s: service.load_timeline(s, call.principal, cluster, low, high))
    rows = [_bar(row, found, now) for row in found.rows]
    forecasts = await service.planner_of(call.ports).forecasts(found.cluster.id)
    ahead = [each for each in forecasts if each.start_at < high and each.end_at > low]
    jobs = await call.read(
        lambda s: service.load_visible_jobs(s, call.principal, [each.job_id for each in ahead])
    )
    names = await call.read(lambda s: service.load_names(s, list(jobs.values())))
    rows += [
        _waiting_bar(jobs.get(each.job_id), each.start_at, each.end_at, names) for each in ahead
    ]
    if low <= now < high:
        rows += [_waiting_bar(each, now, None, found.names) for each in found.queued]
    return TimelineOut(
        cluster_id=found.cluster.id,
        cluster=found.cluster.name,
        simulated=found.cluster.simulated,
        since=low,
        until=high,
        now=now,
        is_whole=found.is_whole,
        rows=rows,
    )


@router.get("/clusters/{cluster}/resources")
@requires(Permission.CLUSTER_READ)
async def get_resources(call: CallDep, cluster: ClusterKey) -> ClusterResourcesOut:
    """Return what is free on a cluster now, and when more is expected to be."""
    now = call.now
    found = await call.read(lambda s: service.load_resources(s, cluster, now))
    return ClusterResourcesOut(
        cluster_id=found.cluster.id,
        cluster=found.cluster.name,
        simulated=found.cluster.simulated,
        at=now,
        nodes=found.node_count,
        ready_nodes=found.ready_nodes,
        cpu_cores_free=found.cpu_milli[0] / 1000,
        cpu_cores_total=found.cpu_milli[1] / 1000,
        memory_gb_free=found.memory_mib[0] / MIB_PER_GIB,
        memory_gb_total=found.memory_mib[1] / MIB_PER_GIB,
        gpus=[
            ModelResourcesOut(
                gpu_type=each.model,
                total=each.total,
                free=each.free,
                busy=each.busy,
                reserved=each.reserved,
                down=each.down,
                without_end=each.without_end,
                forecast=[FreedOut(at=at, free=free) for at, free in each.freed_at],
            )
            for each in found.models
        ],
    )


def _end_of(start: int | None, outlook: Outlook) -> int | None:
    """Return when a job is expected to end, None where nothing is known of its duration."""
    known = outlook.durations
    if start is None or known is None or known.basis is Basis.DEFAULT:
        return None
    lasts_s = known.high_s if known.basis is Basis.MAXIMUM else known.median_s
    return start + lasts_s * MS_PER_S


def _bar(row: TimelineRow, timeline: Timeline, now: int) -> TimelineRowOut:
    attempt, job = row.attempt, row.job
    end = attempt.ended_at
    is_estimated = end is None
    if end is None and job is not None and job.estimated_end is not None:
        end = max(job.estimated_end, now)
    return TimelineRowOut.model_construct(
        **_whose(job, timeline.names),
        status=attempt.state,
        attempt=attempt.number,
        is_estimate=False,
        admitted_at=attempt.admitted_at,
        start=attempt.started_at or attempt.admitted_at,
        end=end,
        is_end_estimated=is_estimated,
        nodes=sorted({replica.node_name for replica in attempt.replicas}),
        gpu_count=sum(len(replica.gpu_ids) for replica in attempt.replicas),
        gpu_type=None if job is None else job.spec.resources.gpu_model,
        reason="" if job is None else attempt.exit_reason or attempt.stop_reason,
    )


def _waiting_bar(
    job: Job | None, start: int, end: int | None, names: service.Names
) -> TimelineRowOut:
    spec = None if job is None else job.spec
    return TimelineRowOut.model_construct(
        **_whose(job, names),
        status="queued",
        attempt=None,
        is_estimate=True,
        admitted_at=None,
        start=start,
        end=end,
        is_end_estimated=True,
        nodes=[],
        gpu_count=0 if spec is None else spec.resources.gpu_count * spec.replicas.count,
        gpu_type=None if spec is None else spec.resources.gpu_model,
        reason="" if job is None else job.reason,
    )


def _whose(job: Job | None, names: service.Names) -> dict[str, Any]:
    if job is None:
        none = dict.fromkeys(("job_id", "tenant", "project", "priority", "job_type"))
        return {**none, "name": "(another tenant's job)"}
    return {
        "job_id": job.id,
        "name": job.name,
        "tenant": names.tenants.get(job.tenant_id, ""),
        "project": names.projects.get(job.project_id, ""),
        "priority": str(job.spec.priority),
        "job_type": str(job.spec.job_type),
    }
