"""The loop of registered clusters: who answers, who is tried again when, whose run came to nothing.

Each cluster is asked by a task of its own with a time limit: one that is slow slows no other.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from gpuplane.core.ids import ClusterId
from gpuplane.core.lifecycle.runs import RunStatus
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import (
    Cluster,
    ClusterState,
    ContactPolicy,
    HealthCheck,
    LookTimes,
)
from gpuplane.domains.nodes import service as nodes
from gpuplane.kit.errors import ProductError
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import BadKubeconfig
from gpuplane.kube.errors import KubeError
from gpuplane.kube.sessions import ClientLimits
from gpuplane.loops.clusters.collecting import Collector
from gpuplane.loops.clusters.deleting import retire_left
from gpuplane.loops.clusters.health import check
from gpuplane.loops.clusters.tools import ClusterTools
from gpuplane.loops.looks import Looks, Work

log = logging.getLogger("gpuplane.clusters")

UNTOLD_MS = 300_000
"""A check that says the same as before is stored anew after this; `LookTimes` tells meanwhile."""
REQUEST_SHARE = 0.8
"""Of the time that a look has, so that one that is refused again and again is told as refused."""
ENDED_BADLY = (RunStatus.FAILED, RunStatus.CANCELLED)
RUN_STATES = (ClusterState.REGISTERING, ClusterState.DRAINING, ClusterState.DELETING)


@dataclass(frozen=True, slots=True)
class LookSettings:
    """How clusters are looked at; a setting each.

    Args:
        period_s: How often.
        call_s: How long one may take to answer all of it.
        contact: Tries, back-off and breaker.
    """

    period_s: float = 15.0
    call_s: float = 10.0
    contact: ContactPolicy = field(default_factory=ContactPolicy)


class ClustersLoop:
    """Looks at every registered cluster and moves its state."""

    name = "clusters"

    def __init__(
        self,
        tools: ClusterTools,
        settings: LookSettings | None = None,
        looks: LookTimes | None = None,
    ) -> None:
        """Make the loop.

        Args:
            tools: What it works with.
            settings: How clusters are looked at.
            looks: Told of every look that finds what is stored.
        """
        self._tools = tools
        self._times = looks or LookTimes()
        self._settings = settings or LookSettings()
        self.period_s = self._settings.period_s
        self._clients: dict[ClusterId, tuple[int, KubeClient]] = {}
        self._looks = Looks("look")
        self._returned: set[ClusterId] = set()
        self._collector = Collector(tools)

    async def run_once(self) -> bool:
        """Begin a look at each cluster that is due, and wait no longer than one may take."""
        await retire_left(self._tools)
        now = self._tools.clock.now_ms()
        known = await self._tools.database.read(clusters.list_clusters)
        ours = [each for each in known if each.kind == clusters.KUBERNETES]
        numbers = await self._tools.database.read(clusters.list_credential_numbers)
        await self._forget(ours, numbers)
        works: dict[ClusterId, Work] = {}
        for cluster in ours:
            if cluster.state in RUN_STATES:
                await self._look_at_run(cluster, now)
            elif self._is_due(cluster, now) and not self._looks.is_under_way(cluster.id):
                self._returned.discard(cluster.id)
                works[cluster.id] = partial(self._look, cluster, numbers.get(cluster.id, 0))
        await self._looks.run(works, self._settings.call_s)
        return False

    def note_return(self, cluster_id: ClusterId) -> None:
        """Have the next turn look at a cluster that was heard of again, whatever its back-off."""
        self._returned.add(cluster_id)

    def _is_due(self, cluster: Cluster, now: int) -> bool:
        return clusters.may_be_tried(cluster, now) or cluster.id in self._returned

    async def stop(self) -> None:
        """End looks under way and close every connection."""
        await self._looks.stop()
        for _, client in self._clients.values():
            await client.close()
        self._clients.clear()

    async def _forget(self, ours: Sequence[Cluster], numbers: dict[ClusterId, int]) -> None:
        """Close connections of clusters that are gone or have other credentials now."""
        alive = {cluster.id for cluster in ours}
        for cluster_id, (number, client) in list(self._clients.items()):
            if cluster_id not in alive or numbers.get(cluster_id) != number:
                del self._clients[cluster_id]
                await client.close()

    async def _look_at_run(self, cluster: Cluster, now: int) -> None:
        """Say ERROR of a cluster whose registration or deletion came to nothing."""
        reason = await self._tools.database.read(partial(_failure_of, cluster=cluster))
        if reason is not None:
            await self._tools.database.write(
                "clusters.fail_run", partial(clusters.fail_run, cluster_id=cluster.id,
                                             run_id=cluster.run_id, reason=reason, now=now),
            )  # fmt: skip

    async def _look(self, cluster: Cluster, number: int) -> None:
        try:
            async with asyncio.timeout(self._settings.call_s):
                client = await self._client(cluster, number)
                stored = await self._tools.database.read(lambda s: nodes.list_nodes(s, cluster.id))
                now = self._tools.clock.now_ms()
                found = await check(client, cluster, stored, now)
        except TimeoutError:
            await self._note(cluster, f"It did not answer within {self._settings.call_s:g} s.")
        except (KubeError, ProductError, OSError) as error:
            await self._note(cluster, str(error))
        except BadKubeconfig as error:
            await self._note(cluster, f"Its kubeconfig cannot be used: {error.reason}")
        except Exception:
            log.exception("cluster %s cannot be looked at", cluster.name)
            await self._note(cluster, "It cannot be looked at; the log of this server says why.")
        else:
            await self._note(cluster, None, found)
            await self._collector.collect(client, cluster, self._settings.call_s)

    async def _client(self, cluster: Cluster, number: int) -> KubeClient:
        known = self._clients.get(cluster.id)
        if known is not None:
            return known[1]
        limits = ClientLimits(request_s=REQUEST_SHARE * self._settings.call_s)
        client = KubeClient(await self._tools.connection(cluster), limits=limits)
        self._clients[cluster.id] = (number, client)
        return client

    async def _note(
        self, cluster: Cluster, failure: str | None, found: tuple[HealthCheck, ...] = ()
    ) -> None:
        now = self._tools.clock.now_ms()
        if failure is not None:
            log.warning("cluster %s: %s", cluster.name, failure)
            known = self._times.checks_of(cluster)
            found = (HealthCheck("api_server", "unhealthy", failure[:500], now),
                     *(each for each in known if each.kind != "api_server"))  # fmt: skip
            self._times.forget(cluster.id)
        elif not _is_news(cluster, found, now):
            self._times.note(cluster.id, now)
            return
        with_policy = partial(
            clusters.note_look,
            cluster_id=cluster.id,
            failure=failure,
            checks=found,
            policy=self._settings.contact,
            now=now,
        )
        await self._tools.database.write("clusters.note_look", with_policy)


def _is_news(cluster: Cluster, found: Sequence[HealthCheck], now: int) -> bool:
    """Return whether a good look says anything that is not stored."""
    if cluster.failures or cluster.not_available_since is not None or not cluster.health:
        return True
    if min(each.checked_at for each in cluster.health) < now - UNTOLD_MS:
        return True
    return [(c.kind, c.verdict, c.message) for c in found] != [
        (c.kind, c.verdict, c.message) for c in cluster.health
    ]


def _failure_of(session: ReadSession, cluster: Cluster) -> str | None:
    """Return why the run of a cluster came to nothing, None while it may still end well."""
    run = clusters.find_run(session, cluster)
    if run is None:
        return "Its run is not kept any more."
    if run.status not in ENDED_BADLY:
        return None
    return f"{run.error}: {run.message}".strip(": ") or f"Its run was {run.status}."
