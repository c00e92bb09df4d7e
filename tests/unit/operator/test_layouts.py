"""What MIG layouts ask of the nodes of a group, step by step."""

from __future__ import annotations

import json
from typing import Any

from gpuplane.core.lifecycle.mig import MigState, find_mig_edge
from gpuplane.operator.migs import describe_group
from gpuplane.operator.rules.layouts import Group, NodePlan, NodeState, plan_group, read_group
from gpuplane.operator.rules.seen import Node
from tests.unit.operator.builders import a_node

A100 = "NVIDIA-A100-SXM4-80GB"


def group(**spec: Any) -> Group:
    selector = {"pool": "mig"}
    meta = {"name": "inference", "uid": "u", "generation": 3}
    return read_group({"metadata": meta, "spec": {"nodeSelector": selector, **spec}})


def instance(profile: str, start: int, state: str = "Available") -> dict[str, Any]:
    return {"profile": profile, "start": start, "state": state}


def node(
    name: str, *gpus: list[dict[str, Any]] | None, product: str = A100, orders: str = ""
) -> Node:
    told = [
        {"index": i, "mode": "disabled" if gpu is None else "enabled", "instances": gpu or []}
        for i, gpu in enumerate(gpus)
    ]
    notes = {"gpuplane.io/mig-state": json.dumps({"gpus": told})} if gpus else {}
    if orders:
        notes["gpuplane.io/mig-orders"] = orders
    labels = {"pool": "mig", "nvidia.com/gpu.product": product}
    return a_node(name, labels=labels, annotations=notes)


def steps(plan: NodePlan, index: int = 0) -> list[tuple[str, str, int]]:
    assert plan.orders is not None
    for gpu in json.loads(plan.orders)["gpus"]:
        if gpu["index"] == index:
            return [(each["to"], each.get("profile", ""), each.get("start", -1))
                    for each in gpu["steps"]]  # fmt: skip
    return []


def only(group_: Group, *nodes: Node) -> NodePlan:
    (plan,) = plan_group(group_, nodes)
    return plan


def test_a_whole_gpu_is_first_put_into_mig_mode() -> None:
    plan = only(group(instances={"3g.40gb": 2}), node("n", None))
    assert plan.state is NodeState.CHANGING
    assert steps(plan) == [("MIGEnabled", "", -1)]


def test_an_empty_gpu_is_cut_as_asked_for_and_then_is_settled() -> None:
    asked = group(instances={"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2})
    plan = only(asked, node("n", []))
    made = steps(plan)
    assert sorted(name for _, name, _ in made) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    after = only(asked, node("n", [instance(name, start) for _, name, start in made]))
    assert after.state is NodeState.SETTLED
    assert steps(after) == []


def test_what_is_held_stays_and_what_is_free_gives_way() -> None:
    there = [instance("1g.10gb", 0, "InUse"), instance("1g.10gb", 4)]
    plan = only(group(instances={"7g.80gb": 1}), node("n", there))
    assert steps(plan) == [("PartitionDestroyed", "1g.10gb", 4)]
    held = only(group(instances={"7g.80gb": 1}), node("n", there[:1]))
    assert (held.state, held.message) == (
        NodeState.HELD,
        "1 instances stay until their workloads give them back",
    )


def test_a_held_instance_that_is_asked_for_keeps_its_place() -> None:
    there = [instance("3g.40gb", 4, "Allocated")]
    plan = only(group(instances={"3g.40gb": 2}), node("n", there))
    assert steps(plan) == [("PartitionCreated", "3g.40gb", 0)]


def test_nothing_is_ordered_while_the_agent_is_making_something() -> None:
    there = [instance("1g.10gb", 0, "PartitionCreated")]
    plan = only(group(instances={"7g.80gb": 1}), node("n", there))
    assert steps(plan) == []


def test_every_step_is_an_edge_of_the_life_of_a_partition() -> None:
    reports = [None, [], [instance("1g.10gb", 2)], [instance("1g.10gb", 2, "InUse")]]
    for asked in ({"instances": {"3g.40gb": 2}}, {"shares": {"1g.10gb": 7, "2g.20gb": 3}},
                  {"whole": True}):  # fmt: skip
        for report in reports:
            plan = only(group(**asked), node("n", report))
            for gpu in json.loads(plan.orders or '{"gpus": []}')["gpus"]:
                for step in gpu["steps"]:
                    edge = find_mig_edge(MigState(step["from"]), MigState(step["to"]))
                    assert edge is not None
                    assert edge.trigger == step["trigger"]


def test_back_to_whole_use_goes_through_destruction_and_leaving_the_mode() -> None:
    asked = group(whole=True)
    first = only(asked, node("n", [instance("7g.80gb", 0)]))
    assert steps(first) == [("PartitionDestroyed", "7g.80gb", 0)]
    assert steps(only(asked, node("n", []))) == [("GPUDiscovered", "", -1)]
    assert only(asked, node("n", None)).state is NodeState.SETTLED


def test_shares_are_met_over_the_gpus_of_the_group() -> None:
    asked = group(shares={"1g.10gb": 70, "2g.20gb": 20, "3g.40gb": 10}, maxUnsettledNodes=9)
    plans = plan_group(asked, [node(name, [], []) for name in "ab"])
    made = [name for plan in plans for i in (0, 1) for _, name, _ in steps(plan, i)]
    counts = {name: made.count(name) for name in set(made)}
    assert counts["1g.10gb"] > counts["2g.20gb"] > counts["3g.40gb"]


def test_as_many_nodes_change_at_once_as_may_and_those_that_began_go_on() -> None:
    asked = group(instances={"7g.80gb": 1}, maxUnsettledNodes=1)
    begun = only(asked, node("b", [])).orders or ""
    plans = plan_group(asked, [node("a", []), node("b", [], orders=begun), node("c", [])])
    assert [plan.state for plan in plans] == [
        NodeState.QUEUED,
        NodeState.CHANGING,
        NodeState.QUEUED,
    ]


def test_only_nodes_with_the_labels_belong_to_the_group() -> None:
    assert plan_group(group(whole=True), [a_node("other")]) == ()


def test_what_cannot_be_is_refused_and_what_is_not_known_waits_with_a_sentence() -> None:
    much = only(group(instances={"7g.80gb": 2}), node("n", []))
    assert (much.state, much.message) == (
        NodeState.REFUSED,
        "2 of 7g.80gb do not fit on one nvidia-a100-80gb",
    )
    wrong = only(group(instances={"9g.90gb": 1}), node("n", []))
    assert wrong.state is NodeState.REFUSED
    silent = only(group(whole=True), node("n"))
    assert (silent.state, silent.message) == (
        NodeState.UNREADABLE,
        "the agent of the node has not reported yet",
    )
    v100 = only(group(whole=True), node("n", None, product="Tesla-V100-SXM2-16GB"))
    assert v100.message == "Tesla-V100-SXM2-16GB has no MIG"


def test_a_status_names_those_that_are_not_settled_first() -> None:
    asked = group(instances={"7g.80gb": 1})
    plans = list(plan_group(asked, [node("a", [instance("7g.80gb", 0)]), node("b", [])]))
    status = describe_group(asked, plans)
    assert (status["phase"], status["nodes"], status["settledNodes"]) == ("Changing", 2, 1)
    assert [each["name"] for each in status["nodeStates"]] == ["b", "a"]
