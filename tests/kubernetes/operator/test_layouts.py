"""MIGLayouts against real Node objects; the test plays the agent, which cuts and reports."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gpuplane.kube.errors import Invalid
from gpuplane.kube.kinds import NODE
from gpuplane.operator.migs import MIG_LAYOUT
from gpuplane.operator.names import MIG_ORDERS_ANNOTATION, MIG_STATE_ANNOTATION
from tests.kubernetes.operator.conftest import Bench
from tests.waiting import wait_until_async

Pool = Callable[..., list[str]]
Gpus = list[dict[str, Any]]


class Agent:
    """Cuts one node's GPUs as ordered, one edge of a partition's life at a time."""

    def __init__(self, bench: Bench, node: str, gpus: Gpus) -> None:
        self.bench, self.node, self.gpus = bench, node, gpus
        self.obeyed: list[dict[str, Any]] = []

    async def report(self) -> None:
        text = json.dumps({"gpus": self.gpus})
        notes = {"annotations": {MIG_STATE_ANNOTATION: text}}
        await self.bench.admin.patch(NODE, self.node, {"metadata": notes})

    async def obey(self) -> bool:
        """Do what is ordered; False when nothing is."""
        node = await self.bench.admin.get(NODE, self.node)
        text = node["metadata"]["annotations"].get(MIG_ORDERS_ANNOTATION, '{"gpus": []}')
        orders = json.loads(text)["gpus"]
        for order in orders:
            gpu = next(each for each in self.gpus if each["index"] == order["index"])
            for step in order["steps"]:
                self._do(gpu, step)
        if orders:
            await self.report()
        return bool(orders)

    def _do(self, gpu: dict[str, Any], step: dict[str, Any]) -> None:
        self.obeyed.append(step)
        one = {"profile": step.get("profile"), "start": step.get("start"), "state": "Available"}
        match step["to"]:
            case "MIGEnabled":
                gpu["mode"] = "enabled"
            case "GPUDiscovered":
                gpu["mode"] = "disabled"
            case "PartitionDestroyed":
                # A report may have been acted on already: the operator sees it a moment later.
                gpu["instances"] = [each for each in gpu["instances"] if each != one]
            case "PartitionCreated":
                if one not in gpu["instances"]:
                    gpu["instances"].append(one)


@pytest.fixture
async def layout(bench: Bench) -> AsyncIterator[Callable[..., Any]]:
    name = f"o-{bench.namespace}"

    async def ask(**spec: Any) -> None:
        await bench.admin.apply(
            {
                "apiVersion": "gpuplane.io/v1alpha1",
                "kind": "MIGLayout",
                "metadata": {"name": name},
                "spec": {"nodeSelector": {"pool": bench.namespace}, **spec},
            }
        )

    yield ask
    await bench.admin.delete(MIG_LAYOUT, name)


async def settled(bench: Bench, agents: list[Agent], phase: str = "Settled") -> dict[str, Any]:
    async def turn() -> dict[str, Any] | None:
        for agent in agents:
            await agent.obey()
        found = await bench.admin.get(MIG_LAYOUT, f"o-{bench.namespace}")
        status: dict[str, Any] = found.get("status") or {}
        is_now = status.get("observedGeneration") == found["metadata"]["generation"]
        return status if is_now and status["phase"] == phase else None

    found = await wait_until_async(turn, f"the layout is {phase}", interval_s=0.05)
    assert found is not None
    return found


def whole(index: int) -> dict[str, Any]:
    return {"index": index, "mode": "disabled", "instances": []}


async def test_a_group_is_cut_node_by_node_and_put_back_again(
    bench: Bench, pool: Pool, layout: Callable[..., Any]
) -> None:
    nodes = pool("a100", 2)
    agents = [Agent(bench, node, [whole(0), whole(1)]) for node in nodes]
    for agent in agents:
        await agent.report()
    await bench.start()
    await layout(instances={"3g.40gb": 1, "1g.10gb": 3})
    status = await settled(bench, agents)
    assert (status["nodes"], status["settledNodes"]) == (2, 2)
    for agent in agents:
        for gpu in agent.gpus:
            names = sorted(each["profile"] for each in gpu["instances"])
            assert names == ["1g.10gb", "1g.10gb", "1g.10gb", "3g.40gb"]
    await layout(whole=True)
    await settled(bench, agents)
    assert [gpu["mode"] for agent in agents for gpu in agent.gpus] == ["disabled"] * 4


async def test_what_a_workload_holds_stays_until_it_is_given_back(
    bench: Bench, pool: Pool, layout: Callable[..., Any]
) -> None:
    (node,) = pool("a100", 1)
    held = {"profile": "1g.10gb", "start": 0, "state": "InUse"}
    agent = Agent(bench, node, [{"index": 0, "mode": "enabled", "instances": [held]}])
    await agent.report()
    await bench.start()
    await layout(instances={"7g.80gb": 1})
    status = await settled(bench, [agent], "Waiting")
    assert "1 instances stay until their workloads give them back" in status["message"]
    assert agent.obeyed == []
    held["state"] = "Available"
    await agent.report()
    await settled(bench, [agent])
    assert [each["profile"] for each in agent.gpus[0]["instances"]] == ["7g.80gb"]


async def test_a_layout_names_exactly_one_way_to_cut(layout: Callable[..., Any]) -> None:
    with pytest.raises(Invalid, match="exactly one of instances, shares and whole"):
        await layout(instances={"1g.10gb": 7}, whole=True)
