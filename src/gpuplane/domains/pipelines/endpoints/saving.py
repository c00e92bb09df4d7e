"""Pipelines saved: from a document or another system's file, checked, changed, taken back."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Query

from gpuplane.core.ids import ProjectId
from gpuplane.db.calls import Call, CallDep
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.identity.service import resolve_project
from gpuplane.domains.pipelines import service
from gpuplane.domains.pipelines.documents import check_pipeline, read_pipeline
from gpuplane.domains.pipelines.documents.importing import (
    Translated,
    refusal_of_import,
    translate_text,
)
from gpuplane.domains.pipelines.documents.models import Pipeline
from gpuplane.domains.pipelines.documents.reading import count_steps, ours
from gpuplane.domains.pipelines.endpoints.shaping import (
    Number,
    changes_out,
    pipeline_out,
    project_key,
    saved_out,
)
from gpuplane.domains.pipelines.schemas import (
    CheckedOut,
    FeatureOut,
    ImportCheckedOut,
    ImportIn,
    PipelineOut,
    SavedOut,
)
from gpuplane.domains.pipelines.steps import StepTools
from gpuplane.domains.pipelines.steps.checks import make_check, make_trigger_check
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Done
from gpuplane.kit.errors import InvalidInput

router = APIRouter()

SMALL_STEPS = 100
"""Documents up to so many steps are checked at once; larger ones on a thread."""
DocumentIn = Annotated[
    dict[str, Any],
    Body(description="A manifest of kind Pipeline, or `{pipeline, steps}` of the specification."),
]
ProjectKey = Annotated[str | None, Query(max_length=63, description="Name or id.")]


@router.post("/pipelines", status_code=201)
@requires(Permission.PIPELINE_WRITE)
async def create_pipeline(call: CallDep, body: DocumentIn, project: ProjectKey = None) -> SavedOut:
    """Save a new pipeline; one of that name is refused."""
    return await _save(call, body, project, must_be_new=True, status=201)


@router.put("/pipelines")
@requires(Permission.PIPELINE_WRITE)
async def apply_pipeline(
    call: CallDep,
    body: DocumentIn,
    project: ProjectKey = None,
    expected_version: Number | None = None,
) -> SavedOut:
    """Save a pipeline: new, or a new version if anything changed."""
    return await _save(call, body, project, expected=expected_version)


@router.post("/pipelines/check")
@requires(Permission.PIPELINE_WRITE)
async def check_document(call: CallDep, body: DocumentIn, project: ProjectKey = None) -> CheckedOut:
    """Check a document as saving would, and tell what would change."""
    document, pipeline = await _read(call, body)

    def query(session: ReadSession) -> CheckedOut:
        place = resolve_project(
            session, call.principal, project_key(project), Permission.PIPELINE_WRITE
        )
        known = service.find_pipeline_named(session, place.id, pipeline.name)
        old: Mapping[str, Any] = {}
        if known is not None:
            old = service.get_document(session, call.principal, known.id)[1].document
        return CheckedOut(
            name=pipeline.name,
            step_count=count_steps(pipeline),
            would_create=known is None,
            changes=[] if known is None else changes_out(service.diff_documents(old, document)),
        )

    return await call.read(query)


@router.post("/pipelines/import", status_code=201)
@requires(Permission.PIPELINE_WRITE)
async def import_pipeline(call: CallDep, body: ImportIn, project: ProjectKey = None) -> SavedOut:
    """Save a pipeline from text: as `export` wrote it, or of Kubeflow Pipelines or Argo."""
    found = await _translated(body)
    if found.document is None:
        raise refusal_of_import(found)
    return await _save(call, found.document, project, status=201)


@router.post("/pipelines/import/check")
@requires(Permission.PIPELINE_WRITE)
async def check_import(
    call: CallDep, body: ImportIn, project: ProjectKey = None
) -> ImportCheckedOut:
    """Tell what becomes of each feature of a file of another system, and save nothing."""
    permission = Permission.PIPELINE_WRITE
    await call.read(lambda s: resolve_project(s, call.principal, project_key(project), permission))
    found = await _translated(body)
    rows = () if found.result is None else found.result.rows
    return ImportCheckedOut(
        kind=found.kind,
        accepted=found.document is not None,
        rows=[
            FeatureOut(place=row.place, feature=row.feature, verdict=row.verdict, reason=row.reason)
            for row in rows
        ],
        document=found.document,
    )


@router.put("/pipelines/{pipeline_id}")
@requires(Permission.PIPELINE_WRITE)
async def change_pipeline(
    call: CallDep,
    pipeline_id: UUID,
    body: DocumentIn,
    expected_version: Number | None = None,
) -> SavedOut:
    """Save a new version of a pipeline, if anything changed."""
    permission = Permission.PIPELINE_WRITE
    known = await call.read(
        lambda s: service.get_pipeline(s, call.principal, pipeline_id, permission)
    )
    document, pipeline = await _read(call, body)
    if pipeline.name != known.name:
        raise InvalidInput(
            f"This pipeline is called {known.name!r}.",
            field="metadata.name",
            fix="Keep its name, or create another.",
        )
    return await _store(call, document, pipeline, known.project_id, expected=expected_version)


@router.delete("/pipelines/{pipeline_id}")
@requires(Permission.PIPELINE_WRITE)
async def delete_pipeline(call: CallDep, pipeline_id: UUID) -> Done:
    """Delete a pipeline with its versions; refused while runs of it are not over."""
    return await call.write(
        "pipelines.delete_pipeline",
        lambda s: service.delete_pipeline(s, call.principal, pipeline_id, call.now),
        lambda _: Done(),
    )


@router.post("/pipelines/{pipeline_id}/archive")
@requires(Permission.PIPELINE_WRITE)
async def archive_pipeline(call: CallDep, pipeline_id: UUID) -> PipelineOut:
    """Let a pipeline start no more runs."""
    return await call.write(
        "pipelines.archive_pipeline",
        lambda s: service.archive_pipeline(s, call.principal, pipeline_id, call.now),
        pipeline_out,
    )


@router.post("/pipelines/{pipeline_id}/restore")
@requires(Permission.PIPELINE_WRITE)
async def restore_pipeline(call: CallDep, pipeline_id: UUID) -> PipelineOut:
    """Let an archived pipeline start runs again."""

    def unit(session: WriteSession) -> service.PipelineRecord:
        _, version = service.get_document(session, call.principal, pipeline_id)
        pipeline = read_pipeline(dict(version.document))
        return service.restore_pipeline(session, call.principal, pipeline_id, pipeline, call.now)

    return await call.write("pipelines.restore_pipeline", unit, pipeline_out)


@router.post("/pipelines/{pipeline_id}/rollback")
@requires(Permission.PIPELINE_WRITE)
async def rollback(call: CallDep, pipeline_id: UUID, version: Number) -> SavedOut:
    """Make the content of an old version the newest one, as a version of its own."""
    permission = Permission.PIPELINE_WRITE
    _, old = await call.read(
        lambda s: service.get_document(s, call.principal, pipeline_id, version, permission)
    )
    _, pipeline = await _read(call, dict(old.document))
    return await call.write(
        "pipelines.rollback",
        lambda s: service.rollback(s, call.principal, pipeline_id, version, pipeline, call.now),
        saved_out,
    )


async def _translated(body: ImportIn) -> Translated:
    return await asyncio.to_thread(
        translate_text, body.text, body.with_, body.containers, body.name
    )


async def _read(call: Call, body: Any) -> tuple[dict[str, Any], Pipeline]:
    """Return a document in our form and its model, checked as this server can."""
    tools = call.port("pipeline_tools", StepTools)
    check, check_trigger = make_check(tools), make_trigger_check(tools)

    def read() -> tuple[dict[str, Any], Pipeline]:
        pipeline = read_pipeline(body)
        check_pipeline(pipeline, check, check_trigger)
        return ours(body), pipeline

    steps = body.get("steps") or (body.get("spec") or {}) if isinstance(body, dict) else ()
    if isinstance(steps, dict):
        steps = steps.get("steps") or ()
    if len(steps) <= SMALL_STEPS:
        return read()
    return await asyncio.to_thread(read)


async def _save(
    call: Call,
    body: Any,
    project: str | None,
    *,
    must_be_new: bool = False,
    expected: int | None = None,
    status: int = 200,
) -> SavedOut:
    document, pipeline = await _read(call, body)
    return await _store(
        call,
        document,
        pipeline,
        project_key(project),
        must_be_new=must_be_new,
        expected=expected,
        status=status,
    )


async def _store(
    call: Call,
    document: dict[str, Any],
    pipeline: Pipeline,
    project: ProjectId | str | None,
    *,
    must_be_new: bool = False,
    expected: int | None = None,
    status: int = 200,
) -> SavedOut:
    return await call.write(
        "pipelines.save_pipeline",
        lambda s: service.save_pipeline(
            s,
            call.principal,
            project,
            pipeline,
            document,
            call.now,
            must_be_new=must_be_new,
            expected=expected,
        ),
        saved_out,
        status,
    )
