"""Cordons on the clusters themselves: a node that is cordoned here takes no pod there either.

What is wanted is in the database; each look at a cluster brings its Nodes to it, again until they
have it. Only a cordon that was made here is undone: the Node carries our mark from then on. One by
kubectl is left alone, and shown.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.backends.interface import NodeObservation
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict, Forbidden, KubeError, NotThere
from gpuplane.kube.kinds import NODE

log = logging.getLogger("gpuplane.cordons")

MARK = "gpuplane.io/cordoned-by"
"""Annotation of a Node that was cordoned here; its value is the cluster's id."""
PER_LOOK = 100
"""Nodes brought to what is wanted in one look: each is two calls; the rest has the next one."""
MISSING_RIGHT = "The account of gpuplane on the cluster may not patch nodes."


@dataclass(frozen=True, slots=True)
class CordonPlan:
    """Which Nodes of a cluster are to be looked at."""

    cordon: tuple[str, ...]
    lift: tuple[str, ...]


def plan_cordons(
    seen: Sequence[NodeObservation], wanted: Collection[str], foreign: Collection[str]
) -> CordonPlan:
    """Return which nodes differ from what is wanted.

    Args:
        seen: The nodes as their cluster has them.
        wanted: Names of nodes that are cordoned here.
        foreign: Names of nodes that are known to be cordoned by somebody else.
    """
    closed = {each.name for each in seen if each.details.unschedulable}
    names = {each.name for each in seen}
    return CordonPlan(
        tuple(sorted((names & set(wanted)) - closed)),
        tuple(sorted(closed - set(wanted) - set(foreign))),
    )


class Cordons:
    """Brings the Nodes of clusters to what is wanted of them."""

    def __init__(self) -> None:
        """Make it; which cordons are others' is learnt anew by each process."""
        self._foreign: dict[str, set[str]] = {}

    async def keep(
        self,
        client: KubeClient,
        known_ids: Sequence[str],
        seen: Sequence[NodeObservation],
        wanted: Collection[str],
    ) -> dict[str, str]:
        """Cordon and uncordon Nodes; return why it failed, by node, where it did.

        Args:
            client: Of the cluster.
            known_ids: Its ids here, the one it has now first.
            seen: Its nodes as last observed.
            wanted: Names of nodes that are cordoned here.
        """
        key = known_ids[0]
        closed = {each.name for each in seen if each.details.unschedulable}
        foreign = self._foreign.get(key, set()) & closed - set(wanted)
        plan = plan_cordons(seen, wanted, foreign)
        failed: dict[str, str] = {}
        for name in (*plan.cordon, *plan.lift)[:PER_LOOK]:
            try:
                if name in plan.cordon:
                    await _cordon(client, name, known_ids[0])
                elif not await _lift(client, name, known_ids):
                    foreign.add(name)
            except (Conflict, NotThere):
                continue  # it changed meanwhile: the next look sees how
            except Forbidden:
                failed[name] = MISSING_RIGHT
            except KubeError as error:
                failed[name] = str(error)
        self._foreign[key] = foreign
        return failed


async def lift_all(client: KubeClient, known_ids: Collection[str]) -> tuple[str, ...]:
    """Take every cordon of ours off the Nodes of a cluster; return the names of those Nodes.

    Args:
        client: Of the cluster.
        known_ids: Its ids here.

    Raises:
        Forbidden: If the account may not patch nodes and there is one to be lifted.
        Conflict: If a Node is changed by others all the time.
    """
    lifted = []
    for found in await client.list(NODE):
        metadata = found["metadata"]
        if (metadata.get("annotations") or {}).get(MARK) not in known_ids:
            continue
        if await _lift(client, metadata["name"], known_ids):
            lifted.append(metadata["name"])
    return tuple(lifted)


async def _cordon(client: KubeClient, name: str, cluster_id: str) -> None:
    """Cordon a Node and mark it; one that is cordoned already is not ours to undo."""
    found = await client.find(NODE, name)
    if found is None or (found.get("spec") or {}).get("unschedulable"):
        return
    metadata = {
        "resourceVersion": found["metadata"]["resourceVersion"],
        "annotations": {MARK: cluster_id},
    }
    await client.patch(NODE, name, {"metadata": metadata, "spec": {"unschedulable": True}})
    log.info("node %s was cordoned on its cluster", name)


async def _lift(client: KubeClient, name: str, known_ids: Collection[str]) -> bool:
    """Take a cordon of ours off a Node; False where it is somebody else's."""
    found = await client.find(NODE, name)
    if found is None:
        return False
    if (found["metadata"].get("annotations") or {}).get(MARK) not in known_ids:
        return False
    metadata: dict[str, Any] = {
        "resourceVersion": found["metadata"]["resourceVersion"],
        "annotations": {MARK: None},
    }
    await client.patch(NODE, name, {"metadata": metadata, "spec": {"unschedulable": None}})
    log.info("node %s was uncordoned on its cluster", name)
    return True
