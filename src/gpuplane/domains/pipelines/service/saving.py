"""Saving pipelines: each change of content is a new version, and no version ever changes."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ProjectId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events.service import NewEvent, record
from gpuplane.domains.identity.service import resolve_project
from gpuplane.domains.pipelines import repository
from gpuplane.domains.pipelines.documents.configs import (
    ApiCallConfig,
    JobConfig,
    SecretHeader,
    config_of,
)
from gpuplane.domains.pipelines.documents.fields import is_templated
from gpuplane.domains.pipelines.documents.models import EventTrigger, Pipeline, Step, StepType
from gpuplane.domains.pipelines.documents.reading import count_steps, refusal_of, walk
from gpuplane.domains.pipelines.errors import (
    PipelineExists,
    PipelineInUse,
    PipelineNotFound,
    StalePipeline,
    VersionNotFound,
)
from gpuplane.domains.pipelines.expressions import canonical
from gpuplane.domains.pipelines.rules import (
    PipelineRecord,
    PipelineStatus,
    TriggerRecord,
    Version,
    diff_documents,
)
from gpuplane.domains.pipelines.service.firing import sync_triggers
from gpuplane.domains.runs import service as runs
from gpuplane.domains.secrets import service as secrets
from gpuplane.kit.access import Permission, Principal
from gpuplane.kit.errors import FieldError
from gpuplane.kit.ids import new_id
from gpuplane.kit.pagination import Page, PageRequest


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a document: its pipeline, its version, and whether either is new."""

    record: PipelineRecord
    version: Version
    is_new: bool
    is_changed: bool


def save_pipeline(
    session: WriteSession,
    principal: Principal,
    project_id: ProjectId | str | None,
    pipeline: Pipeline,
    document: Mapping[str, Any],
    now: int,
    *,
    must_be_new: bool = False,
    expected: int | None = None,
) -> Saved:
    """Store a checked document: a new pipeline, a new version, or nothing if nothing changed.

    Args:
        session: The transaction.
        principal: The caller.
        project_id: The project, None for the caller's.
        pipeline: The document, read and checked.
        document: The same as it was written, in our form.
        now: The instant.
        must_be_new: Refuse a pipeline that exists.
        expected: The version number the caller changes; None for whatever is there.

    Raises:
        PipelineExists: If it must be new and is not.
        StalePipeline: If there is another version than the one expected.
        BadPipeline: If it names secrets that the project has not.
    """
    project = resolve_project(session, principal, project_id, Permission.PIPELINE_WRITE)
    _check_secrets(session, project.id, pipeline)
    known = repository.find_named(session, project.id, pipeline.name)
    if known is not None and must_be_new:
        raise PipelineExists(
            f"The project has a pipeline {pipeline.name!r}.",
            field="metadata.name",
            fix="Change it with PUT, or choose another name.",
        )
    if expected is not None and (known is None or known.version_number != expected):
        there = 0 if known is None else known.version_number
        raise StalePipeline(
            f"The pipeline has version {there}, not {expected}.",
            fix="Look at what changed, and send it again.",
        )
    digest = digest_of(document)
    if known is None:
        return _create(session, principal, project.tenant_id, project.id, pipeline, document, now)
    current = _version_of(session, known, known.version_number)
    if current.digest == digest:
        return Saved(known, current, is_new=False, is_changed=False)
    return _add_version(session, principal, known, pipeline, document, now, None)


def digest_of(document: Mapping[str, Any]) -> str:
    """Return a document's digest; equal for equal content however it is spaced or ordered."""
    return hashlib.sha256(canonical(document).encode()).hexdigest()


def _create(
    session: WriteSession,
    principal: Principal,
    tenant_id: Any,
    project_id: ProjectId,
    pipeline: Pipeline,
    document: Mapping[str, Any],
    now: int,
) -> Saved:
    record_ = PipelineRecord(
        id=new_id(),
        tenant_id=tenant_id,
        project_id=project_id,
        name=pipeline.name,
        status=PipelineStatus.ACTIVE,
        labels=dict(pipeline.metadata.labels),
        version_number=1,
        step_count=count_steps(pipeline),
        created_by=principal.name,
        created_at=now,
        updated_at=now,
        version=1,
    )
    repository.store_pipeline(session, record_)
    version = _make_version(principal, record_, document, now, None)
    repository.store_version(session, version)
    sync_triggers(session, record_, pipeline, now)
    _announce(session, "pipeline.created", record_, principal.name, now)
    return Saved(record_, version, is_new=True, is_changed=True)


def _add_version(
    session: WriteSession,
    principal: Principal,
    known: PipelineRecord,
    pipeline: Pipeline,
    document: Mapping[str, Any],
    now: int,
    rolled_back_from: int | None,
) -> Saved:
    changed = replace(
        known,
        labels=dict(pipeline.metadata.labels),
        version_number=known.version_number + 1,
        step_count=count_steps(pipeline),
        updated_at=now,
        version=known.version + 1,
    )
    _store_changed(session, changed)
    version = _make_version(principal, changed, document, now, rolled_back_from)
    repository.store_version(session, version)
    if changed.status is PipelineStatus.ACTIVE:
        sync_triggers(session, changed, pipeline, now)
    _announce(session, "pipeline.changed", changed, principal.name, now)
    return Saved(changed, version, is_new=False, is_changed=True)


def _make_version(
    principal: Principal,
    record_: PipelineRecord,
    document: Mapping[str, Any],
    now: int,
    rolled_back_from: int | None,
) -> Version:
    return Version(
        pipeline_id=record_.id,
        number=record_.version_number,
        document=dict(document),
        digest=digest_of(document),
        step_count=record_.step_count,
        created_by=principal.name,
        user_id=principal.user_id,
        created_at=now,
        rolled_back_from=rolled_back_from,
        may_critical=principal.may(Permission.JOB_MANAGE, record_.tenant_id, record_.project_id),
    )


def _store_changed(session: WriteSession, record_: PipelineRecord) -> None:
    if not repository.change_pipeline(session, record_):
        raise StalePipeline(
            "The pipeline was changed by somebody else.", fix="Look at it, and try again."
        )


def rollback(
    session: WriteSession,
    principal: Principal,
    pipeline_id: UUID,
    number: int,
    pipeline: Pipeline,
    now: int,
) -> Saved:
    """Make the content of an old version the newest one, as a version of its own."""
    known = get_pipeline(session, principal, pipeline_id, Permission.PIPELINE_WRITE)
    old = _version_of(session, known, number)
    current = _version_of(session, known, known.version_number)
    if old.digest == current.digest:
        return Saved(known, current, is_new=False, is_changed=False)
    _check_secrets(session, known.project_id, pipeline)
    return _add_version(session, principal, known, pipeline, old.document, now, number)


def get_pipeline(
    session: ReadSession,
    principal: Principal,
    pipeline_id: UUID,
    permission: Permission = Permission.PIPELINE_READ,
) -> PipelineRecord:
    """Return a pipeline, if the caller holds the permission in its project.

    Raises:
        PipelineNotFound: If there is none, or it is not the caller's to see.
        Forbidden: If it is seen and the right is missing.
    """
    found = repository.find_pipeline(session, pipeline_id)
    if found is None or not principal.sees_tenant(found.tenant_id):
        raise PipelineNotFound("There is no pipeline of that id.", fix="List the pipelines.")
    principal.require(permission, found.tenant_id, found.project_id, what="pipeline")
    return found


def find_pipeline_named(session: ReadSession, project_id: UUID, name: str) -> PipelineRecord | None:
    """Return the pipeline of a project that has a name, or None; rights were checked before."""
    return repository.find_named(session, project_id, name)


def get_document(
    session: ReadSession,
    principal: Principal,
    pipeline_id: UUID,
    number: int | None = None,
    permission: Permission = Permission.PIPELINE_READ,
) -> tuple[PipelineRecord, Version]:
    """Return a pipeline and one of its versions, the newest without a number.

    Raises:
        VersionNotFound: If it has no version of that number.
    """
    found = get_pipeline(session, principal, pipeline_id, permission)
    return found, _version_of(session, found, number or found.version_number)


def list_pipelines(
    session: ReadSession,
    principal: Principal,
    project_id: ProjectId | None,
    name: str | None,
    page: PageRequest,
) -> Page[PipelineRecord]:
    """Return one page of the pipelines that the caller may see, by name."""
    scope = principal.rows(Permission.PIPELINE_READ)
    return repository.list_pipelines(session, scope, project_id, name, page)


def list_versions(
    session: ReadSession, principal: Principal, pipeline_id: UUID, page: PageRequest
) -> Page[Version]:
    """Return one page of a pipeline's versions, newest first."""
    found = get_pipeline(session, principal, pipeline_id)
    return repository.list_versions(session, found.id, page)


def list_triggers(
    session: ReadSession, principal: Principal, pipeline_id: UUID
) -> list[TriggerRecord]:
    """Return a pipeline's triggers and when each is due."""
    found = get_pipeline(session, principal, pipeline_id)
    return repository.list_triggers(session, found.id)


def diff_versions(
    session: ReadSession, principal: Principal, pipeline_id: UUID, old: int, new: int
) -> list[dict[str, Any]]:
    """Return what differs between two versions."""
    found = get_pipeline(session, principal, pipeline_id)
    before, after = _version_of(session, found, old), _version_of(session, found, new)
    return diff_documents(before.document, after.document)


def archive_pipeline(
    session: WriteSession, principal: Principal, pipeline_id: UUID, now: int
) -> PipelineRecord:
    """Let a pipeline start no more runs; those under way go on."""
    found = get_pipeline(session, principal, pipeline_id, Permission.PIPELINE_WRITE)
    if found.status is PipelineStatus.ARCHIVED:
        return found
    changed = replace(
        found, status=PipelineStatus.ARCHIVED, updated_at=now, version=found.version + 1
    )
    _store_changed(session, changed)
    repository.remove_triggers(
        session, [each.id for each in repository.list_triggers(session, found.id)]
    )
    _announce(session, "pipeline.archived", changed, principal.name, now)
    return changed


def restore_pipeline(
    session: WriteSession, principal: Principal, pipeline_id: UUID, pipeline: Pipeline, now: int
) -> PipelineRecord:
    """Let an archived pipeline start runs again."""
    found = get_pipeline(session, principal, pipeline_id, Permission.PIPELINE_WRITE)
    if found.status is PipelineStatus.ACTIVE:
        return found
    changed = replace(
        found, status=PipelineStatus.ACTIVE, updated_at=now, version=found.version + 1
    )
    _store_changed(session, changed)
    sync_triggers(session, changed, pipeline, now)
    _announce(session, "pipeline.restored", changed, principal.name, now)
    return changed


def delete_pipeline(
    session: WriteSession, principal: Principal, pipeline_id: UUID, now: int
) -> None:
    """Delete a pipeline with its versions; its runs stay as they ended.

    Raises:
        PipelineInUse: If runs of it are not over.
    """
    found = get_pipeline(session, principal, pipeline_id, Permission.PIPELINE_WRITE)
    count = runs.count_open_runs_of(session, found.id)
    if count:
        raise PipelineInUse(
            f"{found.name} has {count} {'run' if count == 1 else 'runs'} that are not over.",
            fix="Wait for them, cancel them, or archive the pipeline.",
        )
    repository.remove_pipeline(session, found.id)
    _announce(session, "pipeline.deleted", found, principal.name, now)


def prune(session: WriteSession, before: int, limit: int) -> int:
    """Delete kept output and firings older than an instant; return how many rows went."""
    return repository.prune(session, before, limit)


def _version_of(session: ReadSession, record_: PipelineRecord, number: int) -> Version:
    found = repository.find_version(session, record_.id, number)
    if found is None:
        raise VersionNotFound(
            f"{record_.name} has no version {number}.",
            field="version",
            fix=f"Versions are 1 to {record_.version_number}.",
        )
    return found


def _check_secrets(session: ReadSession, project_id: UUID, pipeline: Pipeline) -> None:
    """Refuse names of secrets that the project does not have."""
    named: dict[str, str] = {}
    for path, step, _depth in walk(pipeline):
        for where, name in _secrets_of(step):
            named.setdefault(name, f"{path}.config.{where}")
    for place, trigger in enumerate(pipeline.spec.triggers):
        if not isinstance(trigger, EventTrigger):
            continue
        path = f"spec.triggers[{place}]"
        if trigger.webhook is not None:
            named.setdefault(trigger.webhook.secret, f"{path}.webhook.secret")
        if trigger.bucket is not None and trigger.bucket.notifications is not None:
            where = f"{path}.bucket.notifications.secret"
            named.setdefault(trigger.bucket.notifications.secret, where)
        for name in ("access_key", "secret_key"):
            key: str | None = getattr(trigger.bucket, name, None)
            if key is not None:
                named.setdefault(key, f"{path}.bucket.{name}")
    missing = secrets.missing_secrets(session, ProjectId(project_id), named) if named else []
    if missing:
        raise refusal_of(
            [
                FieldError(
                    named[name],
                    f"The project has no secret {name!r}.",
                    "Create it with `gpuplane secrets set`, or name another.",
                )
                for name in missing
            ]
        )


def _secrets_of(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the names of secrets that a step's config writes plainly, with their places."""
    if step.step_type not in (StepType.API_CALL, StepType.JOB):
        return
    config = config_of(step.step_type, step.config)
    if isinstance(config, ApiCallConfig):
        for header, value in config.headers.items():
            if isinstance(value, SecretHeader):
                yield f"headers.{header}.secret", value.secret
    elif isinstance(config, JobConfig) and isinstance(config.spec, dict):
        parts = config.spec.get("secrets")
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            name = part.get("name") if isinstance(part, dict) else None
            if isinstance(name, str) and not is_templated(name):
                yield f"spec.secrets[{number}].name", name


def _announce(
    session: WriteSession, kind: str, record_: PipelineRecord, actor: str, now: int
) -> None:
    record(
        session,
        NewEvent(
            kind=kind,
            at=now,
            subject_kind="pipeline",
            subject_id=record_.id,
            tenant_id=record_.tenant_id,
            project_id=record_.project_id,
            actor=actor,
            data={"name": record_.name, "version": record_.version_number},
            audit=True,
        ),
    )
