"""Builds the backend of each cluster; the only place that names a concrete one."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from gpuplane.backends.interface import Backend
from gpuplane.backends.kubernetes.chartplaces import ChartTools
from gpuplane.backends.kubernetes.settings import KubernetesSettings, VolumeSource
from gpuplane.backends.local.backend import LocalBackend
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.backends.simulated.backend import SimulatedBackend
from gpuplane.backends.simulated.fleet import Fleet
from gpuplane.backends.simulated.loader import load_demo_fleet, load_fleet
from gpuplane.core.ids import ClusterId
from gpuplane.domains.clusters.service import KUBERNETES, Cluster, ClusterState
from gpuplane.domains.queues import service as queues
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import ProductError
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import BadKubeconfig, Connection

log = logging.getLogger("gpuplane.backends")


class BackendRegistry:
    """The backends of this process, by the cluster they serve."""

    def __init__(
        self,
        home: Path,
        clock: Clock,
        seed: int,
        local: LocalSettings,
        charts: ChartTools | None = None,
    ) -> None:
        """Make an empty registry for a home folder.

        `local` says what jobs here may leave, `charts` what Helm charts need.
        """
        self._charts = charts
        self._local = local
        self._home = home
        self._clock = clock
        self._seed = seed
        self._backends: dict[ClusterId, Backend] = {}
        self._marks: dict[ClusterId, tuple[int, bool, str, tuple[str, ...]]] = {}
        self.on_return: Callable[[ClusterId], None] | None = None
        """Called when a registered cluster is heard of again that could not be reached."""

    def add(self, cluster: Cluster) -> Backend:
        """Build the backend of a cluster, once."""
        found = self._backends.get(cluster.id)
        if found is not None:
            return found
        backend: Backend
        if cluster.kind == "local":
            backend = LocalBackend(self._home, self._clock, self._local)
        elif cluster.kind == "simulated":
            backend = SimulatedBackend(
                fleet_of(cluster),
                self._clock,
                seed=self._seed,
                state_path=self._home / f"simulated-{cluster.name}.db",
            )
        else:
            raise ValueError(f"no part serves clusters of kind {cluster.kind!r}")
        self._backends[cluster.id] = backend
        return backend

    async def refresh(
        self,
        clusters: Sequence[Cluster],
        numbers: Mapping[ClusterId, int],
        connect: Callable[[Cluster], Awaitable[Connection]],
    ) -> None:
        """Bring the backends of registered clusters in step with what is stored.

        One is made once its cluster can take work, made anew when its credentials or settings
        changed, and let go when its cluster is gone. One that cannot be made hurts no other.

        Args:
            clusters: Every cluster.
            numbers: The number of each one's credentials; it grows when they are replaced.
            connect: Opens the credentials of a cluster.
        """
        wanted = {
            each.id: (
                numbers[each.id],
                each.enable_master_node,
                repr(sorted(each.config.items())),
                queues.manager_ids(each, clusters),
            )
            for each in clusters
            if each.kind == KUBERNETES and each.id in numbers and is_served(each)
        }
        for cluster_id, mark in list(self._marks.items()):
            if wanted.get(cluster_id) != mark:
                del self._marks[cluster_id]
                await self._stop(self._backends.pop(cluster_id))
        for cluster in clusters:
            if cluster.id not in wanted or cluster.id in self._backends:
                continue
            managers = queues.manager_ids(cluster, clusters)
            try:
                connection = await connect(cluster)
            except (ProductError, BadKubeconfig) as error:
                log.warning("cluster %s cannot be served: %s", cluster.name, error)
                continue
            self._backends[cluster.id] = self._make_kubernetes(cluster, connection, managers)
            self._marks[cluster.id] = wanted[cluster.id]

    def _make_kubernetes(
        self, cluster: Cluster, connection: Connection, manager_ids: tuple[str, ...]
    ) -> Backend:
        # Two megabytes that a server without a cluster of Kubernetes need not hold.
        from gpuplane.backends.kubernetes.backend import KubernetesBackend

        made = KubernetesBackend(
            KubeClient(connection),
            str(cluster.id),
            self._home,
            self._clock,
            replace(kubernetes_settings(cluster), manager_ids=manager_ids),
            self._charts,
        )
        made.on_return = partial(self._tell_return, cluster.id)
        return made

    def _tell_return(self, cluster_id: ClusterId) -> None:
        if self.on_return is not None:
            self.on_return(cluster_id)

    def find(self, cluster_id: ClusterId) -> Backend | None:
        """Return the backend of a cluster, or None when no part here serves it."""
        return self._backends.get(cluster_id)

    def items(self) -> Iterator[tuple[ClusterId, Backend]]:
        """Yield every (cluster, backend) of this process."""
        yield from list(self._backends.items())

    async def stop(self) -> None:
        """Let go of registered clusters; what runs goes on."""
        for cluster_id in list(self._marks):
            del self._marks[cluster_id]
            await self._stop(self._backends.pop(cluster_id))

    async def _stop(self, backend: Backend) -> None:
        from gpuplane.backends.kubernetes.backend import KubernetesBackend

        if isinstance(backend, KubernetesBackend):
            await backend.stop()

    def close(self) -> None:
        """Let go of the backends of this machine; what runs goes on."""
        for backend in self._backends.values():
            close = getattr(backend, "close", None)
            if close is not None:
                close()


def is_served(cluster: Cluster) -> bool:
    """Return whether a registered cluster has come so far that work may run there.

    One that took work once is served until it is forgotten: what runs there goes on when a
    deletion fails, and while it is registered again after that.
    """
    if cluster.state in (ClusterState.REGISTERING, ClusterState.ERROR):
        return cluster.was_available or cluster.not_available_since is not None
    return True


def kubernetes_settings(cluster: Cluster) -> KubernetesSettings:
    """Return the habits of a cluster's backend as its config says them."""
    names = {each.name for each in fields(KubernetesSettings)}
    told = {name: value for name, value in cluster.config.items() if name in names and value}
    if "tolerates_control_plane" in names:
        told["tolerates_control_plane"] = cluster.enable_master_node
    if "former_ids" in told:
        told["former_ids"] = tuple(told["former_ids"])
    if "volumes" in told:
        told["volumes"] = {name: VolumeSource(**source) for name, source in told["volumes"].items()}
    return KubernetesSettings(**told)


def fleet_of(cluster: Cluster) -> Fleet:
    """Return the fleet of a simulated cluster: the demo, or the file its config names."""
    source = cluster.config.get("fleet", "demo")
    return load_demo_fleet() if source == "demo" else load_fleet(Path(source), name=cluster.name)
