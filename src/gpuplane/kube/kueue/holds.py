"""Takes our AdmissionCheck off queues where nobody keeps its state any more.

A queue with a check whose controller is gone admits nothing, whoever's the work is.
"""

from collections.abc import Collection, Mapping
from typing import Any

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict
from gpuplane.kube.kinds import ADMISSION_CHECK, CLUSTER_QUEUE, Kind
from gpuplane.kube.kueue.names import GROUP, HOLD_CHECK, choose_version
from gpuplane.kube.tenancy import CLUSTER_LABEL

TRIES = 5
"""Of one queue at once: Kueue writes into its status whenever work comes or goes."""


def without_hold(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merge patch that takes our check off a ClusterQueue, None where it has none."""
    strategy = (found.get("spec") or {}).get("admissionChecksStrategy") or {}
    checks = strategy.get("admissionChecks") or ()
    rest = [each for each in checks if each["name"] != HOLD_CHECK]
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
            lifted += await _lift(client, kind, found)
    check = ADMISSION_CHECK.at(str(version))
    for cluster_id in ids:
        for found in await client.list(check, labels={CLUSTER_LABEL: cluster_id}):
            if found["metadata"]["name"] == HOLD_CHECK:
                await client.delete(check, HOLD_CHECK, uid=found["metadata"].get("uid"))
    return lifted


async def _lift(client: KubeClient, kind: Kind, found: Mapping[str, Any] | None) -> bool:
    """Take our check off one queue, read anew where somebody changed it meanwhile."""
    for left in reversed(range(TRIES)):
        patch = None if found is None else without_hold(found)
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
