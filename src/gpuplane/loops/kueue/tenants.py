"""The steps that set a tenant up on a cluster and take it away; each may be done again."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId, TenantId
from gpuplane.core.runs.plans import Answer, Completed, Failed, StepCall
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import Opening
from gpuplane.kube.errors import FieldConflict
from gpuplane.kube.kinds import NAMESPACE
from gpuplane.kube.tenancy import (
    CLUSTER_LABEL,
    TENANT_ID_LABEL,
    Tenancy,
    account_object,
    limits_object,
    namespace_object,
    policy_object,
    quota_object,
)
from gpuplane.loops.clusters.tools import ClusterTools
from gpuplane.loops.kueue.namespaces import find_strangeness

Given = Mapping[str, Any]
Object = dict[str, Any]


async def make_namespace(
    tools: ClusterTools, cluster: Cluster, given: Given, call: StepCall
) -> Answer:
    """Make the namespace; one that belongs to somebody else is refused, not taken."""
    tenancy = await _tenancy(tools, cluster, given)
    async with tools.client(cluster) as client:
        found = await client.find(NAMESPACE, tenancy.namespace)
        said = None if found is None else find_strangeness(found, tenancy)
        if said is not None:
            return Failed("NamespaceTaken", said, is_final=True)
    return await _apply(tools, cluster, [namespace_object(tenancy)])


async def isolate(tools: ClusterTools, cluster: Cluster, given: Given, call: StepCall) -> Answer:
    """Wall the namespace off from other tenants."""
    return await _apply(tools, cluster, [policy_object(await _tenancy(tools, cluster, given))])


async def limit(tools: ClusterTools, cluster: Cluster, given: Given, call: StepCall) -> Answer:
    """Make the account of its jobs, what containers get by default, and the caps."""
    tenancy = await _tenancy(tools, cluster, given)
    made = [account_object(tenancy), limits_object(tenancy), quota_object(tenancy)]
    return await _apply(tools, cluster, made)


async def open_queues(
    tools: ClusterTools, cluster: Cluster, given: Given, call: StepCall
) -> Answer:
    """Declare the LocalQueues; the loop that follows Kueue writes them."""
    openings = [Opening(name, queue, tuple(types)) for name, queue, types in given["queues"]]
    names = await tools.database.write(
        "queues.open_queues",
        partial(
            queues.open_queues,
            cluster_id=ClusterId(cluster.id),
            tenant_id=TenantId(UUID(given["tenant_id"])),
            openings=openings,
            actor=given["actor"],
            now=tools.clock.now_ms(),
        ),
    )
    return Completed({"queues": names})


async def close_queues(
    tools: ClusterTools, cluster: Cluster, given: Given, call: StepCall
) -> Answer:
    """Withdraw the LocalQueues."""
    names = await tools.database.write(
        "queues.close_queues",
        partial(
            queues.close_queues,
            cluster_id=ClusterId(cluster.id),
            tenant_id=TenantId(UUID(given["tenant_id"])),
            actor=given["actor"],
            now=tools.clock.now_ms(),
        ),
    )
    return Completed({"queues": names})


async def remove_namespace(
    tools: ClusterTools, cluster: Cluster, given: Given, call: StepCall
) -> Answer:
    """Delete the namespace of a tenant and all in it, if we made it."""
    tenancy = await _tenancy(tools, cluster, given)
    async with tools.client(cluster) as client:
        found = await client.find(NAMESPACE, tenancy.namespace)
        if found is None:
            return Completed({"deleted": []})
        labels = found["metadata"].get("labels") or {}
        is_of_tenant = labels.get(TENANT_ID_LABEL) == tenancy.tenant_id
        if not is_of_tenant or labels.get(CLUSTER_LABEL) not in cluster.known_ids:
            said = f"Namespace {tenancy.namespace} was not made here; it was left as it is."
            return Failed("NotOurs", said, is_final=True)
        await client.delete(NAMESPACE, tenancy.namespace, uid=found["metadata"]["uid"])
    return Completed({"deleted": [tenancy.namespace]})


async def _tenancy(tools: ClusterTools, cluster: Cluster, given: Given) -> Tenancy:
    tenant_id = TenantId(UUID(given["tenant_id"]))
    name = await tools.database.read(lambda s: queues.tenant_name(s, tenant_id))
    return Tenancy(name, str(tenant_id), str(cluster.id), given.get("most", {}))


async def _apply(tools: ClusterTools, cluster: Cluster, objects: Sequence[Object]) -> Answer:
    made = []
    async with tools.client(cluster) as client:
        for each in objects:
            try:
                await client.apply(each)
            except FieldConflict as error:
                name = f"{each['kind']} {each['metadata']['name']}"
                said = f"{', '.join(error.managers)} changed {name}; it was left as it is."
                return Failed("FieldConflict", said, is_final=True)
            made.append(f"{each['kind']} {each['metadata']['name']}")
    return Completed({"made": made})
