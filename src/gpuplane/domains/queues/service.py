"""Use cases of queues."""

from gpuplane.core.ids import ClusterId
from gpuplane.core.quota.specs import LocalQueueSpec
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.queues import repository
from gpuplane.domains.queues.rules import QueueSpecs, default_door, find_door, known_doors

__all__ = ["QueueSpecs", "default_door", "find_door", "known_doors"]


def load_specs(session: ReadSession, cluster_id: ClusterId) -> QueueSpecs:
    """Return everything declared about the queues of a cluster."""
    return repository.load_specs(session, cluster_id)


def choose_door(
    specs: QueueSpecs, tenant: str, job_type: str, name: str | None
) -> LocalQueueSpec | None:
    """Return the door a job goes through; tenants without one use a queue that covers all."""
    door = find_door(specs, tenant, job_type, name)
    if door is not None or name not in (None, "default"):
        return door
    return default_door(specs, tenant)
