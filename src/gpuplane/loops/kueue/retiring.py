"""Takes a cluster that is deleted out of MultiKueue: as a worker of managers, as their manager.

Of a worker go the account there and its traces on managers; of a manager go what it knew workers
by, the check of its queues, which are stopped, and its account on workers that no other one has.

Goes as far as each side can be reached, and names what stays; never hinders the deletion.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpuplane.core.runs.plans import Answer, Completed, Skipped, StepCall
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster, ClusterState
from gpuplane.domains.queues import service as queues
from gpuplane.kit.errors import ProductError
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import BadKubeconfig
from gpuplane.kube.errors import KubeError, NotThere
from gpuplane.kube.kinds import ADMISSION_CHECK, MULTIKUEUE_CLUSTER, MULTIKUEUE_CONFIG, SECRET
from gpuplane.kube.kueue.holds import stop_queues
from gpuplane.kube.kueue.keeping import keeping_objects
from gpuplane.kube.kueue.multikueue import (
    ACCOUNT,
    CHECK,
    CONFIG,
    NAMESPACE,
    TOKEN_SECRET,
    config_object,
    names_of_worker,
    secret_name,
    worker_objects,
)
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.loops.clusters.deleting import NOT_ITS_RUN, is_its_run
from gpuplane.loops.clusters.tools import ClusterTools
from gpuplane.loops.kueue.defaults import find_version
from gpuplane.loops.kueue.multikueue import forget_workers

SIDE_S = 30.0
"""How long one cluster may take; the others have theirs."""
OUT_OF_REACH = (KubeError, ProductError, BadKubeconfig, TimeoutError, OSError)


async def leave_managers(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Have nobody dispatch to a cluster any more, nor it to others, and delete what that took."""
    if not is_its_run(cluster, call):
        return NOT_ITS_RUN
    known = await tools.database.read(clusters.list_clusters)
    managers = [each for each in known if cluster.name in queues.dispatch_workers(each)]
    places = queues.worker_places(cluster)
    if not managers and not places:
        return Skipped("No manager dispatches to it, and it dispatches to nobody.")
    stays = await _let_workers_go(tools, cluster, known) if places else []
    if managers:
        stays.append(await _revoke_on(tools, cluster))
    for manager in managers:
        stays.append(await _forget_on(tools, manager, cluster.name))
    await tools.database.write(
        "queues.leave_managers",
        partial(
            queues.leave_managers, worker=cluster.name, actor="deletion", now=tools.clock.now_ms()
        ),
    )
    warnings = [each for each in stays if each]
    told = {
        "managers": [each.name for each in managers],
        "workers": [each for each in places if each],
        "warnings": warnings,
    }
    return Completed(told, message=" ".join(warnings))


async def _let_workers_go(
    tools: ClusterTools, manager: Cluster, known: Sequence[Cluster]
) -> list[str]:
    """Delete what makes a cluster a manager, there and on its workers; return what stays and why.

    First there: a manager whose account is gone would go on asking its workers.
    """
    stays = [await _dispatch_no_more(tools, manager)]
    used = {
        name
        for each in known
        if each.id != manager.id and each.state is not ClusterState.DELETING
        for name in queues.dispatch_workers(each)
    }
    own = set(queues.dispatch_workers(manager)) - used
    for worker in sorted((each for each in known if each.name in own), key=lambda each: each.name):
        stays.append(await _revoke_on(tools, worker))
    return stays


async def _dispatch_no_more(tools: ClusterTools, manager: Cluster) -> str:
    """Stop the queues of a manager that dispatch and delete what it knew workers by."""
    try:
        async with asyncio.timeout(SIDE_S), tools.client(manager) as client:
            version = await find_version(client)
            if version is None:
                return ""
            theirs = await stop_queues(client, version, manager.known_ids)
            await forget_all_workers(client, version)
    except OUT_OF_REACH as error:
        said = str(error) or f"it did not answer within {SIDE_S:g} s"
        return (
            f"On {manager.name} may stay AdmissionCheck {CHECK}, MultiKueueConfig {CONFIG}, "
            f"MultiKueueClusters wNN-… and Secrets {NAMESPACE}/gpuplane-wNN-…, and its queues name "
            f"the check: {said.rstrip('.')}. Delete them there with kubectl."
        )
    if not theirs:
        return ""
    return (
        f"On {manager.name} the AdmissionCheck {CHECK} stays until these queues name it no more: "
        f"{', '.join(theirs)}."
    )


async def forget_all_workers(client: KubeClient, version: ApiVersion) -> None:
    """Delete all that a manager knew its workers by, credentials first; again, does nothing.

    Raises:
        KubeError: If the manager does not do it.
    """
    await forget_workers(client, MULTIKUEUE_CLUSTER.at(str(version)), ())
    await client.delete(MULTIKUEUE_CONFIG.at(str(version)), CONFIG)
    await client.delete(ADMISSION_CHECK.at(str(version)), CHECK)


async def _revoke_on(tools: ClusterTools, worker: Cluster) -> str:
    """Delete the account of managers on a worker; return what stays there and why."""
    try:
        async with asyncio.timeout(SIDE_S), tools.client(worker) as client:
            await client.version()
            stays = await revoke_all(client)
    except OUT_OF_REACH as error:
        said = str(error) or f"it did not answer within {SIDE_S:g} s"
        return (
            f"On {worker.name} stay ClusterRole, ClusterRoleBinding and {NAMESPACE}/ServiceAccount "
            f"{ACCOUNT} and Secret {NAMESPACE}/{TOKEN_SECRET}: {said.rstrip('.')}. Delete them "
            "there with kubectl: the token in the Secret holds until then."
        )
    if not stays:
        return ""
    said = "; ".join(f"{name} ({why})" for name, why in stays.items())
    return f"On {worker.name} stays what these credentials may not delete: {said}."


async def revoke_all(client: KubeClient) -> dict[str, str]:
    """Delete the account of managers on a worker as far as may be; return what stays, and why."""
    stays: dict[str, str] = {}
    for each in reversed((*worker_objects(), *keeping_objects())):
        name, space = each["metadata"]["name"], each["metadata"].get("namespace")
        try:
            await client.delete(await client.kind_of(each), name, space)
        except NotThere:
            continue  # an older cluster serves no such kind: there is none
        except KubeError as error:
            stays[f"{each['kind']} {f'{space}/' if space else ''}{name}"] = error.message
    return stays


async def _forget_on(tools: ClusterTools, manager: Cluster, worker: str) -> str:
    """Delete what a manager knows a worker by; return what stays there and why."""
    try:
        async with asyncio.timeout(SIDE_S), tools.client(manager) as client:
            version = await find_version(client)
            if version is not None:
                await forget_worker(client, version, worker)
    except OUT_OF_REACH as error:
        said = str(error) or f"it did not answer within {SIDE_S:g} s"
        return (
            f"On {manager.name} may stay Secret {NAMESPACE}/gpuplane-wNN-{worker} and "
            f"MultiKueueCluster wNN-{worker}: {said.rstrip('.')}. They go when its workers are "
            "connected anew: gpuplane clusters multikueue."
        )
    return ""


async def forget_worker(client: KubeClient, version: ApiVersion, worker: str) -> None:
    """Delete a manager's credentials for a worker, and what it is known by; others keep theirs.

    Raises:
        KubeError: If the manager does not do it.
    """
    kind = MULTIKUEUE_CLUSTER.at(str(version))
    config_kind = MULTIKUEUE_CONFIG.at(str(version))
    config = await client.find(config_kind, CONFIG)
    named = list(((config or {}).get("spec") or {}).get("clusters") or ())
    listed = [each["metadata"]["name"] for each in await client.list(kind)]
    secrets = [each["metadata"]["name"] for each in await client.list(SECRET, NAMESPACE)]
    for name in names_of_worker(worker, (*named, *listed), secrets):
        await client.delete(SECRET, secret_name(name), NAMESPACE)
        left = [each for each in named if each != name]
        if left != named:  # Kueue takes no configuration without clusters
            if left:
                await client.apply(config_object(version, left))
            else:
                await client.delete(config_kind, CONFIG)
            named = left
        await client.delete(kind, name)
