"""The inventory: nodes, GPUs and availability of clusters, as their backends see them."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from uuid import UUID

from gpuplane.backends.capabilities import ReachesKubernetes
from gpuplane.backends.interface import Backend, BackendError, NodeObservation
from gpuplane.core.ids import ClusterId
from gpuplane.db.database import Database
from gpuplane.db.questions import Question
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterState
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.placements import service as placements
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import ProductError
from gpuplane.kit.ids import new_id
from gpuplane.loops.cordons import Cordons
from gpuplane.loops.looks import Looks
from gpuplane.loops.ports import Backends

log = logging.getLogger("gpuplane.inventory")

LOOK_S = 10.0
"""How long a turn waits for clusters; one that takes longer goes on without the turn."""
RESYNC_MS = 180_000
"""Nodes are compared as a whole and said to be seen at least so often."""


class InventoryLoop:
    """Takes in nodes, GPUs and the availability of every cluster."""

    name = "inventory"

    def __init__(
        self,
        database: Database,
        clock: Clock,
        backends: Backends,
        period_s: float = 10.0,
        refresh: Callable[[], Awaitable[None]] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        """Make the loop.

        Args:
            database: Where nodes are kept.
            clock: The time.
            backends: Who sees them.
            period_s: How often it looks.
            refresh: Brings backends in step with the clusters that are stored; before each look.
            look_s: How long a turn waits for clusters.
        """
        self.period_s = period_s
        self._refresh = refresh
        self._look_s = look_s
        self._looks = Looks("inventory")
        self._cordons = Cordons()
        self._uncordoned: dict[ClusterId, dict[str, str]] = {}
        self._database = database
        self._clock = clock
        self._backends = backends
        self._seen: dict[ClusterId, tuple[int, bool]] = {}
        self._stored_at: dict[ClusterId, int] = {}
        self._cluster = Question(database, clusters.get_cluster)

    async def run_once(self) -> bool:
        """Look at every cluster of this process; one that cannot be reached hurts no other."""
        if self._refresh is not None:
            await self._refresh()
        works = {
            cluster_id: partial(self._look, cluster_id, backend)
            for cluster_id, backend in self._backends.items()
        }
        await self._looks.run(works, self._look_s)
        return False

    async def stop(self) -> None:
        """End looks under way."""
        await self._looks.stop()

    async def _look(self, cluster_id: ClusterId, backend: Backend) -> None:
        now = self._clock.now_ms()
        try:
            probe = await backend.probe()
            seen = await backend.observe()
        except (BackendError, ProductError, OSError, TimeoutError) as error:
            log.warning("cluster %s cannot be looked at: %s", cluster_id, error)
            if backend.kind == clusters.KUBERNETES:
                return  # whether it answers is told by the loop of registered clusters
            await self._database.write(
                "clusters.note_probe",
                partial(_note, cluster_id=cluster_id, state=ClusterState.NOT_AVAILABLE,
                        reason=f"{type(error).__name__}: {error}", notes=(), now=now),
            )  # fmt: skip
            return
        known = await self._cluster.ask(cluster_id)
        mark = (seen.generation, known.enable_master_node)
        is_due = now - self._stored_at.get(cluster_id, now) >= RESYNC_MS
        if self._seen.get(cluster_id) != mark or is_due:

            def store(session: WriteSession) -> bool:
                return store_nodes(session, cluster_id, seen.nodes, new_id, now)

            took_all = await self._database.write("nodes.sync_inventory", store)
            self._stored_at[cluster_id] = now
            if took_all:
                self._seen[cluster_id] = mark
            else:
                self._seen.pop(cluster_id, None)  # another may give its GPUs up at any time
        await self._keep_cordons(known, backend, seen.nodes)
        state = ClusterState.AVAILABLE if probe.reachable else ClusterState.NOT_AVAILABLE
        if backend.kind == clusters.KUBERNETES:
            if known.notes != probe.notes:
                await self._database.write(
                    "clusters.note_looked_at",
                    partial(_note_promises, cluster_id=cluster_id, notes=probe.notes, now=now),
                )
            return
        if (known.state, known.notes) != (state, probe.notes):
            await self._database.write(
                "clusters.note_probe",
                partial(_note, cluster_id=cluster_id, state=state, reason="", notes=probe.notes,
                        now=now),
            )  # fmt: skip

    async def _keep_cordons(
        self, cluster: Cluster, backend: object, seen: Sequence[NodeObservation]
    ) -> None:
        """Bring the cordons on a Kubernetes cluster to those wanted here; tell what fails, once."""
        # One that is being deleted has them taken off: they are not put on again meanwhile.
        is_leaving = cluster.state is ClusterState.DELETING
        if is_leaving or not isinstance(backend, ReachesKubernetes):
            return
        wanted = await self._database.read(lambda s: nodes.list_cordoned(s, cluster.id))
        failed = await self._cordons.keep(backend.client, cluster.known_ids, seen, wanted)
        told = self._uncordoned.get(cluster.id, {})
        self._uncordoned[cluster.id] = failed
        for name, why in failed.items():
            if told.get(name) == why:
                continue
            log.warning("cordon of node %s is not kept on %s: %s", name, cluster.name, why)
            now = self._clock.now_ms()
            await self._database.write(
                "nodes.note_cordon_failed",
                partial(
                    nodes.note_cordon_failed,
                    cluster_id=cluster.id,
                    name=name,
                    message=f"The cordon of {name} is not kept on its cluster just now: {why}",
                    now=now,
                ),
            )


def _note_promises(
    session: WriteSession, cluster_id: ClusterId, notes: tuple[str, ...], now: int
) -> None:
    """Store what a registered cluster promises; its state is not this loop's, and stays."""
    clusters.note_looked_at(session, cluster_id, {"notes": notes}, now)


def store_nodes(
    session: WriteSession,
    cluster_id: ClusterId,
    seen: Sequence[NodeObservation],
    ids: Callable[[], UUID],
    now: int,
) -> bool:
    """Store what was seen of a cluster's nodes, and the devices that the ledger counts.

    Returns whether all is taken that was seen: not while another cluster has some of its GPUs.
    What was seen of a cluster that was deleted meanwhile is dropped: its devices ended with it.
    """
    cluster = clusters.get_cluster(session, cluster_id)
    if cluster.deleted_at is not None:
        return True
    changes = nodes.sync_inventory(session, cluster_id, seen, ids, now, placements.find_held)
    if changes.any:
        session.wake("repartitioner")
    nodes.note_synced(session, cluster_id, now)
    stored = nodes.list_nodes(session, cluster_id)
    placements.register_devices(session, stored, now, simulated=cluster.simulated)
    return not changes.elsewhere


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
