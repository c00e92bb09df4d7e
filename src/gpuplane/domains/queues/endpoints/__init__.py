"""HTTP of quotas, queues and cohorts of a cluster, and of tenants on it."""

from gpuplane.domains.queues.endpoints.routes import router
from gpuplane.domains.queues.endpoints.tenants import router as tenants

router.include_router(tenants)

__all__ = ["router"]
