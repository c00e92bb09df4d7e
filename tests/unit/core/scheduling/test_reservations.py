"""Calendar capacity: what can be granted, what is kept clear, and when nobody shows up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuplane.core.amounts import MS_PER_S
from gpuplane.core.fleet.columns import NEVER, bits_of
from gpuplane.core.forecast.forecasting import forecast
from gpuplane.core.ids import ReservationId
from gpuplane.core.quota.specs import (
    GPU,
    ClusterQueueSpec,
    FlavorResource,
    QueueingStrategy,
    ResourceGroup,
    ResourceQuota,
    unlimited_cluster_queue,
)
from gpuplane.core.reasons import Word
from gpuplane.core.scheduling.cycle import decide
from gpuplane.core.scheduling.decisions import Decision
from gpuplane.core.scheduling.policy import Policy
from gpuplane.core.scheduling.reservations import (
    Hold,
    Reservation,
    Window,
    compute_room,
    is_no_show,
    plan_upcoming,
)
from gpuplane.core.scheduling.workload import Workload
from gpuplane.core.workloads import Priority
from tests.builders import CLUSTER, H100, NOW, World, a_node, a_workload, an_id

HOUR_MS = 3_600_000
ALL_DAY = Window(0, 24, 0)


def a_reservation(count: int, start_s: int = 3600, hours: int = 2, **rest: Any) -> Reservation:
    start = NOW + start_s * MS_PER_S
    held = ReservationId(an_id(f"reservation/{start_s}"))
    values = {"tenant": "lab", "project": "large-run", **rest}
    return Reservation(held, CLUSTER, H100, count, start, start + hours * HOUR_MS, **values)


def decided(world: World, *reservations: Reservation) -> Decision:
    return decide(world.snapshot(reservations=reservations), Policy(), NOW, 0)


def a_job(name: str, gpus: int, **changes: Any) -> Workload:
    return a_workload(name).gpus(gpus).having(**changes).build()


def is_placed(decision: Decision, workload: Workload) -> bool:
    return workload.job_id in {placed.job_id for placed in decision.placed}


def test_reservations_one_after_another_do_not_add_up() -> None:
    others = [Window(0, 10, 3), Window(10, 20, 3)]
    assert compute_room(Window(0, 20, 1), others, 4) == 1
    assert compute_room(Window(20, 30, 1), others, 4) == 4


def test_reservations_at_one_time_add_up() -> None:
    assert compute_room(Window(0, 20, 1), [Window(0, 10, 2), Window(5, 15, 1)], 4) == 1


@pytest.mark.parametrize(
    ("hold", "room"),
    [
        (Hold(3, NEVER, may_be_stopped=True), 8),
        (Hold(3, NEVER, may_be_stopped=False), 5),
        (Hold(3, 1, may_be_stopped=False), 5),
        (Hold(3, 0, may_be_stopped=False), 8),
    ],
)
def test_only_work_that_nobody_may_stop_and_that_is_not_over_takes_room(
    hold: Hold, room: int
) -> None:
    assert compute_room(ALL_DAY, (), 8, [hold]) == room


def test_work_that_ends_before_a_reservation_begins_uses_its_gpus_until_then() -> None:
    short = a_job("short", 8, estimated_duration_s=3600)
    long = a_job("long", 8, estimated_duration_s=3601)
    for job, fits in ((short, True), (long, False)):
        world = World([a_node()], pending=[job])
        assert is_placed(decided(world, a_reservation(1)), job) is fits


def test_what_waits_because_of_a_reservation_is_told_so() -> None:
    world = World([a_node()], pending=[a_job("long", 8, estimated_duration_s=7200)])
    assert decided(world, a_reservation(2)).waiting[0].reason.word is Word.RESERVED


def test_a_reservation_keeps_no_more_gpus_clear_than_it_has() -> None:
    long = a_job("long", 6, estimated_duration_s=86_400)
    world = World([a_node()], pending=[long])
    assert is_placed(decided(world, a_reservation(2)), long)
    assert not is_placed(decided(world, a_reservation(3)), long)


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"max_duration_s": 3600}, True),
        ({"max_duration_s": 3601}, False),
        # A guess does not bind: only what is enforced does.
        ({"estimated_duration_s": 60}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("guard", [{"preemptible": False}, {"priority": Priority.CRITICAL}])
def test_work_that_nobody_may_stop_must_be_over_by_force_before_it_begins(
    changes: dict[str, Any], guard: dict[str, Any], fits: bool
) -> None:
    job = a_job("fixed", 8, **changes, **guard)
    assert is_placed(decided(World([a_node()], pending=[job]), a_reservation(1)), job) is fits


def test_the_project_of_a_reservation_may_use_its_gpus_before() -> None:
    job = a_job("own", 8, estimated_duration_s=86_400, tenant="lab", project="large-run")
    assert is_placed(decided(World([a_node()], pending=[job]), a_reservation(8)), job)


def test_gpus_whose_work_is_over_by_then_are_kept_before_idle_ones() -> None:
    world = World([a_node()], pending=[a_job("short", 4, estimated_duration_s=600)])
    world.apply(decided(world))
    long = a_job("long", 4, estimated_duration_s=86_400)
    world.pending = [long]
    assert is_placed(decided(world, a_reservation(4)), long)
    assert not is_placed(decided(world, a_reservation(5)), long)


def test_two_reservations_share_gpus_only_one_after_the_other() -> None:
    long = a_job("long", 4, estimated_duration_s=86_400)
    world = World([a_node()], pending=[long])
    one = a_reservation(4, 3600, hours=2)
    after = a_reservation(4, 3600 + 7200, hours=2)
    beside = a_reservation(4, 3600 + 3600, hours=2)
    assert is_placed(decided(world, one, after), long)
    assert not is_placed(decided(world, one, beside), long)


def test_what_was_promised_stays_clear_as_work_comes_and_goes() -> None:
    """Cycle after cycle, whoever starts: the reserved number of GPUs can be clear at the start."""
    reservation = a_reservation(5)
    world = World([a_node("a"), a_node("b")])
    for step in range(12):
        now = NOW + step * 300 * MS_PER_S
        fixed = {"preemptible": False} if step % 2 else {}
        world.pending = [
            a_job(f"j{step}", 1 + step % 4, estimated_duration_s=step * 900 + 60, **fixed)
        ]
        found = decide(world.snapshot(reservations=(reservation,)), Policy(), now, 0)
        world.apply(found, now)
        world.running = [
            each
            for each in world.running
            if now < each.started_at + (each.workload.estimated_duration_s or 0) * MS_PER_S
        ]
    held = sum(
        len(each.gpu_ids)
        for running in world.running
        if running.workload.preemptible is False
        for each in running.allocations
    )
    assert held <= 16 - reservation.gpu_count


def test_nodes_alike_are_told_apart_by_what_is_kept_clear_on_them() -> None:
    long = [a_job(f"long{i}", 2, estimated_duration_s=86_400) for i in range(8)]
    world = World([a_node("a"), a_node("b")], pending=long)
    reservation = a_reservation(4)
    decision = decided(world, reservation)
    (upcoming,) = plan_upcoming(world.snapshot_fleet(), [reservation], [], NOW)
    clear = {
        world.nodes[node].gpus[gpu].gpu_id
        for node, mask in enumerate(upcoming.masks.tolist())
        for gpu in bits_of(mask)
    }
    given = [gpu for placed in decision.placed for each in placed.replicas for gpu in each.gpu_ids]
    assert len(clear) == 4
    assert len(given) == len(set(given)) == 12
    assert not clear & set(given)


def test_a_reservation_that_is_over_keeps_nothing_clear() -> None:
    long = a_job("long", 8, estimated_duration_s=86_400)
    past = a_reservation(8, -7200, hours=1)
    assert is_placed(decided(World([a_node()], pending=[long]), past), long)


def test_work_that_a_reservation_keeps_away_is_forecast_to_start_at_its_end() -> None:
    job = a_job("long", 8, estimated_duration_s=86_400)
    reservation = a_reservation(8)
    snapshot = World([a_node()], pending=[job]).snapshot(reservations=(reservation,))
    found = forecast(snapshot, Policy(), NOW, 0).estimates[job.job_id]
    assert found.start == reservation.end_at


def a_strict_queue(gpus: int) -> ClusterQueueSpec:
    quota = {FlavorResource("any", GPU): ResourceQuota(gpus * 1000)}
    groups = (ResourceGroup((GPU,), ("any",)),)
    return ClusterQueueSpec("default", None, groups, quota, QueueingStrategy.STRICT_FIFO)


def test_work_on_its_reservation_needs_no_quota_and_waits_behind_nobody() -> None:
    held = ReservationId(an_id("held"))
    node = a_node(reserved={0: held, 1: held})
    head = a_job("head", 8, queued_at=NOW - 10)
    own = a_job("own", 2, reservation_id=held)
    world = World([node], [a_strict_queue(0)], pending=[head, own])
    found = decided(world)
    assert [placed.job_id for placed in found.placed] == [own.job_id]
    assert found.placed[0].usage == ()
    assert "It runs on GPUs of its reservation." in found.placed[0].explanation
    taken = {gpu for each in found.placed[0].replicas for gpu in each.gpu_ids}
    assert taken == {node.gpus[0].gpu_id, node.gpus[1].gpu_id}


@pytest.mark.parametrize("queue", ["theirs", "default"])
def test_work_on_its_reservation_starts_on_a_node_that_is_kept_for_a_head(queue: str) -> None:
    held = ReservationId(an_id("held"))
    node = a_node(reserved=dict.fromkeys(range(4, 8), held))
    queues = [unlimited_cluster_queue("theirs"), unlimited_cluster_queue("default")]
    world = World([node], queues)
    world.pending = [a_job("now", 4, estimated_duration_s=1000)]
    world.apply(decided(world))
    head = a_workload("head", "theirs").gpus(4).priority(Priority.HIGH).build()
    own = a_workload("own", queue).gpus(4).having(reservation_id=held).build()
    world.pending = [head, own]
    found = decided(world)
    assert "A place is kept for it" in found.waiting[0].reason.sentence
    assert [placed.job_id for placed in found.placed] == [own.job_id]


def test_without_quota_no_gpu_beyond_the_reservation_is_given() -> None:
    held = ReservationId(an_id("held"))
    own = a_job("own", 3, reservation_id=held)
    world = World([a_node(reserved={0: held, 1: held})], [a_strict_queue(0)], pending=[own])
    assert decided(world).placed == ()


def test_a_reservation_is_a_no_show_only_after_its_grace_and_unused() -> None:
    assert not is_no_show(NOW, NOW + 599_999, 600, was_used=False)
    assert is_no_show(NOW, NOW + 600_000, 600, was_used=False)
    assert not is_no_show(NOW, NOW + 600_000, 600, was_used=True)
    assert not is_no_show(NOW, NOW + 10**9, 0, was_used=False)


def test_the_plan_does_not_depend_on_the_order_of_reservations() -> None:
    jobs = [a_job(f"j{i}", i, estimated_duration_s=i * 3000) for i in (1, 2, 3)]
    both = [a_reservation(3), a_reservation(4, 7200)]
    first = decided(World([a_node("a"), a_node("b")], pending=jobs), *both).to_json()
    again = decided(World([a_node("a"), a_node("b")], pending=jobs[::-1]), *both[::-1]).to_json()
    assert first == again


def test_work_lent_the_highest_class_is_not_stopped_for_a_reservation() -> None:
    job = a_job("spot", 8, priority=Priority.SPOT, estimated_duration_s=60)
    lent = replace(job, inherited_priority=Priority.CRITICAL)
    assert is_placed(decided(World([a_node()], pending=[job]), a_reservation(1)), job)
    assert not is_placed(decided(World([a_node()], pending=[lent]), a_reservation(1)), lent)
