"""What a plan tells of the cost of a job whose queue dispatches it to other clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuplane.backends.simulated.backend import SimulatedBackend
from gpuplane.backends.simulated.loader import parse_fleet
from gpuplane.core.ids import ClusterId
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import Seen, SeenKind
from gpuplane.kit.ids import new_id
from tests.integration.jobs.worlds import FLEET, H100, World

JOB: dict[str, Any] = {"gpu_count": 2, "gpu_type": H100, "estimated_duration_seconds": 1_800}
HALF_AN_HOUR_DEAR, HALF_AN_HOUR_CHEAP = "4.00", "3.00"
GROUPS = [
    {
        "coveredResources": ["nvidia.com/gpu"],
        "flavors": [
            {"name": H100, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8}]},
        ],
    }
]


async def declare(world: World, cluster: str) -> None:
    """Give a cluster a queue of H100s and a door of the admin's tenant."""
    body = {"name": "q", "resourceGroups": GROUPS}
    await world.ask("POST", f"/clusters/{cluster}/quotas", 201, json=body)
    door = {"name": "main", "tenant": str(world.server.admin.tenant_id), "clusterQueue": "q"}
    await world.ask("POST", f"/clusters/{cluster}/queues", 201, json=door)


async def price(world: World, cluster: str, amount: str) -> None:
    body = {"item": H100, "cluster": cluster, "price": amount}
    await world.ask("POST", "/prices", 201, json=body)


async def add_cluster(world: World, folder: Path, name: str, fleet: str, **config: Any) -> None:
    """Add a simulated cluster that admits by itself."""
    read = parse_fleet(fleet.replace("{name: sim}", f"{{name: {name}}}"), f"{name}.yaml")
    cluster_id, clock = ClusterId(new_id()), world.server.clock
    told = {"admission": "kueue", **config}

    def unit(session: Any) -> None:
        clusters.ensure_cluster(
            session, cluster_id, name=name, kind="simulated", simulated=True, config=told,
            now=clock.now_ms(),
        )  # fmt: skip

    await world.server.database.write("tests.cluster", unit)
    state = folder / f"{name}.db"
    world.registry.backends[cluster_id] = SimulatedBackend(read, clock, seed=3, state_path=state)
    await world.loops["inventory"].run_once()
    await declare(world, name)


async def dispatching(world: World, folder: Path) -> None:
    """Let `hub`, which has T4s and a price of H100s, dispatch its queue to `far` and `sim`."""
    small = FLEET.replace("model: H100-80GB, count: 8", "model: T4, count: 1")
    small = small.replace("      topology: nvswitch-8\n", "")
    workers = ["far", "none", "sim"]
    told = {"workers": workers, "queues": ["q"]}
    await add_cluster(world, folder, "far", FLEET)
    await add_cluster(world, folder, "none", small)
    await add_cluster(world, folder, "hub", small, dispatch=told)
    await price(world, "hub", "1.00")


async def test_a_plan_tells_what_each_worker_that_may_run_it_costs_and_no_price_of_the_manager(
    kueue: World, tmp_path: Path
) -> None:
    await dispatching(kueue, tmp_path)
    await price(kueue, "far", "3.00")
    found = await kueue.ask("POST", "/jobs/estimate", json={"name": "j", "cluster": "hub", **JOB})
    assert "dispatches it to far or sim" in found["sentence"]
    assert [(each["cluster"], each["estimated_cost"]) for each in found["by_worker"]] == [
        ("far", HALF_AN_HOUR_CHEAP), ("sim", HALF_AN_HOUR_DEAR),
    ]  # fmt: skip
    assert (found["hourly_cost"], found["estimated_cost"], found["max_cost"]) == (None, None, None)
    job = await kueue.submit(**{**JOB, "cluster": "hub"})
    assert (job["estimated_cost"], job["currency"]) == (None, "USD")


async def see(world: World, cluster: str, *, queue: bool, door: bool = True) -> None:
    """Let a cluster's Kueue say whether its queue and its door are active."""
    why = {"message": "Can't admit new workloads: is stopped"}
    seen = [
        Seen(SeenKind.CLUSTER_QUEUE, "", "q", True, {}, {"active": queue, **why}),
        Seen(SeenKind.LOCAL_QUEUE, "tenant-default", "main", True, {"tenant": "default"},
             {"active": door, **why}),
    ]  # fmt: skip

    def unit(session: WriteSession) -> None:
        found = clusters.get_cluster(session, cluster)
        queues.note_seen(session, found.id, seen, world.server.clock.now_ms())

    await world.server.database.write("tests.seen", unit)


async def test_why_names_the_queue_of_a_worker_that_admits_nothing(
    kueue: World, tmp_path: Path
) -> None:
    await dispatching(kueue, tmp_path)
    job = await kueue.submit(**{**JOB, "cluster": "hub"})
    await kueue.loops["scheduler"].run_once()
    path = f"/jobs/{job['id']}/why"
    said = "ClusterQueue q of {}, to which it may be dispatched, admits nothing: Can't admit new"
    for cluster in ("sim", "none"):
        await see(kueue, cluster, queue=False)
    why = await kueue.ask("GET", path)
    assert any(line.startswith(said.format("sim")) for line in why["explanation"])
    assert (why["reason"], why["fix"][:5]) == ("WaitingForAdmission", "Wait:")
    await see(kueue, "far", queue=False)
    for query in ("", "?change=true"):
        why = await kueue.ask("GET", path + query)
        assert "ClusterQueue q of far is let go on" in why["fix"]
        assert all(name in f"{why['sentence']} {why['explanation']}" for name in ("far", "sim"))
    await see(kueue, "far", queue=True, door=False)
    assert "LocalQueue main of far is let go on" in (await kueue.ask("GET", path))["fix"]
    await see(kueue, "far", queue=True)
    assert (await kueue.ask("GET", path))["fix"].startswith("Wait:")


async def test_where_all_workers_cost_the_same_that_is_the_price(
    kueue: World, tmp_path: Path
) -> None:
    await dispatching(kueue, tmp_path)
    await price(kueue, "far", "4.00")
    found = await kueue.ask("POST", "/jobs/estimate", json={"name": "j", "cluster": "hub", **JOB})
    assert [each["cluster"] for each in found["by_worker"]] == ["far", "sim"]
    assert found["estimated_cost"] == HALF_AN_HOUR_DEAR
    job = await kueue.submit(**{**JOB, "cluster": "hub"})
    assert job["estimated_cost"] == HALF_AN_HOUR_DEAR
