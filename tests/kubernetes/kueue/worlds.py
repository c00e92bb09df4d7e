"""A whole product in one process on a real cluster with Kueue: API, loops turned by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
from prometheus_client import CollectorRegistry

from gpuplane.api.routers import load_routers
from gpuplane.backends.interface import Backend
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.backends.kubernetes.chartplaces import ChartTools
from gpuplane.backends.kubernetes.inventory import observe_node
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.ids import ClusterId
from gpuplane.core.scheduling.policy import Boosts, Policy
from gpuplane.db.leases import LeaseKeeper
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Credential
from gpuplane.domains.identity import service as identity
from gpuplane.domains.jobs.endpoints import WorkspaceFolder
from gpuplane.domains.jobs.service import (
    SubmitLimits,
    Surroundings,
    WaitTargets,
    count_offers,
    count_queue_users,
    list_tenant_jobs,
)
from gpuplane.domains.placements import service as placements
from gpuplane.domains.runs.service import Handlers, RunPolicy, policy_for
from gpuplane.entry.clusters import register_steps
from gpuplane.kit.feeds import Seats
from gpuplane.kit.ids import new_id
from gpuplane.kit.loops import LoopBody, LoopRunner
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.tracing import Tracing
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import read_kubeconfig
from gpuplane.kube.kinds import (
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    NAMESPACE,
    WORKLOAD,
    Kind,
)
from gpuplane.kube.kueue.states import read_workload
from gpuplane.loops.clusters.tools import ClusterTools
from gpuplane.loops.deciding.process import DecisionBounds, DecisionProcess
from gpuplane.loops.dispatcher import DispatcherLoop
from gpuplane.loops.inventory import InventoryLoop
from gpuplane.loops.kueue.loop import KueueLoop
from gpuplane.loops.monitor import MonitorLoop
from gpuplane.loops.observer import ObserverLoop
from gpuplane.loops.runs.loop import RunsLoop, WorkerSettings
from gpuplane.loops.runs.meters import RunMeters
from gpuplane.loops.scheduler.loop import SchedulerLoop
from tests.http_app import Server, running_server
from tests.waiting import Patience, wait_until_async

PATIENCE_S = 40.0
"""How long something may take on a busy machine before a test gives up."""
LOOK_AGAIN_S = 0.1
"""When the loops look again where nothing of the cluster's wakes them."""
FLOW = ("monitor", "scheduler", "dispatcher", "kueue", "observer")


class Registry:
    """The backends of the world."""

    def __init__(self) -> None:
        self.backends: dict[ClusterId, Backend] = {}

    def find(self, cluster_id: ClusterId) -> Backend | None:
        return self.backends.get(cluster_id)

    def items(self) -> Iterator[tuple[ClusterId, Backend]]:
        yield from list(self.backends.items())


@dataclass
class KueueWorld:
    """The server, its cluster and its loops; everything it makes there has a prefix of its own."""

    server: Server
    cluster_id: ClusterId
    name: str
    client: KubeClient
    backend: KubernetesBackend
    loops: dict[str, LoopBody]
    prefix: str
    tools: ClusterTools
    fresh_loops: Callable[[], dict[str, LoopBody]]
    selector: dict[str, str] = field(default_factory=dict)
    http: httpx2.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.http = self.server.http

    async def house(self, add_nodes: Callable[..., list[str]]) -> None:
        """Add an L4 node where its jobs go unless they say otherwise.

        Tests beside each other share the cluster's nodes: jobs that are to start at once would wait
        for room, or go to a node that another test takes away again.
        """
        self.selector = {f"{self.prefix}-own": "yes"}
        add_nodes("l4", 1, f"{self.prefix}-l4", **self.selector)
        await self.loops["inventory"].run_once()

    async def begin_again(self) -> None:
        """Go on with loops that know nothing of what the former ones had seen."""
        for name in ("observer", "kueue"):
            former = self.loops[name]
            assert isinstance(former, ObserverLoop | KueueLoop)
            await former.stop()
        self.loops = self.fresh_loops()

    async def turn(self, times: int = 1) -> None:
        """Let every loop look once, in the order in which work flows."""
        for _ in range(times):
            for name in FLOW:
                await self.loops[name].run_once()

    async def until_over(self, run_id: str) -> dict[str, Any]:
        """Let a worker do a run, and return it as the API shows it at its end."""
        handlers = self.server.ports["handlers"]
        runner = LoopRunner(self.server.clock)
        loop = RunsLoop(
            self.server.database,
            self.server.clock,
            handlers,
            RunMeters(CollectorRegistry()),
            WorkerSettings(),
            self.server.ports["run_policy"],
        )
        runner.add(loop)
        runner.start()

        async def over() -> dict[str, Any]:
            found = await self.ask("GET", f"/runs/{run_id}")
            return found if found["status"] in ("completed", "failed", "cancelled") else {}

        try:
            return await wait_until_async(over, f"{run_id} is over")
        finally:
            await runner.stop()

    async def until(
        self,
        holds: Callable[[], Awaitable[bool]],
        what: str,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Let the loops look until something holds; fail by its name when it never does."""
        patience = Patience(patience_s)
        while not patience.is_over:
            await self.turn()
            if await holds():
                return
            await self.backend.wait_changed(LOOK_AGAIN_S)
        raise AssertionError(f"not seen: {what}; {await self.describe()}")

    async def describe(self) -> str:
        """Return what the cluster says of workloads and queues of this world, for a failure."""
        told = []
        for each in await self.client.list(WORKLOAD.at("v1beta2")):
            if self.prefix in each["metadata"]["namespace"]:
                told.append(f"{each['metadata']['name']}: {read_workload(each).explain()}")
        shown = await self.ask("GET", f"/clusters/{self.name}/quotas")
        told += [f"{one['name']}: {one['cluster']} {one['conflict']}" for one in shown["items"]]
        listed = await self.ask("GET", "/jobs")
        told += [f"{one['name']}: {one['status']} {one['reason']}" for one in listed["items"]]
        return "\n".join(told)

    async def ask(self, method: str, path: str, status: int = 200, **rest: Any) -> dict[str, Any]:
        """Ask the API and return the body; the status must be the one expected."""
        answer = await self.http.request(method, f"/api/v1{path}", **rest)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def tenant(self, name: str) -> str:
        """Make a tenant; return its name, which is new on the cluster."""
        own = f"{self.prefix}-{name}"
        await self.server.make_tenant(own)
        return own

    async def submit(self, tenant: str, status: int = 201, **fields: Any) -> dict[str, Any]:
        """Submit a job of a tenant on the cluster; return the answer's body."""
        found = await self.server.database.read(lambda s: identity.find_tenant_by_name(s, tenant))
        assert found is not None
        body = {"name": "job", "cluster": self.name, "tenant_id": str(found.id), **fields}
        if self.selector:
            body.setdefault("placement", {"node_selector": self.selector})
        return await self.ask("POST", "/jobs", status, json=body)

    async def job(self, job_id: str) -> dict[str, Any]:
        """Return a job as the API shows it."""
        return await self.ask("GET", f"/jobs/{job_id}")

    async def has_status(self, job_id: str, *statuses: str) -> bool:
        """Return whether a job is in one of these statuses."""
        return (await self.job(job_id))["status"] in statuses

    async def kinds(self, job_id: str) -> list[str]:
        """Return the kinds of a job's events, oldest first."""
        found = await self.ask("GET", f"/jobs/{job_id}/events?limit=200")
        return [each["kind"] for each in found["items"]]


@contextlib.asynccontextmanager
async def running_kueue_world(
    text: str,
    database_url: str,
    folder: Path,
    sealing: SealingKeys,
    charts: ChartTools | None = None,
) -> AsyncIterator[KueueWorld]:
    """Make a world on an empty database and a cluster, and take away what it made there."""
    registry = Registry()
    prefix = f"q{uuid4().hex[:6]}"
    workspaces = folder / "workspaces"
    workspaces.mkdir()
    turns = DecisionProcess(DecisionBounds())
    handlers = Handlers()
    ports: dict[str, Any] = {
        "handlers": handlers,
        "backends": registry,
        "list_tenant_jobs": list_tenant_jobs,
        "run_policy": policy_for(RunPolicy(), handlers),
        "submit_limits": SubmitLimits(),
        "log_followers": Seats(2),
        "workspaces": WorkspaceFolder(workspaces),
        "count_queue_users": count_queue_users,
        "count_offers": count_offers,
        "count_reservations": placements.count_standing,
    }
    async with running_server(database_url, sealing, routers=load_routers(), ports=ports) as server:
        cluster_id = await _make_cluster(server, prefix, text, sealing)
        tools = ClusterTools(server.database, server.clock, sealing, folder, observe_node)
        register_steps(handlers, tools)
        connection = read_kubeconfig(text)
        client = KubeClient(connection)
        backend = KubernetesBackend(
            KubeClient(connection),
            str(cluster_id),
            folder,
            server.clock,
            KubernetesSettings(
                admission="kueue",
                records_namespace=f"{prefix}-system",
                default_image="registry.test/python:3.11",
            ),
            charts,
        )
        registry.backends[cluster_id] = backend
        fresh_loops = partial(_loops, server, registry, sealing, workspaces, turns)
        loops = fresh_loops()
        await loops["inventory"].run_once()
        world = KueueWorld(
            server, cluster_id, prefix, client, backend, loops, prefix, tools, fresh_loops
        )
        try:
            yield world
        finally:
            observer, kueue = world.loops["observer"], world.loops["kueue"]
            assert isinstance(observer, ObserverLoop)
            assert isinstance(kueue, KueueLoop)
            await observer.stop()
            await kueue.stop()
            turns.close()
            await registry.backends[cluster_id].stop()
            await clean(client, str(cluster_id), prefix)
            await client.close()


async def _make_cluster(server: Server, prefix: str, text: str, sealing: SealingKeys) -> ClusterId:
    """Store a cluster that can be reached and admits by Kueue."""
    cluster_id = ClusterId(new_id())
    now = server.clock.now_ms()
    await server.database.write(
        "tests.cluster",
        lambda s: clusters.ensure_cluster(
            s,
            cluster_id,
            name=prefix,
            kind="kubernetes",
            simulated=False,
            config={"admission": "kueue"},
            now=now,
        ),
    )
    sealed = sealing.seal(text.encode(), clusters.credential_context(cluster_id, 1))
    kept = Credential(cluster_id, sealed, 1, "", None, now, "test")
    await server.database.write(
        "tests.credential",
        lambda s: clusters.replace_credential(s, cluster_id, kept, {}, now),
    )
    await server.database.write(
        "tests.available", lambda s: clusters.make_available(s, cluster_id, now)
    )
    return cluster_id


def _loops(
    server: Server,
    registry: Registry,
    sealing: SealingKeys,
    workspaces: Path,
    turns: DecisionProcess,
) -> dict[str, LoopBody]:
    database, clock = server.database, server.clock
    leases = LeaseKeeper(database, clock, "test")
    bodies: tuple[LoopBody, ...] = (
        SchedulerLoop(database, clock, leases, Policy(), 0, turns, backends=registry),
        DispatcherLoop(
            database,
            clock,
            registry,
            lambda: Surroundings("", str(workspaces), "test"),
            lambda: 0.0,
            sealing,
            Tracing(),
        ),
        ObserverLoop(
            database, clock, registry, lambda text: text.encode(), lambda: 0.0, lambda: None
        ),
        InventoryLoop(database, clock, registry, look_s=120.0),
        MonitorLoop(database, clock, registry, WaitTargets()),
        KueueLoop(database, clock, registry, leases, Boosts(), lambda: None),
    )
    return {body.name: body for body in bodies}


async def clean(client: KubeClient, cluster_id: str, prefix: str) -> None:
    """Take away what a world made on the cluster."""
    for kind in (LOCAL_QUEUE, CLUSTER_QUEUE, COHORT, NAMESPACE):
        for each in await _found(client, kind, cluster_id, prefix):
            metadata = each["metadata"]
            await client.delete(kind, metadata["name"], metadata.get("namespace"))


async def _found(
    client: KubeClient, kind: Kind, cluster_id: str, prefix: str
) -> list[dict[str, Any]]:
    found = await client.list(kind)
    return [
        each
        for each in found
        if (each["metadata"].get("labels") or {}).get("gpuplane.io/cluster-id") == cluster_id
        or each["metadata"]["name"].removeprefix("tenant-").startswith(prefix)
    ]
