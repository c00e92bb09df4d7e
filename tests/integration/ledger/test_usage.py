"""Questions to the ledger on both databases, and what the answers cost."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuplane.core.ids import ProjectId, TenantId
from gpuplane.domains.billing import service as billing
from gpuplane.domains.billing.errors import BadPrice
from gpuplane.domains.usage import service as usage
from gpuplane.domains.usage.errors import BadUsageQuery
from gpuplane.domains.usage.service import Scope
from gpuplane.kit.ids import new_id
from tests.integration.ledger.histories import HOUR_MS, MODEL, START, a_node
from tests.integration.ledger.worlds import World

DAY_MS = 24 * HOUR_MS


def test_use_is_told_by_job_with_busy_and_idle_apart(world: World) -> None:
    order = world.run(world.replica(world.gpus[0], world.gpus[1], cpu_milli=2000, memory_mib=512))
    world.now += HOUR_MS
    world.idle(order)
    world.now += HOUR_MS
    world.release(order)
    world.now += HOUR_MS
    (row,) = world.usage("job")
    assert row.keys == {"job": str(order.job_id)}
    assert (row.gpu_busy, row.gpu_idle) == (2 * 1000 * HOUR_MS, 2 * 1000 * HOUR_MS)
    assert (row.cpu, row.memory) == (2 * 2000 * HOUR_MS, 2 * 512 * HOUR_MS)


def test_shares_of_one_device_are_told_apart(world: World) -> None:
    first = world.run(world.replica(world.gpus[0], milli=300))
    world.now += HOUR_MS
    second = world.run(world.replica(world.gpus[0], milli=700))
    world.now += HOUR_MS
    rows = {row.keys["job"]: row.gpu_busy for row in world.usage("job")}
    assert rows == {
        str(first.job_id): 2 * 300 * HOUR_MS,
        str(second.job_id): 700 * HOUR_MS,
    }


def test_use_is_told_by_what_was_remembered_of_the_job(world: World) -> None:
    order = world.run(world.replica(world.gpus[0]))
    other = world.run(world.replica(world.gpus[1]))
    world.remember(order, labels={"team.io/a": "vision"}, cost_centre="42", queue="q")
    world.now += HOUR_MS
    names = ("label:team.io/a", "cost_centre", "queue", "model")
    rows = {tuple(row.keys.values()): row for row in world.usage(*names)}
    assert rows[("vision", "42", "q", MODEL)].gpu_busy == 1000 * HOUR_MS
    assert rows[(None, None, None, MODEL)].gpu_busy == 1000 * HOUR_MS
    (only,) = world.usage("job", label=("team.io/a", "vision"))
    assert only.keys == {"job": str(order.job_id)}
    assert other.job_id != order.job_id


def test_windows_side_by_side_add_up_to_the_whole(world: World) -> None:
    order = world.run(world.replica(world.gpus[0], milli=300))
    world.now += HOUR_MS
    world.idle(order)
    world.now += HOUR_MS
    world.release(order)
    world.now += HOUR_MS
    cuts = [START - 7, START + 1, START + HOUR_MS - 1, START + HOUR_MS + 2, world.now]
    parts = [world.usage("job", from_at=low, to_at=high) for low, high in pairwise(cuts)]
    (whole,) = world.usage("job")
    rows = [row for part in parts for row in part]
    assert whole.gpu_busy == 300 * HOUR_MS == sum(row.gpu_busy for row in rows)
    assert whole.gpu_idle == 300 * HOUR_MS == sum(row.gpu_idle for row in rows)
    assert whole.cpu == sum(row.cpu for row in rows)
    (inside,) = world.usage("job", from_at=START + 5, to_at=START + 9)
    assert (inside.gpu_busy, inside.gpu_idle, inside.cpu) == (4 * 300, 0, 4 * 1000)


def test_use_is_cut_at_midnight_and_at_the_window(world: World) -> None:
    world.run(world.replica(world.gpus[0], cpu_milli=1000))
    world.now += 2 * DAY_MS
    rows = world.usage("day", from_at=START + HOUR_MS, to_at=START + DAY_MS)
    assert [row.keys["day"] for row in rows] == ["2023-11-14", "2023-11-15"]
    assert sum(row.gpu_busy for row in rows) == 23 * 1000 * HOUR_MS
    assert sum(row.cpu for row in rows) == 23 * 1000 * HOUR_MS


def test_simulated_use_is_never_in_a_row_with_real_use(world: World) -> None:
    node = a_node(world.cluster_id, 1, "simulated")
    world.register(node, simulated=True)
    world.run(world.replica(world.gpus[0]))
    world.run(world.replica(node.gpus[0].gpu_id, node=node))
    world.now += HOUR_MS
    assert [(row.simulated, row.gpu_busy) for row in world.usage()] == [
        (False, 1000 * HOUR_MS),
        (True, 1000 * HOUR_MS),
    ]
    (real,) = world.usage(simulated=False)
    assert not real.simulated


def test_only_what_the_scope_allows_is_told(world: World) -> None:
    world.run(world.replica(world.gpus[0]))
    world.now += HOUR_MS
    mine = Scope(frozenset({world.tenant_id}))
    project = Scope(project_ids=frozenset({world.project_id}))
    stranger = Scope(frozenset({TenantId(new_id())}), frozenset({ProjectId(new_id())}))
    assert len(world.usage(scope=mine)) == 1
    assert len(world.usage(scope=project)) == 1
    assert world.usage(scope=stranger) == ()
    assert world.usage(scope=Scope()) == ()


def test_what_is_held_now_is_told_by_queue(world: World) -> None:
    order = world.run(world.replica(world.gpus[0], milli=500, cpu_milli=3000, memory_mib=64))
    world.remember(order, queue="demo/team")
    world.release(world.run(world.replica(world.gpus[1])))
    held = world.database.read_now(lambda s: usage.list_held(s, world.cluster_id))
    (row,) = held
    assert (row.queue, row.tenant_id, row.job_count) == ("demo/team", world.tenant_id, 1)
    assert (row.gpu_milli, row.cpu_milli, row.memory_mib) == (500, 3000, 64)


def test_an_unknown_dimension_and_too_many_days_are_refused(world: World) -> None:
    with pytest.raises(BadUsageQuery, match="colour"):
        world.usage("colour")
    with pytest.raises(BadUsageQuery, match="label key"):
        world.usage('label:a"b')
    with pytest.raises(BadUsageQuery, match="label key"):
        world.usage(label=("", "b"))
    with pytest.raises(BadUsageQuery, match="at most"):
        world.usage("day", from_at=START - 500 * DAY_MS, to_at=START)


def test_what_a_job_costs_follows_the_prices_of_its_time(world: World) -> None:
    world.price(MODEL, 2_000_000)
    world.price("cpu", 100_000)
    world.price(MODEL, 4_000_000, valid_from=START + HOUR_MS)
    order = world.run(world.replica(world.gpus[0], cpu_milli=500, memory_mib=1024))
    world.now += 2 * HOUR_MS
    cost = world.cost(order)
    assert cost.totals == {"USD": 2_000_000 + 4_000_000 + 100_000}
    assert cost.unpriced == ("memory",)
    assert cost.known_micro("USD") == cost.total_micro("USD")
    assert [(line.item, line.price_micro, line.cost_micro) for line in cost.lines] == [
        ("cpu", 100_000, 100_000),
        (MODEL, 2_000_000, 2_000_000),
        (MODEL, 4_000_000, 4_000_000),
        ("memory", None, 0),
    ]


def test_the_price_of_the_cluster_comes_before_the_general_one(world: World) -> None:
    world.price(MODEL, 9_000_000)
    world.price(MODEL, 1_000_000, cluster_id=world.cluster_id)
    order = world.run(world.replica(world.gpus[0], cpu_milli=0, memory_mib=0))
    world.now += HOUR_MS
    assert world.cost(order).totals == {"USD": 1_000_000}


def test_a_job_without_any_use_costs_nothing(world: World) -> None:
    order = world.order(world.replica(world.gpus[0]))
    assert world.cost(order).lines == ()


def test_ensured_prices_are_written_once(world: World) -> None:
    wanted = [billing.NewPrice("H100", 3_000_000, cluster_id=world.cluster_id)]

    def ensure() -> int:
        return world.database.write_now(
            "billing.ensure", lambda s: billing.ensure_prices(s, wanted, "test", world.now)
        )

    assert [ensure(), ensure()] == [1, 0]
    wanted[0] = billing.NewPrice("H100", 4_000_000, cluster_id=world.cluster_id)
    world.now += 1
    assert ensure() == 1
    book = world.database.read_now(lambda s: billing.list_prices(s, world.cluster_id, "H100"))
    assert [price.price_micro for price in book] == [3_000_000, 4_000_000]


@pytest.mark.parametrize(
    ("item", "price_micro", "facts", "field"),
    [
        ("A1000-80GB", 1, {}, "item"),
        ("cpu", -1, {}, "price"),
        ("cpu", 10**15, {}, "price"),
        ("cpu", 1, {"currency": "dollars"}, "currency"),
        ("cpu", 1, {"valid_from": START - 1}, "valid_from"),
    ],
)
def test_a_price_that_cannot_hold_is_refused_with_its_field(
    world: World, item: str, price_micro: int, facts: dict[str, object], field: str
) -> None:
    with pytest.raises(BadPrice) as refused:
        world.price(item, price_micro, **facts)
    assert refused.value.field == field
    assert refused.value.fix
