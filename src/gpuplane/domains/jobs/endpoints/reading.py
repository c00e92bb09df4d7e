"""HTTP of what is asked about one job: attempts, events, manifest, checkpoints, artifacts, exec."""

from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse

from gpuplane.backends.capabilities import Executes, FetchesArtifacts
from gpuplane.backends.interface import BackendError
from gpuplane.db.calls import CallDep
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.jobs import service
from gpuplane.domains.jobs.endpoints.parts import able, audit, find_backend, ref_of
from gpuplane.domains.jobs.endpoints.shaping import attempt_body, manifest_body
from gpuplane.domains.jobs.errors import LogsGone
from gpuplane.domains.jobs.schemas import (
    ArtifactOut,
    ArtifactsOut,
    AttemptRowOut,
    AttemptsOut,
    CheckpointOut,
    CheckpointsOut,
    ExecIn,
    ExecOut,
    JobEventOut,
    ManifestOut,
)
from gpuplane.domains.jobs.service import Attempt, Event
from gpuplane.kit.access import Permission, Principal, requires
from gpuplane.kit.bodies import Cursor, Limit, PageOut, page_request
from gpuplane.kit.errors import NotFound, ProductError, Unprocessable
from gpuplane.kit.pagination import DEFAULT_LIMIT

router = APIRouter()

ARTIFACT_BYTES = 1 << 20
"""Bytes of an artifact read at once."""


@router.get("/jobs/{job_id}/attempts")
@requires(Permission.JOB_READ)
async def list_attempts(call: CallDep, job_id: UUID) -> AttemptsOut:
    """List a job's attempts with their replicas, first to last."""
    return await call.read(lambda s: _attempts_body(s, call.principal, job_id))


def _attempts_body(session: ReadSession, principal: Principal, job_id: UUID) -> AttemptsOut:
    job, attempts = service.list_attempts(session, principal, job_id)
    held = service.list_held(session, job, attempts)
    rows = []
    for each in attempts:
        most, nodes = held[each.id]
        body = dict(attempt_body(each))
        rows.append(AttemptRowOut.checked(**body, most_gpus=most, nodes=list(nodes)))
    return AttemptsOut.model_construct(items=rows)


@router.get("/jobs/{job_id}/events")
@requires(Permission.JOB_READ)
async def list_job_events(
    call: CallDep, job_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> PageOut[JobEventOut]:
    """List what happened to a job, in order of the time at which it happened."""
    page = page_request(limit, cursor, sort=service.SORT_EVENTS)
    found = await call.read(lambda s: service.list_events(s, call.principal, job_id, page))
    return PageOut.of(found, _event_body)


@router.get("/jobs/{job_id}/reproducibility-manifest")
@requires(Permission.JOB_READ)
async def get_manifest(call: CallDep, job_id: UUID) -> ManifestOut:
    """Return what would be needed to run the job again, captured when it started."""
    job, manifest = await call.read(lambda s: service.get_manifest(s, call.principal, job_id))
    return ManifestOut.model_construct(job_id=job.id, manifest=manifest_body(manifest))


@router.get("/jobs/{job_id}/checkpoints")
@requires(Permission.JOB_READ)
async def list_checkpoints(call: CallDep, job_id: UUID) -> CheckpointsOut:
    """List the checkpoints a job keeps, newest first."""
    rows = await call.read(lambda s: service.list_checkpoints(s, call.principal, job_id))
    return CheckpointsOut(
        items=[
            CheckpointOut.model_construct(
                id=row["id"], at=row["at"], path=row["path"], progress=row["progress_ratio"]
            )
            for row in rows
        ]
    )


@router.post("/jobs/{job_id}/exec")
@requires(Permission.JOB_EXEC)
async def exec_in_job(call: CallDep, job_id: UUID, body: ExecIn) -> ExecOut:
    """Run a command beside a replica of a running job, and return what it wrote."""
    found = await call.read(lambda s: service.get_output_to_exec(s, call.principal, job_id))
    attempt = found.attempt
    if attempt is None or body.rank >= len(attempt.replicas):
        raise NotFound(
            f"{found.job.name} has no replica of rank {body.rank}.",
            code="replica_not_found",
            field="rank",
            fix="List its attempts to see the ranks.",
        )
    backend = able(find_backend(call, attempt), Executes, "run a command beside a job")  # type: ignore[type-abstract]  # a protocol is asked for
    said = f"{call.principal.name} ran {body.command[0][:100]!r} beside rank {body.rank}."
    await call.database.write(
        "jobs.audit_exec",
        lambda s: service.audit(s, call.principal, found, "job.exec", said, call.now),
    )
    try:
        result = await backend.exec(
            ref_of(attempt), body.rank, body.command, body.stdin.encode(), body.timeout_s
        )
    except BackendError as error:
        raise Unprocessable(
            f"{error.message}.", code="exec_failed", fix="Check the command, the rank and the time."
        ) from error
    answer = ExecOut(
        exit_code=result.exit_code,
        stdout=result.stdout.decode("utf-8", "replace"),
        stderr=result.stderr.decode("utf-8", "replace"),
    )
    return await call.write("jobs.keep_exec", lambda _: answer, lambda kept: kept)


@router.get("/jobs/{job_id}/artifacts")
@requires(Permission.JOB_READ)
async def list_artifacts(call: CallDep, job_id: UUID) -> ArtifactsOut:
    """List the artifacts that a job's latest attempt left."""
    found = await call.read(lambda s: service.get_output(s, call.principal, job_id, None))
    if found.attempt is None or not found.is_over:
        return ArtifactsOut(items=[])
    keeper = able(find_backend(call, found.attempt), FetchesArtifacts, "give artifacts back")  # type: ignore[type-abstract]  # a protocol is asked for
    try:
        artifacts = await keeper.list_artifacts(ref_of(found.attempt))
    except BackendError as error:
        raise _no_artifact(error) from error
    return ArtifactsOut(items=[ArtifactOut(path=path, size_bytes=size) for path, size in artifacts])


@router.get(
    "/jobs/{job_id}/artifacts/{path:path}",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
@requires(Permission.JOB_READ)
async def download_artifact(
    call: CallDep, job_id: UUID, path: Annotated[str, Path(min_length=1, max_length=1_024)]
) -> StreamingResponse:
    """Download one artifact of a job's latest attempt."""
    found = await call.read(lambda s: service.get_output(s, call.principal, job_id, None))
    attempt = found.attempt
    if attempt is None or not found.is_over:
        raise NotFound(
            f"{found.job.name} has left no artifacts yet.",
            code="artifact_not_found",
            fix="Wait for the end of the job.",
        )
    keeper = able(find_backend(call, attempt), FetchesArtifacts, "give artifacts back")  # type: ignore[type-abstract]  # a protocol is asked for
    try:
        sizes = dict(await keeper.list_artifacts(ref_of(attempt)))
    except BackendError as error:
        raise _no_artifact(error) from error
    if path not in sizes:
        raise NotFound(
            f"{found.job.name} left no artifact {path[:200]!r}.",
            code="artifact_not_found",
            field="path",
            fix="List its artifacts to see their paths.",
        )
    await audit(call, found, "job.artifact_read", f"{call.principal.name} fetched an artifact.")
    return StreamingResponse(
        _bytes_of(keeper, attempt, path, sizes[path]),
        media_type="application/octet-stream",
        headers={"Content-Length": str(sizes[path]), "X-Content-Type-Options": "nosniff"},
    )


async def _bytes_of(
    keeper: FetchesArtifacts, attempt: Attempt, path: str, size: int
) -> AsyncIterator[bytes]:
    offset = 0
    while offset < size:
        part = await keeper.read_artifact(
            ref_of(attempt), path, offset, min(ARTIFACT_BYTES, size - offset)
        )
        if not part:
            return
        yield part
        offset += len(part)


def _no_artifact(error: BackendError) -> ProductError:
    return LogsGone(
        f"{error.message}.", code="artifacts_gone", fix="Run the job again to have them once more."
    )


def _event_body(event: Event) -> JobEventOut:
    return JobEventOut.model_construct(
        id=event.id,
        kind=event.kind,
        at=event.at,
        actor=event.actor,
        reason=event.reason,
        message=event.message,
        data=dict(event.data),
        audit=event.audit,
    )
