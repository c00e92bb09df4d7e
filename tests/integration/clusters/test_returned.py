"""A cluster that is deleted and registered again under its name: what goes on, and from when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.core.ids import ClusterId
from gpuplane.domains.billing import service as billing
from gpuplane.domains.billing.service import NewPrice
from gpuplane.domains.events import service as events
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.tables import intervals
from gpuplane.kit.pagination import PageRequest
from tests.integration.clusters.fleets import MINUTE, Fleet, running_fleet
from tests.integration.ledger.histories import MODEL as ITEM


@pytest.fixture
async def fleet(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A database without a cluster."""
    async with running_fleet(sqlite_url, tmp_path) as fleet:
        yield fleet


async def test_the_prices_of_a_deleted_cluster_go_on_for_the_one_of_its_name(fleet: Fleet) -> None:
    async def set_price(cluster_id: ClusterId, item: str, micro: int, at: int | None) -> None:
        wanted = NewPrice(item, micro, "EUR", cluster_id, at)
        await fleet.do(billing.add_price, wanted, "ada", fleet.now)

    async def price(cluster_id: ClusterId, item: str, at: int) -> int | None:
        book = await fleet.database.read(billing.load_book)
        found = book.find_price(cluster_id, item, at)
        return None if found is None else found.price_micro

    lab, other = await fleet.cluster_of("lab"), await fleet.cluster_of("other")
    await set_price(lab.id, "A100-80GB", 2_000_000, None)
    fleet.now += MINUTE
    await set_price(lab.id, "A100-80GB", 3_000_000, None)
    await set_price(lab.id, "A100-80GB", 4_000_000, fleet.now + 60 * MINUTE)
    await set_price(lab.id, "cpu", 10_000, None)
    await set_price(other.id, "memory", 1_000, None)
    fleet.now += MINUTE
    await fleet.remove(lab)
    fleet.now += 5 * MINUTE
    again = await fleet.cluster_of("lab")
    assert await price(again.id, ITEM, fleet.now) == 3_000_000
    assert await price(again.id, ITEM, fleet.now - 1) is None
    assert await price(again.id, ITEM, fleet.now + 60 * MINUTE) == 4_000_000
    assert await price(again.id, "cpu", fleet.now) == 10_000
    assert await price(again.id, "memory", fleet.now) is None
    assert await price(lab.id, ITEM, fleet.now) == 3_000_000
    page = await fleet.database.read(
        lambda s: events.list_events_of(s, "cluster", str(again.id), PageRequest(100))
    )
    said = [each.message for each in page.items if each.kind == "price.carried_over"]
    assert said == [f"The prices of cpu, {ITEM} on the deleted cluster of this name go on here."]
    # The one that was deleted last is the one that is meant; nobody's of another name is.
    await set_price(again.id, "cpu", 20_000, None)
    await fleet.remove(again)
    third = await fleet.cluster_of("lab")
    assert await price(third.id, "cpu", fleet.now) == 20_000
    fourth = await fleet.cluster_of("labs")
    assert await price(fourth.id, "cpu", fleet.now) is None


async def test_the_time_without_a_cluster_is_nobodys_and_counts_from_the_registration_on(
    fleet: Fleet,
) -> None:
    lab = await fleet.cluster_of("lab")
    await fleet.look(lab, "GPU-a", "GPU-b")
    await fleet.pass_(5)
    await fleet.remove(lab)
    await fleet.pass_(60)
    again = await fleet.cluster_of("lab")
    await fleet.look(again, "GPU-a", "GPU-b")
    await fleet.pass_(10)
    assert await fleet.minutes() == {lab.id: 10, again.id: 20}
    rows = await fleet.database.read(lambda s: usage.sum_states(s, 0, fleet.now, fleet.now))
    assert all(each.adds_up for each in rows)
    down = {each.cluster_id: each.states[usage.DeviceState.DOWN] for each in rows}
    assert down == {lab.id: 0, again.id: 0}
    # A window that begins in between tells of the second one alone.
    start = fleet.now - 40 * MINUTE
    (late,) = await fleet.database.read(lambda s: usage.sum_states(s, start, fleet.now, fleet.now))
    assert (late.cluster_id, late.wall_clock, late.adds_up) == (again.id, 20 * MINUTE, True)
    # Within one cluster a gap is a fault, as it always was.
    torn = intervals.update().where(intervals.c.gpu_id == "GPU-a").values(cluster_id=again.id)
    await fleet.database.write("tests.tear", lambda s: s.execute(torn))
    (fault, *_) = await fleet.faults()
    assert fault.startswith("GPU-a: an interval starts at")
