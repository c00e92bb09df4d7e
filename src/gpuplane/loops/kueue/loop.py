"""The loop: for each cluster that admits by itself, write queues, follow workloads, keep holds.

Clusters are looked after at the same time and each within a bound, so that a slow or hung one
delays no other; what fails is said once and tried again in the next turn.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from gpuplane.backends.capabilities import ReachesKubernetes
from gpuplane.core.ids import AttemptId, ClusterId
from gpuplane.core.scheduling.policy import Boosts
from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterState
from gpuplane.domains.queues import service as queues
from gpuplane.kit.clock import Clock
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import KubeError
from gpuplane.kube.informers import Informer
from gpuplane.kube.kinds import ADMISSION_CHECK, WORKLOAD
from gpuplane.kube.kueue.holds import lift_hold
from gpuplane.kube.kueue.names import HOLD_CHECK, ApiVersion
from gpuplane.loops.connections import find_cut_off
from gpuplane.loops.kueue.admitting import load_standings, take_in, write_back
from gpuplane.loops.kueue.defaults import find_version
from gpuplane.loops.kueue.dispatches import follow_dispatches, follow_lost_workers
from gpuplane.loops.kueue.namespaces import write_namespaces
from gpuplane.loops.kueue.nominating import Nominations
from gpuplane.loops.kueue.syncing import sync
from gpuplane.loops.kueue.wanting import Wanted, load_wanted, wanted_objects
from gpuplane.loops.kueue.workloads import Followed, follow, instant_text
from gpuplane.loops.looks import Looks, Work
from gpuplane.loops.ports import Backends

log = logging.getLogger("gpuplane.kueue")

CLUSTER_S = 60.0
"""How long one turn may take with one cluster."""
LOOK_S = 10.0
"""How long a turn waits for a cluster; one that is slower goes on while others have theirs."""
WORKER_LOST_S = 900.0
"""What MultiKueue waits for by itself (`workerLostTimeout`, kubernetes-sigs/kueue v0.15.0)."""
SYNC_S = 5.0
"""How often queues are compared without being woken: each is one list of each kind."""


class _Following:
    """What is kept of one cluster between turns."""

    def __init__(self, client: KubeClient, version: ApiVersion, wake: Callable[[], None]) -> None:
        self.client = client
        self.version = version
        self.synced_at: float | None = None
        self.declared: object = None
        self.trouble = ""
        self.nominations = Nominations()
        self.remembered: dict[AttemptId, str] = {}
        self.bare: dict[AttemptId, int] = {}
        self.workloads: Informer[Followed] = Informer(
            client, WORKLOAD.at(str(version)), convert=follow
        )
        self.workloads.on_change(lambda _: wake())

    async def reread(self, each: Followed) -> Followed | None:
        """Return a Workload as the cluster has it this moment."""
        kind = WORKLOAD.at(str(self.version))
        found = await self.client.find(kind, each.state.name, each.state.namespace)
        return None if found is None else follow(found)

    async def stop(self) -> None:
        """Stop following the cluster."""
        await self.workloads.stop()


class KueueLoop:
    """Keeps queues, workloads and holds of clusters that admit by themselves."""

    name = "kueue"

    def __init__(
        self,
        database: Database,
        clock: Clock,
        backends: Backends,
        leases: LeaseKeeper,
        boosts: Boosts,
        wake: Callable[[], None],
        period_s: float = 2.0,
        worker_lost_s: float = WORKER_LOST_S,
    ) -> None:
        """Make the loop.

        Args:
            database: Where queues and offers are kept.
            clock: The time.
            backends: Of the clusters; those of Kubernetes bring their client.
            leases: Let one process write to clusters.
            boosts: What lifts a waiting job within its class.
            wake: Wakes this loop; called when a Workload changed.
            period_s: How often it looks without being woken.
            worker_lost_s: How long a worker may be out of reach before what it cannot have started
                is offered anew.
        """
        self.period_s = period_s
        self._worker_lost_s = worker_lost_s
        self._database = database
        self._clock = clock
        self._backends = backends
        self._leases = leases
        self._boosts = boosts
        self._wake = wake
        self._looks = Looks("kueue")
        self._unleft: set[ClusterId] = set()
        self._following: dict[ClusterId, _Following] = {}

    async def run_once(self) -> bool:
        """Look after every cluster once."""
        if not self._following and not self._reaches_any():
            return False  # nothing is asked of the database where there is no Kubernetes
        if await self._leases.hold(self.name) is None:
            await self.stop()
            return False
        found = await self._database.read(clusters.list_clusters)
        works: dict[ClusterId, Work] = {}
        here: set[ClusterId] = set()
        for cluster in found:
            backend: object = self._backends.find(cluster.id)
            if cluster.state is ClusterState.DELETING or not isinstance(backend, ReachesKubernetes):
                continue
            admits_itself = queues.admits_itself(cluster)
            if admits_itself:
                known = frozenset((*cluster.known_ids, *queues.manager_ids(cluster, found)))
                works[cluster.id] = partial(self._look, cluster, backend.client, known, found)
            else:
                works[cluster.id] = partial(self._leave, cluster, backend.client)
            if admits_itself:
                here.add(cluster.id)
        for cluster_id in [known for known in self._following if known not in here]:
            await self._following.pop(cluster_id).stop()
        await self._looks.run(works, LOOK_S)
        return False

    def _reaches_any(self) -> bool:
        backends = (each for _, each in self._backends.items())
        return any(isinstance(each, ReachesKubernetes) for each in backends)

    async def stop(self) -> None:
        """Stop following every cluster."""
        await self._looks.stop()
        for each in self._following.values():
            await each.stop()
        self._following.clear()

    async def _look(
        self,
        cluster: Cluster,
        client: KubeClient,
        known: frozenset[str],
        found: Sequence[Cluster],
    ) -> None:
        following = self._following.get(cluster.id)
        try:
            async with asyncio.timeout(CLUSTER_S):
                if following is None or following.client is not client:
                    following = await self._begin(cluster.id, client)
                if following is not None:
                    await self._turn(cluster, following, known, found)
                    following.trouble = ""
        except (KubeError, TimeoutError) as error:
            said = str(error) or f"It did not answer within {CLUSTER_S:g} s."
            if following is None or following.trouble != said:
                log.warning("Kueue of %s cannot be followed: %s", cluster.name, said)
            if following is not None:
                following.trouble = said

    async def _leave(self, cluster: Cluster, client: KubeClient) -> None:
        """Take our check off the queues of a cluster that admits by itself no more."""
        if not await self._database.read(lambda s: queues.list_seen(s, cluster.id)):
            return
        try:
            async with asyncio.timeout(CLUSTER_S):
                await lift_hold(client, cluster.known_ids)
        except (KubeError, TimeoutError) as error:
            if cluster.id not in self._unleft:
                log.warning("the queues of %s keep our check: %s", cluster.name, error)
            self._unleft.add(cluster.id)
            return
        self._unleft.discard(cluster.id)
        forget = partial(queues.note_seen, cluster_id=cluster.id, seen=[], now=self._clock.now_ms())
        await self._database.write("queues.forget_seen", forget)

    async def _begin(self, cluster_id: ClusterId, client: KubeClient) -> _Following | None:
        known = self._following.pop(cluster_id, None)
        if known is not None:
            await known.stop()
        version = await find_version(client)
        if version is None:
            return None
        following = _Following(client, version, self._wake)
        following.workloads.start()
        self._following[cluster_id] = following
        await following.workloads.wait_synced(CLUSTER_S / 2)
        return following

    async def _turn(
        self,
        cluster: Cluster,
        following: _Following,
        known: frozenset[str],
        found: Sequence[Cluster],
    ) -> None:
        """Take one turn with a cluster of those found; what carries a `known` id is ours."""
        wanted = await self._database.read(lambda s: load_wanted(s, cluster))
        at, trouble = following.synced_at, None
        if wanted != following.declared or at is None or self._clock.monotonic() - at >= SYNC_S:
            try:
                await self._sync(cluster, following, wanted)
                following.declared = wanted
                following.synced_at = self._clock.monotonic()
            except KubeError as error:
                trouble = error  # work there goes on: what it does is taken in all the same
        seen = [each for each in following.workloads.items() if not each.is_foreign(known)]
        now = self._clock.now_ms()
        cut_off = await find_cut_off(following.client, following.version, cluster)
        await take_in(
            self._database,
            cluster.id,
            seen,
            now,
            following.remembered,
            following.reread,
            cut_off,
            following.bare,
        )
        workers = queues.dispatch_workers(cluster)
        if workers:
            await follow_dispatches(self._database, cluster.id, seen, now)
            await follow_lost_workers(self._database, cluster, found, self._worker_lost_s, now)
        standings, settled = await load_standings(self._database, cluster.id, self._boosts, now)
        await write_back(following.client, following.version, seen, standings, settled, now)
        # Ours that may not start now is no worker's: what ran is not to start anew on another.
        ready = [
            each
            for each in seen
            if each.attempt_id is None
            or ((told := standings.get(each.attempt_id)) is not None and told.may_start)
        ]
        places = queues.worker_places(cluster)
        await following.nominations.run(following.client, following.version, places, ready, now)
        if trouble is not None:
            raise trouble

    async def _sync(self, cluster: Cluster, following: _Following, wanted: Wanted) -> None:
        client, version, now = following.client, following.version, self._clock.now_ms()
        spaces = await write_namespaces(client, wanted.tenants.values())
        known = await self._database.read(lambda s: queues.list_seen(s, cluster.id))
        before = {each.key: each for each in known}
        objects = wanted_objects(wanted, version)
        seen = await sync(
            client, version, cluster.id, objects, before, now, spaces, cluster.known_ids
        )
        await self._database.write(
            "queues.note_seen",
            partial(queues.note_seen, cluster_id=cluster.id, seen=seen, now=now),
        )
        await ensure_check_active(client, version, now)


async def ensure_check_active(client: KubeClient, version: ApiVersion, now: int) -> None:
    """Say on our AdmissionCheck that its controller lives: queues with it admit nothing before."""
    kind = ADMISSION_CHECK.at(str(version))
    found = await client.find(kind, HOLD_CHECK)
    if found is None:
        return
    conditions = (found.get("status") or {}).get("conditions") or ()
    if any(each["type"] == "Active" and each["status"] == "True" for each in conditions):
        return
    condition = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "gpuplane keeps the state of this check.",
        "lastTransitionTime": instant_text(now),
    }
    patch = {"status": {"conditions": [condition]}}
    await client.patch(kind, HOLD_CHECK, patch, subresource="status")
