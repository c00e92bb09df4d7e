"""HTTP of the price book and of use with what it costs."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from gpuplane.core.hardware import find_model
from gpuplane.core.ids import ClusterId, GpuId, JobId, NodeId, ProjectId, TenantId
from gpuplane.core.pricing.cost import CPU_ITEM, MEMORY_ITEM, UNITS
from gpuplane.db.calls import CallDep
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.billing import service
from gpuplane.domains.billing.schemas import (
    CostLineOut,
    PriceIn,
    PriceOut,
    PricesOut,
    UsageOut,
    UsageRowOut,
)
from gpuplane.domains.billing.service import CostLine, CostRow, NewPrice, Price
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.usage.service import Scope, UsageQuery
from gpuplane.kit.access import Permission, requires
from gpuplane.kit.bodies import InstantIn
from gpuplane.kit.errors import InvalidInput, NotFound

router = APIRouter(tags=["billing"])

DEFAULT_WINDOW_MS = 30 * 86_400_000
"""What is told when no start is asked for: the last 30 days."""
MAX_GROUPS = 8
MAX_JOBS = 1000

Key = Annotated[str | None, Query(min_length=1, max_length=253)]


@router.get("/prices")
@requires(Permission.PRICE_READ)
async def list_prices(call: CallDep, cluster: Key = None, item: Key = None) -> PricesOut:
    """List prices with their history; of a cluster, with the general ones that hold there."""

    def query(session: ReadSession) -> PricesOut:
        only = None if cluster is None else clusters.get_cluster(session, cluster).id
        found = service.list_prices(session, only, item)
        ids = {each.cluster_id for each in found} - {None}
        names = clusters.names_of_all(session) if ids else {}
        return PricesOut(
            items=[_price_out(each) for each in found],
            cluster_names={key: name for key, name in names.items() if key in ids},
        )

    return await call.read(query)


@router.post("/prices", status_code=201)
@requires(Permission.PRICE_MANAGE)
async def add_price(call: CallDep, body: PriceIn) -> PriceOut:
    """Add a price that holds from an instant on; what was used before keeps its price."""
    now = call.now

    def unit(session: WriteSession) -> Price:
        found = None if body.cluster is None else clusters.get_cluster(session, body.cluster).id
        wanted = NewPrice(body.item, body.price, body.currency, found, body.valid_from)
        return service.add_price(session, wanted, call.principal.name, now)

    return await call.write("billing.add_price", unit, _price_out, 201)


@router.get("/usage")
@requires(Permission.USAGE_READ)
async def get_usage(
    call: CallDep,
    *,
    group_by: Annotated[
        list[str] | None,
        Query(
            max_length=MAX_GROUPS,
            description="job, project, tenant, cluster, node, device, model, cost_centre, queue, "
            "priority, job_type, source, day or label:KEY; may be repeated.",
        ),
    ] = None,
    from_at: Annotated[InstantIn | None, Query(alias="from")] = None,
    to_at: Annotated[InstantIn | None, Query(alias="to")] = None,
    tenant_id: TenantId | None = None,
    project_id: ProjectId | None = None,
    job_id: Annotated[list[UUID] | None, Query(max_length=MAX_JOBS)] = None,
    cluster: Key = None,
    node_id: NodeId | None = None,
    device: Key = None,
    model: Key = None,
    cost_centre: Key = None,
    queue: Key = None,
    label: Annotated[str | None, Query(max_length=400, description="KEY=VALUE")] = None,
    simulated: bool | None = None,
) -> UsageOut:
    """Say what was used and what it costs, by group; running work is counted to now.

    Simulated use is labelled and never part of the real rows or their cost.
    """
    now = call.now
    if tenant_id is not None and not call.principal.sees_tenant(tenant_id):
        raise NotFound("There is no tenant of that id.", fix="Check the id.", field="tenant_id")
    start, end = _window(from_at, to_at, now)
    asked = UsageQuery(
        start,
        end,
        tuple(dict.fromkeys(group_by or ("project",))),
        job_ids=None if job_id is None else tuple(JobId(each) for each in job_id),
        tenant_id=tenant_id,
        project_id=project_id,
        node_id=node_id,
        gpu_id=None if device is None else GpuId(device),
        model=_model(model),
        cost_centre=cost_centre,
        queue=queue,
        label=None if label is None else _label(label),
        scope=_scope(call),
        simulated=simulated,
    )

    def query(session: ReadSession) -> tuple[tuple[CostRow, ...], dict[str, str]]:
        only = None if cluster is None else clusters.get_cluster(session, cluster).id
        found = service.sum_costs(session, service.on_cluster(asked, only), now)
        keys = {row.usage.keys.get("cluster") for row in found} - {None}
        names = clusters.names_of_all(session) if keys else {}
        return found, {str(key): name for key, name in names.items() if str(key) in keys}

    rows, cluster_names = await call.read(query)
    real = [row for row in rows if not row.usage.simulated]
    return UsageOut(
        from_at=start,
        to_at=end,
        group_by=list(asked.group_by),
        rows=[_row_out(row) for row in rows],
        cost=service.sum_totals(real),
        simulated_cost=service.sum_totals([row for row in rows if row.usage.simulated]),
        cluster_names=cluster_names,
    )


def _window(from_at: int | None, to_at: int | None, now: int) -> tuple[int, int]:
    end = now if to_at is None else to_at
    start = max(0, end - DEFAULT_WINDOW_MS) if from_at is None else from_at
    if end < start:
        raise InvalidInput(
            "The window ends before it begins.", field="to", fix="Give `to` after `from`."
        )
    return start, end


def _scope(call: CallDep) -> Scope | None:
    rows = call.principal.rows(Permission.USAGE_READ)
    return None if rows.everything else Scope(rows.tenant_ids, rows.project_ids)


def _model(name: str | None) -> str | None:
    found = None if name is None else find_model(name)
    return name if found is None else found.name


def _label(value: str) -> tuple[str, str]:
    key, equals, text = value.partition("=")
    if not equals or not key:
        raise InvalidInput(
            "A label filter is written KEY=VALUE.", field="label", fix="For example team=vision."
        )
    return key, text


def _price_out(price: Price) -> PriceOut:
    unit = {CPU_ITEM: "core-hour", MEMORY_ITEM: "GiB-hour"}.get(price.item, "GPU-hour")
    return PriceOut(
        id=price.id,
        cluster_id=None if price.cluster_id is None else ClusterId(price.cluster_id),
        item=price.item,
        unit=unit,
        currency=price.currency,
        price=price.price_micro,
        valid_from=price.valid_from,
        created_at=price.created_at,
        created_by=price.created_by,
    )


def _row_out(row: CostRow) -> UsageRowOut:
    used = row.usage
    return UsageRowOut(
        keys=dict(used.keys),
        simulated=used.simulated,
        gpu_busy_s=used.gpu_busy / 1_000_000,
        gpu_idle_s=used.gpu_idle / 1_000_000,
        gpu_reserved_s=used.gpu_reserved / 1_000_000,
        gpu_billable_s=used.gpu_billable / 1_000_000,
        cpu_core_s=used.cpu / 1_000_000,
        memory_gib_s=used.memory / 1_024_000,
        lines=[_line_out(line) for line in row.cost.lines],
        cost=row.cost.totals,
        unpriced=list(row.cost.unpriced),
    )


def _line_out(line: CostLine) -> CostLineOut:
    return CostLineOut(
        resource=line.resource,
        item=line.item,
        hours=line.quantity / UNITS[line.resource],
        currency=line.currency,
        price=line.price_micro,
        cost=line.cost_micro,
    )
