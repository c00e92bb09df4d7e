"""How pipelines are answered, and how a project is named."""

from typing import Annotated, Any

from fastapi import Query

from gpuplane.core.ids import ProjectId
from gpuplane.domains.pipelines import service
from gpuplane.domains.pipelines.schemas import (
    ChangeOut,
    PipelineOut,
    SavedOut,
    TriggerOut,
    VersionOut,
)
from gpuplane.kit.ids import find_id

Number = Annotated[int, Query(ge=1, le=2**31 - 1)]
"""The number of a version."""


def project_key(key: str | None) -> ProjectId | str | None:
    """Return what a caller named as the project: its id, or its name."""
    if key is None:
        return None
    found = find_id(key)
    return key.replace("\x00", "") if found is None else ProjectId(found)


def pipeline_values(record: service.PipelineRecord) -> dict[str, Any]:
    """Return the fields that every answer about a pipeline has."""
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


def pipeline_out(record: service.PipelineRecord) -> PipelineOut:
    """Return a pipeline as it is answered."""
    return PipelineOut(**pipeline_values(record))


def trigger_out(trigger: service.TriggerRecord) -> TriggerOut:
    """Return a trigger as it is answered."""
    return TriggerOut(
        id=trigger.id,
        kind=trigger.kind,
        due_at=trigger.due_at,
        path=f"/api/v1/hooks/{trigger.id}" if service.find_caller(trigger) is not None else None,
        problem=trigger.problem,
    )


def version_values(version: service.Version) -> dict[str, Any]:
    """Return the fields that every answer about a version has."""
    return {
        "number": version.number,
        "digest": version.digest,
        "step_count": version.step_count,
        "created_by": version.created_by,
        "created_at": version.created_at,
        "rolled_back_from": version.rolled_back_from,
    }


def version_out(version: service.Version) -> VersionOut:
    """Return a version as it is answered."""
    return VersionOut(**version_values(version))


def saved_out(saved: service.Saved) -> SavedOut:
    """Return what saving came to."""
    return SavedOut(
        pipeline=pipeline_out(saved.record),
        version=saved.version.number,
        created=saved.is_new,
        changed=saved.is_changed,
    )


def changes_out(found: list[dict[str, Any]]) -> list[ChangeOut]:
    """Return differences of documents as they are answered."""
    return [ChangeOut(**each) for each in found]
