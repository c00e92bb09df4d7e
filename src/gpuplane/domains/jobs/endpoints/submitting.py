"""HTTP of jobs: submit, list, show, cancel and compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from gpuplane.core.ids import ProjectId, TenantId
from gpuplane.core.lifecycle.jobs import JobStatus
from gpuplane.core.workloads import DeploymentType, JobSpec, JobType, Priority, SourceType
from gpuplane.db import ReadSession, WriteSession
from gpuplane.db.calls import Call, CallDep, answered
from gpuplane.db.units import Gathered
from gpuplane.domains.jobs import service
from gpuplane.domains.jobs.endpoints.charts import refuse_unfit_chart
from gpuplane.domains.jobs.endpoints.shaping import job_body, job_row
from gpuplane.domains.jobs.errors import BadJob
from gpuplane.domains.jobs.schemas import (
    CompareOut,
    DifferenceOut,
    JobIn,
    JobOut,
    JobRowOut,
    WhenExceeded,
    source_of,
    spec_of,
)
from gpuplane.domains.jobs.schemas.values import GpuType
from gpuplane.domains.jobs.service import JobFilter, Submission, SubmitLimits
from gpuplane.kit.access import Permission, counts_as_submit, requires
from gpuplane.kit.bodies import Cursor, InstantIn, Limit, PageOut, page_request
from gpuplane.kit.errors import InvalidInput, ProductError
from gpuplane.kit.pagination import DEFAULT_LIMIT

router = APIRouter()

MAX_COMPARED = 10
MAX_FILTERS = 20
Word = Annotated[str | None, Query(max_length=253)]


@router.post("/jobs", status_code=201)
@requires(Permission.JOB_WRITE)
@counts_as_submit
async def submit_job(call: CallDep, body: JobIn) -> JobOut:
    """Submit a job, or an array of jobs; an array is answered by its first job with all ids."""
    spec = spec_of(body)
    refuses = body.when_exceeded is WhenExceeded.REFUSE
    if refuses or spec.deployment_type is DeploymentType.HELM:
        submission = await call.read(lambda s: checked_submission(s, call, body, spec))
        await refuse_unfit_chart(call, submission)
        if refuses:
            outlook = await service.planner_of(call.ports).outlook_of(submission)
            service.refuse_over_quota(outlook)
    return await call.write_gathered(SUBMIT, _Entry(call, body, spec))


@router.get("/jobs")
@requires(Permission.JOB_READ)
async def list_jobs(
    call: CallDep,
    status: Annotated[list[JobStatus] | None, Query(max_length=8)] = None,
    job_type: JobType | None = None,
    priority: Priority | None = None,
    cluster: Word = None,
    tenant_id: UUID | None = None,
    project_id: UUID | None = None,
    user_id: UUID | None = None,
    source_type: SourceType | None = None,
    source_id: Word = None,
    name: Annotated[str | None, Query(max_length=253, description="How names begin.")] = None,
    label: Annotated[
        list[str] | None, Query(max_length=MAX_FILTERS, description="`key=value`, all of them.")
    ] = None,
    queue: Annotated[str | None, Query(max_length=253, description="`cluster/queue`.")] = None,
    gpu_type: Annotated[GpuType | None, Query()] = None,
    cost_centre: Word = None,
    data_classification: Word = None,
    array_id: UUID | None = None,
    created_since: InstantIn | None = None,
    created_until: InstantIn | None = None,
    sort: Annotated[str | None, Query(pattern="^-?(created_at|name)$")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    *,
    replicas_missing: Annotated[
        bool, Query(description="Only services that run with fewer replicas than they want.")
    ] = False,
) -> PageOut[JobRowOut]:
    """List jobs, newest first (by name when names are asked by their beginning)."""
    order = sort or ("name" if name else service.SORT_NEWEST)
    page = page_request(limit, cursor, sort=order)
    cluster_id = None
    if cluster is not None:
        cluster_id = await call.read(lambda s: service.get_cluster_id(s, cluster))
    wanted = JobFilter(
        statuses=tuple(sorted({str(each) for each in status or ()})),
        job_type=None if job_type is None else str(job_type),
        priority=None if priority is None else str(priority),
        cluster_id=cluster_id,
        tenant_id=tenant_id,
        project_id=project_id,
        user_id=user_id,
        source_type=None if source_type is None else str(source_type),
        source_id=source_id,
        name_prefix=_text(name or "", "name"),
        labels=tuple(_label(each) for each in label or ()),
        queue=queue,
        gpu_model=gpu_type,
        cost_centre=cost_centre,
        data_classification=data_classification,
        array_id=array_id,
        created_since=created_since,
        created_until=created_until,
        replicas_missing=replicas_missing,
    )
    found, names = await call.read(
        lambda s: service.list_jobs(s, call.principal, wanted, page, order, call.now)
    )
    return PageOut.of(found, lambda job: job_row(job, names))


@router.get("/jobs/compare")
@requires(Permission.JOB_READ)
async def compare_jobs(
    call: CallDep,
    ids: Annotated[str, Query(max_length=1_000, description="Ids, separated by commas.")],
) -> CompareOut:
    """Return jobs side by side with what differs between them."""
    wanted = _ids(ids)
    views = await call.read(
        lambda s: [service.view_job(s, call.principal, each, call.now) for each in wanted]
    )
    bodies = [job_body(view) for view in views]
    shown = [body.model_dump(mode="json") for body in bodies]
    differences = [
        DifferenceOut(field=field, values=[flat.get(field) for flat in flats])
        for flats in [[_flat(each) for each in shown]]
        for field in sorted({name for flat in flats for name in flat})
        if any(flat.get(field) != flats[0].get(field) for flat in flats)
    ]
    return CompareOut.model_construct(jobs=bodies, differences=differences)


@router.get("/jobs/{job_id}")
@requires(Permission.JOB_READ)
async def get_job(call: CallDep, job_id: UUID) -> JobOut:
    """Return one job."""
    return job_body(
        await call.read(lambda s: service.view_job(s, call.principal, job_id, call.now))
    )


@router.delete("/jobs/{job_id}")
@requires(Permission.JOB_WRITE)
async def cancel_job(
    call: CallDep,
    job_id: UUID,
    *,
    array: Annotated[bool, Query(description="Cancel every job of its array.")] = False,
) -> JobOut:
    """Cancel a job; what runs is stopped, and the job is cancelled once it is seen to be over."""
    if array:
        return await _cancel_array(call, job_id)
    return await call.write(
        "jobs.cancel",
        lambda s: service.view_of(s, service.cancel(s, call.principal, job_id, call.now), call.now),
        job_body,
    )


async def _cancel_array(call: Call, job_id: UUID) -> JobOut:
    """Cancel an array in batches, so that the work of others gets in between."""
    below: int | None = None
    while True:
        below = await call.database.write(
            "jobs.cancel_array",
            partial(
                service.cancel_in_array,
                principal=call.principal,
                job_id=job_id,
                below=below,
                now=call.now,
            ),
        )
        if below is None:
            return job_body(
                await call.read(lambda s: service.view_job(s, call.principal, job_id, call.now))
            )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One submit on its way to the writer, as far as it can be read without the database."""

    call: Call
    body: JobIn
    spec: JobSpec


def _submit_all(session: WriteSession, entries: Sequence[_Entry]) -> list[JobOut | Exception]:
    """Store what several callers submit and return each one's answer."""
    lookups = service.Lookups(session)
    outcomes: list[JobOut | Exception | None] = []
    asked: list[tuple[int, Submission, str]] = []
    for index, entry in enumerate(entries):
        try:
            submission, project = submission_of(lookups, entry.call, entry.body, entry.spec)
        except ProductError as refused:
            outcomes.append(refused)
            continue
        outcomes.append(None)
        asked.append((index, submission, project))
    first = entries[0].call
    limits = first.port("submit_limits", SubmitLimits)
    found = service.submit_many(
        lookups, session, [submission for _, submission, _ in asked], limits, first.now
    )
    for (index, submission, project), outcome in zip(asked, found, strict=True):
        if isinstance(outcome, ProductError):
            outcomes[index] = outcome
        else:
            view = service.view_submitted(lookups, submission, project, outcome)
            outcomes[index] = job_body(view)
    return [outcome for outcome in outcomes if outcome is not None]


SUBMIT = Gathered("jobs.submit", answered(_submit_all, lambda entry: entry.call, 201))
"""Submits arrive in crowds: those that wait for the writer together share its statements."""


def checked_submission(
    session: ReadSession, call: Call, body: JobIn, spec: JobSpec | None = None
) -> Submission:
    """Return what a body asks, refused if it could not be submitted; nothing is stored."""
    lookups = service.Lookups(session)
    submission, _ = submission_of(lookups, call, body, spec or spec_of(body))
    service.check_submission(lookups, submission, call.now)
    return submission


def submission_of(
    lookups: service.Lookups, call: Call, body: JobIn, spec: JobSpec
) -> tuple[Submission, str]:
    """Return what a body asks, in the project it names or the caller's, and the project's name."""
    source_type, source_id = source_of(body)
    if body.cluster is not None and body.cluster_id is not None:
        raise BadJob(
            "Both cluster and cluster_id are given.", field="cluster_id", fix="Give one of them."
        )
    place = service.choose_project(
        lookups,
        call.principal,
        None if body.tenant_id is None else TenantId(body.tenant_id),
        None if body.project_id is None else ProjectId(body.project_id),
        body.project,
    )
    service.require_class(call.principal, place.tenant_id, place.id, spec.priority)
    submission = Submission(
        spec=spec,
        tenant_id=place.tenant_id,
        project_id=place.id,
        user_id=call.principal.user_id,
        actor=call.principal.name,
        cluster=str(body.cluster_id) if body.cluster_id is not None else body.cluster,
        source_type=source_type,
        source_id=source_id,
        idempotency_key=body.idempotency_key,
        array_size=None if body.array is None else body.array.size,
        array_limit=None if body.array is None else body.array.limit,
        traceparent=call.traceparent,
    )
    return submission, place.name


def _label(text: str) -> tuple[str, str]:
    key, separator, value = _text(text, "label").partition("=")
    if not separator or not key:
        raise InvalidInput(
            f"{text[:100]!r} is no label.", field="label", fix="Write it as key=value."
        )
    return key, value


def _text(value: str, field: str) -> str:
    if "\x00" in value or (value and ord(value[-1]) >= 0x10FFFF):
        raise InvalidInput("This is no text that a name has.", field=field, fix="Leave it out.")
    return value


def _ids(text: str) -> list[UUID]:
    try:
        found = list(dict.fromkeys(UUID(part.strip()) for part in text.split(",") if part.strip()))
    except ValueError as error:
        raise InvalidInput(
            "ids holds something that is no id.", field="ids", fix="Separate ids by commas."
        ) from error
    if not 2 <= len(found) <= MAX_COMPARED:
        raise InvalidInput(
            f"Between 2 and {MAX_COMPARED} different jobs can be compared, not {len(found)}.",
            field="ids",
            fix="Name that many ids, separated by commas.",
        )
    return found


def _flat(value: object, path: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {path: value}
    flat: dict[str, object] = {}
    for name, each in value.items():
        flat.update(_flat(each, f"{path}.{name}" if path else str(name)))
    return flat
