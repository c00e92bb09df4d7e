"""Clusters stored with their runs on a real database, which nobody answers for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId
from gpuplane.core.runs.plans import RunPlan
from gpuplane.db.database import Database
from gpuplane.domains.billing import service as billing
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterKey, ClusterState, Credential
from gpuplane.domains.runs import service as runs
from gpuplane.domains.runs.service import Run, RunPolicy, RunView
from gpuplane.kit.ids import new_id

TENANT, PROJECT = UUID(int=7 << 64), UUID(int=8 << 64)
POLICY = RunPolicy()


@dataclass
class Shelf:
    """A database with clusters, and an instant."""

    database: Database
    now: int = 1_000_000

    async def do(self, verb: Any, *arguments: Any, **more: Any) -> Any:
        """Call a use case in a unit of its own."""
        return await self.database.write("tests.do", lambda s: verb(s, *arguments, **more))

    async def register(self, name: str = "east", uid: str = "") -> tuple[Cluster, Run]:
        """Register a cluster; its run is begun and nobody works on it."""
        cluster_id = ClusterId(new_id())
        asked = clusters.Registration(
            a_cluster(cluster_id, name, uid),
            a_credential(cluster_id, 1),
            a_key(cluster_id),
            self.registration(cluster_id, name),
        )
        made: tuple[Cluster, Run] = await self.do(
            clusters.register, asked, POLICY, self.now, billing.carry_prices
        )
        return made

    def registration(self, cluster_id: ClusterId, name: str = "east") -> RunPlan:
        return clusters.plan_registration(
            cluster_id, name, tenant_id=TENANT, project_id=PROJECT, actor="ada", addons=None
        )

    async def available(self) -> Cluster:
        """Register a cluster and let it take work; its run is over."""
        cluster, run = await self.register()
        await self.do(runs.cancel_run, run.id, self.now)
        made: Cluster = await self.do(clusters.make_available, cluster.id, self.now)
        return made

    async def register_again(self, cluster: Cluster) -> tuple[Cluster, Run]:
        plan = self.registration(cluster.id, cluster.name)
        made: tuple[Cluster, Run] = await self.do(
            clusters.register_again, cluster.id, plan, POLICY, self.now
        )
        return made

    async def delete(self, cluster: Cluster, *, force: bool = False) -> tuple[Cluster, Run]:
        plan = clusters.plan_deletion(
            cluster.id, cluster.name, tenant_id=TENANT, project_id=PROJECT, actor="ada",
            force=force, wait_s=60,
        )  # fmt: skip
        made: tuple[Cluster, Run] = await self.do(
            clusters.start_deletion, cluster.id, plan, POLICY, "ada", self.now
        )
        return made

    async def cluster(self, cluster_id: ClusterId) -> Cluster:
        return await self.database.read(lambda s: clusters.get_cluster(s, cluster_id))

    async def run(self, run_id: UUID) -> RunView:
        return await self.database.read(lambda s: runs.get_run(s, run_id))


def a_cluster(cluster_id: ClusterId, name: str = "east", uid: str = "") -> Cluster:
    """Return a cluster that is about to be registered."""
    return Cluster(
        id=cluster_id, name=name, kind=clusters.KUBERNETES, simulated=False,
        state=ClusterState.REGISTERING, state_reason="", labels={}, notes=(),
        config={"admission": "embedded", "uid": uid}, frozen=False, frozen_reason="",
        preemption_policy={}, inventory_generation=0, created_at=0, updated_at=0, version=1,
    )  # fmt: skip


def a_credential(cluster_id: ClusterId, number: int) -> Credential:
    return Credential(cluster_id, b"sealed", number, "", None, 0, "ada")


def a_key(cluster_id: ClusterId) -> ClusterKey:
    key_id = new_id()
    return ClusterKey(key_id, cluster_id, key_id.hex, "gpc_", 0, "ada")
