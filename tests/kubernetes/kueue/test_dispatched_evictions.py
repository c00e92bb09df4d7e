"""What a worker does by itself to dispatched work: its Kueue preempts it, its node goes away."""

from __future__ import annotations

import asyncio

from tests.kubernetes.kueue.dispatching import (
    FLAVOR,
    IN_TURN,
    Worker,
    command,
    dispatch_to,
    gpu_groups,
)
from tests.kubernetes.kueue.worlds import KueueWorld
from tests.kubernetes.rigged import RunningCluster

pytestmark = IN_TURN


async def numbers_of(world: KueueWorld, job_id: str) -> list[tuple[int, str]]:
    """Return (number, reason of its end) of each attempt of a job."""
    found = await world.ask("GET", f"/jobs/{job_id}/attempts")
    return [(each["number"], each["reason"]) for each in found["items"]]


async def test_work_that_the_workers_own_kueue_preempts_waits_and_is_dispatched_again(
    world: KueueWorld, near: Worker
) -> None:
    tenant = await world.tenant("acme")
    await dispatch_to(world, [near], tenant, [gpu_groups("any", 2), gpu_groups(FLAVOR, 1)])
    low = await world.submit(tenant, name="low", **command("sleep 600", priority="low"))
    await world.until(lambda: world.has_status(low["id"], "running"), "the low one runs")
    body = command("sleep 600", priority="high", cluster=near.name)
    high = await world.submit(tenant, name="high", **body)
    await world.until(lambda: world.has_status(high["id"], "running"), "the high one runs")
    await world.until(lambda: world.has_status(low["id"], "queued"), "the low one waits again")
    kinds = await world.kinds(low["id"])
    assert kinds.index("job.preempting") < kinds.index("job.preempted")
    assert await numbers_of(world, low["id"]) == [(1, "Preempted")]

    async def is_alone() -> bool:
        return len(await near.pods(tenant)) == 1

    await world.until(is_alone, "nothing is left of the low one")
    await world.ask("DELETE", f"/jobs/{high['id']}")
    await world.until(lambda: world.has_status(low["id"], "running"), "it is dispatched again")
    [first, second] = (await world.ask("GET", f"/jobs/{low['id']}/attempts"))["items"]
    assert first["id"] != second["id"]
    assert (await world.job(low["id"]))["cluster_id"] == str(near.cluster_id)
    await world.ask("DELETE", f"/jobs/{low['id']}")
    await world.until(lambda: world.has_status(low["id"], "cancelled"), "it is cancelled")
    rows = (await world.ask("GET", "/usage?group_by=job"))["rows"]
    # One GPU, now the one's and now the other's: never both at once.
    assert {row["keys"]["job"] for row in rows} == {low["id"], high["id"]}
    assert await world.server.faults() == []


async def test_work_whose_node_on_the_worker_is_gone_is_dispatched_again(
    world: KueueWorld, near: Worker, second_rig: RunningCluster
) -> None:
    tenant = await world.tenant("acme")
    await dispatch_to(world, [near], tenant, [gpu_groups("any", 1), gpu_groups(FLAVOR, 1)])
    first, second = await asyncio.to_thread(
        second_rig.add_nodes, "h100", 2, f"{world.prefix}-node", lost=world.prefix
    )
    try:
        await world.loops["inventory"].run_once()
        body = command("sleep 600", placement={"node_selector": {"lost": world.prefix}})
        body["spec"]["command"] = ["sleep", "900"]  # as these nodes know it
        body |= {"max_retries": 2, "retry": {"delay_seconds": 1}}
        made = await world.submit(tenant, name="moved", **body)
        await world.until(lambda: world.has_status(made["id"], "running"), "it runs")
        [attempt] = (await world.ask("GET", f"/jobs/{made['id']}/attempts"))["items"]
        had = attempt["replicas"][0]["node"]
        await asyncio.to_thread(second_rig.remove_nodes, [had])

        async def runs_elsewhere() -> bool:
            found = (await world.ask("GET", f"/jobs/{made['id']}/attempts"))["items"]
            last = found[-1]["replicas"][0]["node"]
            return len(found) == 2 and last != had and await world.has_status(made["id"], "running")

        await world.until(runs_elsewhere, "it runs on the other node", 150.0)
        assert len(await near.pods(tenant)) == 1
        assert await world.server.faults() == []
        await world.ask("DELETE", f"/jobs/{made['id']}")
        await world.until(lambda: world.has_status(made["id"], "cancelled"), "it is cancelled")
    finally:
        await asyncio.to_thread(second_rig.remove_nodes, [first, second])
