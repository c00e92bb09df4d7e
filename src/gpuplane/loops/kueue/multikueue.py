"""Connects a manager with its workers: an account on each worker, its kubeconfig on the manager."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from gpuplane.core.runs.plans import Answer, Completed, Failed, Skipped, StepCall
from gpuplane.db.database import Database
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterRole
from gpuplane.domains.queues import service as queues
from gpuplane.kit.errors import ProductError
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import BadKubeconfig
from gpuplane.kube.errors import Forbidden, KubeError
from gpuplane.kube.kinds import (
    CLUSTER_QUEUE,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    SECRET,
    Kind,
)
from gpuplane.kube.kueue.keeping import keeping_objects
from gpuplane.kube.kueue.multikueue import (
    CHECK,
    CONFIG,
    NAMESPACE,
    TOKEN_SECRET,
    cluster_of_worker,
    kubeconfig_text,
    manager_objects,
    places_of_workers,
    stale_secrets,
    stale_workers,
    worker_name,
    worker_objects,
)
from gpuplane.kube.kueue.names import MANAGED_LABEL, MANAGED_VALUE, ApiVersion
from gpuplane.loops.clusters.tools import ClusterTools
from gpuplane.loops.connections import wait_connected
from gpuplane.loops.kueue.defaults import find_version

log = logging.getLogger("gpuplane.kueue")

TOKEN_S = 30.0
"""How long a worker may take to make the account and its token."""
LOOK_S = 0.5
MAKE_ACCOUNT = (
    "Have its administrator make the account of managers there: `gpuplane clusters access "
    "--kubeconfig ADMIN --for-multikueue`; then connect it: `gpuplane clusters multikueue`."
)


async def connect_workers(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Make an account on each worker, and let the manager know all of them in order.

    Doing it again brings what is there up to date; workers that are none any more are forgotten.
    One that is out of reach holds no other up: it is told of at the end, and tried again.
    """
    workers: dict[str, str] = {}
    away: dict[str, str] = {}
    for position, worker_id in enumerate(given["workers"]):
        if not worker_id:
            continue  # the place of one that was deleted
        worker = await tools.cluster(UUID(worker_id))
        name = worker_name(position, worker.name)
        try:
            async with asyncio.timeout(TOKEN_S), tools.client(worker) as client:
                workers[name] = await grant(client)
        except (KubeError, ProductError, BadKubeconfig, TimeoutError) as error:
            away[name] = str(error) or f"It did not answer within {TOKEN_S:g} s."
            if isinstance(error, Forbidden):
                away[name] = f"{_full(away[name])} {MAKE_ACCOUNT}"
    async with tools.client(cluster) as client:
        version = await find_version(client)
        if version is None:
            said = f"{cluster.name} does not serve Kueue."
            return Failed("KueueMissing", said, is_final=True)
        kind = MULTIKUEUE_CLUSTER.at(str(version))
        found = await client.list(kind)
        known = {each["metadata"]["name"] for each in found}
        names = sorted({*workers, *away})
        order = [each for each in names if each in workers or each in known]
        if order:
            for each in manager_objects(workers, version, order):
                await client.apply(each)
        left = await _revoke_dropped(tools, stale_workers(found, names), names)
        await forget_workers(client, kind, names)
        unconnected = await wait_connected(client, version, list(workers), tools.worker_connect_s)
    if away:
        said = " ".join(f"{cluster_of_worker(name)}: {_full(why)}" for name, why in away.items())
        rest = [*unconnected.values()]
        if len(workers) > len(unconnected):
            rest.append("The other workers are connected.")
        return Failed("WorkerUnreachable", " ".join((said, *rest)))
    if unconnected:
        # Kueue goes on trying by itself: another try here would tell the same.
        return Failed("WorkerNotConnected", " ".join(unconnected.values()), is_final=True)
    return Completed({"workers": list(workers), "accounts_left": left})


def _full(sentence: str) -> str:
    return f"{sentence.rstrip('. ')}."


async def join_managers(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Let the managers that are registered dispatch to a worker that comes in: asked last.

    A manager that cannot be reached now keeps nobody from being registered.
    """
    if cluster.role != ClusterRole.WORKER or not queues.admits_itself(cluster):
        return Skipped("It is no worker whose Kueue admits.")
    known = await tools.database.read(clusters.list_clusters)
    managers = [each for each in known if queues.is_manager(each) and each.id != cluster.id]
    if not managers:
        return Skipped("No manager whose Kueue admits is registered.")
    joined, troubles = [], []
    for manager in managers:
        workers = await tools.database.write(
            "queues.join_manager",
            partial(
                queues.join_manager,
                manager_id=manager.id,
                worker=cluster,
                actor="registration",
                now=tools.clock.now_ms(),
            ),
        )
        try:
            answer = await connect_workers(tools, manager, {"workers": workers}, call)
        except (KubeError, ProductError, BadKubeconfig, TimeoutError) as error:
            answer = Failed("ManagerUnreachable", str(error))
        if isinstance(answer, Failed):
            troubles.append(f"{manager.name}: {answer.message}")
        else:
            joined.append(manager.name)
    if not joined:
        return Skipped(f"No manager dispatches to it yet. {' '.join(troubles)}")
    return Completed({"managers": joined, "warnings": troubles}, message=" ".join(troubles))


async def forget_workers(client: KubeClient, kind: Kind, wanted: Sequence[str]) -> None:
    """Delete what a manager knew workers by that are none any more, credentials first.

    A worker is found again by its MultiKueueCluster, or by its Secret alone, when this was
    interrupted.
    """
    labels = {MANAGED_LABEL: MANAGED_VALUE}
    for name in stale_secrets(await client.list(SECRET, NAMESPACE, labels), wanted):
        await client.delete(SECRET, name, NAMESPACE)
    for name in stale_workers(await client.list(kind), wanted):
        await client.delete(kind, name)


async def take_back_workers(
    client: KubeClient, database: Database, cluster: Cluster, version: ApiVersion, now: int
) -> bool:
    """Let a manager whose database was lost dispatch again what it did, to the same workers.

    Those that are registered again under their names, and queues that are declared again.

    Raises:
        KubeError: If it cannot be read.
    """
    config = await client.find(MULTIKUEUE_CONFIG.at(str(version)), CONFIG)
    if config is None:
        return False
    found = await database.read(clusters.list_clusters)
    names = {each.name for each in found} - {cluster.name}
    named = places_of_workers(config["spec"].get("clusters") or ())
    declared = await database.read(lambda s: queues.load_declared(s, cluster.id))
    ours = {each.name for each in declared.cluster_queues}
    live = await client.list(CLUSTER_QUEUE.at(str(version)))
    return await database.write(
        "queues.dispatch_again",
        partial(
            queues.dispatch_again,
            manager_id=cluster.id,
            workers=[each if each in names else "" for each in named],
            queues=[
                each["metadata"]["name"]
                for each in live
                if each["metadata"]["name"] in ours and _dispatches(each)
            ],
            now=now,
        ),
    )


def _dispatches(queue: Mapping[str, Any]) -> bool:
    spec = queue.get("spec") or {}
    rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return CHECK in {each.get("name") for each in rules}


async def _revoke_dropped(
    tools: ClusterTools, stale: Iterable[str], wanted: Iterable[str]
) -> list[str]:
    """Take the account off workers of no manager; return those that could not be reached."""
    found = await tools.database.read(clusters.list_clusters)
    used = {name for each in found for name in queues.dispatch_workers(each)}
    used.update(cluster_of_worker(each) for each in wanted)  # one that only changed its place
    dropped = {cluster_of_worker(each) for each in stale} - used
    left = []
    for worker in sorted((each for each in found if each.name in dropped), key=lambda w: w.name):
        try:
            async with asyncio.timeout(TOKEN_S), tools.client(worker) as client:
                await revoke(client)
        except (KubeError, ProductError, BadKubeconfig, TimeoutError) as error:
            log.warning("%s keeps the account of its former manager: %s", worker.name, error)
            left.append(worker.name)
    return left


async def revoke(client: KubeClient) -> None:
    """Delete the account of managers on a worker, its rights and its token; again, does nothing."""
    for each in reversed((*worker_objects(), *keeping_objects())):
        metadata = each["metadata"]
        kind = await client.kind_of(each)
        await client.delete(kind, metadata["name"], metadata.get("namespace"))


async def grant(client: KubeClient) -> str:
    """Make the account of managers on a worker; return its kubeconfig once its token is made.

    Where the credentials may not make it, one that an administrator made before is taken.

    Raises:
        Forbidden: If they may not, and there is none.
    """
    try:
        for each in worker_objects():
            await client.apply(each)
    except Forbidden:
        # The Secret is made last: where it is, the account and its rights were made before.
        if await client.find(SECRET, TOKEN_SECRET, NAMESPACE) is None:
            raise
    await _keep_ended(client)
    while True:
        secret = await client.get(SECRET, TOKEN_SECRET, NAMESPACE)
        text = kubeconfig_text(client.connection.server, secret)
        if text is not None:
            return text
        await asyncio.sleep(LOOK_S)


async def _keep_ended(client: KubeClient) -> None:
    """Have a worker keep ended work until its logs were read; one that cannot goes without."""
    try:
        for each in keeping_objects():
            await client.apply(each)
    except KubeError as error:
        log.warning(
            "logs of what ends on %s while no control plane runs are lost: %s",
            client.connection.server,
            error,
        )
