"""Which queues a job may name, and which priority classes they grant besides the caller's role."""

from collections.abc import Sequence

from gpuplane.core.ids import TenantId
from gpuplane.core.workloads import JobSpec, Priority
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.jobs.errors import BadJob
from gpuplane.domains.jobs.service.lookups import Lookups
from gpuplane.domains.queues import service as queues
from gpuplane.kit.errors import Forbidden


def require_queue(
    lookups: Lookups, tenant_id: TenantId, name: str | None, candidates: Sequence[Cluster]
) -> None:
    """Raise when a job names a queue that its tenant has on none of the clusters.

    A queue that is withdrawn later is another thing: the job waits and says so.

    Raises:
        BadJob: Names the tenant's queues there.
    """
    if name is None:
        return
    tenant = lookups.tenant_name(tenant_id)
    known = {
        cluster.name: queues.door_names(lookups.queues_of(cluster.id), tenant)
        for cluster in candidates
    }
    if any(name in names for names in known.values()):
        return
    there = ", ".join(f"{each} on {where}" for where, names in known.items() for each in names)
    raise BadJob(
        f"Tenant {tenant} has no queue {name!r} on {', '.join(known)}.",
        field="queue",
        fix=f"Its queues: {there}." if there else "Leave queue out, or have an operator make one.",
    )


def require_class_of_queues(
    lookups: Lookups,
    tenant_id: TenantId,
    spec: JobSpec,
    priority: Priority,
    candidates: Sequence[Cluster],
) -> None:
    """Raise unless a queue on one of the clusters grants the class to the job.

    Where no cluster has a queue of the tenant that takes the job, it waits and says so; that is
    no refusal.

    Raises:
        Forbidden: If queues take the job and none of them grants its class.
    """
    job_type = str(spec.job_type)
    best: tuple[str, str, Priority] | None = None
    for cluster in candidates:
        specs = lookups.queues_of(cluster.id)
        if not specs.limits_classes:
            return
        tenant = lookups.tenant_name(tenant_id)
        if queues.choose_door(specs, tenant, job_type, spec.queue, priority) is not None:
            return
        found = queues.find_highest_class(specs, tenant, job_type, spec.queue)
        if found is None:
            continue
        best = best or (cluster.name, *found)
    if best is None:
        return
    cluster_name, queue, highest = best
    raise Forbidden(
        f"Queue {queue} on {cluster_name} grants the priority classes up to {highest}, "
        f"not {priority}.",
        code="priority_not_granted",
        field="priority",
        fix=f"Use {highest}, or another queue; `gpuplane queues ls` shows what each grants.",
        extra={"highest_priority": str(highest), "queue": queue},
    )
