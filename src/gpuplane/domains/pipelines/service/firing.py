"""Triggers: kept in step with the newest version, fired once for each time, file, call or run.

A firing is a row under a key that is unique for its trigger, written in the transaction that
starts the run: whoever comes second, here or in another process, finds it and starts nothing.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.events.service import NewEvent, record
from gpuplane.domains.pipelines import repository
from gpuplane.domains.pipelines.documents.cron import next_fire
from gpuplane.domains.pipelines.documents.models import (
    EventTrigger,
    Pipeline,
    PipelineTrigger,
    ScheduledTrigger,
)
from gpuplane.domains.pipelines.errors import BadParameters
from gpuplane.domains.pipelines.expressions import PlacedError, canonical, render_json
from gpuplane.domains.pipelines.rules import PipelineRecord, PipelineStatus, TriggerRecord
from gpuplane.domains.pipelines.service.running import Start, start
from gpuplane.domains.runs.service import Run, RunPolicy
from gpuplane.kit.errors import ProductError
from gpuplane.kit.ids import new_id

TRIGGERS = "triggers"
"""The name of the loop that fires triggers."""


@dataclass(frozen=True, slots=True)
class Fired:
    """What became of a firing: its run, or why there is none."""

    run: Run | None
    is_new: bool
    refusal: ProductError | None = None


def sync_triggers(
    session: WriteSession, pipeline_record: PipelineRecord, pipeline: Pipeline, now: int
) -> None:
    """Make the stored triggers those of the document; unchanged ones keep what they remember."""
    known = {each.digest: each for each in repository.list_triggers(session, pipeline_record.id)}
    wanted: set[str] = set()
    for trigger in pipeline.spec.triggers:
        if not trigger.enabled:
            continue
        spec = trigger.model_dump(mode="json", by_alias=True, exclude_none=True)
        digest = hashlib.sha256(canonical(spec).encode()).hexdigest()
        if digest in wanted:
            continue
        wanted.add(digest)
        if digest not in known:
            repository.store_trigger(
                session, _new_trigger(pipeline_record, trigger, spec, digest, now)
            )
    gone = [each.id for digest, each in known.items() if digest not in wanted]
    repository.remove_triggers(session, gone)
    if pipeline.spec.triggers:
        session.wake(TRIGGERS)


def _new_trigger(
    pipeline_record: PipelineRecord,
    trigger: ScheduledTrigger | EventTrigger | PipelineTrigger,
    spec: dict[str, Any],
    digest: str,
    now: int,
) -> TriggerRecord:
    kind: str = trigger.type
    upstream, due_at = None, None
    if isinstance(trigger, ScheduledTrigger):
        due_at = next_fire(trigger.cron, trigger.time_zone, now)
    elif isinstance(trigger, PipelineTrigger):
        upstream = trigger.pipeline
    else:
        kind = "webhook" if trigger.webhook else "folder" if trigger.folder else "bucket"
        told_only = trigger.bucket is not None and trigger.bucket.endpoint is None
        due_at = None if trigger.webhook or told_only else now
    return TriggerRecord(
        id=new_id(),
        pipeline_id=pipeline_record.id,
        tenant_id=pipeline_record.tenant_id,
        project_id=pipeline_record.project_id,
        kind=kind,
        digest=digest,
        spec=spec,
        upstream=upstream,
        due_at=due_at,
        state=None,
        problem="",
        version=1,
    )


def list_due(session: ReadSession, now: int, limit: int) -> list[TriggerRecord]:
    """Return triggers that are due, longest due first."""
    return repository.list_due(session, now, limit)


def next_due(session: ReadSession) -> int | None:
    """Return when the next trigger is due."""
    return repository.next_due(session)


def has_upstream(session: ReadSession) -> bool:
    """Return whether any trigger waits for runs of another pipeline."""
    return repository.has_upstream(session)


def store_looked(
    session: WriteSession, trigger: TriggerRecord, due_at: int | None, state: Any, problem: str
) -> bool:
    """Store when a trigger is due next and what it remembers; False if it was changed meanwhile."""
    changed = replace(
        trigger, due_at=due_at, state=state, problem=problem, version=trigger.version + 1
    )
    return repository.change_trigger(session, changed)


def fire(
    session: WriteSession,
    trigger: TriggerRecord,
    fire_key: str,
    names: Mapping[str, Any],
    data: Any,
    policy: RunPolicy,
    now: int,
) -> Fired:
    """Start the run of one firing, once.

    Args:
        session: The transaction.
        trigger: The trigger.
        fire_key: What fired: an instant, a file, a call, a run; unique for the trigger.
        names: What its parameters' expressions may name.
        data: What the run's steps see as `trigger`.
        policy: Limits of runs.
        now: The instant.
    """
    key = fire_key if len(fire_key) <= 200 else hashlib.sha256(fire_key.encode()).hexdigest()
    if repository.has_fired(session, trigger.id, key):
        return Fired(None, is_new=False)
    found = repository.find_pipeline(session, trigger.pipeline_id)
    if found is None or found.status is not PipelineStatus.ACTIVE:
        return Fired(None, is_new=False)
    try:
        run = _start(session, found, trigger, key, names, data, policy, now)
    except ProductError as error:
        refusal = error
    except PlacedError as error:
        refusal = BadParameters(
            f"{error.path}: {error.error}", field=error.path, fix=error.error.fix
        )
    else:
        repository.store_fire(session, trigger.id, key, run.id, "", now)
        return Fired(run, is_new=True)
    repository.store_fire(session, trigger.id, key, None, refusal.detail, now)
    _tell_problem(session, found, trigger, refusal.detail, now)
    return Fired(None, is_new=True, refusal=refusal)


def _start(
    session: WriteSession,
    found: PipelineRecord,
    trigger: TriggerRecord,
    key: str,
    names: Mapping[str, Any],
    data: Any,
    policy: RunPolicy,
    now: int,
) -> Run:
    version = repository.find_version(session, found.id, found.version_number)
    if version is None:
        raise TypeError(f"pipeline {found.id} has no version {found.version_number}")
    parameters = render_json(parameters_of(trigger), names, "parameters")
    asked = Start(
        user_id=version.user_id,
        actor=f"trigger:{trigger.kind}",
        parameters=parameters,
        trigger="event" if trigger.kind in ("webhook", "folder", "bucket") else trigger.kind,
        trigger_data=data,
        dedup_id=f"trigger:{trigger.id}:{key}"[:250],
        may_critical=version.may_critical,
    )
    return start(session, found, asked, policy, now)


def parameters_of(trigger: TriggerRecord) -> dict[str, Any]:
    """Return what a trigger gives as parameters, expressions and all."""
    part = trigger.spec if trigger.kind in ("scheduled", "pipeline") else trigger.spec[trigger.kind]
    return dict(part.get("parameters") or {})


def list_waiting(session: ReadSession, run: Run) -> list[TriggerRecord]:
    """Return the triggers that wait for runs of a run's pipeline, by its name or its id."""
    return repository.list_upstream(session, run.project_id, [run.name, str(run.source_id)])


def fire_for_run(
    session: WriteSession, run: Run, outputs: Any, policy: RunPolicy, now: int
) -> Sequence[Fired]:
    """Fire every trigger that waits for a run that is over."""
    upstream = {
        "id": str(run.id), "status": str(run.status), "outputs": outputs or {}, "name": run.name,
    }  # fmt: skip
    return [
        fire(
            session,
            trigger,
            str(run.id),
            {"upstream": upstream},
            {"upstream": upstream},
            policy,
            now,
        )
        for trigger in list_waiting(session, run)
        if str(run.status) in trigger.spec["statuses"]
    ]


def _tell_problem(
    session: WriteSession, found: PipelineRecord, trigger: TriggerRecord, problem: str, now: int
) -> None:
    record(
        session,
        NewEvent(
            kind="pipeline.trigger_failed",
            at=now,
            subject_kind="pipeline",
            subject_id=found.id,
            tenant_id=found.tenant_id,
            project_id=found.project_id,
            actor=f"trigger:{trigger.kind}",
            message=problem,
            data={"name": found.name, "trigger_id": str(trigger.id)},
            audit=False,
        ),
    )
