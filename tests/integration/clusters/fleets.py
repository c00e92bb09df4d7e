"""Clusters whose nodes tell of GPUs, registered and deleted by hand, with their ledger."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuplane.backends.interface import GpuObservation, NodeObservation
from gpuplane.core.ids import AttemptId, ClusterId, GpuId, JobId, ProjectId, ReplicaId, TenantId
from gpuplane.core.runs.plans import Completed, StepCall
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.events import service as events
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.placements import service as placements
from gpuplane.domains.placements.service import PlacementOrder, ReplicaOrder
from gpuplane.domains.runs import service as runs
from gpuplane.domains.usage import service as usage
from gpuplane.kit.ids import new_id
from gpuplane.kit.pagination import PageRequest
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.nodefacts import NodeFacts
from gpuplane.loops.clusters.deleting import drain, forget
from gpuplane.loops.clusters.tools import ClusterTools
from gpuplane.loops.inventory import store_nodes
from tests.clocks import FakeClock
from tests.integration.clusters.worlds import PROJECT, TENANT, Shelf
from tests.integration.ledger.histories import open_database

MINUTE = 60_000
MODEL = "NVIDIA-A100-SXM4-80GB"


class Fleet(Shelf):
    """Clusters of one node each, told of by whoever calls; a clock that only `pass_` moves."""

    folder: Path

    async def cluster_of(self, name: str) -> Cluster:
        """Register a cluster; its run is over."""
        cluster, run = await self.register(name)
        await self.do(runs.cancel_run, run.id, self.now)
        made: Cluster = await self.do(clusters.make_available, cluster.id, self.now)
        return made

    async def look(self, cluster: Cluster, *gpu_ids: str) -> None:
        """Let a cluster tell that its node has these GPUs."""
        await self.look_at(cluster, {"n1": gpu_ids})

    async def look_at(self, cluster: Cluster, told: Mapping[str, Sequence[str]]) -> bool:
        """Let a cluster tell of the GPUs of its nodes; return whether all of them were taken."""
        seen = tuple(
            NodeObservation(name, ready=True, cpu_milli=64_000, memory_mib=512_000,
                            ephemeral_mib=1_000,
                            gpus=tuple(GpuObservation(GpuId(gpu_id), index, MODEL, 81_920)
                                       for index, gpu_id in enumerate(gpu_ids)))
            for name, gpu_ids in told.items()
        )  # fmt: skip
        took_all: bool = await self.do(store_nodes, cluster.id, seen, new_id, self.now)
        return took_all

    async def pass_(self, minutes: int = 1) -> None:
        """Let time pass; what the ledger promises must hold."""
        assert await self.faults() == []
        self.now += minutes * MINUTE
        assert await self.faults() == []

    async def faults(self) -> list[str]:
        return await self.database.read(lambda s: [*placements.check(s), *usage.check(s, self.now)])

    async def message(self, cluster: Cluster, name: str = "n1") -> str:
        """Return what a node of a cluster says of itself."""
        node = await self.database.read(lambda s: nodes.get_node(s, cluster.id, name))
        return node.message

    async def told(self, kind: str, name: str = "n1") -> list[tuple[ClusterId | None, str]]:
        """Return the cluster and the sentence of each event of a kind, the oldest first."""
        page = await self.database.read(
            lambda s: events.list_events_of(s, "node", name, PageRequest(1000))
        )
        return [(each.cluster_id, each.message) for each in page.items if each.kind == kind]

    async def gpus(self, cluster: Cluster) -> set[str]:
        """Return the GPUs that a cluster has now."""
        found = await self.database.read(lambda s: nodes.list_nodes(s, cluster.id))
        return {str(gpu.gpu_id) for node in found for gpu in node.gpus if gpu.present}

    async def by_node(self, cluster: Cluster) -> dict[str, set[str]]:
        """Return the GPUs that each node of a cluster has now."""
        found = await self.database.read(lambda s: nodes.list_nodes(s, cluster.id))
        return {n.name: {str(gpu.gpu_id) for gpu in n.gpus if gpu.present} for n in found}

    async def minutes(self) -> dict[ClusterId, float]:
        """Return the device minutes of every cluster till now, those it was down too."""
        found = await self.database.read(lambda s: usage.sum_states(s, 0, self.now, self.now))
        for each in found:
            alone = await self.database.read(
                lambda s, key=each.cluster_id: usage.sum_states(s, 0, self.now, self.now, key)
            )
            assert alone == (each,)
        return {each.cluster_id: each.wall_clock / MINUTE for each in found}

    async def place(self, cluster: Cluster, gpu_id: str) -> AttemptId:
        """Let work of ours hold a GPU of a cluster."""
        node = await self.database.read(lambda s: nodes.get_node(s, cluster.id, "n1"))
        attempt_id = AttemptId(new_id())
        replica = ReplicaOrder(
            ReplicaId(new_id()), 0, node.id, (GpuId(gpu_id),), 1000, None, 1000, 1024, 0
        )
        order = PlacementOrder(
            attempt_id,
            JobId(new_id()),
            TenantId(TENANT),
            ProjectId(PROJECT),
            cluster.id,
            (replica,),
        )
        result = await self.do(placements.place, [order], self.now)
        assert result.placed == (attempt_id,)
        return attempt_id

    def tools(self) -> ClusterTools:
        """Return what the loop of clusters works with, at this instant."""
        keys = SealingKeys(self.folder / "keys")
        return ClusterTools(self.database, FakeClock(self.now), keys, self.folder, no_nodes)

    async def remove(self, cluster: Cluster) -> None:
        """Delete a cluster by force, by the steps of its run."""
        cluster, run = await self.delete(cluster, force=True)
        tools = self.tools()
        given: dict[str, Any] = {"cluster_id": str(cluster.id), "force": True, "wait_s": 0}
        for name, work in (("drain", drain), ("forget", forget)):
            call = StepCall(
                run_id=run.id, step_id=new_id(), key=name, name=name, tenant_id=TENANT,
                project_id=PROJECT, idempotency_key=name, attempt=1, now=self.now, input=given,
                params={}, context={}, scope={}, outputs={},
            )  # fmt: skip
            cluster = await self.cluster(cluster.id)
            assert isinstance(await work(tools, cluster, given, call), Completed)


def no_nodes(facts: NodeFacts) -> NodeObservation:
    raise AssertionError(f"no node is observed here: {facts.name}")


@contextlib.asynccontextmanager
async def running_fleet(database_url: str, folder: Path) -> AsyncIterator[Fleet]:
    """Have a database without a cluster."""
    database = open_database(database_url)
    fleet = Fleet(database, now=1_700_000_000_000)
    fleet.folder = folder
    try:
        yield fleet
    finally:
        database.close()
