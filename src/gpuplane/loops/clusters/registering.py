"""The steps of a registration besides add-ons; each may be repeated and finds what it did."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpuplane.core.ids import ClusterId
from gpuplane.core.runs.plans import Answer, Completed, Failed, Skipped, StepCall
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.nodes import service as nodes
from gpuplane.kit.ids import new_id
from gpuplane.kube import kinds
from gpuplane.kube.nodefacts import NodeFacts, read_node
from gpuplane.kube.preflight import look_at
from gpuplane.loops.clusters.tools import ClusterTools
from gpuplane.loops.inventory import store_nodes

CALL_S = 30.0


async def verify_connection(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Reach the cluster, note what it is, and name each right that is missing."""
    async with asyncio.timeout(CALL_S), tools.client(cluster) as client:
        brings_addons = given.get("addons") != []
        look = await look_at(client, cluster.server_url, brings_addons=brings_addons)
    if look.is_too_old or look.blockers:
        said = "; ".join(right.sentence for right in look.blockers) or look.version
        word = "RightsMissing" if look.blockers else "VersionNotSupported"
        return Failed(word, said, is_final=True)
    seen = {"kubernetes_version": look.version, "distribution": look.distribution}
    now = tools.clock.now_ms()
    await tools.database.write(
        "clusters.note_looked_at",
        lambda s: clusters.note_looked_at(s, cluster.id, seen, now),
    )
    return Completed(
        {
            "version": look.version,
            "distribution": look.distribution,
            "kueue": look.kueue,
            "missing_rights": [right.sentence for right in look.missing],
        }
    )


async def collect_node_info(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Read every node and store it with its devices, as the inventory does from then on."""
    facts = await load_facts(tools, cluster)
    seen = [tools.observe_node(each) for each in facts]
    now = tools.clock.now_ms()

    def store(session: WriteSession) -> None:
        store_nodes(session, cluster.id, seen, new_id, now)

    await tools.database.write("nodes.sync_inventory", store)
    counts: dict[str, int] = {}
    for each in facts:
        counts[each.detection_method] = counts.get(each.detection_method, 0) + 1
    stored = await tools.database.read(lambda s: clusters.get_cluster(s, cluster.id))
    return Completed(
        {
            "nodes": len(facts),
            "gpus": {model: total for model, (_, total) in sorted(stored.gpu_shapes.items())},
            "detected_by": counts,
        }
    )


async def load_facts(tools: ClusterTools, cluster: Cluster) -> list[NodeFacts]:
    """Return the facts of every node, by name."""
    async with asyncio.timeout(2 * CALL_S), tools.client(cluster) as client:
        found = await client.list(kinds.NODE)
    return sorted((read_node(each) for each in found), key=lambda each: each.name)


async def create_default_queues(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Make default flavors and queues from the GPUs that were found, where Kueue is served."""
    if tools.ensure_defaults is None:
        return Skipped("Nothing makes default queues in this process.")
    if cluster.config.get("admission") != "kueue":
        return Skipped("Work is admitted here, where no queue is needed until one is declared.")
    async with asyncio.timeout(2 * CALL_S), tools.client(cluster) as client:
        if await client.served("kueue.x-k8s.io") is None:
            return Skipped("Kueue is not served there: quotas are kept by the scheduler here.")
        made = await tools.ensure_defaults(
            client, tools.database, ClusterId(cluster.id), tools.clock.now_ms()
        )
    return Completed({"made": made})


async def make_available(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Let the cluster take work, admitted by Kueue where it is served and nobody said otherwise."""
    counted = await tools.database.read(partial(_count_nodes, cluster_id=cluster.id))
    now = tools.clock.now_ms()
    found = await tools.database.write(
        "clusters.make_available", lambda s: clusters.make_available(s, cluster.id, now)
    )
    return Completed({"state": str(found.state), "nodes": counted})


def _count_nodes(session: Any, cluster_id: ClusterId) -> int:
    return len([node for node in nodes.list_nodes(session, cluster_id) if node.present])


def summarise(facts: Sequence[NodeFacts]) -> dict[str, int]:
    """Return how many nodes have devices of each vendor: what decides which add-ons fit."""
    vendors: dict[str, int] = {}
    for each in facts:
        vendor = each.accelerators.vendor
        if vendor:
            vendors[vendor] = vendors.get(vendor, 0) + 1
    return vendors
