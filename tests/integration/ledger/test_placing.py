"""Placing and giving back, on both databases: all or nothing, and nothing sold twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from gpuplane.core.fleet.facts import MigPlacement
from gpuplane.core.ids import GpuId
from gpuplane.core.reasons import Word
from gpuplane.db.database import Database
from gpuplane.db.types import Base
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import PlacementOrder
from gpuplane.kit.ids import new_id
from tests.integration.ledger.histories import Histories, a_node, with_health
from tests.integration.ledger.worlds import World


def test_a_placed_attempt_holds_its_devices_and_its_part_of_the_node(world: World) -> None:
    order = world.order(world.replica(world.gpus[0], world.gpus[1], cpu_milli=4000))
    assert world.place(order).placed == (order.attempt_id,)
    rows = world.database.read_now(lambda s: placements.list_open(s, world.cluster_id))
    assert {row.gpu_id for row in rows} == {None, world.gpus[0], world.gpus[1]}
    assert sum(row.cpu_milli for row in rows) == 4000
    assert world.faults() == []


def test_a_gang_is_placed_whole_or_not_at_all(world: World) -> None:
    world.run(world.replica(world.gpus[3]))
    gang = world.order(*(world.replica(gpu, rank=i) for i, gpu in enumerate(world.gpus)))
    assert world.place(gang).refused[gang.attempt_id].word is Word.GPU_COUNT
    free = world.order(world.replica(*world.gpus[:3]))
    assert world.place(free).placed == (free.attempt_id,)
    assert world.faults() == []


def test_of_two_orders_for_one_device_the_first_gets_it(world: World) -> None:
    first, second = (world.order(world.replica(world.gpus[0])) for _ in range(2))
    result = world.place(first, second)
    assert result.placed == (first.attempt_id,)
    assert result.refused[second.attempt_id].word is Word.GPU_COUNT


def test_shares_of_a_device_are_sold_up_to_the_whole(world: World) -> None:
    orders = [world.order(world.replica(world.gpus[0], milli=400)) for _ in range(3)]
    result = world.place(*orders)
    assert result.placed == (orders[0].attempt_id, orders[1].attempt_id)
    assert "200 of 400" in result.refused[orders[2].attempt_id].sentence


def test_a_mig_instance_is_sold_once_and_keeps_whole_devices_away(world: World) -> None:
    slots = [MigPlacement(world.gpus[0], "3g.40gb", start) for start in (0, 4, 0)]
    orders = [world.order(world.replica(mig=slot)) for slot in slots]
    result = world.place(*orders)
    assert result.placed == (orders[0].attempt_id, orders[1].attempt_id)
    assert result.refused[orders[2].attempt_id].word is Word.MIG_UNAVAILABLE
    part = world.order(world.replica(world.gpus[0], milli=100))
    assert world.place(part).refused[part.attempt_id].word is Word.GPU_COUNT
    assert world.release(orders[0]) == 2
    assert world.place(orders[2]).placed == (orders[2].attempt_id,)
    assert world.faults() == []


@pytest.mark.parametrize(
    ("cpu_milli", "memory_mib", "word"),
    [(64_001, 0, Word.CPU), (0, 512_001, Word.MEMORY)],
)
def test_a_node_is_not_sold_beyond_its_totals(
    world: World, cpu_milli: int, memory_mib: int, word: Word
) -> None:
    order = world.order(world.replica(cpu_milli=cpu_milli, memory_mib=memory_mib))
    assert world.place(order).refused[order.attempt_id].word is word


def test_a_device_that_is_down_is_not_sold(world: World) -> None:
    world.register(with_health(world.node, {world.gpus[0]: False}))
    order = world.order(world.replica(world.gpus[0]))
    assert world.place(order).refused[order.attempt_id].word is Word.NOT_READY


def test_a_device_or_node_that_is_unknown_is_refused(world: World) -> None:
    stranger = world.order(world.replica(GpuId("GPU-unknown")))
    elsewhere = world.order(world.replica(node=a_node(world.cluster_id)))
    twice = world.order(world.replica(world.gpus[0], world.gpus[0]))
    assert world.place(stranger, elsewhere, twice).placed == ()


def test_placing_and_giving_back_again_change_nothing(world: World) -> None:
    order = world.order(world.replica(world.gpus[0]))
    assert world.place(order).placed == (order.attempt_id,)
    assert world.place(order).placed == (order.attempt_id,)
    assert world.release(order) == 2
    assert world.release(order) == 0
    assert world.faults() == []


def test_an_attempt_can_grow_and_shrink_by_replicas(world: World) -> None:
    order = world.run(world.replica(world.gpus[0]))
    more = replace(order, replicas=(*order.replicas, world.replica(world.gpus[1], rank=1)))
    assert world.place(more).placed == (order.attempt_id,)
    gone = [more.replicas[1].replica_id]
    world.database.write_now(
        "placements.shrink", lambda s: placements.release_replicas(s, gone, world.now)
    )
    held = world.database.read_now(lambda s: placements.held_by_jobs(s, world.cluster_id))
    assert [each.gpu_ids for each in held[order.job_id]] == [(world.gpus[0],)]
    assert world.faults() == []


def test_a_node_that_shrinks_keeps_what_is_held_on_it(world: World) -> None:
    order = world.run(world.replica(cpu_milli=40_000))
    small = replace(world.node, cpu_milli=16_000)
    world.register(small)
    assert world.faults() == []
    world.release(order)
    world.register(small)
    again = world.order(world.replica(cpu_milli=20_000))
    assert world.place(again).refused[again.attempt_id].word is Word.CPU


def test_the_database_itself_refuses_to_sell_a_device_twice(world: World) -> None:
    order = world.run(world.replica(world.gpus[0]))
    rows = world.database.read_now(lambda s: placements.list_for_jobs(s, [order.job_id]))
    row = next(row for row in rows if row.gpu_id is not None)
    values = {**row._asdict(), "id": new_id(), "replica_id": new_id()}
    table = Base.metadata.tables["placements_allocations"]
    with pytest.raises(IntegrityError):
        world.database.write_now(
            "placements.wrong", lambda s: s.execute(insert(table).values(**values))
        )


def test_check_finds_a_guard_that_is_off(world: World) -> None:
    order = world.run(world.replica(world.gpus[0]))
    table = Base.metadata.tables["placements_devices"]
    wrong = table.update().where(table.c.gpu_id == world.gpus[0]).values(allocated_milli=500)
    world.database.write_now("placements.wrong", lambda s: s.execute(wrong))
    assert any(world.gpus[0] in fault for fault in world.faults())
    shares = Base.metadata.tables["usage_shares"]
    world.database.write_now("usage.wrong", lambda s: s.execute(shares.delete()))
    faults = world.faults()
    assert any("has no share in the open interval" in fault for fault in faults)
    assert any("nobody holds it" in fault for fault in faults)
    assert order.attempt_id


def test_many_at_once_neither_oversell_nor_wait_in_a_circle(world: World) -> None:
    def fight(seed: int) -> None:
        mine: list[PlacementOrder] = []
        for turn in range(12):
            first = (seed + turn) % 4
            gpus = (world.gpus[first], world.gpus[(first + 1 + turn % 3) % 4])
            order = world.order(world.replica(*gpus, milli=500))
            if world.place(order).placed:
                mine.append(order)
            if len(mine) > 1:
                world.release(mine.pop(0))
        world.release(*mine)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(fight, range(4))) == [None] * 4
    assert world.faults() == []
    left = world.database.read_now(lambda s: placements.list_open(s, world.cluster_id))
    assert left == ()


def test_random_histories_tile_on_this_database(database: Database) -> None:
    class OnThisDatabase(Histories):
        pass

    OnThisDatabase.database = database
    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(max_examples=8, stateful_step_count=20, phases=[Phase.generate]),
    )
