"""Builds the backend of each cluster; the only place that names a concrete one."""

from collections.abc import Iterator
from pathlib import Path

from gpuplane.backends.interface import Backend
from gpuplane.backends.local.backend import LocalBackend
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.backends.simulated.backend import SimulatedBackend
from gpuplane.backends.simulated.fleet import Fleet
from gpuplane.backends.simulated.loader import load_demo_fleet, load_fleet
from gpuplane.core.ids import ClusterId
from gpuplane.domains.clusters.service import Cluster
from gpuplane.kit.clock import Clock


class BackendRegistry:
    """The backends of this process, by the cluster they serve."""

    def __init__(self, home: Path, clock: Clock, seed: int, local: LocalSettings) -> None:
        """Make an empty registry for a home folder; `local` says what jobs here may leave."""
        self._local = local
        self._home = home
        self._clock = clock
        self._seed = seed
        self._backends: dict[ClusterId, Backend] = {}

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

    def find(self, cluster_id: ClusterId) -> Backend | None:
        """Return the backend of a cluster, or None when no part here serves it."""
        return self._backends.get(cluster_id)

    def items(self) -> Iterator[tuple[ClusterId, Backend]]:
        """Yield every (cluster, backend) of this process."""
        yield from list(self._backends.items())

    def close(self) -> None:
        """Let go of every backend; what runs goes on."""
        for backend in self._backends.values():
            close = getattr(backend, "close", None)
            if close is not None:
                close()


def fleet_of(cluster: Cluster) -> Fleet:
    """Return the fleet of a simulated cluster: the demo, or the file its config names."""
    source = cluster.config.get("fleet", "demo")
    return load_demo_fleet() if source == "demo" else load_fleet(Path(source), name=cluster.name)
