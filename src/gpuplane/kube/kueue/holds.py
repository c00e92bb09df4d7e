"""Takes our AdmissionChecks off queues where nobody keeps their state any more.

A queue with a check whose controller is gone admits nothing, whoever's the work is. One that
dispatched is stopped instead: its work was for other clusters, and must not start where it waits.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict
from gpuplane.kube.kinds import ADMISSION_CHECK, CLUSTER_QUEUE, Kind
from gpuplane.kube.kueue.multikueue import CHECK
from gpuplane.kube.kueue.names import GROUP, HOLD_CHECK, ApiVersion, choose_version
from gpuplane.kube.tenancy import CLUSTER_LABEL

Object = dict[str, Any]

TRIES = 5
"""Of one queue at once: Kueue writes into its status whenever work comes or goes."""


STOPPED_BY = "gpuplane-left"
"""Field manager of what stops a queue: whoever applies nothing under this name lets it go on."""


def without_check(found: Mapping[str, Any], check: str = HOLD_CHECK) -> dict[str, Any] | None:
    """Return the merge patch that takes a check off a ClusterQueue, None where it has none."""
    strategy = (found.get("spec") or {}).get("admissionChecksStrategy") or {}
    checks = strategy.get("admissionChecks") or ()
    rest = [each for each in checks if each["name"] != check]
    if len(rest) == len(checks):
        return None
    return {
        "metadata": {"resourceVersion": found["metadata"].get("resourceVersion")},
        "spec": {"admissionChecksStrategy": {"admissionChecks": rest} if rest else None},
    }


async def lift_hold(client: KubeClient, ids: Collection[str]) -> int:
    """Take our check off every ClusterQueue of ours and delete it; return how many had it.

    Args:
        client: The cluster; one that does not serve Kueue is left as it is.
        ids: What the cluster's objects are labelled with.
    """
    served = await client.served(GROUP)
    version = None if served is None else choose_version(served.preferred, served.versions)
    if version is None:
        return 0
    lifted = 0
    kind = CLUSTER_QUEUE.at(str(version))
    for cluster_id in ids:
        for found in await client.list(kind, labels={CLUSTER_LABEL: cluster_id}):
            lifted += await _lift(client, kind, found, HOLD_CHECK)
    check = ADMISSION_CHECK.at(str(version))
    for cluster_id in ids:
        for found in await client.list(check, labels={CLUSTER_LABEL: cluster_id}):
            if found["metadata"]["name"] == HOLD_CHECK:
                await client.delete(check, HOLD_CHECK, uid=found["metadata"].get("uid"))
    return lifted


async def stop_queues(client: KubeClient, version: ApiVersion, ids: Collection[str]) -> list[str]:
    """Stop every queue of ours that dispatches and take the check of MultiKueue off it.

    Returns:
        Queues of others that name the check: nothing of theirs is changed.
    """
    kind = CLUSTER_QUEUE.at(str(version))
    theirs = []
    for found in await client.list(kind):
        metadata = found["metadata"]
        if without_check(found, CHECK) is None:
            continue
        if (metadata.get("labels") or {}).get(CLUSTER_LABEL) not in ids:
            theirs.append(metadata["name"])
            continue
        await client.apply(_stop(version, metadata["name"], "Hold"), force=True, manager=STOPPED_BY)
        await _lift(client, kind, await client.find(kind, metadata["name"]), CHECK)
    return sorted(theirs)


async def start_queues(client: KubeClient, version: ApiVersion, live: Iterable[Object]) -> None:
    """Let those of these queues go on that were stopped when their cluster was deleted."""
    for found in live:
        metadata = found["metadata"]
        managers = {each.get("manager") for each in metadata.get("managedFields") or ()}
        if found["kind"] == "ClusterQueue" and STOPPED_BY in managers:
            await client.apply(_stop(version, metadata["name"], None), manager=STOPPED_BY)


def _stop(version: ApiVersion, name: str, policy: str | None) -> Object:
    """Return what says how a queue is stopped, or nothing of it."""
    return {
        "apiVersion": version.group_version,
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        **({"spec": {"stopPolicy": policy}} if policy else {}),
    }


async def _lift(
    client: KubeClient, kind: Kind, found: Mapping[str, Any] | None, check: str
) -> bool:
    """Take a check off one queue, read anew where somebody changed it meanwhile."""
    for left in reversed(range(TRIES)):
        patch = None if found is None else without_check(found, check)
        if found is None or patch is None:
            return False
        name = found["metadata"]["name"]
        try:
            await client.patch(kind, name, patch)
        except Conflict:
            if not left:
                raise
            found = await client.find(kind, name)
        else:
            return True
    return False
