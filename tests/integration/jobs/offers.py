"""What tests of jobs on a cluster that admits by itself share: offers, sights of them, books."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuplane.backends.interface import AttemptRef, Phase, ReplicaObservation
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.jobs import service as jobs
from gpuplane.domains.jobs.service import Offer
from gpuplane.domains.placements import service as placements
from gpuplane.domains.usage import service as usage
from tests.integration.jobs.worlds import H100, World


async def admit_by_kueue(world: World) -> None:
    """Let the cluster admit by itself, with a queue and a door of the admin's tenant."""

    def admit_there(session: Any) -> None:
        cluster = clusters.get_cluster(session, world.sim)
        wanted = {"config": {**cluster.config, "admission": "kueue"}}
        clusters.change(session, world.sim, wanted, "test", 1)

    await world.server.database.write("tests.admission", admit_there)
    quota = {"name": "nvidia.com/gpu", "nominalQuota": 8}
    flavors = [{"name": H100, "resources": [quota]}]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
    body = {"name": "q", "resourceGroups": groups}
    await world.ask("POST", "/clusters/sim/quotas", 201, json=body)
    door = {"name": "main", "tenant": str(world.server.admin.tenant_id), "clusterQueue": "q"}
    await world.ask("POST", "/clusters/sim/queues", 201, json=door)


async def offered(world: World, **fields: Any) -> tuple[dict[str, Any], Offer]:
    """Submit a job, let the scheduler hand it over, and return it with its offer."""
    job = await world.submit(gpu_count=2, gpu_type=H100, **fields)
    await world.loops["scheduler"].run_once()
    offers = await world.server.database.read(jobs.list_offers)
    return job, next(each for each in offers if str(each.job_id) == job["id"])


def seen(offer: Offer, node: str, phase: Phase = Phase.STARTING, **more: Any) -> ReplicaObservation:
    ref = AttemptRef(offer.attempt_id, offer.number)
    return ReplicaObservation(ref, 0, phase, node_name=node, **more)


async def settle(world: World, *observations: ReplicaObservation) -> jobs.Settled:
    now = world.server.clock.now_ms()
    return await world.server.database.write(
        "tests.settle",
        partial(
            jobs.settle_offers, seen=observations, seal=str.encode, chance=lambda: 0.0, now=now
        ),
    )


async def take_in(world: World, *observations: ReplicaObservation) -> None:
    now = world.server.clock.now_ms()
    await world.server.database.write(
        "tests.take_in",
        partial(jobs.take_in, seen=observations, seal=str.encode, chance=lambda: 0.0, now=now),
    )


async def faults(world: World) -> list[str]:
    """Return every broken promise that `db check` would tell."""
    now = world.server.clock.now_ms()
    return await world.server.database.read(
        lambda s: [*jobs.check(s), *placements.check(s), *usage.check(s, now)]
    )


async def held(world: World) -> int:
    """Return how many GPUs are held."""
    rows = await world.server.database.read(placements.list_open)
    return len([row for row in rows if row.gpu_id is not None])
