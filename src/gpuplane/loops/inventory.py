"""The inventory: nodes, GPUs and availability of clusters, as their backends see them."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from gpuplane.backends.interface import Backend, BackendError, NodeObservation
from gpuplane.core.ids import ClusterId
from gpuplane.db.database import Database
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import ClusterState
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.placements import service as placements
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import ProductError
from gpuplane.kit.ids import new_id
from gpuplane.loops.ports import Backends

log = logging.getLogger("gpuplane.inventory")


class InventoryLoop:
    """Takes in nodes, GPUs and the availability of every cluster."""

    name = "inventory"

    def __init__(
        self, database: Database, clock: Clock, backends: Backends, period_s: float = 10.0
    ) -> None:
        """Make the loop."""
        self.period_s = period_s
        self._database = database
        self._clock = clock
        self._backends = backends
        self._seen: dict[ClusterId, int] = {}

    async def run_once(self) -> bool:
        """Look at every cluster of this process; one that cannot be reached hurts no other."""
        for cluster_id, backend in self._backends.items():
            await self._look(cluster_id, backend)
        return False

    async def _look(self, cluster_id: ClusterId, backend: Backend) -> None:
        now = self._clock.now_ms()
        try:
            probe = await backend.probe()
            seen = await backend.observe()
        except (BackendError, ProductError, OSError, TimeoutError) as error:
            log.warning("cluster %s cannot be looked at: %s", cluster_id, error)
            await self._database.write(
                "clusters.note_probe",
                partial(_note, cluster_id=cluster_id, state=ClusterState.NOT_AVAILABLE,
                        reason=f"{type(error).__name__}: {error}", notes=(), now=now),
            )  # fmt: skip
            return
        if self._seen.get(cluster_id) != seen.generation:

            def store(session: WriteSession) -> None:
                store_nodes(session, cluster_id, seen.nodes, new_id, now)

            await self._database.write("nodes.sync_inventory", store)
            self._seen[cluster_id] = seen.generation
        state = ClusterState.AVAILABLE if probe.reachable else ClusterState.NOT_AVAILABLE
        known = await self._database.read(lambda s: clusters.get_cluster(s, cluster_id))
        if (known.state, known.notes) != (state, probe.notes):
            await self._database.write(
                "clusters.note_probe",
                partial(_note, cluster_id=cluster_id, state=state, reason="", notes=probe.notes,
                        now=now),
            )  # fmt: skip


def store_nodes(
    session: WriteSession,
    cluster_id: ClusterId,
    seen: Sequence[NodeObservation],
    ids: Callable[[], UUID],
    now: int,
) -> None:
    """Store what was seen of a cluster's nodes, and the devices that the ledger counts."""
    cluster = clusters.get_cluster(session, cluster_id)
    if nodes.sync_inventory(session, cluster_id, seen, ids, now).any:
        session.wake("repartitioner")
    stored = nodes.list_nodes(session, cluster_id)
    placements.register_devices(session, stored, now, simulated=cluster.simulated)


def _note(
    session: WriteSession,
    cluster_id: ClusterId,
    state: ClusterState,
    reason: str,
    notes: tuple[str, ...],
    now: int,
) -> None:
    cluster = clusters.get_cluster(session, cluster_id)
    clusters.note_probe(session, cluster, state=state, reason=reason, notes=notes, now=now)
