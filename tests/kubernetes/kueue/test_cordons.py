"""A node that is cordoned here takes no pod of anybody on the real cluster, until it is again."""

from __future__ import annotations

from typing import Any

from gpuplane.kube.kinds import NODE, POD
from gpuplane.loops.cordons import MARK
from tests.kubernetes.kueue.worlds import KueueWorld
from tests.kubernetes.rigged import RunningCluster


def a_pod(node: str, namespace: str) -> dict[str, Any]:
    """Return a pod that kube-scheduler may put on one node alone."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "wants-it", "namespace": namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            "containers": [{"name": "main", "image": "registry.test/python:3.11"}],
        },
    }


async def test_kube_scheduler_leaves_a_node_alone_that_was_cordoned_here_until_it_is_uncordoned(
    world: KueueWorld, rig: RunningCluster, namespace: str
) -> None:
    (node,) = rig.add_nodes("l4", 1, f"{world.prefix}-l4")
    try:
        await world.loops["inventory"].run_once()
        await world.ask("POST", f"/clusters/{world.name}/nodes/{node}/cordon")
        await world.loops["inventory"].run_once()
        live = await world.client.get(NODE, node)
        assert live["spec"]["unschedulable"] is True
        assert live["metadata"]["annotations"][MARK] == str(world.cluster_id)
        await world.client.create(a_pod(node, namespace))

        async def is_refused() -> bool:
            found = await world.client.get(POD, "wants-it", namespace)
            told = (found.get("status") or {}).get("conditions") or ()
            return any(each.get("reason") == "Unschedulable" for each in told)

        await world.until(is_refused, "kube-scheduler has no node for it")
        await world.ask("POST", f"/clusters/{world.name}/nodes/{node}/uncordon")

        async def is_bound() -> bool:
            await world.loops["inventory"].run_once()
            found = await world.client.get(POD, "wants-it", namespace)
            return found["spec"].get("nodeName") == node

        await world.until(is_bound, "it is on the node")
        live = await world.client.get(NODE, node)
        assert "unschedulable" not in live["spec"]
        assert MARK not in live["metadata"].get("annotations", {})
    finally:
        rig.remove_nodes([node])
