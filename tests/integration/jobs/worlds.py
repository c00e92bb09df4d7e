"""A whole product in one process for tests of jobs: API, loops turned by hand, a small fleet.

Time stands still unless a test moves it, so what a test sees follows from what it did; only beside
real processes it goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from gpuplane.api.app import AppDependencies
from gpuplane.api.routers import load_routers
from gpuplane.backends.interface import Backend
from gpuplane.backends.local.backend import LocalBackend
from gpuplane.backends.simulated.backend import SimulatedBackend
from gpuplane.backends.simulated.loader import parse_fleet
from gpuplane.core.ids import ClusterId
from gpuplane.core.scheduling.policy import Policy
from gpuplane.db.leases import LeaseKeeper
from gpuplane.domains.billing import service as billing
from gpuplane.domains.billing.service import NewPrice
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs.endpoints import WorkspaceFolder
from gpuplane.domains.jobs.service import (
    SubmitLimits,
    Surroundings,
    UptimeTargets,
    WaitTargets,
    count_offers,
    count_queue_users,
    list_tenant_jobs,
)
from gpuplane.domains.jobs.service.rewrapping import OUTPUTS_CONTEXT, rewrap_outputs
from gpuplane.domains.placements import service as placements
from gpuplane.domains.runs.service import RunPolicy
from gpuplane.kit.feeds import Seats
from gpuplane.kit.ids import new_id
from gpuplane.kit.loops import LoopBody
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.tracing import Tracing
from gpuplane.loops.deciding.process import DecisionBounds, DecisionProcess
from gpuplane.loops.dispatcher import DispatcherLoop
from gpuplane.loops.inventory import InventoryLoop
from gpuplane.loops.learner import LearnerLoop
from gpuplane.loops.monitor import MonitorLoop
from gpuplane.loops.observer import ObserverLoop
from gpuplane.loops.planner import WorldPlanner
from gpuplane.loops.repartitioner import RepartitionerLoop
from gpuplane.loops.scheduler.loop import SchedulerLoop
from tests.http_app import Server, running_server

FLEET = """
apiVersion: gpuplane.io/v1
kind: Fleet
metadata: {name: sim}
spec:
  nodeGroups:
    - name: big
      count: 2
      gpus: {model: H100-80GB, count: 8}
      topology: nvswitch-8
      cpu: 64
      memory: 512Gi
      ephemeralStorage: 2Ti
    - name: small
      count: 1
      gpus: {model: T4, count: 2}
      cpu: 16
      memory: 64Gi
      ephemeralStorage: 500Gi
  startDelay: {value: 0s}
  stopDelay: {value: 0s}
"""
T4 = "nvidia-t4"
H100 = "nvidia-h100-80gb"
PRICES = {H100: 4_000_000, T4: 400_000}


class Registry:
    """The backends of the world."""

    def __init__(self) -> None:
        self.backends: dict[ClusterId, Backend] = {}

    def find(self, cluster_id: ClusterId) -> Backend | None:
        return self.backends.get(cluster_id)

    def items(self) -> Iterator[tuple[ClusterId, Backend]]:
        yield from list(self.backends.items())


@dataclass
class World:
    """The server, its clusters and its loops."""

    server: Server
    sim: ClusterId
    backend: SimulatedBackend
    registry: Registry
    loops: dict[str, LoopBody]
    workspaces: Path
    turns: DecisionProcess
    questions: DecisionProcess
    http: httpx2.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.http = self.server.http

    async def turn(self, times: int = 1) -> None:
        """Let every loop look once, in the order in which work flows."""
        for _ in range(times):
            for name in ("monitor", "scheduler", "dispatcher", "observer"):
                await self.loops[name].run_once()

    async def after(self, seconds: float) -> None:
        """Let time pass, then let every loop look twice."""
        self.server.clock.advance(seconds)
        await self.turn(2)

    async def submit(self, status: int = 201, **fields: Any) -> dict[str, Any]:
        """Submit a job on the simulated cluster; return the answer's body."""
        body = {"name": "job", "cluster": "sim", **fields}
        answer = await self.http.post("/api/v1/jobs", json=body)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def job(self, job_id: str) -> dict[str, Any]:
        """Return a job as the API shows it."""
        answer = await self.http.get(f"/api/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def ask(self, method: str, path: str, status: int = 200, **rest: Any) -> dict[str, Any]:
        """Ask the API and return the body; the status must be the one expected."""
        answer = await self.http.request(method, f"/api/v1{path}", **rest)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def kinds(self, job_id: str) -> list[str]:
        """Return the kinds of a job's events, oldest first."""
        found = await self.ask("GET", f"/jobs/{job_id}/events?limit=200")
        return [each["kind"] for each in found["items"]]


def runs_for(seconds: float, **more: Any) -> dict[str, Any]:
    """Return a `spec` that runs so long on a simulated cluster."""
    return {"command": ["train"], "simulated": {"duration_s": seconds, **more}}


@contextlib.asynccontextmanager
async def running_world(
    database_url: str,
    folder: Path,
    sealing: SealingKeys,
    *,
    targets: WaitTargets | None = None,
    uptimes: UptimeTargets | None = None,
    limits: SubmitLimits | None = None,
    fleet: str = FLEET,
    has_local: bool = False,
    bounds: DecisionBounds | None = None,
) -> AsyncIterator[World]:
    """Make a world on an empty database; nothing runs until a test turns the loops."""
    turns, questions = (DecisionProcess(bounds or DecisionBounds()) for _ in range(2))
    registry = Registry()
    workspaces = folder / "workspaces"
    workspaces.mkdir()
    late: dict[str, Any] = {}

    def adapt(deps: AppDependencies) -> AppDependencies:
        late["planner"] = WorldPlanner(deps.database, deps.clock, Policy(), 0, questions)
        deps.ports["planner"] = late["planner"]  # type: ignore[index]  # the test's own dictionary
        return deps

    ports = {
        "backends": registry,
        "submit_limits": limits or SubmitLimits(),
        "rewraps": (rewrap_outputs,),
        "log_followers": Seats(2),
        "workspaces": WorkspaceFolder(workspaces),
        "count_queue_users": count_queue_users,
        "list_tenant_jobs": list_tenant_jobs,
        "count_offers": count_offers,
        "count_reservations": placements.count_standing,
        "run_policy": RunPolicy(),
    }
    async with running_server(
        database_url, sealing, routers=load_routers(), ports=ports, adapt=adapt
    ) as server:
        clock = server.clock
        if not has_local:  # real processes live by the machine's clock
            clock.hold()
        backend = SimulatedBackend(
            parse_fleet(fleet, "sim.yaml"), clock, seed=1, state_path=folder / "sim.db"
        )
        sim = await _add_cluster(server, "sim", "simulated")
        registry.backends[sim] = backend
        if has_local:
            home = folder / "home"
            home.mkdir()
            local = await _add_cluster(server, "local", "local")
            registry.backends[local] = LocalBackend(home, clock)
        loops = _loops(server, registry, sealing, workspaces, turns, targets, uptimes)
        await loops["inventory"].run_once()
        try:
            yield World(server, sim, backend, registry, loops, workspaces, turns, questions)
        finally:
            observer = loops["observer"]
            assert isinstance(observer, ObserverLoop)
            await observer.stop()
            turns.close()
            questions.close()
            for each in registry.backends.values():
                close = getattr(each, "close", None)
                if close is not None:
                    close()


def _loops(
    server: Server,
    registry: Registry,
    sealing: SealingKeys,
    workspaces: Path,
    turns: DecisionProcess,
    targets: WaitTargets | None,
    uptimes: UptimeTargets | None,
) -> dict[str, LoopBody]:
    """Return every loop that moves jobs, by name."""
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
            database,
            clock,
            registry,
            lambda text: sealing.seal(text.encode(), OUTPUTS_CONTEXT),
            lambda: 0.0,
            lambda: None,
        ),
        InventoryLoop(database, clock, registry, look_s=120.0),
        RepartitionerLoop(database, clock, registry),
        LearnerLoop(database, clock, leases),
        MonitorLoop(database, clock, registry, targets or WaitTargets(), uptimes=uptimes),
    )
    return {body.name: body for body in bodies}


async def _add_cluster(server: Server, name: str, kind: str) -> ClusterId:
    now = server.clock.now_ms()
    cluster_id = ClusterId(new_id())

    def unit(session: Any) -> None:
        clusters.ensure_cluster(
            session,
            cluster_id,
            name=name,
            kind=kind,
            simulated=kind == "simulated",
            config={},
            now=now,
        )  # fmt: skip - the call reads as one line
        if kind == "simulated":
            wanted = [NewPrice(model, micro, "USD", cluster_id) for model, micro in PRICES.items()]
            billing.ensure_prices(session, wanted, "system", now)
        else:
            clusters.grant(session, cluster_id, server.admin.tenant_id, "system", now)

    await server.database.write("tests.cluster", unit)
    return cluster_id
