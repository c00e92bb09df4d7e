"""HTTP of what of a cluster's quotas is used now."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path

from gpuplane.core.quota.tree import QuotaRow
from gpuplane.db.calls import CallDep
from gpuplane.domains.jobs import service
from gpuplane.domains.jobs.schemas import (
    CohortUseOut,
    DoorUseOut,
    QueueUseOut,
    QuotaRowOut,
    QuotaUseOut,
)
from gpuplane.domains.jobs.service import DoorUse
from gpuplane.domains.queues.service import quantity_text
from gpuplane.kit.access import Permission, requires

router = APIRouter()

ClusterKey = Annotated[str, Path(min_length=1, max_length=63, description="Id or name.")]


@router.get("/clusters/{cluster}/queue-usage")
@requires(Permission.QUOTA_READ)
async def get_queue_usage(call: CallDep, cluster: ClusterKey) -> QueueUseOut:
    """Return the account of every queue: owned, used, borrowed, lent and available."""
    found = await call.read(lambda s: service.load_queue_use(s, call.principal, cluster))
    return QueueUseOut.model_construct(
        cluster_id=found.cluster.id,
        cluster=found.cluster.name,
        cluster_queues=[
            QuotaUseOut.model_construct(name=name, jobs=jobs, resources=_rows(rows))
            for name, (rows, jobs) in sorted(found.cluster_queues.items())
        ],
        cohorts=[
            CohortUseOut.model_construct(name=name, resources=_rows(rows))
            for name, rows in sorted(found.cohorts.items())
        ],
        local_queues=[_door(each) for each in found.doors],
    )


def _rows(rows: Sequence[QuotaRow]) -> list[QuotaRowOut]:
    return [
        QuotaRowOut.model_construct(
            flavor=row.flavor,
            resource=row.resource,
            nominal=_text(row.resource, row.nominal),
            used=quantity_text(row.resource, row.used),
            borrowed=quantity_text(row.resource, row.borrowed),
            lent=quantity_text(row.resource, row.lent),
            available=_text(row.resource, row.available),
            potential=_text(row.resource, row.potential),
            borrowing_limit=_text(row.resource, row.borrowing_limit),
            lending_limit=_text(row.resource, row.lending_limit),
        )
        for row in rows
    ]


def _door(use: DoorUse) -> DoorUseOut:
    pairs = sorted(set(use.used) | set(use.spec.limits))
    return DoorUseOut.model_construct(
        name=use.spec.name,
        tenant=use.spec.tenant,
        cluster_queue=use.spec.cluster_queue,
        jobs=use.jobs,
        resources=[
            QuotaRowOut.model_construct(
                flavor=pair.flavor,
                resource=pair.resource,
                nominal=_text(pair.resource, use.spec.limits.get(pair)),
                used=quantity_text(pair.resource, use.used.get(pair, 0)),
                borrowed="0",
                lent="0",
                available=None
                if pair not in use.spec.limits
                else quantity_text(
                    pair.resource, max(0, use.spec.limits[pair] - use.used.get(pair, 0))
                ),
                potential=_text(pair.resource, use.spec.limits.get(pair)),
                borrowing_limit=None,
                lending_limit=None,
            )
            for pair in pairs
        ],
    )


def _text(resource: str, amount: int | None) -> str | None:
    return None if amount is None else quantity_text(resource, amount)
