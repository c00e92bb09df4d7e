"""A small world of one cluster: short verbs over the services, with a clock of its own."""

from __future__ import annotations

from dataclasses import replace

from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import (
    AttemptId,
    ClusterId,
    GpuId,
    JobId,
    ProjectId,
    ReplicaId,
    ReservationId,
    TenantId,
    UserId,
)
from gpuplane.db.database import Database
from gpuplane.domains.billing import service as billing
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import (
    PlacementOrder,
    PlacementResult,
    ReplicaOrder,
    Reservation,
    ReservationState,
)
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.service import JobFacts, UsageQuery, UsageRow
from gpuplane.kit.ids import new_id
from tests.integration.ledger.histories import MODEL, START, a_node


class World:
    """The database, one cluster, one tenant; `now` moves only when told."""

    def __init__(
        self,
        database: Database,
        gpu_count: int = 4,
        *,
        now: int = START,
        cluster_id: ClusterId | None = None,
        place: tuple[TenantId, ProjectId] | None = None,
    ) -> None:
        self.database = database
        self.now = now
        self.cluster_id = cluster_id or ClusterId(new_id())
        self.tenant_id, self.project_id = place or (TenantId(new_id()), ProjectId(new_id()))
        self.node = a_node(self.cluster_id, gpu_count)
        self.gpus = [gpu.gpu_id for gpu in self.node.gpus]
        self.register(self.node)

    def register(self, node: Node, *, simulated: bool = False) -> None:
        self.database.write_now(
            "placements.register",
            lambda s: placements.register_devices(s, [node], self.now, simulated=simulated),
        )

    def replica(
        self,
        *gpu_ids: GpuId,
        milli: int = 1000,
        cpu_milli: int = 1000,
        memory_mib: int = 1024,
        mig: MigPlacement | None = None,
        rank: int = 0,
        node: Node | None = None,
    ) -> ReplicaOrder:
        return ReplicaOrder(
            ReplicaId(new_id()),
            rank,
            (node or self.node).id,
            gpu_ids,
            milli,
            mig,
            cpu_milli,
            memory_mib,
            0,
        )

    def order(
        self,
        *replicas: ReplicaOrder,
        reservation_id: ReservationId | None = None,
        project_id: ProjectId | None = None,
    ) -> PlacementOrder:
        return PlacementOrder(
            AttemptId(new_id()),
            JobId(new_id()),
            self.tenant_id,
            project_id or self.project_id,
            self.cluster_id,
            replicas,
            reservation_id,
        )

    def place(self, *orders: PlacementOrder) -> PlacementResult:
        return self.database.write_now(
            "placements.place", lambda s: placements.place(s, orders, self.now)
        )

    def run(self, *replicas: ReplicaOrder) -> PlacementOrder:
        """Place an order that must fit and let it work."""
        order = self.order(*replicas)
        assert self.place(order).placed == (order.attempt_id,)
        self.database.write_now(
            "placements.busy", lambda s: placements.mark_busy(s, [order.attempt_id], self.now)
        )
        return order

    def idle(self, order: PlacementOrder) -> None:
        self.database.write_now(
            "placements.idle", lambda s: placements.mark_idle(s, [order.attempt_id], self.now)
        )

    def release(self, *orders: PlacementOrder) -> int:
        ids = [order.attempt_id for order in orders]
        return self.database.write_now(
            "placements.release", lambda s: placements.release(s, ids, self.now)
        )

    def remember(self, order: PlacementOrder, **facts: object) -> None:
        known = JobFacts(
            order.job_id,
            "job",
            order.tenant_id,
            order.project_id,
            {},
            "",
            "",
            "normal",
            "batch",
            "direct",
            False,
        )
        row = replace(known, **facts)  # type: ignore[arg-type]  # any field of the facts
        self.database.write_now("usage.remember", lambda s: usage.remember_jobs(s, [row]))

    def usage(self, *group_by: str, **filters: object) -> tuple[UsageRow, ...]:
        query = UsageQuery(0, self.now, group_by)
        query = replace(query, **filters)  # type: ignore[arg-type]  # any field of the query
        return self.database.read_now(lambda s: usage.sum_usage(s, query, self.now))

    def intervals(self, gpu_id: GpuId) -> list[tuple[int, int | None, str]]:
        """Return (from, to, state) of a device, counted from the world's start."""
        rows = self.database.read_now(
            lambda s: usage.list_intervals(s, 0, START * 2, gpu_ids=[gpu_id])
        )
        return [
            (row.from_at - START, None if row.to_at is None else row.to_at - START, str(row.state))
            for row in rows
        ]

    def price(self, item: str, price_micro: int, **facts: object) -> None:
        wanted = billing.NewPrice(item, price_micro)
        wanted = replace(wanted, **facts)  # type: ignore[arg-type]  # any field of the price
        self.database.write_now(
            "billing.price", lambda s: billing.add_price(s, wanted, "test", self.now)
        )

    def cost(self, order: PlacementOrder) -> billing.Cost:
        return self.database.read_now(lambda s: billing.actual_costs(s, [order.job_id], self.now))[
            order.job_id
        ]

    def reserve(
        self, count: int, start: int, end: int, *, charge_unused: bool = True
    ) -> Reservation:
        """Reserve from `start` to `end`, counted from the world's start."""
        wanted = Reservation(
            ReservationId(new_id()),
            self.cluster_id,
            self.tenant_id,
            self.project_id,
            MODEL,
            count,
            START + start,
            START + end,
            charge_unused,
            ReservationState.SCHEDULED,
            "held",
            self.now,
            UserId(new_id()),
        )
        return self.database.write_now(
            "placements.reserve",
            lambda s: placements.create_reservation(s, wanted, "test", self.now),
        )

    def advance(self) -> placements.ReservationChanges:
        return self.database.write_now(
            "placements.advance", lambda s: placements.advance_reservations(s, self.now)
        )

    def faults(self) -> list[str]:
        return self.database.read_now(lambda s: [*placements.check(s), *usage.check(s, self.now)])
