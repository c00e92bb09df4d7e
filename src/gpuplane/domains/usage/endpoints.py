"""HTTP of the ledger: state totals of devices, what is held now, the timeline."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from gpuplane.core.ids import ClusterId, GpuId, JobId, TenantId
from gpuplane.db.calls import Call, CallDep
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.identity import service as identity
from gpuplane.domains.usage import service
from gpuplane.domains.usage.errors import BadUsageQuery
from gpuplane.domains.usage.schemas import (
    ClusterKey,
    ClusterUsageOut,
    DeviceTimelineOut,
    DeviceUsageOut,
    FromAt,
    HeldOut,
    IntervalOut,
    ShareOut,
    StateTotalsOut,
    TenantKey,
    TimelineOut,
    ToAt,
)
from gpuplane.domains.usage.service import DeviceInterval, Scope, Share, StateTotals
from gpuplane.kit.access import Permission, Principal, requires
from gpuplane.kit.errors import NotFound
from gpuplane.kit.ids import find_id

router = APIRouter(tags=["usage"])

DEFAULT_WINDOW_MS = 30 * 86_400_000
"""What is told when no start is asked for: the last 30 days."""
TIMELINE_WINDOW_MS = 3_600_000
"""What a timeline shows when no start is asked for: the last hour."""


@router.get("/usage/devices")
@requires(Permission.USAGE_READ)
async def device_usage(
    call: CallDep,
    from_at: FromAt = None,
    to_at: ToAt = None,
    cluster: Annotated[str | None, Query(max_length=63, description="Id or name.")] = None,
) -> DeviceUsageOut:
    """Say where the devices' time went, and whether it adds up to the wall clock."""
    now = call.now
    start, end = window(from_at, to_at, now, DEFAULT_WINDOW_MS)

    def query(session: ReadSession) -> tuple[Sequence[StateTotals], dict[ClusterId, str]]:
        names = clusters.names_of_all(session)
        only = None if cluster is None else clusters.get_cluster(session, cluster).id
        return service.sum_states(session, start, end, now, only), names

    totals, names = await call.read(query)
    return DeviceUsageOut(
        from_at=start,
        to_at=end,
        adds_up=all(each.adds_up for each in totals),
        clusters=[
            StateTotalsOut(
                cluster_id=each.cluster_id,
                cluster=names.get(each.cluster_id, ""),
                simulated=each.simulated,
                device_count=each.device_count,
                states_ms=dict(each.states),
                wall_clock_ms=each.wall_clock,
                adds_up=each.adds_up,
            )
            for each in totals
        ],
    )


@router.get("/clusters/{cluster}/usage")
@requires(Permission.USAGE_READ)
async def cluster_usage(call: CallDep, cluster: ClusterKey) -> ClusterUsageOut:
    """Say what is held on a cluster now, by queue and tenant, as far as the caller may know."""
    return await _held(call, cluster, None)


@router.get("/clusters/{cluster}/usage/{tenant}")
@requires(Permission.USAGE_READ)
async def tenant_usage(call: CallDep, cluster: ClusterKey, tenant: TenantKey) -> ClusterUsageOut:
    """Say what one tenant holds on a cluster now, by queue."""
    return await _held(call, cluster, tenant)


@router.get("/clusters/{cluster}/timeline")
@requires(Permission.CLUSTER_READ)
async def timeline(
    call: CallDep,
    cluster: ClusterKey,
    from_at: FromAt = None,
    to_at: ToAt = None,
    gpu_id: Annotated[list[str] | None, Query(max_length=1000)] = None,
) -> TimelineOut:
    """Show what every device of a cluster did; names only of jobs the caller may see."""
    now = call.now
    start, end = window(from_at, to_at, now, TIMELINE_WINDOW_MS)
    asked = [GpuId(each) for each in gpu_id or ()]

    def query(session: ReadSession) -> TimelineOut:
        found = clusters.get_cluster(session, cluster)
        rows = service.list_intervals(session, start, end, found.id, asked)
        seen = scope_of(call.principal, Permission.JOB_READ)
        return _timeline(session, found, rows, seen, start, end)

    return await call.read(query)


def window(from_at: int | None, to_at: int | None, now: int, default_ms: int) -> tuple[int, int]:
    """Return the window asked for; without an end it ends now.

    Raises:
        BadUsageQuery: If it ends before it begins.
    """
    end = now if to_at is None else to_at
    start = max(0, end - default_ms) if from_at is None else from_at
    if end < start:
        raise BadUsageQuery(
            "The window ends before it begins.", field="to", fix="Give `to` after `from`."
        )
    return start, end


def scope_of(principal: Principal, permission: Permission) -> Scope | None:
    """Return whose rows a caller may be told; None for everybody's."""
    rows = principal.rows(permission)
    return None if rows.everything else Scope(rows.tenant_ids, rows.project_ids)


async def _held(call: Call, key: str, tenant: str | None) -> ClusterUsageOut:
    def query(session: ReadSession) -> ClusterUsageOut:
        found = clusters.get_cluster(session, key)
        tenant_id = None if tenant is None else _tenant_id(session, call.principal, tenant)
        scope = scope_of(call.principal, Permission.USAGE_READ)
        return ClusterUsageOut(
            cluster_id=found.id,
            cluster=found.name,
            simulated=found.simulated,
            at=call.now,
            queues=[
                HeldOut(
                    queue=row.queue,
                    tenant_id=row.tenant_id,
                    job_count=row.job_count,
                    gpu_milli=row.gpu_milli,
                    cpu_milli=row.cpu_milli,
                    memory_mib=row.memory_mib,
                )
                for row in service.list_held(session, found.id, tenant_id, scope)
            ],
        )

    return await call.read(query)


def _tenant_id(session: ReadSession, principal: Principal, key: str) -> TenantId:
    tenant_id = find_id(key)
    if tenant_id is None:
        named = identity.find_tenant_by_name(session, key)
        if named is None or not principal.sees_tenant(named.id):
            raise NotFound(f"There is no tenant {key!r}.", fix="Check the name.")
        return named.id
    return identity.get_tenant(session, principal, TenantId(tenant_id)).id


def _timeline(
    session: ReadSession,
    cluster: Cluster,
    rows: Sequence[DeviceInterval],
    scope: Scope | None,
    start: int,
    end: int,
) -> TimelineOut:
    names = service.job_names(
        session, sorted({s.job_id for row in rows for s in row.shares if s.job_id is not None})
    )
    by_device: dict[GpuId, list[IntervalOut]] = {}
    for row in rows:
        shares = [_share(share, scope, names) for share in row.shares]
        by_device.setdefault(row.gpu_id, []).append(
            IntervalOut(from_at=row.from_at, to_at=row.to_at, state=row.state, shares=shares)
        )
    return TimelineOut(
        cluster_id=cluster.id,
        cluster=cluster.name,
        simulated=cluster.simulated,
        from_at=start,
        to_at=end,
        complete=len(rows) < service.MAX_INTERVALS,
        devices=[
            DeviceTimelineOut(
                gpu_id=device.gpu_id,
                node=device.node_name,
                index=device.gpu_index,
                model=device.model,
                intervals=by_device[device.gpu_id],
            )
            for device in service.list_devices(session, cluster.id)
            if device.gpu_id in by_device
        ],
    )


def _share(share: Share, scope: Scope | None, names: Mapping[JobId, str]) -> ShareOut:
    seen = scope is None or scope.covers(share.tenant_id, share.project_id)
    job_id = share.job_id if seen else None
    return ShareOut(
        job_id=job_id,
        job_name=None if job_id is None else names.get(job_id),
        tenant_id=share.tenant_id if seen else None,
        milli=share.milli,
        busy=share.busy,
        reserved=share.job_id is None,
    )
