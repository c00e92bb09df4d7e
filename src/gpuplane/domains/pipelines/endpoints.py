"""HTTP of pipelines: saved, compared, run, exported, called from outside."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import PlainTextResponse

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
from gpuplane.domains.pipelines.documents.reading import count_steps, dump_yaml, ours
from gpuplane.domains.pipelines.errors import PipelineNotFound
from gpuplane.domains.pipelines.schemas import (
    ChangeOut,
    CheckedOut,
    DiffOut,
    FeatureOut,
    FiredOut,
    ImportCheckedOut,
    ImportIn,
    PipelineDetailOut,
    PipelineOut,
    RunIn,
    SavedOut,
    StepLogsOut,
    TriggerOut,
    TryLogOut,
    VersionDetailOut,
    VersionOut,
    run_out,
)
from gpuplane.domains.pipelines.steps import StepTools
from gpuplane.domains.pipelines.steps.checks import make_check, make_trigger_check
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.schemas import RunOut, StepName
from gpuplane.domains.secrets import service as secrets
from gpuplane.kit.access import Permission, counts_as_submit, requires
from gpuplane.kit.bodies import Cursor, Done, Limit, PageOut, page_request
from gpuplane.kit.errors import InvalidInput, NotFound, ProductError
from gpuplane.kit.pagination import DEFAULT_LIMIT, Page

router = APIRouter(tags=["pipelines"])

PROOFS = frozenset({"gpuplane-signature", "authorization"})
"""Headers of a call that its trigger's expressions do not see."""
SMALL_STEPS = 100
"""Documents up to so many steps are checked at once; larger ones on a thread."""
DocumentIn = Annotated[
    dict[str, Any],
    Body(description="A manifest of kind Pipeline, or `{pipeline, steps}` of the specification."),
]
ProjectKey = Annotated[str | None, Query(max_length=63, description="Name or id.")]
Number = Annotated[int, Query(ge=1, le=2**31 - 1)]


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
            session, call.principal, _project(project), Permission.PIPELINE_WRITE
        )
        known = service.find_pipeline_named(session, place.id, pipeline.name)
        old: Mapping[str, Any] = {}
        if known is not None:
            old = service.get_document(session, call.principal, known.id)[1].document
        return CheckedOut(
            name=pipeline.name,
            step_count=count_steps(pipeline),
            would_create=known is None,
            changes=[] if known is None else _changes(service.diff_documents(old, document)),
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
    await call.read(lambda s: resolve_project(s, call.principal, _project(project), permission))
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


async def _translated(body: ImportIn) -> Translated:
    return await asyncio.to_thread(
        translate_text, body.text, body.with_, body.containers, body.name
    )


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
    return PageOut.of(found, _pipeline_out)


@router.get("/pipelines/{pipeline_id}")
@requires(Permission.PIPELINE_READ)
async def get_pipeline(call: CallDep, pipeline_id: UUID) -> PipelineDetailOut:
    """Return a pipeline with its newest document."""

    def query(session: ReadSession) -> PipelineDetailOut:
        record, version = service.get_document(session, call.principal, pipeline_id)
        triggers = service.list_triggers(session, call.principal, pipeline_id)
        return PipelineDetailOut(
            **_pipeline_values(record),
            document=dict(version.document),
            triggers=[_trigger_out(each) for each in triggers],
        )

    return await call.read(query)


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
        _pipeline_out,
    )


@router.post("/pipelines/{pipeline_id}/restore")
@requires(Permission.PIPELINE_WRITE)
async def restore_pipeline(call: CallDep, pipeline_id: UUID) -> PipelineOut:
    """Let an archived pipeline start runs again."""

    def unit(session: WriteSession) -> service.PipelineRecord:
        _, version = service.get_document(session, call.principal, pipeline_id)
        pipeline = read_pipeline(dict(version.document))
        return service.restore_pipeline(session, call.principal, pipeline_id, pipeline, call.now)

    return await call.write("pipelines.restore_pipeline", unit, _pipeline_out)


@router.get("/pipelines/{pipeline_id}/versions")
@requires(Permission.PIPELINE_READ)
async def list_versions(
    call: CallDep, pipeline_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> PageOut[VersionOut]:
    """List the versions of a pipeline, newest first."""
    page = page_request(limit, cursor, sort=service.SORT_VERSIONS)
    found = await call.read(lambda s: service.list_versions(s, call.principal, pipeline_id, page))
    return PageOut.of(found, _version_out)


@router.get("/pipelines/{pipeline_id}/versions/{number}")
@requires(Permission.PIPELINE_READ)
async def get_version(call: CallDep, pipeline_id: UUID, number: int) -> VersionDetailOut:
    """Return one version with its document."""
    _, found = await call.read(
        lambda s: service.get_document(s, call.principal, pipeline_id, _number(number))
    )
    return VersionDetailOut(**_version_values(found), document=dict(found.document))


@router.get("/pipelines/{pipeline_id}/diff")
@requires(Permission.PIPELINE_READ)
async def diff_versions(call: CallDep, pipeline_id: UUID, old: Number, new: Number) -> DiffOut:
    """Return what differs between two versions."""
    found = await call.read(
        lambda s: service.diff_versions(s, call.principal, pipeline_id, old, new)
    )
    return DiffOut(old=old, new=new, changes=_changes(found))


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
        _saved_out,
    )


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


@router.post("/pipelines/{pipeline_id}/runs", status_code=202)
@requires(Permission.RUN_WRITE)
@counts_as_submit
async def start_run(call: CallDep, pipeline_id: UUID, body: RunIn | None = None) -> RunOut:
    """Start a run."""
    return await _start(call, pipeline_id, body)


@router.post("/pipelines/{pipeline_id}/trigger", status_code=202)
@requires(Permission.RUN_WRITE)
@counts_as_submit
async def trigger_run(call: CallDep, pipeline_id: UUID, body: RunIn | None = None) -> RunOut:
    """Start a run; the same as `POST …/runs`."""
    return await _start(call, pipeline_id, body)


@router.post("/pipelines/{pipeline_id}/execute", status_code=202)
@requires(Permission.RUN_WRITE)
@counts_as_submit
async def execute_run(call: CallDep, pipeline_id: UUID, body: RunIn | None = None) -> RunOut:
    """Start a run; the same as `POST …/runs`."""
    return await _start(call, pipeline_id, body)


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


@router.post("/hooks/{trigger_id}", status_code=202)
@requires(Permission.PUBLIC)
async def call_webhook(call: CallDep, request: Request, trigger_id: UUID) -> FiredOut:
    """Start the runs of a trigger that is called: a signed webhook, a bucket's notification."""
    found = await call.read(lambda s: service.hook_of(s, trigger_id))
    if found is None:
        raise NotFound("There is no webhook of that id.", fix="Show the pipeline for its path.")
    raw = await request.body()
    headers = {key.lower(): value for key, value in request.headers.items()}
    proof = service.read_proof(found, headers, call.now)
    revealed = await call.database.write(
        "pipelines.reveal_webhook",
        lambda s: secrets.reveal_for_step(
            s, call.sealing, found.id, found.project_id, [proof.secret_name],
            f"trigger:{found.kind}", call.now,
        ),
    )  # fmt: skip
    service.check_proof(proof, revealed[proof.secret_name].value, raw)
    shown = {key: text for key, text in headers.items() if key not in PROOFS}
    names = {"body": service.read_body(raw), "headers": shown}
    policy = call.port("run_policy", runs.RunPolicy)
    await call.read(lambda s: service.prepare(s, found.pipeline_id))
    refused: list[ProductError] = []

    def shape(fired: Sequence[service.Fired]) -> FiredOut:
        refused[:] = [each.refusal for each in fired if each.refusal is not None]
        return _fired_out(fired)

    answer = await call.write(
        "pipelines.webhook",
        lambda s: service.fire_call(s, found, proof, names, policy, call.now),
        shape,
        202,
    )
    if refused and found.kind == "webhook":  # a bucket would send its notification again
        raise refused[0]
    return answer


def _fired_out(fired: Sequence[service.Fired]) -> FiredOut:
    started = [each.run.id for each in fired if each.run is not None]
    return FiredOut(run_id=started[0] if started else None, run_ids=started)


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
        _project(project),
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
        _saved_out,
        status,
    )


async def _start(call: Call, pipeline_id: UUID, body: RunIn | None) -> RunOut:
    asked = body or RunIn()
    policy = call.port("run_policy", runs.RunPolicy)

    def unit(session: WriteSession) -> runs.Run:
        record = service.get_pipeline(session, call.principal, pipeline_id, Permission.RUN_WRITE)
        wanted = service.Start(
            user_id=call.principal.user_id,
            actor=call.principal.name,
            parameters=asked.parameters,
            version=asked.version,
            dedup_id=asked.dedup_id,
            traceparent=call.traceparent,
            labels=record.labels,
            refuses_other=True,
            may_critical=call.principal.may(
                Permission.JOB_MANAGE, record.tenant_id, record.project_id
            ),
        )
        return service.start(session, record, wanted, policy, call.now)

    await call.read(lambda s: service.prepare(s, pipeline_id, asked.version))
    return await call.write("pipelines.start_run", unit, run_out, 202)


def _project(key: str | None) -> ProjectId | str | None:
    if key is None:
        return None
    try:
        return ProjectId(UUID(key))
    except ValueError:
        return key.replace("\x00", "")


def _number(number: int) -> int:
    if not 1 <= number < 2**31:
        raise PipelineNotFound("There is no version of that number.", fix="List the versions.")
    return number


def _pipeline_values(record: service.PipelineRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "tenant_id": record.tenant_id,
        "project_id": record.project_id,
        "name": record.name,
        "status": str(record.status),
        "labels": dict(record.labels),
        "version": record.version_number,
        "step_count": record.step_count,
        "created_by": record.created_by,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


def _pipeline_out(record: service.PipelineRecord) -> PipelineOut:
    return PipelineOut(**_pipeline_values(record))


def _trigger_out(trigger: service.TriggerRecord) -> TriggerOut:
    return TriggerOut(
        id=trigger.id,
        kind=trigger.kind,
        due_at=trigger.due_at,
        path=f"/api/v1/hooks/{trigger.id}" if service.find_caller(trigger) is not None else None,
        problem=trigger.problem,
    )


def _version_values(version: service.Version) -> dict[str, Any]:
    return {
        "number": version.number,
        "digest": version.digest,
        "step_count": version.step_count,
        "created_by": version.created_by,
        "created_at": version.created_at,
        "rolled_back_from": version.rolled_back_from,
    }


def _version_out(version: service.Version) -> VersionOut:
    return VersionOut(**_version_values(version))


def _saved_out(saved: service.Saved) -> SavedOut:
    return SavedOut(
        pipeline=_pipeline_out(saved.record),
        version=saved.version.number,
        created=saved.is_new,
        changed=saved.is_changed,
    )


def _changes(found: list[dict[str, Any]]) -> list[ChangeOut]:
    return [ChangeOut(**each) for each in found]
