"""Pipelines read: their versions, what differs, their runs, what steps printed."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from gpuplane.core.ids import ProjectId
from gpuplane.db.calls import CallDep
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.pipelines import service
from gpuplane.domains.pipelines.documents.reading import dump_yaml
from gpuplane.domains.pipelines.endpoints.shaping import (
    Number,
    changes_out,
    pipeline_out,
    pipeline_values,
    trigger_out,
    version_out,
    version_values,
)
from gpuplane.domains.pipelines.errors import PipelineNotFound
from gpuplane.domains.pipelines.schemas import (
    DiffOut,
    PipelineDetailOut,
    PipelineOut,
    StepLogsOut,
    TryLogOut,
    VersionDetailOut,
    VersionOut,
    run_out,
)
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.schemas import RunOut, StepName
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Cursor, Limit, PageOut, page_request
from gpuplane.kit.errors import InvalidInput
from gpuplane.kit.pagination import DEFAULT_LIMIT, Page

router = APIRouter()


@router.get("/pipelines")
@requires(Permission.PIPELINE_READ)
async def list_pipelines(
    call: CallDep,
    project_id: ProjectId | None = None,
    name: Annotated[str | None, Query(max_length=63)] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> PageOut[PipelineOut]:
    """List pipelines by name."""
    if name is not None and "\x00" in name:
        raise InvalidInput("This is no name.", field="name", fix="Leave it out.")
    page = page_request(limit, cursor, sort=service.SORT_NAME)
    found = await call.read(
        lambda s: service.list_pipelines(s, call.principal, project_id, name, page)
    )
    return PageOut.of(found, pipeline_out)


@router.get("/pipelines/{pipeline_id}")
@requires(Permission.PIPELINE_READ)
async def get_pipeline(call: CallDep, pipeline_id: UUID) -> PipelineDetailOut:
    """Return a pipeline with its newest document."""

    def query(session: ReadSession) -> PipelineDetailOut:
        record, version = service.get_document(session, call.principal, pipeline_id)
        triggers = service.list_triggers(session, call.principal, pipeline_id)
        return PipelineDetailOut(
            **pipeline_values(record),
            document=dict(version.document),
            triggers=[trigger_out(each) for each in triggers],
        )

    return await call.read(query)


@router.get("/pipelines/{pipeline_id}/versions")
@requires(Permission.PIPELINE_READ)
async def list_versions(
    call: CallDep, pipeline_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> PageOut[VersionOut]:
    """List the versions of a pipeline, newest first."""
    page = page_request(limit, cursor, sort=service.SORT_VERSIONS)
    found = await call.read(lambda s: service.list_versions(s, call.principal, pipeline_id, page))
    return PageOut.of(found, version_out)


@router.get("/pipelines/{pipeline_id}/versions/{number}")
@requires(Permission.PIPELINE_READ)
async def get_version(call: CallDep, pipeline_id: UUID, number: int) -> VersionDetailOut:
    """Return one version with its document."""
    _, found = await call.read(
        lambda s: service.get_document(s, call.principal, pipeline_id, _number(number))
    )
    return VersionDetailOut(**version_values(found), document=dict(found.document))


@router.get("/pipelines/{pipeline_id}/diff")
@requires(Permission.PIPELINE_READ)
async def diff_versions(call: CallDep, pipeline_id: UUID, old: Number, new: Number) -> DiffOut:
    """Return what differs between two versions."""
    found = await call.read(
        lambda s: service.diff_versions(s, call.principal, pipeline_id, old, new)
    )
    return DiffOut(old=old, new=new, changes=changes_out(found))


@router.get("/pipelines/{pipeline_id}/export", response_class=PlainTextResponse)
@requires(Permission.PIPELINE_READ)
async def export_pipeline(
    call: CallDep, pipeline_id: UUID, version: Number | None = None
) -> PlainTextResponse:
    """Return a version as YAML, without values that look secret."""
    _, found = await call.read(
        lambda s: service.get_document(s, call.principal, pipeline_id, version)
    )
    text = dump_yaml(service.without_secrets(dict(found.document)))
    return PlainTextResponse(text, media_type="application/yaml")


@router.get("/pipelines/{pipeline_id}/runs")
@requires(Permission.RUN_READ)
async def list_pipeline_runs(
    call: CallDep, pipeline_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> PageOut[RunOut]:
    """List the runs of a pipeline, newest first."""
    page = page_request(limit, cursor, sort=runs.SORT_RUNS)
    wanted = runs.RunFilter(source_id=pipeline_id)

    def query(session: ReadSession) -> Page[runs.Run]:
        service.get_pipeline(session, call.principal, pipeline_id, Permission.RUN_READ)
        return runs.list_runs(session, call.principal, wanted, page)

    found = await call.read(query)
    return PageOut.of(found, run_out)


@router.get("/runs/{run_id}/steps/{step}/logs")
@requires(Permission.RUN_READ)
async def get_step_logs(call: CallDep, run_id: UUID, step: StepName) -> StepLogsOut:
    """Return what a step's function printed, or the job whose logs are its own."""

    def query(session: ReadSession) -> StepLogsOut:
        runs.get_run(session, run_id, call.principal)
        found = runs.get_step(session, run_id, step)
        tries = service.list_logs(session, found.id)
        return StepLogsOut(
            step=found.key,
            job_id=service.find_job_of(session, found.id),
            tries=[TryLogOut(attempt=number, text=text) for number, text in tries],
        )

    return await call.read(query)


def _number(number: int) -> int:
    if not 1 <= number < 2**31:
        raise PipelineNotFound("There is no version of that number.", fix="List the versions.")
    return number
