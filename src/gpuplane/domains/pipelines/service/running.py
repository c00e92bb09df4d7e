"""Starting runs of pipelines, and what their steps printed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ProjectId, TenantId
from gpuplane.core.runs.plans import RunPlan
from gpuplane.core.workloads import SourceType
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.pipelines import repository
from gpuplane.domains.pipelines.documents.compiling import Starting, plan_run
from gpuplane.domains.pipelines.documents.parameters import resolve_parameters
from gpuplane.domains.pipelines.documents.remembering import (
    Compilations,
    Compiled,
    compile_document,
)
from gpuplane.domains.pipelines.errors import (
    BadParameters,
    PipelineArchived,
    RunExists,
    VersionNotFound,
)
from gpuplane.domains.pipelines.expressions import ExpressionError, PlacedError
from gpuplane.domains.pipelines.rules import PipelineRecord, PipelineStatus
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import Run, RunPolicy

_compilations = Compilations()
"""Of this process: content by its digest, so that nothing in it is ever out of date."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a run is started with.

    Args:
        user_id: In whose name its jobs are submitted.
        version: Which version; None for the newest.
        dedup_id: At most one run of the project has it.
        refuses_other: Whether a run of that id that was started otherwise is refused, not given.
    """

    user_id: UUID
    actor: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    version: int | None = None
    trigger: str = "manual"
    trigger_data: Any = None
    dedup_id: str | None = None
    traceparent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    may_critical: bool = False
    refuses_other: bool = False


def start(
    session: WriteSession, record: PipelineRecord, asked: Start, policy: RunPolicy, now: int
) -> Run:
    """Start a run of a pipeline; of the same deduplication id it is the run that there is.

    Raises:
        PipelineArchived: If the pipeline starts no runs any more.
        VersionNotFound: If it has no such version.
        BadParameters: If parameters are missing, unknown or of another kind.
        RunExists: If the run of that deduplication id is of something else and that is refused.
    """
    if record.status is PipelineStatus.ARCHIVED:
        raise PipelineArchived(
            f"{record.name} is archived and starts no runs.", fix="Restore it first."
        )
    number = asked.version or record.version_number
    compiled = _compiled(session, record.id, number)
    if compiled is None:
        raise VersionNotFound(
            f"{record.name} has no version {number}.",
            field="version",
            fix=f"Versions are 1 to {record.version_number}.",
        )
    starting = Starting(
        pipeline_id=record.id,
        version=number,
        tenant_id=record.tenant_id,
        project_id=record.project_id,
        params=resolve_parameters(compiled.spec, asked.parameters),
        now=now,
        started_by=asked.actor,
        user_id=asked.user_id,
        trigger=asked.trigger,
        trigger_data=asked.trigger_data,
        dedup_id=asked.dedup_id,
        traceparent=asked.traceparent,
        labels=asked.labels,
        may_critical=asked.may_critical,
    )
    try:
        plan = plan_run(compiled.name, compiled.spec, compiled.steps, starting)
    except PlacedError as error:
        raise BadParameters(
            f"{error.path}: {error.error}", field=f"spec.{error.path}", fix=error.error.fix
        ) from error
    except ExpressionError as error:
        raise BadParameters(str(error), field="spec.concurrency.key", fix=error.fix) from error
    run = runs.start_run(session, plan, now, policy)
    if asked.refuses_other:
        _refuse_other(run, plan, of_version=asked.version)
    return run


def _refuse_other(run: Run, plan: RunPlan, *, of_version: int | None) -> None:
    """Raise RunExists if the run of a deduplication id is not one of this plan."""
    others = []
    if run.source_id != plan.source_id:
        others.append("of another pipeline")
    elif of_version is not None and run.source_version != of_version:
        others.append(f"of version {run.source_version}")
    if not others and run.params != plan.params:
        others.append("with other parameters")
    if others:
        raise RunExists(
            f"The run {run.id} has the deduplication id {plan.dedup_id}, and is {others[0]}.",
            field="dedup_id",
            fix="Take another id, or leave it out.",
        )


def prepare(session: ReadSession, pipeline_id: UUID, number: int | None = None) -> None:
    """Read and compile a version before the transaction that starts a run of it.

    What is not there is told when it is started.
    """
    record = None if number else repository.find_pipeline(session, pipeline_id)
    number = number or (record.version_number if record is not None else None)
    if number is not None:
        _compiled(session, pipeline_id, number)


def _compiled(session: ReadSession, pipeline_id: UUID, number: int) -> Compiled | None:
    """Return what a version was compiled to; None if there is none of that number."""
    digest = repository.find_digest(session, pipeline_id, number)
    found = None if digest is None else _compilations.find(digest)
    if digest is None or found is not None:
        return found
    version = repository.find_version(session, pipeline_id, number)
    if version is None:
        return None
    found = compile_document(version.document)
    _compilations.keep(digest, found)
    return found


def keep_log(session: WriteSession, step_id: UUID, attempt: int, text: str, now: int) -> None:
    """Keep what a try of a function printed."""
    repository.store_log(
        session, step_id, attempt, text.replace("\x00", "\N{SYMBOL FOR NULL}"), now
    )


def list_logs(session: ReadSession, step_id: UUID) -> list[tuple[int, str]]:
    """Return what each try of a step printed, first to last."""
    return repository.list_logs(session, step_id)


def find_job_of(session: ReadSession, step_id: UUID) -> UUID | None:
    """Return the newest job that a step submitted, or None."""
    return jobs.find_of_source(session, str(SourceType.PIPELINE), str(step_id))


def find_use(session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None) -> str | None:
    """Return a sentence about the pipelines that lie there, or None when there are none."""
    count = repository.count_pipelines(session, tenant_id, project_id)
    if not count:
        return None
    where = "tenant" if project_id is None else "project"
    return f"The {where} still has {count} {'pipeline' if count == 1 else 'pipelines'}."
