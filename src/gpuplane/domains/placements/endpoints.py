"""HTTP of capacity: what a cluster has left, and reservations."""

from collections.abc import Callable, Sequence
from typing import Annotated, cast

from fastapi import APIRouter, Query

from gpuplane.core.ids import ClusterId, ProjectId, ReservationId
from gpuplane.core.scheduling.reservations import Hold
from gpuplane.db.calls import CallDep
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.identity import service as identity
from gpuplane.domains.placements import service
from gpuplane.domains.placements.schemas import (
    AmountOut,
    CapacityOut,
    ClusterKey,
    ModelCapacityOut,
    ReservationIn,
    ReservationOut,
    ReservationsOut,
)
from gpuplane.domains.placements.service import Reservation, ReservationState
from gpuplane.kit.access import Permission, Principal, requires
from gpuplane.kit.ids import new_id

router = APIRouter(tags=["capacity"])

FindHolds = Callable[[ReadSession, ClusterId, str], Sequence[Hold]]
"""Says what running work holds of a model on a cluster; jobs stand above this domain."""


@router.get("/clusters/{cluster}/capacity")
@requires(Permission.CLUSTER_READ)
async def cluster_capacity(call: CallDep, cluster: ClusterKey) -> CapacityOut:
    """Say what a cluster has and what is left of it now."""

    def query(session: ReadSession) -> CapacityOut:
        found = clusters.get_cluster(session, cluster)
        capacity = service.get_capacity(session, found.id)
        return CapacityOut(
            cluster_id=found.id,
            cluster=found.name,
            simulated=found.simulated,
            at=call.now,
            node_count=capacity.node_count,
            models=[
                ModelCapacityOut(
                    model=each.model,
                    total=each.total,
                    free=each.free,
                    reserved=each.reserved,
                    in_use=each.in_use,
                    down=each.down,
                    partly_free_milli=each.partly_free_milli,
                )
                for each in capacity.models
            ],
            cpu_milli=_amount(capacity.cpu_milli),
            memory_mib=_amount(capacity.memory_mib),
            ephemeral_mib=_amount(capacity.ephemeral_mib),
        )

    return await call.read(query)


@router.post("/capacity/reservations", status_code=201)
@requires(Permission.CAPACITY_RESERVE)
async def create_reservation(call: CallDep, body: ReservationIn) -> ReservationOut:
    """Set GPUs of a model aside for a project from start to end."""
    now = call.now

    def unit(session: WriteSession) -> Reservation:
        principal = call.principal
        asked = principal.project_id if body.project_id is None else ProjectId(body.project_id)
        project = identity.get_project(session, principal, asked)
        principal.require(
            Permission.CAPACITY_RESERVE, project.tenant_id, project.id, what="project"
        )
        cluster = clusters.get_cluster(session, body.cluster)
        model = service.model_named(body.model)
        wanted = Reservation(
            id=ReservationId(new_id()),
            cluster_id=cluster.id,
            tenant_id=project.tenant_id,
            project_id=project.id,
            model=model,
            gpu_count=body.count,
            start_at=body.start,
            end_at=body.end,
            charge_unused=body.charge_unused,
            state=ReservationState.SCHEDULED,
            name=body.name,
            created_at=now,
            created_by=principal.user_id,
        )
        holds = cast("FindHolds", call.ports["find_holds"])(session, cluster.id, model)
        return service.create_reservation(session, wanted, principal.name, now, holds)

    return await call.write("placements.create_reservation", unit, _out, 201)


@router.get("/capacity/reservations")
@requires(Permission.CLUSTER_READ)
async def list_reservations(
    call: CallDep,
    cluster: Annotated[str | None, Query(max_length=63, description="Id or name.")] = None,
    state: Annotated[list[ReservationState] | None, Query(max_length=4)] = None,
) -> ReservationsOut:
    """List the reservations the caller sees, by start."""

    def query(session: ReadSession) -> list[Reservation]:
        only = None if cluster is None else clusters.get_cluster(session, cluster).id
        found = service.list_reservations(session, cluster_id=only, states=tuple(state or ()))
        return [each for each in found if _sees(call.principal, each)]

    return ReservationsOut(items=[_out(each) for each in await call.read(query)])


@router.get("/capacity/reservations/{reservation_id}")
@requires(Permission.CLUSTER_READ)
async def get_reservation(call: CallDep, reservation_id: ReservationId) -> ReservationOut:
    """Return one reservation with the GPUs it holds."""

    def query(session: ReadSession) -> Reservation:
        found = service.get_reservation(session, reservation_id)
        call.principal.require(
            Permission.CLUSTER_READ, found.tenant_id, found.project_id, what="reservation"
        )
        return found

    return _out(await call.read(query))


@router.delete("/capacity/reservations/{reservation_id}")
@requires(Permission.CAPACITY_RESERVE)
async def cancel_reservation(call: CallDep, reservation_id: ReservationId) -> ReservationOut:
    """Give a reservation up; jobs that run on its GPUs go on."""
    now = call.now

    def unit(session: WriteSession) -> Reservation:
        found = service.get_reservation(session, reservation_id)
        call.principal.require(
            Permission.CAPACITY_RESERVE, found.tenant_id, found.project_id, what="reservation"
        )
        return service.cancel_reservation(session, reservation_id, call.principal.name, now)

    return await call.write("placements.cancel_reservation", unit, _out)


def _sees(principal: Principal, reservation: Reservation) -> bool:
    return principal.may(Permission.CLUSTER_READ, reservation.tenant_id, reservation.project_id)


def _amount(of: tuple[int, int]) -> AmountOut:
    total, used = of
    return AmountOut(total=total, free=total - used)


def _out(row: Reservation) -> ReservationOut:
    return ReservationOut(
        id=row.id,
        name=row.name,
        cluster_id=row.cluster_id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        model=row.model,
        count=row.gpu_count,
        start=row.start_at,
        end=row.end_at,
        charge_unused=row.charge_unused,
        state=row.state,
        gpu_ids=list(row.gpu_ids),
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
