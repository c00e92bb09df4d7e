"""Every query on pipelines, their versions, triggers, firings and kept output."""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, delete, exists, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpuplane.core.ids import ProjectId, TenantId, UserId
from gpuplane.db.pages import load_page
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.db.types import table_of
from gpuplane.domains.pipelines.errors import PipelineExists
from gpuplane.domains.pipelines.rules import (
    PipelineRecord,
    PipelineStatus,
    TriggerRecord,
    Version,
)
from gpuplane.domains.pipelines.tables import (
    CursorRow,
    FireRow,
    LogRow,
    PipelineRow,
    TriggerRow,
    VersionRow,
)
from gpuplane.kit.access import RowScope
from gpuplane.kit.pagination import Page, PageRequest

pipelines = table_of(PipelineRow)
versions = table_of(VersionRow)
logs = table_of(LogRow)
triggers = table_of(TriggerRow)
fires = table_of(FireRow)
cursors = table_of(CursorRow)

SORT_NAME = "name"
SORT_VERSIONS = "-number"


def store_pipeline(session: WriteSession, record: PipelineRecord) -> None:
    """Insert a pipeline; PipelineExists if the project has one of that name."""
    try:
        session.execute(insert(pipelines).values(**_columns(record)))
    except IntegrityError as error:
        raise PipelineExists(
            "The project has a pipeline of that name.",
            field="metadata.name",
            fix="Change it with PUT, or choose another name.",
        ) from error


def change_pipeline(session: WriteSession, record: PipelineRecord) -> bool:
    """Store a pipeline if it is still the version before; return whether it was."""
    changed = session.execute(
        update(pipelines)
        .where(pipelines.c.id == record.id, pipelines.c.version == record.version - 1)
        .values(**_columns(record))
    )
    return changed == 1


def _columns(record: PipelineRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "tenant_id": record.tenant_id,
        "project_id": record.project_id,
        "name": record.name,
        "status": str(record.status),
        "labels": json.dumps(dict(record.labels)),
        "version_number": record.version_number,
        "step_count": record.step_count,
        "created_by": record.created_by,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "version": record.version,
    }


def find_pipeline(session: ReadSession, pipeline_id: UUID) -> PipelineRecord | None:
    """Return a pipeline, or None."""
    row = session.row(select(pipelines).where(pipelines.c.id == pipeline_id))
    return None if row is None else _record(row)


def find_named(session: ReadSession, project_id: UUID, name: str) -> PipelineRecord | None:
    """Return the pipeline of a project that has a name, or None."""
    row = session.row(
        select(pipelines).where(pipelines.c.project_id == project_id, pipelines.c.name == name)
    )
    return None if row is None else _record(row)


def list_pipelines(
    session: ReadSession,
    scope: RowScope,
    project_id: ProjectId | None,
    name: str | None,
    page: PageRequest,
) -> Page[PipelineRecord]:
    """Return one page of the pipelines in scope, by name."""
    query: Select[Any] = select(pipelines)
    if not scope.everything:
        query = query.where(
            pipelines.c.tenant_id.in_(sorted(scope.tenant_ids))
            | pipelines.c.project_id.in_(sorted(scope.project_ids))
        )
    if project_id is not None:
        query = query.where(pipelines.c.project_id == project_id)
    if name is not None:
        query = query.where(pipelines.c.name == name)
    keys = (pipelines.c.name, pipelines.c.id)
    return load_page(session, query, keys, page, _record, sort=SORT_NAME)


def count_pipelines(session: ReadSession, tenant_id: TenantId, project_id: ProjectId | None) -> int:
    """Return how many pipelines a tenant, or one of its projects, has."""
    query = select(func.count()).select_from(pipelines).where(pipelines.c.tenant_id == tenant_id)
    if project_id is not None:
        query = query.where(pipelines.c.project_id == project_id)
    return int(session.scalar(query) or 0)


def remove_pipeline(session: WriteSession, pipeline_id: UUID) -> None:
    """Delete a pipeline with its versions and triggers; its runs stay."""
    session.execute(delete(triggers).where(triggers.c.pipeline_id == pipeline_id))
    session.execute(delete(versions).where(versions.c.pipeline_id == pipeline_id))
    session.execute(delete(pipelines).where(pipelines.c.id == pipeline_id))


def store_version(session: WriteSession, version: Version) -> None:
    """Insert a version."""
    session.execute(
        insert(versions).values(
            pipeline_id=version.pipeline_id,
            number=version.number,
            document=json.dumps(version.document, ensure_ascii=False),
            digest=version.digest,
            step_count=version.step_count,
            created_by=version.created_by,
            user_id=version.user_id,
            may_critical=version.may_critical,
            rolled_back_from=version.rolled_back_from,
            created_at=version.created_at,
        )
    )


def find_version(session: ReadSession, pipeline_id: UUID, number: int) -> Version | None:
    """Return a version, or None."""
    row = session.row(
        select(versions).where(versions.c.pipeline_id == pipeline_id, versions.c.number == number)
    )
    return None if row is None else _version(row)


def find_digest(session: ReadSession, pipeline_id: UUID, number: int) -> str | None:
    """Return the digest of a version's document, or None if there is no such version."""
    query = select(versions.c.digest).where(
        versions.c.pipeline_id == pipeline_id, versions.c.number == number
    )
    found: str | None = session.scalar(query)
    return found


def list_versions(session: ReadSession, pipeline_id: UUID, page: PageRequest) -> Page[Version]:
    """Return one page of a pipeline's versions, newest first."""
    query = select(versions).where(versions.c.pipeline_id == pipeline_id)
    return load_page(session, query, (versions.c.number,), page, _version, sort=SORT_VERSIONS)


def store_log(session: WriteSession, step_id: UUID, attempt: int, text: str, now: int) -> None:
    """Keep what a try printed, in place of what it printed when it was run before."""
    session.execute(delete(logs).where(logs.c.step_id == step_id, logs.c.attempt == attempt))
    session.execute(
        insert(logs).values(step_id=step_id, attempt=attempt, text=text, created_at=now)
    )


def list_logs(session: ReadSession, step_id: UUID) -> list[tuple[int, str]]:
    """Return what each try of a step printed, first to last."""
    query = select(logs).where(logs.c.step_id == step_id).order_by(logs.c.attempt)
    return [(row["attempt"], row["text"]) for row in session.rows(query)]


def prune(session: WriteSession, before: int, limit: int) -> int:
    """Delete kept output and firings older than an instant; return how many rows went."""
    gone = 0
    old_logs = select(logs.c.step_id, logs.c.attempt).where(logs.c.created_at < before).limit(limit)
    for row in session.rows(old_logs):
        gone += session.execute(
            delete(logs).where(logs.c.step_id == row["step_id"], logs.c.attempt == row["attempt"])
        )
    old_fires = (
        select(fires.c.trigger_id, fires.c.fire_key).where(fires.c.fired_at < before).limit(limit)
    )
    for row in session.rows(old_fires):
        gone += session.execute(
            delete(fires).where(
                fires.c.trigger_id == row["trigger_id"], fires.c.fire_key == row["fire_key"]
            )
        )
    return gone


def store_trigger(session: WriteSession, trigger: TriggerRecord) -> None:
    """Insert a trigger."""
    session.execute(insert(triggers).values(**_trigger_columns(trigger)))


def change_trigger(session: WriteSession, trigger: TriggerRecord) -> bool:
    """Store a trigger if it is still the version before; return whether it was."""
    changed = session.execute(
        update(triggers)
        .where(triggers.c.id == trigger.id, triggers.c.version == trigger.version - 1)
        .values(**_trigger_columns(trigger))
    )
    return changed == 1


def _trigger_columns(trigger: TriggerRecord) -> dict[str, Any]:
    return {
        "id": trigger.id,
        "pipeline_id": trigger.pipeline_id,
        "tenant_id": trigger.tenant_id,
        "project_id": trigger.project_id,
        "kind": trigger.kind,
        "digest": trigger.digest,
        "spec": json.dumps(dict(trigger.spec), ensure_ascii=False),
        "upstream": trigger.upstream,
        "due_at": trigger.due_at,
        "state": json.dumps(trigger.state, ensure_ascii=False),
        "problem": trigger.problem,
        "version": trigger.version,
    }


def list_triggers(session: ReadSession, pipeline_id: UUID) -> list[TriggerRecord]:
    """Return the triggers of a pipeline."""
    query = select(triggers).where(triggers.c.pipeline_id == pipeline_id).order_by(triggers.c.id)
    return [_trigger(row) for row in session.rows(query)]


def list_due(session: ReadSession, now: int, limit: int) -> list[TriggerRecord]:
    """Return triggers that are due, longest due first."""
    query = (
        select(triggers)
        .where(triggers.c.due_at <= now)
        .order_by(triggers.c.due_at, triggers.c.id)
        .limit(limit)
    )
    return [_trigger(row) for row in session.rows(query)]


def next_due(session: ReadSession) -> int | None:
    """Return when the next trigger is due."""
    found = session.scalar(select(func.min(triggers.c.due_at)))
    return None if found is None else int(found)


def list_upstream(
    session: ReadSession, project_id: UUID, names: Sequence[str]
) -> list[TriggerRecord]:
    """Return the triggers of a project that wait for runs of a pipeline of one of these names."""
    query = select(triggers).where(
        triggers.c.project_id == project_id, triggers.c.upstream.in_(names)
    )
    return [_trigger(row) for row in session.rows(query)]


def has_upstream(session: ReadSession) -> bool:
    """Return whether any trigger waits for runs of another pipeline."""
    query = select(triggers.c.id).where(triggers.c.upstream.is_not(None)).limit(1)
    return session.row(query) is not None


def find_trigger(session: ReadSession, trigger_id: UUID) -> TriggerRecord | None:
    """Return a trigger, or None."""
    row = session.row(select(triggers).where(triggers.c.id == trigger_id))
    return None if row is None else _trigger(row)


def remove_triggers(session: WriteSession, ids: Sequence[UUID]) -> None:
    """Delete triggers; what they fired is remembered."""
    if ids:
        session.execute(delete(triggers).where(triggers.c.id.in_(list(ids))))


def has_fired(session: ReadSession, trigger_id: UUID, fire_key: str) -> bool:
    """Return whether a trigger has fired under a key."""
    query = select(fires.c.fire_key).where(
        fires.c.trigger_id == trigger_id, fires.c.fire_key == fire_key
    )
    return session.row(query) is not None


def store_fire(
    session: WriteSession,
    trigger_id: UUID,
    fire_key: str,
    run_id: UUID | None,
    problem: str,
    now: int,
) -> None:
    """Note a firing; the database refuses a second one under the same key."""
    session.execute(
        insert(fires).values(
            trigger_id=trigger_id, fire_key=fire_key, run_id=run_id, problem=problem, fired_at=now
        )
    )


def walk_versions(session: ReadSession) -> Iterator[tuple[UUID, int, str, str]]:
    """Yield (pipeline, number, document text, digest) of every version."""
    query = select(versions.c.pipeline_id, versions.c.number, versions.c.document,
                   versions.c.digest).execution_options(yield_per=100)  # fmt: skip
    for row in session.sql.execute(query.order_by(versions.c.pipeline_id, versions.c.number)):
        yield row[0], row[1], row[2], row[3]


def walk_texts(session: ReadSession) -> Iterator[tuple[str, UUID, str, str]]:
    """Yield (kind of row, id, column, JSON text) of every pipeline and trigger."""
    for row in session.sql.execute(select(pipelines.c.id, pipelines.c.labels)):
        yield "Pipeline", row[0], "labels", row[1]
    for each in session.sql.execute(select(triggers.c.id, triggers.c.spec, triggers.c.state)):
        yield "Trigger", each[0], "spec", each[1]
        yield "Trigger", each[0], "state", each[2]


def list_without_version(session: ReadSession) -> list[tuple[UUID, int]]:
    """Return (pipeline, number) where the newest version is not there."""
    there = exists().where(
        versions.c.pipeline_id == pipelines.c.id, versions.c.number == pipelines.c.version_number
    )
    query = select(pipelines.c.id, pipelines.c.version_number).where(~there)
    return [(row[0], row[1]) for row in session.sql.execute(query)]


def find_cursor(session: ReadSession, name: str) -> int | None:
    """Return how far a reader of events has come, None before it began."""
    found = session.scalar(select(cursors.c.position).where(cursors.c.name == name))
    return None if found is None else int(found)


def store_cursor(session: WriteSession, name: str, position: int) -> None:
    """Store how far a reader of events has come."""
    changed = session.execute(
        update(cursors).where(cursors.c.name == name).values(position=position)
    )
    if changed == 0:
        session.execute(insert(cursors).values(name=name, position=position))


def _record(row: Any) -> PipelineRecord:
    return PipelineRecord(
        id=row["id"],
        tenant_id=TenantId(row["tenant_id"]),
        project_id=ProjectId(row["project_id"]),
        name=row["name"],
        status=PipelineStatus(row["status"]),
        labels=json.loads(row["labels"]),
        version_number=row["version_number"],
        step_count=row["step_count"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        version=row["version"],
    )


def _version(row: Any) -> Version:
    return Version(
        pipeline_id=row["pipeline_id"],
        number=row["number"],
        document=json.loads(row["document"]),
        digest=row["digest"],
        step_count=row["step_count"],
        created_by=row["created_by"],
        user_id=UserId(row["user_id"]),
        created_at=row["created_at"],
        rolled_back_from=row["rolled_back_from"],
        may_critical=row["may_critical"],
    )


def _trigger(row: Any) -> TriggerRecord:
    return TriggerRecord(
        id=row["id"],
        pipeline_id=row["pipeline_id"],
        tenant_id=TenantId(row["tenant_id"]),
        project_id=ProjectId(row["project_id"]),
        kind=row["kind"],
        digest=row["digest"],
        spec=json.loads(row["spec"]),
        upstream=row["upstream"],
        due_at=row["due_at"],
        state=json.loads(row["state"]),
        problem=row["problem"],
        version=row["version"],
    )
