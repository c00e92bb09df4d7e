"""HTTP of clusters: list, freeze and thaw, maintenance, grants, preemption policy."""

from collections.abc import Callable
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path

from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.db import ReadSession, WriteSession
from gpuplane.db.calls import Call, CallDep
from gpuplane.domains.clusters import service
from gpuplane.domains.clusters.endpoints.shaping import cluster_body, visible
from gpuplane.domains.clusters.errors import BadWindow
from gpuplane.domains.clusters.schemas import (
    ClusterOut,
    ClustersOut,
    DedicationIn,
    FreezeIn,
    GrantIn,
    GrantsOut,
    PreemptionPolicyIn,
    PreemptionPolicyOut,
    WindowIn,
    WindowOut,
    WindowsOut,
)
from gpuplane.domains.clusters.service import MaintenanceWindow, PreemptionPolicy
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Done
from gpuplane.kit.ids import new_id

router = APIRouter()

HasNode = Callable[[ReadSession, ClusterId, str], bool]
"""Tells whether a cluster has a node; offered by the composition root as the port `has_node`."""
ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]


@router.get("/clusters")
@requires(Permission.CLUSTER_READ)
async def list_clusters(call: CallDep) -> ClustersOut:
    """List the clusters the caller's tenants may use; operators of the platform see all."""
    found = await call.read(lambda s: service.list_clusters(s))
    granted = await call.read(service.list_grants)
    return ClustersOut(
        items=[
            cluster_body(each)
            for each in found
            if each.is_open_to_all
            or call.principal.is_platform
            or any(
                cluster_id == each.id and call.principal.sees_tenant(TenantId(tenant_id))
                for cluster_id, tenant_id in granted
            )
        ]
    )


@router.get("/clusters/{cluster}")
@requires(Permission.CLUSTER_READ)
async def get_cluster(call: CallDep, cluster: ClusterKey) -> ClusterOut:
    """Return one cluster."""
    return cluster_body(await call.read(lambda s: visible(s, call, cluster)))


@router.post("/clusters/{cluster}/freeze")
@requires(Permission.SCHEDULING_MANAGE)
async def freeze_cluster(
    call: CallDep, cluster: ClusterKey, body: FreezeIn | None = None
) -> ClusterOut:
    """Stop new starts on a cluster; what runs goes on."""
    reason = body.reason if body is not None else ""
    return await call.write(
        "clusters.freeze",
        lambda s: service.freeze(s, cluster, reason, call.principal.name, call.now),
        cluster_body,
    )


@router.post("/clusters/{cluster}/thaw")
@requires(Permission.SCHEDULING_MANAGE)
async def thaw_cluster(call: CallDep, cluster: ClusterKey) -> ClusterOut:
    """Let a frozen cluster start work again."""
    return await call.write(
        "clusters.thaw",
        lambda s: service.thaw(s, cluster, call.principal.name, call.now),
        cluster_body,
    )


@router.get("/clusters/{cluster}/preemption-policy")
@requires(Permission.CLUSTER_READ)
async def get_preemption_policy(call: CallDep, cluster: ClusterKey) -> PreemptionPolicyOut:
    """Return the preemption policy of a cluster, and whether it is in force there."""
    return _policy_body(await call.read(lambda s: service.get_preemption_policy(s, cluster)))


@router.patch("/clusters/{cluster}/preemption-policy")
@requires(Permission.SCHEDULING_MANAGE)
async def change_preemption_policy(
    call: CallDep, cluster: ClusterKey, body: PreemptionPolicyIn
) -> PreemptionPolicyOut:
    """Change named values of a cluster's preemption policy and keep the others."""
    changes = body.model_dump(exclude_none=True)
    return await call.write(
        "clusters.patch_preemption_policy",
        lambda s: service.patch_preemption_policy(
            s, cluster, changes, call.principal.name, call.now
        ),
        _policy_body,
    )


@router.get("/clusters/{cluster}/maintenance-windows")
@requires(Permission.CLUSTER_READ)
async def list_maintenance(call: CallDep, cluster: ClusterKey) -> WindowsOut:
    """List the maintenance windows of a cluster that are not over."""
    found = await call.read(lambda s: service.list_maintenance(s, cluster, call.now))
    return WindowsOut(items=[_window_body(each) for each in found])


@router.post("/clusters/{cluster}/maintenance-windows", status_code=201)
@requires(Permission.CLUSTER_MANAGE)
async def announce_maintenance(call: CallDep, cluster: ClusterKey, body: WindowIn) -> WindowOut:
    """Announce a window; work that would not be over by then does not start."""
    known = await call.read(lambda s: service.get_cluster(s, cluster))
    if body.end <= call.now:
        raise BadWindow("The window is over already.", field="end", fix="Give one in the future.")
    if body.node is not None:
        has_node: HasNode = call.ports["has_node"]
        node = body.node
        if not await call.read(lambda s: has_node(s, known.id, node)):
            raise BadWindow(
                f"{known.name} has no node {node!r}.",
                field="node",
                fix="List the nodes of the cluster to see their names.",
            )
    window = MaintenanceWindow(
        id=new_id(),
        cluster_id=known.id,
        node_name=body.node,
        start_at=body.start,
        end_at=body.end,
        reason=body.reason,
        announced_at=call.now,
        announced_by=call.principal.name,
    )
    return await call.write(
        "clusters.announce_maintenance",
        lambda s: service.announce_maintenance(s, known.id, window),
        _window_body,
        201,
    )


@router.delete("/clusters/{cluster}/maintenance-windows/{window_id}")
@requires(Permission.CLUSTER_MANAGE)
async def withdraw_maintenance(call: CallDep, cluster: ClusterKey, window_id: UUID) -> Done:
    """Withdraw an announced window."""
    return await call.write(
        "clusters.withdraw_maintenance",
        lambda s: service.withdraw_maintenance(
            s, cluster, window_id, call.principal.name, call.now
        ),
        lambda _: Done(),
    )


@router.put("/clusters/{cluster}/dedication")
@requires(Permission.CLUSTER_MANAGE)
async def dedicate_cluster(call: CallDep, cluster: ClusterKey, body: DedicationIn) -> ClusterOut:
    """Let one tenant alone use a cluster, or everyone again; restricted data needs such a one."""
    tenant_id = None if body.tenant_id is None else TenantId(body.tenant_id)
    return await call.write(
        "clusters.dedicate",
        lambda s: service.dedicate(s, cluster, tenant_id, call.principal.name, call.now),
        cluster_body,
    )


@router.get("/clusters/{cluster}/grants")
@requires(Permission.CLUSTER_MANAGE)
async def list_grants(call: CallDep, cluster: ClusterKey) -> GrantsOut:
    """List the tenants that were granted a cluster which is not open to all."""
    return await call.read(lambda s: _grants(s, cluster))


@router.post("/clusters/{cluster}/grants", status_code=201)
@requires(Permission.CLUSTER_MANAGE)
async def grant_cluster(call: CallDep, cluster: ClusterKey, body: GrantIn) -> GrantsOut:
    """Let a tenant use a cluster; on a local one its jobs run as the user of this server."""
    tenant_id = TenantId(body.tenant_id)
    return await call.write(
        "clusters.grant",
        lambda s: _granted(s, call, cluster, tenant_id),
        lambda found: found,
        201,
    )


@router.delete("/clusters/{cluster}/grants/{tenant_id}")
@requires(Permission.CLUSTER_MANAGE)
async def revoke_cluster(call: CallDep, cluster: ClusterKey, tenant_id: UUID) -> Done:
    """Take a grant back; what runs goes on, nothing new starts."""
    return await call.write(
        "clusters.revoke",
        lambda s: service.revoke(s, cluster, TenantId(tenant_id), call.principal.name, call.now),
        lambda _: Done(),
    )


def _granted(session: WriteSession, call: Call, cluster: str, tenant_id: TenantId) -> GrantsOut:
    service.grant_known(session, cluster, tenant_id, call.principal.name, call.now)
    return _grants(session, cluster)


def _grants(session: ReadSession, key: str) -> GrantsOut:
    cluster = service.get_cluster(session, key)
    granted = service.list_grants(session)
    ids = sorted(tenant_id for cluster_id, tenant_id in granted if cluster_id == cluster.id)
    return GrantsOut(tenant_ids=ids)


def _policy_body(found: tuple[PreemptionPolicy, bool]) -> PreemptionPolicyOut:
    policy, in_force = found
    return PreemptionPolicyOut(
        is_in_force=in_force,
        decided_by="scheduler" if in_force else "kueue",
        enabled=policy.enabled,
        min_runtime_before_preemption_s=policy.min_runtime_before_preemption_s,
        max_preemptions_per_hour=policy.max_preemptions_per_hour,
        grace_period_s=policy.grace_period_s,
        high_cost_progress_ratio=policy.high_cost_progress_ratio,
        low_cost_checkpoint_age_s=policy.low_cost_checkpoint_age_s,
    )


def _window_body(window: MaintenanceWindow) -> WindowOut:
    return WindowOut(
        id=window.id,
        cluster_id=window.cluster_id,
        node=window.node_name,
        start=window.start_at,
        end=window.end_at,
        reason=window.reason,
        announced_at=window.announced_at,
        announced_by=window.announced_by,
        has_begun=window.started,
    )
