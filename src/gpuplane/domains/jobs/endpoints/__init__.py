"""HTTP of jobs, one file a purpose; `router` holds all of it."""

from fastapi import APIRouter

from gpuplane.domains.jobs.endpoints import (
    changing,
    leaving,
    logs,
    planning,
    quotas,
    reading,
    submitting,
    workspaces,
)
from gpuplane.domains.jobs.endpoints.parts import WorkspaceFolder

router = APIRouter(tags=["jobs"])
for part in (submitting, changing, reading, logs, planning, quotas, workspaces, leaving):
    router.routes.extend(part.router.routes)

__all__ = ["WorkspaceFolder", "router"]
