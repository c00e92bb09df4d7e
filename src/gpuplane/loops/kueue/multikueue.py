"""Connects a manager with its workers: an account on each worker, its kubeconfig on the manager."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from gpuplane.core.runs.plans import Answer, Completed, Failed, StepCall
from gpuplane.domains.clusters.service import Cluster
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import MULTIKUEUE_CLUSTER, SECRET
from gpuplane.kube.kueue.multikueue import (
    NAMESPACE,
    TOKEN_SECRET,
    kubeconfig_text,
    manager_objects,
    secret_name,
    stale_workers,
    worker_name,
    worker_objects,
)
from gpuplane.loops.clusters.tools import ClusterTools
from gpuplane.loops.kueue.defaults import find_version

TOKEN_S = 30.0
"""How long the worker's controller may take to make a token."""
LOOK_S = 0.5


async def connect_workers(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Make an account on each worker, and let the manager know all of them in order.

    Doing it again brings what is there up to date; workers that are none any more are forgotten.
    """
    workers: dict[str, str] = {}
    for position, worker_id in enumerate(given["workers"]):
        worker = await tools.cluster(UUID(worker_id))
        async with tools.client(worker) as client:
            text = await grant(client)
        if text is None:
            return Failed("TokenMissing", f"{worker.name} made no token for the account.")
        workers[worker_name(position, worker.name)] = text
    async with tools.client(cluster) as client:
        version = await find_version(client)
        if version is None:
            said = f"{cluster.name} does not serve Kueue."
            return Failed("KueueMissing", said, is_final=True)
        for each in manager_objects(workers, version):
            await client.apply(each)
        kind = MULTIKUEUE_CLUSTER.at(str(version))
        for name in stale_workers(await client.list(kind), list(workers)):
            await client.delete(kind, name)
            await client.delete(SECRET, secret_name(name), NAMESPACE)
    return Completed({"workers": list(workers)})


async def grant(client: KubeClient) -> str | None:
    """Make the account of managers on a worker; return its kubeconfig, None without a token."""
    for each in worker_objects():
        await client.apply(each)
    async with asyncio.timeout(TOKEN_S):
        while True:
            secret = await client.get(SECRET, TOKEN_SECRET, NAMESPACE)
            text = kubeconfig_text(client.connection.server, secret)
            if text is not None:
                return text
            await asyncio.sleep(LOOK_S)
