"""Who may take what from the guards, and which devices a reservation chooses."""

from __future__ import annotations

from uuid import UUID

import pytest

from gpuplane.core.capacity import ReservationState
from gpuplane.core.fleet.facts import MigPlacement
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
from gpuplane.core.reasons import Word
from gpuplane.domains.placements.rules.booking import (
    choose_devices,
    choose_reservation,
    compute_capacity,
    share_of,
    take,
)
from gpuplane.domains.placements.rules.values import (
    DeviceGuard,
    NodeGuard,
    PlacementOrder,
    ReplicaOrder,
    Reservation,
)

CLUSTER = ClusterId(UUID(int=1))
NODE = NodeId(UUID(int=2))
OTHER_NODE = NodeId(UUID(int=3))
HELD_BY = ReservationId(UUID(int=9))


def a_device(name: str, **facts: object) -> DeviceGuard:
    values: dict[str, object] = {
        "node_id": NODE,
        "cluster_id": CLUSTER,
        "model": "nvidia-h100-80gb",
        "allocated_milli": 0,
        "allocated_mig_mask": 0,
        "down": False,
        "reservation_id": None,
        "version": 1,
    }
    return DeviceGuard(GpuId(name), **(values | facts))  # type: ignore[arg-type]  # any field


def a_node() -> NodeGuard:
    return NodeGuard(NODE, CLUSTER, 8000, 0, 4096, 0, 100, 0, False, 1)


def an_order(*replicas: ReplicaOrder, reservation: ReservationId | None = None) -> PlacementOrder:
    return PlacementOrder(
        AttemptId(UUID(int=4)),
        JobId(UUID(int=5)),
        TenantId(UUID(int=6)),
        ProjectId(UUID(int=7)),
        CLUSTER,
        replicas,
        reservation,
    )


def a_replica(*gpus: str, **facts: object) -> ReplicaOrder:
    ids = tuple(GpuId(name) for name in gpus)
    return ReplicaOrder(ReplicaId(UUID(int=8)), 0, NODE, ids, **facts)  # type: ignore[arg-type]  # any field


def test_a_refused_gang_leaves_the_guards_as_they_were() -> None:
    nodes = {NODE: a_node()}
    devices = {GpuId("a"): a_device("a"), GpuId("b"): a_device("b", allocated_milli=1)}
    order = an_order(a_replica("a", cpu_milli=100), a_replica("b", cpu_milli=100))
    reason = take(order, nodes, devices, {})
    assert reason is not None
    assert reason.word is Word.GPU_COUNT
    assert nodes[NODE].cpu_milli_used == 0
    assert devices[GpuId("a")].allocated_milli == 0


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"down": True}, Word.NOT_READY),
        ({"reservation_id": HELD_BY}, Word.RESERVED),
        ({"allocated_milli": 1}, Word.GPU_COUNT),
        ({"allocated_milli": 142, "allocated_mig_mask": 1}, Word.GPU_COUNT),
        ({"node_id": OTHER_NODE}, Word.GPU_COUNT),
    ],
)
def test_a_device_that_is_not_to_be_had_is_refused_with_its_word(
    facts: dict[str, object], word: Word
) -> None:
    reason = take(
        an_order(a_replica("a")), {NODE: a_node()}, {GpuId("a"): a_device("a", **facts)}, {}
    )
    assert reason is not None
    assert reason.word is word


def test_the_holder_of_a_reservation_takes_its_device() -> None:
    devices = {GpuId("a"): a_device("a", reservation_id=HELD_BY)}
    order = an_order(a_replica("a"), reservation=HELD_BY)
    assert take(order, {NODE: a_node()}, devices, {}) is None
    assert devices[GpuId("a")].allocated_milli == 1000


def test_a_project_may_use_what_is_reserved_for_it() -> None:
    devices = {GpuId("a"): a_device("a", reservation_id=HELD_BY)}
    others = {HELD_BY: ProjectId(UUID(int=70))}
    own = {HELD_BY: ProjectId(UUID(int=7))}
    reason = take(an_order(a_replica("a")), {NODE: a_node()}, devices, others)
    assert reason is not None
    assert reason.word is Word.RESERVED
    assert take(an_order(a_replica("a")), {NODE: a_node()}, devices, own) is None


def test_a_workload_uses_the_longest_reservation_of_its_model() -> None:
    held = [a_reservation(1, 0, 10, 1), a_reservation(1, 0, 20, 2)]
    assert choose_reservation(held, "nvidia-h100-80gb") == held[1].id
    assert choose_reservation(held, None) == held[1].id
    assert choose_reservation(held, "nvidia-t4") is None
    assert choose_reservation([], None) is None


def test_ephemeral_storage_is_not_oversold() -> None:
    reason = take(an_order(a_replica(ephemeral_mib=101)), {NODE: a_node()}, {}, {})
    assert reason is not None
    assert reason.word is Word.EPHEMERAL_STORAGE


@pytest.mark.parametrize(
    ("model", "profile", "milli"),
    [("nvidia-h100-80gb", "3g.40gb", 428), ("nvidia-a30", "1g.6gb", 250)],
)
def test_a_mig_instance_counts_as_its_part_of_the_models_slices(
    model: str, profile: str, milli: int
) -> None:
    gpu = GpuId("a")
    replica = a_replica(mig=MigPlacement(gpu, profile, 0))
    assert share_of(replica, {gpu: a_device("a", model=model)}) == [(gpu, milli)]


def a_reservation(count: int, start: int, end: int, number: int = 0) -> Reservation:
    return Reservation(
        ReservationId(UUID(int=100 + number)),
        CLUSTER,
        TenantId(UUID(int=6)),
        ProjectId(UUID(int=7)),
        "nvidia-h100-80gb",
        count,
        start,
        end,
        True,
        ReservationState.SCHEDULED,
        "",
        0,
        UserId(UUID(int=8)),
    )


def test_a_reservation_takes_healthy_free_devices_of_emptier_nodes_first() -> None:
    devices = [
        a_device("busy", allocated_milli=1000),
        a_device("broken", down=True),
        a_device("lonely"),
        a_device("pair-1", node_id=OTHER_NODE),
        a_device("pair-2", node_id=OTHER_NODE),
    ]
    assert choose_devices(2, devices) == ("pair-1", "pair-2")
    assert choose_devices(4, devices) == ("pair-1", "pair-2", "lonely", "busy")
    assert choose_devices(9, devices)[-1] == "broken"
    after_busy = choose_devices(4, devices, fixed=frozenset({GpuId("lonely")}))
    assert after_busy == ("pair-1", "pair-2", "busy", "lonely")


def test_every_device_is_counted_in_one_state() -> None:
    devices = [
        a_device("free"),
        a_device("reserved", reservation_id=HELD_BY),
        a_device("shared", allocated_milli=300),
        a_device("mig", allocated_milli=142, allocated_mig_mask=1),
        a_device("broken", down=True),
        a_device("broken-in-use", down=True, allocated_milli=1000),
    ]
    (model,) = compute_capacity([a_node()], devices).models
    assert (model.free, model.reserved, model.in_use, model.down) == (1, 1, 3, 1)
    assert model.total == 6
    assert model.partly_free_milli == 700
