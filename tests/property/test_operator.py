"""Invariants of what the operator decides, over histories that nobody thought of."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.mig.layouts import MigInstance, find_problem
from gpuplane.core.mig.profiles import find_table
from gpuplane.operator.names import Priority, Strategy, Vendor
from gpuplane.operator.rules.backoff import CAP_MS, CHANCE_STEPS, compute_wait_ms
from gpuplane.operator.rules.layouts import NodeState, plan_group, read_group
from gpuplane.operator.rules.nodes import detect_gpus
from gpuplane.operator.rules.room import Hold, Room
from gpuplane.operator.rules.seen import Workload
from gpuplane.operator.rules.steps import Placed, decide_placement
from tests.unit.operator.builders import a_node, a_pod, a_workload

NODES = [a_node("a", 8), a_node("b", 4), a_node("c", 8, ready=False), a_node("d", None)]
A100 = "NVIDIA-A100-SXM4-80GB"
TABLE = find_table(A100)
SPECS = st.lists(
    st.tuples(st.integers(1, 8), st.sampled_from(list(Priority)), st.sampled_from(list(Strategy))),
    max_size=30,
)


def workloads(specs: list[tuple[int, Priority, Strategy]]) -> list[Workload]:
    return [
        a_workload(
            f"w{i}",
            f"uid-{i:04}",
            {"jobName": f"w{i}"},
            gpuCount=gpus,
            priority=priority,
            schedulingStrategy=strategy,
        )
        for i, (gpus, priority, strategy) in enumerate(specs)
    ]


@given(SPECS, st.integers(0, 1 << 30))
def test_no_gpu_is_promised_twice_and_nobody_gives_way_to_an_equal(
    specs: list[tuple[int, Priority, Strategy]], chance: int
) -> None:
    room, there = Room(), dict[str, tuple[str, Workload]]()
    for workload in workloads(specs):
        placed = {
            node: [w for at, w in there.values() if at == node] for node in ("a", "b", "c", "d")
        }
        found = decide_placement(
            workload,
            NODES,
            room.used(Vendor.NVIDIA),
            room.busy_ids(),
            lambda placed=placed: placed,
            chance=chance,
            mix={},
        )
        if not isinstance(found, Placed):
            continue
        for _, name in found.victims:
            node, victim = there.pop(name)
            assert node == found.node
            assert victim.priority.rank < workload.priority.rank
            room.release(victim.uid)
        hold = Hold(found.node, Vendor.NVIDIA, workload.gpus)
        room.hold(workload.uid, (workload.namespace, workload.name), hold)
        there[workload.name] = (found.node, workload)
        for node in NODES:
            used = room.used(Vendor.NVIDIA).get(node.name, 0)
            count = detect_gpus(node, Vendor.NVIDIA).total
            assert used <= (count if node.is_ready else 0)


@given(SPECS, st.integers(0, 1 << 30), st.permutations(NODES))
def test_the_order_in_which_nodes_are_told_decides_nothing(
    specs: list[tuple[int, Priority, Strategy]], chance: int, order: list[Any]
) -> None:
    for workload in workloads(specs):
        more: dict[str, Any] = {"chance": chance, "mix": {1: 2, 4: 1}}
        first = decide_placement(workload, NODES, {"a": 3}, {}, dict, **more)
        assert decide_placement(workload, order, {"a": 3}, {}, dict, **more) == first


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["pod", "over", "gone", "hold", "release"]),
        st.integers(0, 4),
        st.sampled_from("ab"),
        st.integers(1, 8),
    ),
    max_size=40,
)


@given(EVENTS)
def test_what_is_counted_as_used_is_what_pods_have_and_promises_without_pods(
    events: list[tuple[str, int, str, int]],
) -> None:
    room = Room()
    pods: dict[int, tuple[str, int]] = {}
    holds: dict[int, tuple[str, int]] = {}
    for what, number, node, gpus in events:
        job = f"j{number}"
        if what == "pod":
            room.set_pod(a_pod(f"p{number}", node, gpus, job=job))
            pods[number] = (node, gpus)
        elif what == "over":
            room.set_pod(a_pod(f"p{number}", node, gpus, job=job, phase="Succeeded"))
            pods.pop(number, None)
        elif what == "gone":
            room.remove_pod("team", f"p{number}")
            pods.pop(number, None)
        elif what == "hold":
            room.hold(f"u{number}", ("team", job), Hold(node, Vendor.NVIDIA, gpus))
            holds[number] = (node, gpus)
        else:
            room.release(f"u{number}")
            holds.pop(number, None)
        counted = [*pods.values(), *(held for i, held in holds.items() if i not in pods)]
        expected: dict[str, int] = {}
        for at, count in counted:
            expected[at] = expected.get(at, 0) + count
        assert dict(room.used(Vendor.NVIDIA)) == expected


@given(st.integers(1, 300), st.integers(0, 12), st.integers(0, CHANCE_STEPS - 1))
def test_a_wait_is_never_shorter_than_the_one_before_nor_beyond_its_cap(
    base: int, attempt: int, chance: int
) -> None:
    wait = compute_wait_ms(base, attempt, chance)
    plain = min(base * 1000 * 2**attempt, CAP_MS)
    assert plain <= wait <= min(plain * 11 // 10, CAP_MS)


PROFILES = ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
STATES = ["Available", "Allocated", "InUse"]


@st.composite
def reports(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw a GPU's instances that can exist together."""
    assert TABLE is not None
    found: list[MigInstance] = []
    for name in draw(st.lists(st.sampled_from(PROFILES), max_size=7)):
        profile = TABLE.find_profile(name)
        assert profile is not None
        grown = [*found, MigInstance(draw(st.sampled_from(profile.starts)), name)]
        if find_problem(TABLE, grown) is None:
            found = grown
    return [
        {"profile": one.profile, "start": one.start, "state": draw(st.sampled_from(STATES))}
        for one in found
    ]


ASKED = st.one_of(
    st.fixed_dictionaries({"instances": st.dictionaries(st.sampled_from(PROFILES),
                                                        st.integers(1, 3), min_size=1)}),
    st.fixed_dictionaries({"shares": st.dictionaries(st.sampled_from(PROFILES),
                                                     st.integers(1, 9), min_size=1)}),
    st.just({"whole": True}),
)  # fmt: skip


@given(ASKED, reports())
def test_an_agent_that_obeys_gets_to_rest_and_never_loses_what_is_held(
    asked: dict[str, Any], instances: list[dict[str, Any]]
) -> None:
    spec = {"nodeSelector": {"pool": "x"}, **asked}
    group = read_group({"metadata": {"name": "g", "generation": 1}, "spec": spec})
    gpu: dict[str, Any] = {"index": 0, "mode": "enabled", "instances": instances}
    held = [dict(each) for each in instances if each["state"] != "Available"]
    for _ in range(6):
        labels = {"pool": "x", "nvidia.com/gpu.product": A100}
        notes = {"gpuplane.io/mig-state": json.dumps({"gpus": [gpu]})}
        (plan,) = plan_group(group, [a_node("n", labels=labels, annotations=notes)])
        if plan.state is not NodeState.CHANGING:
            break
        obey(gpu, plan.orders or "")
        assert all(each in gpu["instances"] for each in held)
    assert plan.state in (NodeState.SETTLED, NodeState.HELD, NodeState.REFUSED)
    if plan.state is NodeState.SETTLED and "instances" in asked:
        names = [each["profile"] for each in gpu["instances"]]
        assert {name: names.count(name) for name in set(names)} == asked["instances"]


def obey(gpu: dict[str, Any], orders: str) -> None:
    assert TABLE is not None
    for step in json.loads(orders)["gpus"][0]["steps"]:
        one = {"profile": step.get("profile"), "start": step.get("start"), "state": "Available"}
        if step["to"] == "PartitionDestroyed":
            gpu["instances"].remove(one)
        elif step["to"] == "PartitionCreated":
            gpu["instances"].append(one)
        else:
            gpu["mode"] = "enabled" if step["to"] == "MIGEnabled" else "disabled"
        there = [MigInstance(each["start"], each["profile"]) for each in gpu["instances"]]
        assert find_problem(TABLE, there) is None
