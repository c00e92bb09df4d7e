"""An API server that keeps what is written to it, a client of it, and a world with a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from gpuplane.core.scheduling.policy import Boosts
from gpuplane.db.leases import LeaseKeeper
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.kube.clients import KubeClient
from gpuplane.loops.kueue.loop import KueueLoop
from tests.integration.jobs.conftest import any_world, sealing_keys, world
from tests.integration.jobs.worlds import H100, Registry, World
from tests.integration.kube.conftest import client, clock, server
from tests.integration.kube.scripted import ScriptedServer
from tests.integration.kueue.stored import Stored

__all__ = ["any_world", "client", "clock", "sealing_keys", "server", "world"]

FORMER = "0190a000-0000-7000-8000-000000000001"
"""An id that the cluster had before."""


@dataclass
class Reaching:
    """What the loop takes of a backend: the client of its cluster."""

    client: KubeClient


@dataclass
class Kueue:
    """A world, and the loop that follows the Kueue of its cluster."""

    world: World
    loop: KueueLoop

    async def offer(self) -> Offer:
        """Submit a job and let the scheduler hand it over."""
        job = await self.world.submit(gpu_count=2, gpu_type=H100)
        await self.world.loops["scheduler"].run_once()
        offers = await self.world.server.database.read(jobs.list_offers)
        return next(each for each in offers if str(each.job_id) == job["id"])


@pytest.fixture
def stored(server: ScriptedServer) -> Stored:
    """What the scripted server keeps."""
    made = Stored()
    server.handler = made
    return made


@pytest.fixture
async def kueue(world: World, client: KubeClient, stored: Stored) -> AsyncIterator[Kueue]:
    """A world whose cluster admits by the Kueue of the scripted server, and its loop."""

    def admit_there(session: Any) -> None:
        cluster = clusters.get_cluster(session, world.sim)
        wanted = {"config": {**cluster.config, "admission": "kueue", "former_ids": [FORMER]}}
        clusters.change(session, world.sim, wanted, "test", 1)

    await world.server.database.write("tests.admission", admit_there)
    quota = {"name": "nvidia.com/gpu", "nominalQuota": 8}
    groups = [
        {
            "coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": H100, "resources": [quota]}],
        }
    ]
    body = {"name": "q", "resourceGroups": groups}
    await world.ask("POST", "/clusters/sim/quotas", 201, json=body)
    door = {"name": "main", "tenant": str(world.server.admin.tenant_id), "clusterQueue": "q"}
    await world.ask("POST", "/clusters/sim/queues", 201, json=door)
    registry = Registry()
    registry.backends[world.sim] = Reaching(client)  # type: ignore[assignment]  # its client is all that is used
    clock = world.server.clock
    leases = LeaseKeeper(world.server.database, clock, "test")
    loop = KueueLoop(world.server.database, clock, registry, leases, Boosts(), lambda: None)
    yield Kueue(world, loop)
    await loop.stop()
