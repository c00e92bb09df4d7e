"""HTTP of pipelines, one file a purpose; `router` holds all of it."""

from fastapi import APIRouter

from gpuplane.domains.pipelines.endpoints import reading, saving, starting

router = APIRouter(tags=["pipelines"])
for part in (saving, reading, starting):
    router.routes.extend(part.router.routes)

__all__ = ["router"]
