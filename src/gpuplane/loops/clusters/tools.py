"""What the steps of a cluster's life are given by the composition root, and how they answer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from gpuplane.backends.interface import NodeObservation
from gpuplane.core.ids import ClusterId
from gpuplane.core.runs.plans import Answer, Failed, StepCall
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.jobs.service import Attempt
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import Conflict, ProductError
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import BadKubeconfig, Connection
from gpuplane.kube.errors import Conflict as ObjectChanged
from gpuplane.kube.errors import FieldConflict, Forbidden, KubeError, Unauthorized
from gpuplane.kube.helm import Helm
from gpuplane.kube.nodefacts import NodeFacts


@dataclass(frozen=True, slots=True)
class AddonSettings:
    """Settings of add-ons; see `entry.settings`.

    Args:
        helm: The binary, a path or a name to find; empty for no add-ons at all.
        charts: A folder with charts as `<name>-<version>.tgz`, looked into before the network.
        nfd_wait_ms: How long node labels are waited for, each of two times.
        hami_port: Where HAMi's scheduler tells its metrics.
        hami_threshold: Percent of a GPU in use from which it is not given out.
        hami_metrics: Whether HAMi's metrics are collected.
        receiver: Where clusters write their metrics to; empty keeps remote write off.
        names: Add-ons that may be installed at all; empty for every one in the list.
    """

    helm: str = ""
    charts: str = ""
    nfd_wait_ms: int = 30_000
    hami_port: int = 31_993
    hami_threshold: int = 80
    hami_metrics: bool = False
    receiver: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterTools:
    """What handlers and the loop of clusters work with.

    Args:
        observe_node: Makes what the inventory keeps from the facts of a Node.
        ensure_defaults: Makes default flavors and queues on a cluster with Kueue and returns
            their names; None where nothing makes any.
        ask_checkpoint: Asks an attempt for a checkpoint through its backend.
        worker_connect_s: How long Kueue may take to connect with a worker.
    """

    database: Database
    clock: Clock
    sealing: SealingKeys
    home: Path
    observe_node: Callable[[NodeFacts], NodeObservation]
    ensure_defaults: (
        Callable[[KubeClient, Database, ClusterId, int], Awaitable[list[str]]] | None
    ) = None
    ask_checkpoint: Callable[[Attempt], Awaitable[None]] | None = None
    addons: AddonSettings = field(default_factory=AddonSettings)
    worker_connect_s: float = 15.0

    async def cluster(self, cluster_id: UUID) -> Cluster:
        """Return a cluster as it is stored now."""
        return await self.database.read(lambda s: clusters.get_cluster(s, cluster_id))

    async def connection(self, cluster: Cluster) -> Connection:
        """Return the way into a cluster."""
        return await self.database.read(
            lambda s: clusters.open_connection(s, self.sealing, cluster)
        )

    @asynccontextmanager
    async def client(self, cluster: Cluster) -> AsyncIterator[KubeClient]:
        """Open a client for the length of the block."""
        async with KubeClient(await self.connection(cluster)) as client:
            yield client

    async def helm(self, cluster: Cluster) -> Helm:
        """Return Helm for a cluster."""
        connection = await self.connection(cluster)
        return Helm(connection, binary=self.addons.helm, home=self.home / "helm")


TRIES = 5
"""Of a step at once where objects change under it; each is idempotent."""
Work = Callable[[ClusterTools, Cluster, Mapping[str, Any], StepCall], Awaitable[Answer]]


def step(tools: ClusterTools, work: Work) -> Callable[[StepCall], Awaitable[Answer]]:
    """Return the handler of one step: what goes wrong outside becomes an answer with a word."""

    async def run(call: StepCall) -> Answer:
        given: Mapping[str, Any] = call.input
        try:
            cluster = await tools.cluster(UUID(given["cluster_id"]))
            return await _work_at_once(work, tools, cluster, call)
        except BadKubeconfig as error:
            return Failed("KubeconfigUnusable", f"{error.field}: {error.reason}", is_final=True)
        except (Unauthorized, Forbidden) as error:
            return Failed("CredentialsRefused", str(error), is_final=True)
        except ObjectChanged as error:
            return Failed("ObjectChanged", f"Others change it again and again: {error.message}")
        except KubeError as error:
            return Failed("ClusterUnreachable", str(error))
        except ProductError as error:
            # What was changed by somebody meanwhile is read anew by another try.
            is_final = error.status < 500 and not isinstance(error, Conflict)
            return Failed("Refused", error.detail, is_final=is_final)
        except TimeoutError:
            return Failed("ClusterUnreachable", "The cluster did not answer in time.")

    return run


async def _work_at_once(
    work: Work, tools: ClusterTools, cluster: Cluster, call: StepCall
) -> Answer:
    """Do a step, again at once where somebody changed an object between its read and its write."""
    for _ in range(TRIES - 1):
        try:
            return await work(tools, cluster, call.input, call)
        except FieldConflict:
            raise
        except ObjectChanged:
            continue
    return await work(tools, cluster, call.input, call)
