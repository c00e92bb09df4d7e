"""What the fixtures promise to every test against a real cluster."""

from __future__ import annotations

from collections.abc import Callable

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.kinds import NAMESPACE, NODE
from gpuplane.kube.nodefacts import read_node
from tests.kubernetes.rigged import RunningCluster


async def test_the_product_reaches_the_shared_rig_as_an_administrator(
    rig: RunningCluster, namespace: str
) -> None:
    async with KubeClient(rig.connection()) as client:
        assert (await client.get(NAMESPACE, namespace))["metadata"]["name"] == namespace


async def test_added_nodes_say_what_their_machines_are(
    rig: RunningCluster, add_nodes: Callable[..., list[str]]
) -> None:
    [h100] = add_nodes("h100", 1, "fixture-h100")
    [gaudi] = add_nodes("gaudi", 1, "fixture-gaudi")
    async with KubeClient(rig.connection()) as client:
        facts = [read_node(await client.get(NODE, name)) for name in (h100, gaudi)]
    assert [len(fact.gpus) for fact in facts] == [8, 8]
    assert facts[0].gpus[0].product == "H100 80GB HBM3"
