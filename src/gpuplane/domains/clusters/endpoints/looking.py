"""HTTP of what is known of a cluster's parts: health, add-ons, keys of its metrics."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from gpuplane.db.calls import CallDep
from gpuplane.domains.clusters import service
from gpuplane.domains.clusters.endpoints.operating import ClusterKey as ClusterName
from gpuplane.domains.clusters.endpoints.registering import new_cluster_key
from gpuplane.domains.clusters.endpoints.shaping import health_body, visible
from gpuplane.domains.clusters.schemas import (
    AddonOut,
    AddonsOut,
    ClusterHealthOut,
    ClusterKeyOut,
    ClusterKeysOut,
)
from gpuplane.domains.clusters.service import AddonStatus, ClusterKey, HealthKind
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import Done

router = APIRouter()


@router.get("/clusters/{cluster}/health")
@requires(Permission.CLUSTER_READ)
async def get_health(
    call: CallDep,
    cluster: ClusterName,
    check: Annotated[
        list[HealthKind] | None, Query(max_length=20, description="Only these; again for each.")
    ] = None,
) -> ClusterHealthOut:
    """Return what the last checks of a cluster found, by kind."""
    found = await call.read(lambda s: visible(s, call, cluster))
    told = call.ports.get("look_times")
    checks = told.checks_of(found) if isinstance(told, service.LookTimes) else found.health
    return ClusterHealthOut(
        cluster_id=found.id,
        state=str(found.state),
        checks=[health_body(each) for each in checks if not check or each.kind in check],
    )


@router.get("/clusters/{cluster}/addons")
@requires(Permission.CLUSTER_READ)
async def list_addons(call: CallDep, cluster: ClusterName) -> AddonsOut:
    """List what became of each add-on on a cluster."""
    known = await call.read(lambda s: visible(s, call, cluster))
    found = await call.read(lambda s: service.list_addons(s, known.id))
    return AddonsOut(items=[_addon(each) for each in found])


@router.get("/clusters/{cluster}/keys")
@requires(Permission.CLUSTER_MANAGE)
async def list_keys(call: CallDep, cluster: ClusterName) -> ClusterKeysOut:
    """List the keys by which a cluster may push its metrics, without their secrets."""
    found = await call.read(lambda s: service.list_keys(s, cluster))
    return ClusterKeysOut(items=[_key(each, None) for each in found])


@router.post("/clusters/{cluster}/keys", status_code=201)
@requires(Permission.CLUSTER_MANAGE)
async def issue_key(call: CallDep, cluster: ClusterName) -> ClusterKeyOut:
    """Issue a key by which a cluster pushes its metrics; it is shown this once."""
    known = await call.read(lambda s: service.get_cluster(s, cluster))
    plain, kept = new_cluster_key(call, known.id)
    return await call.write(
        "clusters.issue_key",
        lambda s: service.issue_key(s, known.id, kept),
        lambda made: _key(made, plain),
        201,
    )


@router.delete("/clusters/{cluster}/keys/{key_id}")
@requires(Permission.CLUSTER_MANAGE)
async def revoke_key(call: CallDep, cluster: ClusterName, key_id: UUID) -> Done:
    """Take a key back; what is pushed with it from now on is refused."""
    return await call.write(
        "clusters.revoke_key",
        lambda s: service.revoke_key(s, cluster, key_id, call.principal.name, call.now),
        lambda _: Done(),
    )


def _addon(status: AddonStatus) -> AddonOut:
    return AddonOut(
        name=status.name,
        state=status.state,
        release_name=status.release_name,
        namespace=status.namespace,
        chart=status.chart,
        chart_version=status.chart_version,
        message=status.message,
        updated_at=status.updated_at,
    )


def _key(key: ClusterKey, plain: str | None) -> ClusterKeyOut:
    return ClusterKeyOut(
        id=key.id,
        hint=key.hint,
        key=plain,
        issued_at=key.issued_at,
        issued_by=key.issued_by,
        revoked_at=key.revoked_at,
    )
