"""A service of several replicas on a real Kueue, which admits each of its pods by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpuplane.backends.kubernetes import names
from gpuplane.domains.placements import service as placements
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import DEPLOYMENT, HORIZONTAL_POD_AUTOSCALER, POD, WORKLOAD
from gpuplane.loops.kueue.workloads import Followed, find_age, follow
from tests.kubernetes.kueue.test_three_tenants import FLAVOR, gpus, open_tenant
from tests.kubernetes.kueue.worlds import KueueWorld

SERVICE: dict[str, Any] = {
    "name": "web",
    "job_type": "service",
    "replicas": {"count": 3, "min": 1, "max": 4},
}


class Web:
    """The service of a test, as the API and the cluster show it."""

    def __init__(self, world: KueueWorld, tenant: str, job_id: str) -> None:
        self.world, self.job_id = world, job_id
        self.space = f"tenant-{tenant}"
        self.asked_at = range(0)

    async def ranks(self) -> list[int]:
        """Return the ranks that run and are ready."""
        found = await self.world.job(self.job_id)
        attempt = found["current_attempt"]
        replicas = attempt["replicas"] if attempt else []
        assert all(each["node"] for each in replicas)
        return [each["rank"] for each in replicas if each["phase"] == "running"]

    async def workloads(self) -> list[Followed]:
        """Return what Kueue has of its pods, as long as nobody deletes it."""
        found = await self.world.client.list(WORKLOAD.at("v1beta2"), self.space)
        live = [follow(each) for each in found if not each["metadata"].get("deletionTimestamp")]
        assert all(each.is_pod or each.attempt_id is not None for each in live)
        return [each for each in live if each.is_pod]

    async def stands(self, running: int, waiting: int) -> bool:
        """Return whether API, books and Kueue all tell so many replicas, and why others wait."""
        shown = await self.world.job(self.job_id)
        if shown["status"] != "running":
            return False
        scale = shown["current_attempt"]["scale"]
        live = await self.workloads()
        admitted = [each for each in live if each.state.admitted_at is not None]
        pending = [each for each in live if each.state.admitted_at is None and not each.is_evicted]
        said = [each.state.explain()[1] for each in pending]
        why = await self.world.ask("GET", f"/jobs/{self.job_id}/why")
        same = not waiting or (
            scale["reason"] == "WaitingForAdmission"
            and scale["message"] in said
            and scale["message"] in why["sentence"]
        )
        counts = (len(await self.ranks()), len(admitted), len(pending), await self.held())
        return same and counts == (running, running, waiting, running)

    async def has_class(self, priority: int) -> bool:
        """Return whether all its Workloads have a priority."""
        return {each.state.priority for each in await self.workloads()} == {priority}

    async def held(self) -> int:
        """Return how many GPUs it holds in the books."""
        rows = await self.world.server.database.read(placements.list_open)
        return sum(row.gpu_id is not None and str(row.job_id) == self.job_id for row in rows)

    async def ask_cluster(self, replicas: int) -> None:
        """Move the number as `kubectl scale` does."""
        labels = {names.JOB_ID: self.job_id}
        [found] = await self.world.client.list(DEPLOYMENT, self.space, labels)
        patch = {"spec": {"replicas": replicas}}
        async with KubeClient(self.world.client.connection, field_manager="kubectl") as hand:
            name = found["metadata"]["name"]
            await hand.patch(DEPLOYMENT, name, patch, self.space, subresource="scale")

    async def nodes(self) -> dict[int, str]:
        """Return the node of each rank."""
        attempt = (await self.world.job(self.job_id))["current_attempt"]
        return {each["rank"]: each["node"] for each in attempt["replicas"]} if attempt else {}

    async def has_left(self, node: str) -> bool:
        """Return whether none of it is on a node and two replicas run; its cluster is looked at."""
        await self.world.loops["inventory"].run_once()
        return node not in (await self.nodes()).values() and await self.stands(2, 1)

    async def waits(self) -> bool:
        """Return whether it stands in line whole, with Kueue's words and the age that it had."""
        found = await self.world.job(self.job_id)
        live = [each for each in await self.workloads() if each.state.admitted_at is None]
        aged = [each for each in live if find_age(each) in self.asked_at]
        said = {each.state.explain()[1] for each in live}
        told = any(each and each in found["status_message"] for each in said)
        return found["status"] == "queued" and told and len(aged) == len(live) == 3

    async def scaled_by(self) -> list[str]:
        """Return who moved the number, oldest first."""
        found = await self.world.ask("GET", f"/jobs/{self.job_id}/events?limit=200")
        moved = [each for each in found["items"] if each["kind"] == "job.scaled"]
        return [f"{each['actor']} {each['data'].get('by', '')}" for each in moved]

    async def faults(self) -> list[str]:
        """Return every broken promise that `db check` would tell."""
        return await self.world.server.faults()


async def test_replicas_are_admitted_booked_preempted_and_given_back_one_by_one(
    world: KueueWorld, add_nodes: Callable[..., list[str]]
) -> None:
    add_nodes("l4", 3, f"{world.prefix}-l4", web=world.prefix)
    await world.loops["inventory"].run_once()
    own = {"placement": {"node_selector": {"web": world.prefix}}}
    tenant = await open_tenant(world, "acme", 2)
    await world.loops["kueue"].run_once()
    alone = {"cpu_cores": 40}  # no two have room on one node
    asked_at = world.server.clock.now_ms() // 1000 * 1000
    made = await world.submit(tenant, **{**gpus(1), **SERVICE, **own, **alone})
    web = Web(world, tenant, made["id"])
    web.asked_at = range(asked_at, world.server.clock.now_ms() + 1)
    await world.until(lambda: web.stands(2, 1), "two of three run, and Kueue says why")
    assert await web.faults() == []
    await world.begin_again()
    await world.turn(2)
    assert await web.stands(2, 1), "whoever looks afresh sees the same"
    [scaler] = await world.client.list(HORIZONTAL_POD_AUTOSCALER, web.space)
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 4)
    pods = await world.client.list(POD, web.space)
    told = {each["metadata"]["labels"].get(names.RANK) for each in pods}
    assert told == {"0", "1", None}

    places = await web.nodes()
    base = f"/clusters/{world.name}/nodes/{places[0]}"
    await world.ask("POST", f"{base}/drain", json={"wait_s": 0})
    await world.until(partial(web.has_left, places[0]), "its replica runs on another node")
    assert (await web.nodes())[1] == places[1], "the other went on serving"
    assert "job.stopping" not in await world.kinds(web.job_id)
    assert await web.faults() == []
    await world.ask("POST", f"{base}/uncordon")
    await world.loops["inventory"].run_once()

    await web.ask_cluster(1)
    await world.until(lambda: web.stands(1, 0), "one is left, and nobody waits")
    assert (await world.job(web.job_id))["replicas_wanted"] == 1
    await web.ask_cluster(2)
    await world.until(lambda: web.stands(2, 0), "it has grown again")
    assert max(await web.ranks()) == 3, "no rank is given twice"
    assert await web.scaled_by() == ["cluster kubectl"] * 2, "told as the hand that it is"

    rival = await world.submit(tenant, name="rival", priority="critical", **gpus(1), **own)
    await world.until(lambda: world.has_status(rival["id"], "running"), "the rival runs")
    await world.until(lambda: web.stands(1, 1), "one replica made room for it")
    assert (await world.job(web.job_id))["attempt_count"] == 1
    kinds = await world.kinds(web.job_id)
    assert kinds.count("job.replica_preempted") == 1
    assert await web.faults() == []
    await world.ask("PUT", f"/jobs/{web.job_id}/priority", json={"priority": "high"})
    await world.until(lambda: web.has_class(100), "those that run and those that wait are raised")
    assert await web.stands(1, 1), "none took the place of another"
    await world.ask("DELETE", f"/jobs/{rival['id']}")
    await world.until(lambda: web.stands(2, 0), "it has its replica again")

    boss = await world.submit(tenant, name="boss", priority="critical", **gpus(2), **own)
    await world.until(lambda: world.has_status(boss["id"], "running"), "the boss runs")
    await world.until(web.waits, "it lost all, and waits with its age for what Kueue says")
    assert await web.held() == 0
    kinds = await world.kinds(web.job_id)
    assert kinds.index("job.preempting") < kinds.index("job.preempted")
    assert await web.faults() == []
    await world.ask("DELETE", f"/jobs/{boss['id']}")
    await world.until(lambda: web.stands(2, 1), "it goes on, with what was submitted")
    assert (await world.job(web.job_id))["attempt_count"] == 2

    await world.ask("DELETE", f"/jobs/{web.job_id}")
    await world.until(lambda: world.has_status(web.job_id, "cancelled"), "it is over")
    assert await web.held() == 0
    assert await web.faults() == []
    assert FLAVOR in str(await world.ask("GET", f"/clusters/{world.name}/quotas"))
