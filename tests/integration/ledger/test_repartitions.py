"""Orders to cut GPUs, on both databases: nothing that is held goes, and one GPU is cut once."""

from __future__ import annotations

from gpuplane.core.fleet.facts import MigChange, MigPlacement, MigSlot
from gpuplane.core.ids import GpuId, JobId, NodeId
from gpuplane.core.reasons import Word
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import Repartition, RepartitionState
from gpuplane.kit.ids import new_id
from tests.integration.ledger.worlds import World

NOW = 1_760_000_000_000
HALVES = (MigSlot("3g.40gb", 0), MigSlot("3g.40gb", 4))
WHOLE = (MigSlot("7g.80gb", 0),)


def a_change(
    gpu_id: GpuId, destroy: tuple[MigSlot, ...] = HALVES, create: tuple[MigSlot, ...] = WHOLE
) -> MigChange:
    return MigChange(NodeId(new_id()), "node", gpu_id, 0, destroy, create)


def ask(world: World, *changes: MigChange) -> bool:
    job_id = JobId(new_id())
    return world.database.write_now(
        "tests.ask",
        lambda s: placements.ask_repartition(s, world.cluster_id, job_id, changes, NOW),
    )


def orders(world: World) -> tuple[Repartition, ...]:
    return world.database.read_now(lambda s: placements.list_repartitions(s, world.cluster_id))


def test_an_order_is_kept_as_it_was_asked(world: World) -> None:
    change = a_change(world.gpus[0])
    assert ask(world, change)
    (row,) = orders(world)
    assert (row.gpu_id, row.node_id, row.state) == (
        world.gpus[0],
        change.node_id,
        RepartitionState.ASKED,
    )
    assert row.destroy == (("3g.40gb", 0), ("3g.40gb", 4))
    assert row.create == (("7g.80gb", 0),)
    assert row.deadline_at == NOW + 300_000
    assert row.is_done([("7g.80gb", 0)])
    assert not row.is_done([("3g.40gb", 4), ("7g.80gb", 0)])


def test_a_gpu_is_cut_for_one_at_a_time(world: World) -> None:
    assert ask(world, a_change(world.gpus[0]))
    assert not ask(world, a_change(world.gpus[1]), a_change(world.gpus[0]))
    assert [row.gpu_id for row in orders(world)] == [world.gpus[0]]


def test_an_instance_that_is_held_is_not_destroyed(world: World) -> None:
    order = world.order(world.replica(mig=MigPlacement(world.gpus[0], "3g.40gb", 4)))
    assert world.place(order).placed
    assert not ask(world, a_change(world.gpus[0]))
    assert ask(world, a_change(world.gpus[0], HALVES[:1], (MigSlot("4g.40gb", 0),)))


def test_a_gpu_that_is_not_known_is_not_cut(world: World) -> None:
    assert not ask(world, a_change(GpuId("GPU-nobody")))


def test_what_is_being_destroyed_is_given_to_nobody(world: World) -> None:
    assert ask(world, a_change(world.gpus[0], HALVES[:1], (MigSlot("4g.40gb", 0),)))
    doomed = world.order(world.replica(mig=MigPlacement(world.gpus[0], "3g.40gb", 0)))
    assert world.place(doomed).refused[doomed.attempt_id].word is Word.MIG_UNAVAILABLE
    # The one that comes begins at the same slice, and may be given out as soon as it is seen.
    comes = world.order(world.replica(mig=MigPlacement(world.gpus[0], "4g.40gb", 0)))
    assert world.place(comes).placed == (comes.attempt_id,)


def test_a_failed_order_gives_back_what_it_was_to_destroy(world: World) -> None:
    assert ask(world, a_change(world.gpus[0]))
    (row,) = orders(world)
    world.database.write_now(
        "tests.fail", lambda s: placements.fail_repartition(s, row, "it hangs", NOW)
    )
    (failed,) = orders(world)
    assert (failed.state, failed.message, failed.is_underway) == (
        RepartitionState.FAILED,
        "it hangs",
        False,
    )
    order = world.order(world.replica(mig=MigPlacement(world.gpus[0], "3g.40gb", 0)))
    assert world.place(order).placed
    assert not ask(world, a_change(world.gpus[0], HALVES[1:], (MigSlot("2g.20gb", 4),)))
    world.database.write_now("tests.end", lambda s: placements.end_repartition(s, failed, NOW))
    assert ask(world, a_change(world.gpus[0], HALVES[1:], (MigSlot("2g.20gb", 4),)))
