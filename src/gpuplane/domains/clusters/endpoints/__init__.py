"""HTTP of clusters, one file a purpose; `router` holds all of it."""

from fastapi import APIRouter

from gpuplane.domains.clusters.endpoints import looking, operating, registering
from gpuplane.domains.clusters.endpoints.operating import HasNode

router = APIRouter(tags=["clusters"])
for part in (operating, registering, looking):
    router.routes.extend(part.router.routes)

__all__ = ["HasNode", "router"]
