"""HTTP of quotas, queues and cohorts of a cluster, and of tenants on it."""

from gpuplane.domains.queues.endpoints import tenants, topologies
from gpuplane.domains.queues.endpoints.routes import router

__all__ = ["router", "tenants", "topologies"]
