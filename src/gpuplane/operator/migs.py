"""Looks at MIGLayouts: loads the nodes' reports, lets the rules plan, writes orders and status.

Owns the orders annotation of nodes and the status of MIGLayouts. The cutting itself is the work
of each node's agent, which reads the orders and writes what came of them.
"""

from collections import Counter
from typing import Any

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import NODE, Kind
from gpuplane.operator.names import MIG_ORDERS_ANNOTATION
from gpuplane.operator.rules.layouts import Group, NodePlan, NodeState, plan_group
from gpuplane.operator.world import World

MIG_LAYOUT = Kind("gpuplane.io", "v1alpha1", "miglayouts", "MIGLayout", namespaced=False)
TOLD_NODES = 100
"""Nodes that a status names: those that are not settled first."""
_PHASES = (
    (NodeState.REFUSED, "Refused"),
    (NodeState.CHANGING, "Changing"),
    (NodeState.QUEUED, "Changing"),
    (NodeState.HELD, "Waiting"),
    (NodeState.UNREADABLE, "Waiting"),
)


class LayoutReconciler:
    """Brings MIGLayouts forward."""

    def __init__(self, client: KubeClient, world: World) -> None:
        self._client = client
        self._world = world
        self._groups: dict[str, Group] = {}
        self._told: dict[str, dict[str, Any]] = {}

    def set_group(self, group: Group) -> None:
        """Take note of a MIGLayout."""
        self._groups[group.name] = group

    def remove_group(self, name: str) -> None:
        """Forget a MIGLayout that is gone; what was cut stays cut."""
        self._groups.pop(name, None)
        self._told.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of every MIGLayout."""
        return sorted(self._groups)

    async def look(self, name: str) -> None:
        """Do what is to be done for a MIGLayout.

        Raises:
            KubeError: If the cluster refused or did not answer; the next look is the retry.
        """
        group = self._groups.get(name)
        if group is None:
            return
        nodes = dict(self._world.nodes)
        taken = self._taken_by_others(group)
        plans = [
            plan
            if plan.name not in taken
            else NodePlan(plan.name, NodeState.REFUSED, f"belongs to {taken[plan.name]}", None)
            for plan in plan_group(group, nodes.values())
        ]
        for plan in plans:
            known = nodes[plan.name].annotations.get(MIG_ORDERS_ANNOTATION)
            if plan.orders is not None and plan.orders != known:
                patch = {"metadata": {"annotations": {MIG_ORDERS_ANNOTATION: plan.orders}}}
                await self._client.patch(NODE, plan.name, patch)
        status = describe_group(group, plans)
        if self._told.get(name) != status:
            await self._client.patch(MIG_LAYOUT, name, {"status": status}, subresource="status")
            self._told[name] = status

    def _taken_by_others(self, group: Group) -> dict[str, str]:
        """Return the nodes that a layout earlier by name selects too: one of them decides."""
        found: dict[str, str] = {}
        for other in sorted(self._groups.values(), key=lambda each: each.name):
            if other.name >= group.name:
                break
            for node in self._world.nodes.values():
                if all(node.labels.get(key) == value for key, value in other.selector.items()):
                    found.setdefault(node.name, other.name)
        return found


def describe_group(group: Group, plans: list[NodePlan]) -> dict[str, Any]:
    """Return the status of a MIGLayout."""
    counts = Counter(plan.state for plan in plans)
    phase = next((word for state, word in _PHASES if counts[state]), "Settled")
    told = ", ".join(f"{count} {state.value}" for state, count in sorted(counts.items()))
    first = next((plan for plan in plans if plan.state is not NodeState.SETTLED), None)
    message = told or "no node carries these labels"
    if first is not None:
        message += f"; {first.name}: {first.message}"
    shown = sorted(plans, key=lambda plan: (plan.state is NodeState.SETTLED, plan.name))
    return {
        "observedGeneration": group.generation,
        "phase": phase if plans else "Waiting",
        "nodes": len(plans),
        "settledNodes": counts[NodeState.SETTLED],
        "message": message,
        "nodeStates": [
            {"name": plan.name, "state": plan.state.value, "message": plan.message}
            for plan in shown[:TOLD_NODES]
        ],
    }
