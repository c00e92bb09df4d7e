"""Reads from each cluster with HAMi how much of its devices is given away, where that is set.

HAMi's scheduler tells it on a port of its Service, to which the API server carries the request.
What goes wrong here is stored with the cluster and hurts nothing else: nobody is placed by it.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from gpuplane.core.ids import ClusterId
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.nodes import service as nodes
from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Forbidden, KubeError
from gpuplane.kube.hami import SCHEDULER_LABELS, read_used_percent
from gpuplane.loops.clusters.tools import ClusterTools

log = logging.getLogger("gpuplane.clusters")

UNTOLD_MS = 60_000
"""What is the same as before is stored anew after this, so that it is known to hold."""


class Collector:
    """Collects HAMi's metrics, one cluster at a time for each."""

    def __init__(self, tools: ClusterTools) -> None:
        """Begin with nothing known."""
        self._tools = tools
        self._stored: dict[ClusterId, tuple[str, Mapping[str, int], int]] = {}

    async def collect(self, client: KubeClient, cluster: Cluster, within_s: float) -> None:
        """Read and store the metrics of one cluster, or why there are none."""
        if not self._tools.addons.hami_metrics:
            return
        used: dict[str, int] | None = None
        try:
            async with asyncio.timeout(within_s):
                used = await load_used(client, self._tools.addons.hami_port)
            status = "HAMi is not there." if used is None else f"HAMi told of {len(used)} devices."
        except TimeoutError:
            status = f"HAMi did not answer within {within_s:g} s."
        except Forbidden:
            status = "HAMi: services/proxy is not permitted."
        except (KubeError, OSError) as error:
            log.info("metrics of cluster %s: %s", cluster.name, error)
            status = f"HAMi's metrics did not come: {type(error).__name__}."
        await self._store(cluster.id, status, used)

    async def _store(self, cluster_id: ClusterId, status: str, used: dict[str, int] | None) -> None:
        now = self._tools.clock.now_ms()
        before = self._stored.get(cluster_id)
        told = used or {}
        if before is not None and before[:2] == (status, told) and now - before[2] < UNTOLD_MS:
            return
        unit = partial(_note, cluster_id=cluster_id, status=status, used=used, now=now)
        await self._tools.database.write("clusters.note_metrics", unit)
        self._stored[cluster_id] = (status, told, now)


async def load_used(client: KubeClient, port: int) -> dict[str, int] | None:
    """Return how much of each device is given away in percent, None where HAMi is not there.

    Raises:
        KubeError: If the API server or HAMi's scheduler does not answer.
    """
    found = [
        each["metadata"]
        for each in await client.list(kinds.SERVICE, labels=SCHEDULER_LABELS)
        if any(one.get("port") == port for one in (each.get("spec") or {}).get("ports") or ())
        and "deletionTimestamp" not in each["metadata"]
    ]
    if not found:
        return None
    about = found[0]
    text = await client.read_service(about["name"], about["namespace"], port, "/metrics")
    return await asyncio.to_thread(read_used_percent, text.decode("utf-8", "replace"))


def _note(
    session: WriteSession,
    cluster_id: ClusterId,
    status: str,
    used: dict[str, int] | None,
    now: int,
) -> None:
    clusters.note_metrics(session, cluster_id, status, None if used is None else now)
    if used is not None:
        nodes.note_used(session, cluster_id, used, now)
