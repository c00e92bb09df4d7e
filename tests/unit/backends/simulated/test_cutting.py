"""A simulated GPU is cut anew: gone at once, there after a while, and still so after a restart."""

from __future__ import annotations

import pytest

from gpuplane.backends.capabilities import Repartitions
from gpuplane.backends.interface import BackendError, GpuObservation, MigOrder
from gpuplane.backends.simulated import Fleet, SimulatedBackend
from tests.clocks import FakeClock
from tests.unit.backends.simulated.conftest import Open
from tests.unit.backends.simulated.fleets import a_cut_fleet, a_fleet, a_plan

ONES = tuple((f"1g.10gb@{start}") for start in range(4))


@pytest.fixture
def cut_fleet() -> Fleet:
    return a_cut_fleet(*ONES)


def an_order(fleet: Fleet, *, destroy: str = "", create: str = "", gpu: int = 0) -> MigOrder:
    """Return an order for a GPU of big-01; instances as `1g.10gb@0 1g.10gb@1`."""

    def instances(text: str) -> tuple[tuple[str, int], ...]:
        pairs = (each.split("@") for each in text.split())
        return tuple((profile, int(start)) for profile, start in pairs)

    gpu_id = fleet.nodes[0].gpus[gpu].gpu_id
    return MigOrder("big-01", gpu_id, instances(destroy), instances(create))


async def the_gpu(backend: SimulatedBackend) -> GpuObservation:
    return (await backend.observe()).nodes[0].gpus[0]


async def test_what_is_destroyed_goes_at_once_and_what_is_created_comes_later(
    open_backend: Open, cut_fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(cut_fleet)
    before = (await backend.observe()).generation
    await backend.repartition(
        an_order(cut_fleet, destroy="1g.10gb@2 1g.10gb@3", create="2g.20gb@2 3g.40gb@4")
    )
    meanwhile = await backend.observe()
    assert meanwhile.nodes[0].gpus[0].mig_instances == (("1g.10gb", 0), ("1g.10gb", 1))
    assert meanwhile.generation > before
    await clock.advance(3)
    after = await backend.observe()
    assert after.nodes[0].gpus[0].mig_instances == (
        ("1g.10gb", 0),
        ("1g.10gb", 1),
        ("2g.20gb", 2),
        ("3g.40gb", 4),
    )
    assert after.generation > meanwhile.generation


async def test_a_gpu_with_nothing_left_stays_in_mig_mode(
    open_backend: Open, cut_fleet: Fleet
) -> None:
    backend = open_backend(cut_fleet)
    await backend.repartition(an_order(cut_fleet, destroy=" ".join(ONES), create="7g.80gb@0"))
    gpu = await the_gpu(backend)
    assert (gpu.mig_enabled, gpu.mig_instances) == (True, ())


async def test_the_same_order_again_does_nothing(
    open_backend: Open, cut_fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(cut_fleet)
    order = an_order(cut_fleet, destroy="1g.10gb@3", create="3g.40gb@4")
    await backend.repartition(order)
    await backend.repartition(order)
    await clock.advance(3)
    seen = await backend.observe()
    await backend.repartition(order)
    assert (await backend.observe()).generation == seen.generation
    assert ("3g.40gb", 4) in seen.nodes[0].gpus[0].mig_instances


async def test_a_cut_outlives_a_restart_before_and_after_it_is_ready(
    open_backend: Open, cut_fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(cut_fleet)
    await backend.repartition(an_order(cut_fleet, create="3g.40gb@4"))
    backend.close()
    backend = open_backend(cut_fleet)
    assert ("3g.40gb", 4) not in (await the_gpu(backend)).mig_instances
    await clock.advance(3)
    assert ("3g.40gb", 4) in (await the_gpu(backend)).mig_instances
    backend.close()
    assert ("3g.40gb", 4) in (await the_gpu(open_backend(cut_fleet))).mig_instances


async def test_a_fleet_file_with_another_layout_wins_over_an_old_cut(
    open_backend: Open, cut_fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(cut_fleet)
    await backend.repartition(an_order(cut_fleet, create="3g.40gb@4"))
    backend.close()
    other = open_backend(a_cut_fleet("7g.80gb@0"))
    assert (await the_gpu(other)).mig_instances == (("7g.80gb", 0),)


async def test_who_waits_for_changes_is_told_at_once(
    open_backend: Open, cut_fleet: Fleet, clock: FakeClock
) -> None:
    backend = open_backend(cut_fleet)
    await backend.wait_changed(0)
    await backend.repartition(an_order(cut_fleet, destroy="1g.10gb@0", create="3g.40gb@4"))
    before = clock.monotonic()
    await backend.wait_changed(60)
    assert clock.monotonic() == before


@pytest.mark.parametrize(
    ("destroy", "create", "gpu", "text"),
    [
        ("1g.10gb@6", "3g.40gb@4", 0, "has no 1g.10gb at 6"),
        ("", "3g.40gb@0", 0, "overlaps"),
        ("", "5g.50gb@0", 0, "has no profile"),
        ("", "3g.40gb@4", 1, "is not in MIG mode"),
    ],
)
async def test_an_order_that_cannot_be_carried_out_changes_nothing(
    open_backend: Open, cut_fleet: Fleet, destroy: str, create: str, gpu: int, text: str
) -> None:
    backend = open_backend(cut_fleet)
    before = await the_gpu(backend)
    with pytest.raises(BackendError, match=text):
        await backend.repartition(an_order(cut_fleet, destroy=destroy, create=create, gpu=gpu))
    assert await the_gpu(backend) == before


async def test_an_instance_that_an_attempt_holds_is_not_destroyed(
    open_backend: Open, cut_fleet: Fleet
) -> None:
    backend = open_backend(cut_fleet)
    gpu_id = cut_fleet.nodes[0].gpus[0].gpu_id
    plan = a_plan(cut_fleet, mig_device=f"{gpu_id}/1g.10gb@0")
    await backend.ensure_workload(plan, {})
    with pytest.raises(BackendError, match="holds an instance"):
        await backend.repartition(an_order(cut_fleet, destroy="1g.10gb@0", create="3g.40gb@4"))
    await backend.repartition(an_order(cut_fleet, destroy="1g.10gb@1", create="3g.40gb@4"))
    assert ("1g.10gb", 0) in (await the_gpu(backend)).mig_instances


async def test_nothing_starts_on_an_instance_that_is_gone(
    open_backend: Open, cut_fleet: Fleet
) -> None:
    backend = open_backend(cut_fleet)
    await backend.repartition(an_order(cut_fleet, destroy="1g.10gb@0", create="3g.40gb@4"))
    gpu_id = cut_fleet.nodes[0].gpus[0].gpu_id
    with pytest.raises(BackendError, match="has no"):
        await backend.ensure_workload(a_plan(cut_fleet, mig_device=f"{gpu_id}/1g.10gb@0"), {})


async def test_a_gpu_that_is_being_cut_is_not_cut_otherwise(
    open_backend: Open, cut_fleet: Fleet
) -> None:
    backend = open_backend(cut_fleet)
    await backend.repartition(an_order(cut_fleet, create="3g.40gb@4"))
    with pytest.raises(BackendError, match="is being cut already"):
        await backend.repartition(an_order(cut_fleet, destroy="1g.10gb@0"))


async def test_a_gpu_that_is_down_is_not_cut(open_backend: Open) -> None:
    fleet = a_fleet("kind: NodeDown, node: big-01, at: 0s")
    backend = open_backend(fleet)
    with pytest.raises(BackendError, match="is down"):
        await backend.repartition(an_order(fleet, create="3g.40gb@4"))


def test_the_simulated_backend_declares_that_it_can_cut(
    open_backend: Open, cut_fleet: Fleet
) -> None:
    assert isinstance(open_backend(cut_fleet), Repartitions)
