"""Random histories of devices: what happens to them, and a plain model of what must be written.

The model is a list of (instant, state, holders) for each device; it knows nothing of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import gpuplane.domains.clusters.tables
import gpuplane.domains.events.tables
from gpuplane.core.ids import (
    AttemptId,
    ClusterId,
    GpuId,
    JobId,
    NodeId,
    ProjectId,
    ReplicaId,
    ReservationId,
    TenantId,
    UserId,
)
from gpuplane.db.database import Database
from gpuplane.db.sessions import WriteSession
from gpuplane.db.types import Base
from gpuplane.domains.nodes.service import Gpu, Node
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import PlacementOrder, ReplicaOrder, Reservation
from gpuplane.domains.usage import service as usage
from gpuplane.kit.ids import new_id
from tests.databases import make_tables

TABLES = (gpuplane.domains.clusters.tables, gpuplane.domains.events.tables)
Verb = Callable[[WriteSession, Sequence[AttemptId], int], None]
START = 1_700_000_000_000
HOUR_MS = 3_600_000
MODEL = "nvidia-a100-80gb"


def open_database(url: str) -> Database:
    """Return a database with every table that placements and usage touch."""
    assert all(module.Base is Base for module in TABLES)
    database = Database(url)
    make_tables(database)
    return database


def a_node(
    cluster_id: ClusterId, gpu_count: int = 2, name: str = "node", model: str = MODEL
) -> Node:
    """Return a ready node with GPUs of its own."""
    node_id = NodeId(new_id())
    gpus = tuple(
        Gpu(
            GpuId(f"GPU-{new_id()}"),
            node_id,
            cluster_id,
            index,
            model,
            model,
            81_920,
            True,
            True,
            "",
            None,
            False,
            (),
        )
        for index in range(gpu_count)
    )
    return Node(
        id=node_id,
        cluster_id=cluster_id,
        name=name,
        ready=True,
        message="",
        present=True,
        cordoned=False,
        drain_started_at=None,
        drain_wait_s=None,
        cpu_milli=64_000,
        memory_mib=512_000,
        ephemeral_mib=1_000_000,
        labels={},
        taints=(),
        topology=None,
        rack="",
        block="",
        rdma_fabric="",
        created_at=START,
        updated_at=START,
        version=1,
        gpus=gpus,
    )


def with_health(node: Node, healthy: dict[GpuId, bool]) -> Node:
    """Return the node with these GPUs' health."""
    gpus = tuple(replace(gpu, healthy=healthy.get(gpu.gpu_id, True)) for gpu in node.gpus)
    return replace(node, gpus=gpus)


@dataclass
class Work:
    """One attempt of the model: what it holds of which devices."""

    gpu_ids: tuple[GpuId, ...]
    milli: int
    busy: bool = False


@dataclass
class Track:
    """What must be written of one device: when it became what."""

    marks: list[tuple[int, str, object]] = field(default_factory=list)

    def note(self, state: str, holders: object, at: int) -> None:
        """Follow a change of state or holders; an instant before the last counts as the last."""
        if self.marks and self.marks[-1][1:] == (state, holders):
            return
        if self.marks:
            at = max(at, self.marks[-1][0])
        self.marks.append((at, state, holders))

    def spent(self, now: int) -> dict[str, int]:
        """Return the milliseconds spent in each state until now."""
        total: dict[str, int] = {}
        ends = [mark[0] for mark in self.marks[1:]] + [max(now, self.marks[-1][0])]
        for (at, state, _), end in zip(self.marks, ends, strict=True):
            total[state] = total.get(state, 0) + end - at
        return total


TICKS = st.sampled_from([0, 1, 999, 60_000, 60_000, HOUR_MS, -HOUR_MS, -1])
"""How the clock moves before something happens: also not at all, and backwards."""


class Histories(RuleBasedStateMachine):
    """Places, busies, idles, releases, breaks, mends, reserves, and steps the clock."""

    database: Database

    @initialize()
    def begin(self) -> None:
        self.cluster_id = ClusterId(new_id())
        self.tenant_id, self.project_id = TenantId(new_id()), ProjectId(new_id())
        self.now = START
        self.node = a_node(self.cluster_id)
        self.gpu_ids = [gpu.gpu_id for gpu in self.node.gpus]
        self.healthy = dict.fromkeys(self.gpu_ids, True)
        self.work: dict[AttemptId, Work] = {}
        self.reserved: ReservationId | None = None
        self.holds: set[GpuId] = set()
        self.tracks = {gpu_id: Track() for gpu_id in self.gpu_ids}
        self.register()

    def register(self) -> None:
        node = with_health(self.node, self.healthy)
        self.database.write_now(
            "nodes.register",
            lambda s: placements.register_devices(s, [node], self.now, simulated=False),
        )
        self.follow()

    def follow(self) -> None:
        """Note what every device must be now, by the model."""
        for gpu_id, track in self.tracks.items():
            mine = {key: work for key, work in self.work.items() if gpu_id in work.gpu_ids}
            works = mine.values()
            if any(work.busy for work in works):
                state = "busy"
            elif works:
                state = "allocated_idle"
            elif not self.healthy[gpu_id]:
                state = "down"
            else:
                state = "reserved" if gpu_id in self.holds else "free"
            unused = 1000 - sum(work.milli for work in works)
            kept = gpu_id in self.holds and self.healthy[gpu_id] and unused
            holders = (kept, {key: work.busy for key, work in mine.items()})
            track.note(state, holders, self.now)

    @rule(
        tick=TICKS,
        busy=st.booleans(),
        first=st.booleans(),
        both=st.booleans(),
        milli=st.sampled_from([200, 500, 1000]),
        inside=st.booleans(),
    )
    def place(
        self, tick: int, busy: bool, first: bool, both: bool, milli: int, inside: bool
    ) -> None:
        self.now += tick
        gpu_ids = tuple(self.gpu_ids) if both else (self.gpu_ids[0 if first else 1],)
        reservation = self.reserved if inside else None
        order = PlacementOrder(
            AttemptId(new_id()),
            JobId(new_id()),
            self.tenant_id,
            ProjectId(new_id()),
            self.cluster_id,
            (ReplicaOrder(ReplicaId(new_id()), 0, self.node.id, gpu_ids, milli, cpu_milli=10),),
            reservation,
        )
        result = self.database.write_now(
            "placements.place", lambda s: placements.place(s, [order], self.now)
        )
        fits = all(
            self.healthy[gpu_id]
            and (gpu_id not in self.holds or reservation is not None)
            and milli + sum(each.milli for each in self.work.values() if gpu_id in each.gpu_ids)
            <= 1000
            for gpu_id in gpu_ids
        )
        assert (result.placed == (order.attempt_id,)) is fits
        if fits:
            self.work[order.attempt_id] = Work(gpu_ids, milli)
        self.follow()
        if fits and busy:
            self.switch(order.attempt_id, placements.mark_busy)

    @precondition(lambda self: self.work)
    @rule(tick=TICKS, pick=st.integers(0, 9))
    def mark_busy(self, tick: int, pick: int) -> None:
        self.now += tick
        self.switch(sorted(self.work)[pick % len(self.work)], placements.mark_busy)

    @precondition(lambda self: self.work)
    @rule(tick=TICKS, pick=st.integers(0, 9))
    def mark_idle(self, tick: int, pick: int) -> None:
        self.now += tick
        self.switch(sorted(self.work)[pick % len(self.work)], placements.mark_idle)

    def switch(self, attempt_id: AttemptId, verb: Verb) -> None:
        self.database.write_now("placements.mark", lambda s: verb(s, [attempt_id], self.now))
        self.work[attempt_id].busy = verb is placements.mark_busy
        self.follow()

    @precondition(lambda self: self.work)
    @rule(tick=TICKS, pick=st.integers(0, 9), twice=st.booleans())
    def release(self, tick: int, pick: int, twice: bool) -> None:
        self.now += tick
        attempt_id = sorted(self.work)[pick % len(self.work)]
        for _ in range(2 if twice else 1):
            self.database.write_now(
                "placements.release", lambda s: placements.release(s, [attempt_id], self.now)
            )
        del self.work[attempt_id]
        self.follow()

    @rule(tick=TICKS, first=st.booleans())
    def break_or_mend(self, tick: int, first: bool) -> None:
        self.now += tick
        gpu_id = self.gpu_ids[0 if first else 1]
        self.healthy[gpu_id] = not self.healthy[gpu_id]
        self.register()

    @rule(tick=TICKS, count=st.integers(1, 2), charged=st.booleans())
    def reserve_or_cancel(self, tick: int, count: int, charged: bool) -> None:
        self.now += tick
        if self.reserved is not None:
            gone = self.reserved
            self.database.write_now(
                "placements.cancel",
                lambda s: placements.cancel_reservation(s, gone, "test", self.now),
            )
            self.reserved, self.holds = None, set()
        else:
            wanted = self.a_reservation(count, charged)
            self.database.write_now(
                "placements.reserve",
                lambda s: placements.create_reservation(s, wanted, "test", self.now),
            )
            self.database.write_now(
                "placements.advance", lambda s: placements.advance_reservations(s, self.now)
            )
            self.reserved = wanted.id
            self.holds = set(
                self.database.read_now(lambda s: placements.get_reservation(s, wanted.id)).gpu_ids
            )
            assert len(self.holds) == count
        self.follow()

    def a_reservation(self, count: int, charged: bool) -> Reservation:
        return Reservation(
            ReservationId(new_id()),
            self.cluster_id,
            self.tenant_id,
            self.project_id,
            MODEL,
            count,
            self.now,
            self.now + 1000 * HOUR_MS,
            charged,
            placements.ReservationState.SCHEDULED,
            "held",
            self.now,
            UserId(UUID(int=1)),
        )

    @invariant()
    def every_device_is_tiled(self) -> None:
        if not hasattr(self, "tracks"):
            return
        rows = self.database.read_now(
            lambda s: usage.list_intervals(s, 0, START * 2, self.cluster_id)
        )
        for gpu_id, track in self.tracks.items():
            mine = [row for row in rows if row.gpu_id == gpu_id]
            assert mine[0].from_at == START
            assert all(a.to_at == b.from_at for a, b in pairwise(mine))
            assert all(row.to_at is None or row.to_at > row.from_at for row in mine)
            assert [row.to_at is None for row in mine] == [False] * (len(mine) - 1) + [True]
            assert all(sum(share.milli for share in row.shares) <= 1000 for row in mine)
            spent: dict[str, int] = {}
            for row in mine:
                end = max(self.now, row.from_at) if row.to_at is None else row.to_at
                spent[str(row.state)] = spent.get(str(row.state), 0) + end - row.from_at
            expected = {state: ms for state, ms in track.spent(self.now).items() if ms}
            assert {state: ms for state, ms in spent.items() if ms} == expected
            held = {
                share.job_id: share.milli for share in mine[-1].shares if share.job_id is not None
            }
            works = [work.milli for work in self.work.values() if gpu_id in work.gpu_ids]
            assert sorted(held.values()) == sorted(works)
            rest = [share.milli for share in mine[-1].shares if share.job_id is None]
            unused = 1000 - sum(works)
            kept = gpu_id in self.holds and self.healthy[gpu_id] and unused
            assert rest == ([unused] if kept else [])

    def teardown(self) -> None:
        if not hasattr(self, "tracks"):
            return
        assert self.database.read_now(placements.check) == []
        assert self.database.read_now(lambda s: usage.check(s, self.now)) == []
