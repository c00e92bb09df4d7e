"""The ledger on both databases: one unbroken row of intervals for every device."""

from __future__ import annotations

from gpuplane.domains.placements import service as placements
from gpuplane.domains.usage import service as usage
from tests.integration.ledger.histories import HOUR_MS, START, with_health
from tests.integration.ledger.worlds import World

MINUTE = 60_000


def test_a_job_is_idle_then_busy_then_the_device_is_free(world: World) -> None:
    gpu = world.gpus[0]
    world.now += MINUTE
    order = world.order(world.replica(gpu))
    world.place(order)
    world.now += MINUTE
    world.database.write_now(
        "placements.busy", lambda s: placements.mark_busy(s, [order.attempt_id], world.now)
    )
    world.now += MINUTE
    world.idle(order)
    world.now += MINUTE
    world.release(order)
    assert world.intervals(gpu) == [
        (0, MINUTE, "free"),
        (MINUTE, 2 * MINUTE, "allocated_idle"),
        (2 * MINUTE, 3 * MINUTE, "busy"),
        (3 * MINUTE, 4 * MINUTE, "allocated_idle"),
        (4 * MINUTE, None, "free"),
    ]


def test_what_happens_within_one_millisecond_leaves_no_empty_interval(world: World) -> None:
    order = world.run(world.replica(world.gpus[0]))
    world.release(order)
    world.run(world.replica(world.gpus[0]))
    assert world.intervals(world.gpus[0]) == [(0, None, "busy")]
    assert world.faults() == []


def test_a_clock_that_steps_back_makes_no_negative_interval(world: World) -> None:
    world.now += HOUR_MS
    order = world.run(world.replica(world.gpus[0]))
    world.now -= HOUR_MS
    world.idle(order)
    world.release(order)
    world.now += 2 * HOUR_MS
    world.run(world.replica(world.gpus[0]))
    assert world.intervals(world.gpus[0]) == [
        (0, HOUR_MS, "free"),
        (HOUR_MS, 2 * HOUR_MS, "free"),
        (2 * HOUR_MS, None, "busy"),
    ]
    assert world.faults() == []


def test_a_device_that_fails_is_down_and_one_that_is_held_keeps_its_meter(world: World) -> None:
    world.run(world.replica(world.gpus[0]))
    world.now += MINUTE
    world.register(with_health(world.node, dict.fromkeys(world.gpus[:2], False)))
    assert world.intervals(world.gpus[0]) == [(0, None, "busy")]
    assert world.intervals(world.gpus[1]) == [(0, MINUTE, "free"), (MINUTE, None, "down")]
    assert world.faults() == []


def test_a_retired_device_ends_and_its_absence_was_down_if_it_returns(world: World) -> None:
    gpu = world.gpus[0]
    world.now += MINUTE
    gone = world.database.write_now(
        "placements.retire", lambda s: placements.retire_devices(s, [gpu], world.now)
    )
    assert gone == (gpu,)
    assert world.intervals(gpu) == [(0, MINUTE, "free")]
    assert world.faults() == []
    world.now += MINUTE
    world.register(world.node)
    assert world.intervals(gpu) == [
        (0, MINUTE, "free"),
        (MINUTE, 2 * MINUTE, "down"),
        (2 * MINUTE, None, "free"),
    ]
    assert world.faults() == []


def test_a_device_that_is_held_is_not_retired(world: World) -> None:
    world.run(world.replica(world.gpus[0]))
    gone = world.database.write_now(
        "placements.retire", lambda s: placements.retire_devices(s, world.gpus[:2], world.now)
    )
    assert gone == (world.gpus[1],)
    assert world.faults() == []


def test_the_states_of_a_cluster_add_up_to_its_wall_clock(world: World) -> None:
    world.run(world.replica(world.gpus[0]))
    world.now += 10 * MINUTE
    totals = world.database.read_now(
        lambda s: usage.sum_states(s, START + MINUTE, START + 99 * MINUTE, world.now)
    )
    assert [each.adds_up for each in totals] == [True]
    assert totals[0].wall_clock == 4 * 9 * MINUTE
    assert totals[0].states[usage.DeviceState.BUSY] == 9 * MINUTE
    assert totals[0].states[usage.DeviceState.FREE] == 27 * MINUTE
