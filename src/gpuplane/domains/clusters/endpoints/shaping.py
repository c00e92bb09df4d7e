"""How clusters look in answers."""

from gpuplane.core.ids import TenantId
from gpuplane.db import ReadSession
from gpuplane.db.calls import Call
from gpuplane.domains.clusters import service
from gpuplane.domains.clusters.errors import ClusterNotFound
from gpuplane.domains.clusters.schemas import ClusterOut, GpuShapeOut, HealthOut
from gpuplane.domains.clusters.service import Cluster, HealthCheck


def visible(session: ReadSession, call: Call, key: str) -> Cluster:
    """Return a cluster the caller may know of.

    Raises:
        ClusterNotFound: If there is none, or none for the caller.
    """
    cluster = service.get_cluster(session, key)
    if cluster.is_open_to_all or call.principal.is_platform:
        return cluster
    for cluster_id, tenant_id in service.list_grants(session):
        if cluster_id == cluster.id and call.principal.sees_tenant(TenantId(tenant_id)):
            return cluster
    raise ClusterNotFound(f"There is no cluster {key!r}.", fix="List the clusters for their names.")


def cluster_body(cluster: Cluster) -> ClusterOut:
    """Return a cluster as the API shows it: never a credential."""
    return ClusterOut.model_construct(
        id=cluster.id,
        name=cluster.name,
        kind=cluster.kind,
        simulated=cluster.simulated,
        state=str(cluster.state),
        state_reason=cluster.state_reason,
        labels=cluster.labels,
        notes=list(cluster.notes),
        frozen=cluster.frozen,
        frozen_reason=cluster.frozen_reason,
        is_open_to_all=cluster.is_open_to_all,
        gpus=[
            GpuShapeOut(gpu_type=model, most_per_node=most, total=total)
            for model, (most, total) in sorted(cluster.gpu_shapes.items())
        ],
        platform=cluster.platform,
        role=cluster.role,
        admission=cluster.config.get("admission"),
        expose=cluster.config.get("expose") or "asked",
        report_image=cluster.config.get("report_image") or "",
        distribution=cluster.distribution,
        kubernetes_version=cluster.kubernetes_version,
        server_url=cluster.server_url,
        host=cluster.host,
        ingress_url=cluster.ingress_url,
        enable_master_node=cluster.enable_master_node,
        attributes=cluster.attributes,
        health=[health_body(check) for check in cluster.health],
        last_metrics_collection=cluster.last_metrics_collection,
        metrics_collection_status=cluster.metrics_collection_status,
        not_available_since=cluster.not_available_since,
        last_retry_time=cluster.last_retry_at,
        next_retry_time=cluster.next_try_at,
        run_id=cluster.run_id,
        created_at=cluster.created_at,
        updated_at=cluster.updated_at,
        resource_version=cluster.version,
    )


def health_body(check: HealthCheck) -> HealthOut:
    """Return one check as the API shows it."""
    return HealthOut.model_construct(
        kind=check.kind,
        verdict=check.verdict,
        message=check.message,
        checked_at=check.checked_at,
    )
