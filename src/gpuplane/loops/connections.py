"""Whether a manager's Kueue is connected with its workers, in Kueue's own words."""

import asyncio
from collections.abc import Sequence

from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.queues import service as queues
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Forbidden, NotThere
from gpuplane.kube.kinds import MULTIKUEUE_CLUSTER
from gpuplane.kube.kueue.connections import why_unconnected
from gpuplane.kube.kueue.multikueue import list_worker_names
from gpuplane.kube.kueue.names import ApiVersion

LOOK_S = 0.5


async def find_unconnected(
    client: KubeClient, version: ApiVersion, names: Sequence[str]
) -> dict[str, str]:
    """Return why the manager is not connected with workers, by the names it knows them by.

    Raises:
        KubeError: If the manager does not say.
    """
    listed = await client.list(MULTIKUEUE_CLUSTER.at(str(version)))
    found = {each["metadata"]["name"]: each for each in listed}
    told = {name: why_unconnected(name, found.get(name)) for name in names}
    return {name: why for name, why in told.items() if why}


async def wait_connected(
    client: KubeClient, version: ApiVersion, names: Sequence[str], wait_s: float
) -> dict[str, str]:
    """Wait until the manager is connected with all these workers; return why not with the rest.

    Raises:
        KubeError: If the manager does not say.
    """
    until = asyncio.get_running_loop().time() + wait_s
    while True:
        left = await find_unconnected(client, version, names)
        if not left or asyncio.get_running_loop().time() >= until:
            return left
        await asyncio.sleep(LOOK_S)


async def find_cut_off(client: KubeClient, version: ApiVersion, cluster: Cluster) -> dict[str, str]:
    """Return why ClusterQueues of a manager dispatch to none of its workers; empty where they do.

    Raises:
        KubeError: If the manager does not say.
    """
    dispatching = queues.dispatching_queues(cluster)
    names = list_worker_names(queues.worker_places(cluster))
    if not dispatching or not names:
        return {}
    try:
        unconnected = await find_unconnected(client, version, names)
    except (Forbidden, NotThere):
        return {}  # whatever else Kueue says of the work is told
    if len(unconnected) < len(names):
        return {}
    return dict.fromkeys(dispatching, " ".join(unconnected.values()))
