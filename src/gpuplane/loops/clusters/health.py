"""The checks of a cluster by kind: each a verdict and a sentence, none stops another.

Asks the cluster what only it can tell, and the inventory what informers have told already.
"""

from collections.abc import Sequence

from gpuplane.domains.clusters.service import Cluster, HealthCheck
from gpuplane.domains.nodes.service import Node
from gpuplane.domains.queues import service as queues
from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Forbidden, KubeError
from gpuplane.kube.kueue.multikueue import list_worker_names
from gpuplane.kube.kueue.names import ApiVersion
from gpuplane.loops.clusters.catalogue import find_addon
from gpuplane.loops.connections import find_unconnected

METRICS_LATE_MS = 300_000
"""Prometheus sends every half minute; ten missed sends are no accident."""
PROBE_FLAVOR = "gpuplane-health"


async def check(
    client: KubeClient, cluster: Cluster, nodes: Sequence[Node], now: int
) -> tuple[HealthCheck, ...]:
    """Return what each kind of check finds.

    Raises:
        KubeError: If the API server does not answer: nothing else can be told then.
    """
    version = await client.version()
    found = [HealthCheck("api_server", "healthy", version.text, now)]
    present = [node for node in nodes if node.present]
    for kind, (verdict, message) in (
        ("nodes", judge_nodes(present)),
        ("device_plugin", judge_devices(present)),
        ("gpu_operator", await _look_at_operator(client)),
        ("kueue", await _look_at_kueue(client, cluster)),
        ("metrics", judge_metrics(cluster, now)),
    ):
        found.append(HealthCheck(kind, verdict, message, now))
    return tuple(found)


def judge_nodes(nodes: Sequence[Node]) -> tuple[str, str]:
    """Return whether nodes are ready."""
    if not nodes:
        return "unhealthy", "It has no nodes."
    down = sorted(node.name for node in nodes if not node.ready)
    if not down:
        return "healthy", f"All {len(nodes)} nodes are ready."
    named = ", ".join(down[:5]) + (" …" if len(down) > 5 else "")
    verdict = "unhealthy" if len(down) == len(nodes) else "degraded"
    return verdict, f"{len(down)} of {len(nodes)} nodes are not ready: {named}."


def judge_devices(nodes: Sequence[Node]) -> tuple[str, str]:
    """Return whether the devices of nodes are offered by a device plugin."""
    with_devices = [node for node in nodes if node.details.hardware.get("vendor")]
    if not with_devices:
        return "absent", "No node has accelerators."
    amiss = sorted(
        node.name
        for node in with_devices
        if node.details.is_counted
        and not node.details.hardware.get("mig")
        and not any(gpu.healthy and gpu.present for gpu in node.gpus)
    )
    if not amiss:
        return "healthy", f"{len(with_devices)} nodes offer their devices."
    named = ", ".join(amiss[:5]) + (" …" if len(amiss) > 5 else "")
    verdict = "unhealthy" if len(amiss) == len(with_devices) else "degraded"
    return verdict, f"No device plugin offers the devices of {named}."


def judge_metrics(cluster: Cluster, now: int) -> tuple[str, str]:
    """Return whether the cluster's metrics arrive."""
    last = cluster.last_metrics_collection
    if last is None:
        return "absent", "It has never sent metrics."
    if now - last > METRICS_LATE_MS:
        return "degraded", f"The last metrics came {(now - last) // 1000} s ago."
    return "healthy", cluster.metrics_collection_status or "Metrics arrive."


async def _look_at_operator(client: KubeClient) -> tuple[str, str]:
    addon = find_addon("gpu-operator")
    if addon is None or addon.workload is None:
        return "absent", "It is not in the list of add-ons."
    try:
        found = await client.list(kinds.DEPLOYMENT, labels=addon.workload.labels)
    except Forbidden:
        return "unknown", "The credentials may not list Deployments."
    if not found:
        return "absent", "The GPU operator is not installed."
    status = found[0].get("status") or {}
    ready, wanted = int(status.get("readyReplicas") or 0), int(status.get("replicas") or 0)
    verdict = "healthy" if ready and ready >= wanted else "unhealthy"
    return verdict, f"{ready} of {wanted} replicas are ready."


async def _look_at_kueue(client: KubeClient, cluster: Cluster) -> tuple[str, str]:
    """Return whether Kueue works: an object that is not kept goes through its webhooks."""
    served = await client.served(kinds.RESOURCE_FLAVOR.group)
    if served is None:
        return "absent", "Kueue is not installed."
    kind = await client.resolve(kinds.RESOURCE_FLAVOR)
    if kind is None:
        return "absent", "Kueue serves no ResourceFlavor."
    probe = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": PROBE_FLAVOR},
        "spec": {},
    }
    try:
        await client.apply(probe, dry_run=True)
    except Forbidden:
        return "unknown", "The credentials may not write ResourceFlavors."
    except KubeError as error:
        return "unhealthy", f"Its webhooks do not answer: {error.message[:200]}"
    unconnected = await _look_at_workers(client, cluster, kind.version)
    if unconnected:
        return "degraded", unconnected
    versions = " and ".join(sorted({served.preferred, *served.versions}))
    verb = "are" if " and " in versions else "is"
    return "healthy", f"{versions} {verb} served and its webhooks answer."


async def _look_at_workers(client: KubeClient, cluster: Cluster, version: str) -> str:
    """Return why Kueue is not connected with workers that the cluster dispatches to."""
    names = list_worker_names(queues.worker_places(cluster))
    if not names or version not in set(ApiVersion):
        return ""
    try:
        return " ".join((await find_unconnected(client, ApiVersion(version), names)).values())
    except Forbidden:
        return ""
    except KubeError as error:
        return f"Whether it is connected with its workers cannot be told: {error.message[:200]}"
