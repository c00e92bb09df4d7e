"""HTTP of setting tenants up on a cluster, taking them away, and connecting clusters."""

from typing import Annotated, cast

from fastapi import Path

from gpuplane.db.calls import Call, CallDep
from gpuplane.domains.queues import service
from gpuplane.domains.queues.endpoints.parsing import units
from gpuplane.domains.queues.endpoints.routes import router
from gpuplane.domains.queues.schemas import DispatchIn, DispatchOut, TenancyIn, TenancyOut
from gpuplane.domains.queues.service import Caller, Opening
from gpuplane.domains.runs.service import RunPolicy
from gpuplane.kit.access import Permission, requires

ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]
TenantKey = Annotated[str, Path(min_length=1, max_length=63, description="Name or id.")]


@router.post("/clusters/{cluster}/tenants", status_code=202)
@requires(Permission.CLUSTER_MANAGE)
async def onboard_tenant(call: CallDep, cluster: ClusterKey, body: TenancyIn) -> TenancyOut:
    """Set a tenant up on a cluster of Kubernetes: namespace, walls, account, limits, queues.

    A run does it; doing it again brings what is there up to date.
    """
    tenant_id = await call.read(lambda s: service.find_tenant_id(s, body.tenant))
    openings = [
        Opening(each.name, each.cluster_queue, tuple(str(kind) for kind in each.job_types))
        for each in body.queues
    ]
    most = {each.name: units(each.name, each.most, "limits") for each in body.limits}
    return await call.write(
        "queues.start_onboarding",
        lambda s: service.start_onboarding(
            s, cluster, tenant_id, openings, most, _caller(call), _policy(call), call.now
        ),
        lambda run: TenancyOut.model_construct(tenant=body.tenant, run_id=run.id),
        202,
    )


@router.delete("/clusters/{cluster}/tenants/{tenant}", status_code=202)
@requires(Permission.CLUSTER_MANAGE)
async def offboard_tenant(call: CallDep, cluster: ClusterKey, tenant: TenantKey) -> TenancyOut:
    """Take a tenant off a cluster: its queues are closed and its namespace is deleted.

    Refused while jobs of the tenant hold devices or wait there.
    """
    tenant_id = await call.read(lambda s: service.find_tenant_id(s, tenant))
    jobs = cast("service.ListTenantJobs", call.ports["list_tenant_jobs"])
    return await call.write(
        "queues.start_offboarding",
        lambda s: service.start_offboarding(
            s, cluster, tenant_id, jobs, _caller(call), _policy(call), call.now
        ),
        lambda run: TenancyOut.model_construct(tenant=tenant, run_id=run.id),
        202,
    )


@router.put("/clusters/{cluster}/multikueue", status_code=202)
@requires(Permission.CLUSTER_MANAGE)
async def connect_workers(call: CallDep, cluster: ClusterKey, body: DispatchIn) -> DispatchOut:
    """Let a cluster's queues dispatch to other clusters, best first; a run connects them."""
    return await call.write(
        "queues.start_connecting",
        lambda s: service.start_connecting(
            s, cluster, body.workers, body.queues, _caller(call), _policy(call), call.now
        ),
        lambda run: DispatchOut.model_construct(
            workers=body.workers, queues=body.queues, run_id=run.id
        ),
        202,
    )


def _caller(call: Call) -> Caller:
    who = call.principal
    return Caller(who.name, who.tenant_id, who.project_id, call.traceparent)


def _policy(call: Call) -> RunPolicy:
    return call.port("run_policy", RunPolicy)
