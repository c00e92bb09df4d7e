"""HTTP of quotas, queues and cohorts of a cluster."""

from gpuplane.domains.queues.endpoints.routes import router

__all__ = ["router"]
