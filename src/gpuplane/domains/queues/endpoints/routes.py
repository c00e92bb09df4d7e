"""HTTP of quotas (ClusterQueues), queues (LocalQueues) and cohorts of a cluster."""

from typing import Annotated, cast

from fastapi import APIRouter, Path, Query

from gpuplane.db.calls import Call, CallDep
from gpuplane.domains.queues import service
from gpuplane.domains.queues.endpoints.bodies import (
    cohort_body,
    named,
    own,
    queue_body,
    quota_body,
    seen_queue_body,
)
from gpuplane.domains.queues.endpoints.parsing import (
    parse_cluster_queue,
    parse_cohort,
    parse_door,
)
from gpuplane.domains.queues.schemas import (
    CohortChangeIn,
    CohortIn,
    CohortOut,
    CohortsOut,
    QueueChangeIn,
    QueueIn,
    QueueName,
    QueueOut,
    QueuesOut,
    QuotaChangeIn,
    QuotaIn,
    QuotaOut,
    QuotasOut,
)
from gpuplane.domains.queues.service import Declared, Shown
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Done

router = APIRouter(tags=["queues"])

ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]
NamePath = Annotated[QueueName, Path()]
TenantKey = Annotated[str, Query(min_length=1, max_length=63, description="Name or id.")]


# -- quotas: ClusterQueues -----------------------------------------------------------------------


@router.get("/clusters/{cluster}/quotas")
@requires(Permission.QUOTA_READ)
async def list_quotas(call: CallDep, cluster: ClusterKey) -> QuotasOut:
    """List the ClusterQueues of a cluster, on one with Kueue those of others among them.

    Where admission is embedded and nobody declared any, there is one that covers everything.
    """
    found = await call.read(lambda s: service.load_declared(s, cluster))
    shown = service.show_cluster_queues(found)
    if shown or service.admits_itself(found.cluster):
        return QuotasOut(items=[quota_body(each) for each in shown])
    default = await call.read(lambda s: service.load_specs(s, found.cluster.id))
    items = [
        quota_body(Shown(Declared(spec.name, spec, 0, 0, 0), True), is_default=True)
        for spec in default.cluster_queues
    ]
    return QuotasOut(items=items)


@router.post("/clusters/{cluster}/quotas", status_code=201)
@requires(Permission.QUOTA_MANAGE)
async def create_quota(call: CallDep, cluster: ClusterKey, body: QuotaIn) -> QuotaOut:
    """Declare a ClusterQueue; with the first one the default queue of the cluster is gone."""
    spec = parse_cluster_queue(body.name, body)
    return await call.write(
        "queues.create_cluster_queue",
        lambda s: service.create_cluster_queue(s, cluster, spec, call.principal.name, call.now),
        lambda found: quota_body(named(found, body.name)),
        201,
    )


@router.put("/clusters/{cluster}/quotas/{name}")
@requires(Permission.QUOTA_MANAGE)
async def change_quota(
    call: CallDep, cluster: ClusterKey, name: NamePath, body: QuotaChangeIn
) -> QuotaOut:
    """Replace a ClusterQueue; what runs goes on and counts against the new quotas."""
    spec = parse_cluster_queue(name, body)
    return await call.write(
        "queues.change_cluster_queue",
        lambda s: service.change_cluster_queue(
            s, cluster, spec, body.resource_version, call.principal.name, call.now
        ),
        lambda found: quota_body(named(found, name)),
    )


@router.delete("/clusters/{cluster}/quotas/{name}")
@requires(Permission.QUOTA_MANAGE)
async def delete_quota(call: CallDep, cluster: ClusterKey, name: NamePath) -> Done:
    """Withdraw a ClusterQueue that nothing leads to and nothing runs through."""
    return await call.write(
        "queues.delete_cluster_queue",
        lambda s: service.delete_cluster_queue(
            s, cluster, name, _count_users(call), call.principal.name, call.now
        ),
        lambda _: Done(),
    )


@router.post("/clusters/{cluster}/quotas/{name}/adopt")
@requires(Permission.QUOTA_MANAGE)
async def adopt_quota(call: CallDep, cluster: ClusterKey, name: NamePath) -> QuotaOut:
    """Take over a ClusterQueue as the cluster has it: from then on it is declared here."""
    return await call.write(
        "queues.adopt_cluster_queue",
        lambda s: service.adopt_cluster_queue(s, cluster, name, call.principal.name, call.now),
        lambda found: quota_body(named(found, name)),
    )


# -- queues: LocalQueues -------------------------------------------------------------------------


@router.get("/clusters/{cluster}/queues")
@requires(Permission.QUOTA_READ)
async def list_queues(call: CallDep, cluster: ClusterKey) -> QueuesOut:
    """List the LocalQueues of a cluster: those of the tenants that the caller sees."""
    found = await call.read(lambda s: service.load_declared(s, cluster))
    seen = [each for each in found.local_queues if call.principal.sees_tenant(each.spec.tenant_id)]
    items = [queue_body(each, found) for each in seen]
    if call.principal.may(Permission.QUOTA_MANAGE):
        declared = {
            id(service.find_seen_door(found, found.tenants.get(each.spec.tenant_id, ""), each.name))
            for each in found.local_queues
        }
        others = [each for each in service.list_seen_doors(found) if id(each) not in declared]
        items += [seen_queue_body(each) for each in others]
    return QueuesOut(items=items)


@router.post("/clusters/{cluster}/queues", status_code=201)
@requires(Permission.QUOTA_MANAGE)
async def create_queue(call: CallDep, cluster: ClusterKey, body: QueueIn) -> QueueOut:
    """Open a tenant's door to a ClusterQueue."""
    door = await call.read(lambda s: parse_door(s, body))
    return await call.write(
        "queues.create_local_queue",
        lambda s: service.create_local_queue(
            s, cluster, body.name, door, call.principal.name, call.now
        ),
        lambda found: queue_body(own(found, body.name, door.tenant_id), found),
        201,
    )


@router.put("/clusters/{cluster}/queues/{name}")
@requires(Permission.QUOTA_MANAGE)
async def change_queue(
    call: CallDep, cluster: ClusterKey, name: NamePath, body: QueueChangeIn
) -> QueueOut:
    """Replace a tenant's LocalQueue; what runs goes on."""
    door = await call.read(lambda s: parse_door(s, body))
    return await call.write(
        "queues.change_local_queue",
        lambda s: service.change_local_queue(
            s, cluster, name, door, body.resource_version, call.principal.name, call.now
        ),
        lambda found: queue_body(own(found, name, door.tenant_id), found),
    )


@router.delete("/clusters/{cluster}/queues/{name}")
@requires(Permission.QUOTA_MANAGE)
async def delete_queue(
    call: CallDep, cluster: ClusterKey, name: NamePath, tenant: TenantKey
) -> Done:
    """Close a tenant's door that no job holds devices or waits through."""
    tenant_id = await call.read(lambda s: service.find_tenant_id(s, tenant))
    jobs = cast("service.ListTenantJobs", call.ports["list_tenant_jobs"])
    return await call.write(
        "queues.delete_local_queue",
        lambda s: service.delete_local_queue(
            s, cluster, name, tenant_id, jobs, call.principal.name, call.now
        ),
        lambda _: Done(),
    )


@router.post("/clusters/{cluster}/queues/{name}/adopt")
@requires(Permission.QUOTA_MANAGE)
async def adopt_queue(
    call: CallDep, cluster: ClusterKey, name: NamePath, tenant: TenantKey
) -> QueueOut:
    """Take over a LocalQueue in a tenant's namespace as the cluster has it."""
    tenant_id = await call.read(lambda s: service.find_tenant_id(s, tenant))
    return await call.write(
        "queues.adopt_local_queue",
        lambda s: service.adopt_local_queue(
            s, cluster, name, tenant_id, call.principal.name, call.now
        ),
        lambda found: queue_body(own(found, name, tenant_id), found),
    )


# -- cohorts -------------------------------------------------------------------------------------


@router.get("/clusters/{cluster}/cohorts")
@requires(Permission.QUOTA_READ)
async def list_cohorts(call: CallDep, cluster: ClusterKey) -> CohortsOut:
    """List the Cohorts of a cluster, those that ClusterQueues merely name among them."""
    found = await call.read(lambda s: service.load_declared(s, cluster))
    known = [each.declared for each in service.show_cohorts(found)]
    names = {each.name for each in known} | {each.spec.parent for each in known}
    names |= {each.declared.spec.cohort for each in service.show_cluster_queues(found)}
    return CohortsOut(items=[cohort_body(name, found) for name in sorted(filter(None, names))])


@router.post("/clusters/{cluster}/cohorts", status_code=201)
@requires(Permission.QUOTA_MANAGE)
async def create_cohort(call: CallDep, cluster: ClusterKey, body: CohortIn) -> CohortOut:
    """Declare a Cohort; members named are in it from now on."""
    spec = parse_cohort(body.name, body)
    return await call.write(
        "queues.create_cohort",
        lambda s: service.create_cohort(
            s, cluster, spec, body.members, call.principal.name, call.now
        ),
        lambda found: cohort_body(body.name, found),
        201,
    )


@router.put("/clusters/{cluster}/cohorts/{name}")
@requires(Permission.QUOTA_MANAGE)
async def change_cohort(
    call: CallDep, cluster: ClusterKey, name: NamePath, body: CohortChangeIn
) -> CohortOut:
    """Replace a Cohort; when members are named, exactly these ClusterQueues are in it."""
    spec = parse_cohort(name, body)
    return await call.write(
        "queues.change_cohort",
        lambda s: service.change_cohort(
            s, cluster, spec, body.members, body.resource_version, call.principal.name, call.now
        ),
        lambda found: cohort_body(name, found),
    )


@router.delete("/clusters/{cluster}/cohorts/{name}")
@requires(Permission.QUOTA_MANAGE)
async def delete_cohort(call: CallDep, cluster: ClusterKey, name: NamePath) -> Done:
    """Withdraw a Cohort without members."""
    return await call.write(
        "queues.delete_cohort",
        lambda s: service.delete_cohort(s, cluster, name, call.principal.name, call.now),
        lambda _: Done(),
    )


@router.post("/clusters/{cluster}/cohorts/{name}/adopt")
@requires(Permission.QUOTA_MANAGE)
async def adopt_cohort(call: CallDep, cluster: ClusterKey, name: NamePath) -> CohortOut:
    """Take over a Cohort as the cluster has it: from then on it is declared here."""
    return await call.write(
        "queues.adopt_cohort",
        lambda s: service.adopt_cohort(s, cluster, name, call.principal.name, call.now),
        lambda found: cohort_body(name, found),
    )


def _count_users(call: Call) -> service.CountUsers:
    return cast("service.CountUsers", call.ports["count_queue_users"])
