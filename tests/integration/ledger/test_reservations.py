"""Capacity reservations on both databases: counted, begun, guarded, charged, ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuplane.core.ids import ProjectId, ReservationId
from gpuplane.core.reasons import Word
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.errors import BadReservation, NotEnoughCapacity, ReservationOver
from gpuplane.kit.ids import new_id
from tests.integration.ledger.histories import HOUR_MS, MODEL
from tests.integration.ledger.worlds import World


def test_reservations_are_refused_beyond_what_the_cluster_has_at_any_time(world: World) -> None:
    world.reserve(3, 0, 2 * HOUR_MS)
    world.reserve(1, HOUR_MS, 3 * HOUR_MS)
    with pytest.raises(NotEnoughCapacity, match="0 of 4"):
        world.reserve(1, 0, 2 * HOUR_MS)
    world.reserve(3, 2 * HOUR_MS, 4 * HOUR_MS)


def test_a_reservation_in_the_past_or_of_an_unknown_model_is_refused(world: World) -> None:
    world.now += HOUR_MS
    with pytest.raises(BadReservation):
        world.reserve(1, 0, HOUR_MS)


def test_a_reservation_begins_at_most_a_minute_in_the_past(world: World) -> None:
    world.now += HOUR_MS
    with pytest.raises(BadReservation, match="begin in the past") as refused:
        world.reserve(1, HOUR_MS - 60_001, 2 * HOUR_MS)
    assert (refused.value.field, refused.value.fix) == ("start", "Give a start from now on.")
    assert world.reserve(1, HOUR_MS - 60_000, 2 * HOUR_MS).gpu_count == 1


def test_a_reservation_is_no_show_only_so_long_after_its_gpus_were_its_own(world: World) -> None:
    late, in_the_way, grace_s = HOUR_MS, HOUR_MS // 2, 600

    def advance() -> tuple[ReservationId, ...]:
        return world.database.write_now(
            "placements.advance",
            lambda s: placements.advance_reservations(s, world.now, grace_s),
        ).ended

    stranger = world.order(world.replica(*world.gpus), project_id=ProjectId(new_id()))
    world.place(stranger)
    reservation = world.reserve(4, 0, 9 * HOUR_MS)
    world.now += late
    assert advance() == ()
    world.now += in_the_way
    assert advance() == ()
    world.release(stranger)
    world.now += grace_s * 1000 - 1
    assert advance() == ()
    world.now += 1
    assert advance() == (reservation.id,)
    assert advance() == ()


def test_a_reservation_that_begins_late_waits_its_grace_from_then(world: World) -> None:
    reservation = world.reserve(2, 0, 9 * HOUR_MS)
    for moved, ended in ((HOUR_MS, ()), (599_999, ()), (1, (reservation.id,))):
        world.now += moved
        changes = world.database.write_now(
            "placements.advance", lambda s: placements.advance_reservations(s, world.now, 600)
        )
        assert changes.ended == ended


def test_an_active_reservation_keeps_others_out_and_lets_its_own_in(world: World) -> None:
    reservation = world.reserve(4, 0, HOUR_MS)
    assert world.advance().activated == (reservation.id,)
    assert set(world.intervals(world.gpus[0])) == {(0, None, "reserved")}
    stranger = world.order(world.replica(world.gpus[0]), project_id=ProjectId(new_id()))
    assert world.place(stranger).refused[stranger.attempt_id].word is Word.RESERVED
    own = world.order(world.replica(world.gpus[0]))
    usable = world.database.read_now(lambda s: placements.usable_reservations(s, world.cluster_id))
    assert [each.id for each in usable[world.project_id]] == [reservation.id]
    assert world.place(own).placed == (own.attempt_id,)
    reserved = world.database.read_now(lambda s: placements.reserved_devices(s, world.cluster_id))
    assert reserved == dict.fromkeys(world.gpus, reservation.id)
    assert world.faults() == []


def test_jobs_in_the_way_keep_their_devices_until_they_end(world: World) -> None:
    stranger = world.order(world.replica(world.gpus[0]), project_id=ProjectId(new_id()))
    world.place(stranger)
    world.reserve(4, 0, HOUR_MS)
    assert world.advance().in_the_way == (stranger.job_id,)
    assert world.intervals(world.gpus[0]) == [(0, None, "allocated_idle")]
    world.now += 1000
    world.release(stranger)
    assert world.intervals(world.gpus[0])[-1] == (1000, None, "reserved")
    assert world.faults() == []


def test_free_devices_are_reserved_before_those_in_use(world: World) -> None:
    world.run(world.replica(world.gpus[0]))
    reservation = world.reserve(3, 0, HOUR_MS)
    assert world.advance().in_the_way == ()
    found = world.database.read_now(lambda s: placements.get_reservation(s, reservation.id))
    assert set(found.gpu_ids) == set(world.gpus[1:])


def test_a_reservation_ends_by_itself_and_only_once(world: World) -> None:
    reservation = world.reserve(2, 0, HOUR_MS)
    world.advance()
    world.now += HOUR_MS
    assert world.advance().ended == (reservation.id,)
    assert world.advance().ended == ()
    free = world.order(world.replica(*world.gpus))
    assert world.place(free).placed == (free.attempt_id,)
    with pytest.raises(ReservationOver):
        world.database.write_now(
            "placements.cancel",
            lambda s: placements.cancel_reservation(s, reservation.id, "test", world.now),
        )
    assert world.faults() == []


@pytest.mark.parametrize("charge_unused", [True, False])
def test_unused_reserved_time_is_charged_when_agreed(world: World, *, charge_unused: bool) -> None:
    reservation = world.reserve(1, 0, HOUR_MS, charge_unused=charge_unused)
    world.advance()
    held = world.database.read_now(lambda s: placements.get_reservation(s, reservation.id))
    world.now += HOUR_MS // 2
    half = world.replica(held.gpu_ids[0], milli=500, cpu_milli=0, memory_mib=0)
    own = world.order(half, reservation_id=reservation.id)
    assert world.place(own).placed == (own.attempt_id,)
    world.now += HOUR_MS // 2
    world.advance()
    (row,) = world.usage("project", model=MODEL)
    unused = 1000 * HOUR_MS // 2 + 500 * HOUR_MS // 2
    assert row.gpu_reserved == unused
    assert row.gpu_idle == 500 * HOUR_MS // 2
    assert row.gpu_billable == row.gpu_idle + (unused if charge_unused else 0)


def test_beginning_and_giving_up_at_once_leave_no_device_reserved(world: World) -> None:
    def give_up(reservation_id: ReservationId) -> None:
        world.database.write_now(
            "placements.cancel",
            lambda s: placements.cancel_reservation(s, reservation_id, "test", world.now),
        )

    for _ in range(6):
        made = world.reserve(4, 0, HOUR_MS)
        with ThreadPoolExecutor(2) as threads:
            begun = threads.submit(world.advance)
            gone = threads.submit(give_up, made.id)
            gone.result()
            assert begun.result().ended == ()
        found = world.database.read_now(lambda s: placements.get_reservation(s, made.id))  # noqa: B023 - read before the next turn
        assert (found.state, found.gpu_ids) == (placements.ReservationState.CANCELLED, ())
    assert world.faults() == []
