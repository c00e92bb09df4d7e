"""Which Nodes differ from what is wanted of them."""

from __future__ import annotations

from gpuplane.backends.interface import NodeObservation
from gpuplane.core.nodedetails import NodeDetails
from gpuplane.loops.cordons import CordonPlan, plan_cordons


def a_node(name: str, *, closed: bool = False) -> NodeObservation:
    return NodeObservation(
        name=name,
        ready=True,
        cpu_milli=1000,
        memory_mib=1000,
        ephemeral_mib=1000,
        gpus=(),
        details=NodeDetails(unschedulable=closed),
    )


SEEN = [a_node("a"), a_node("b", closed=True), a_node("c", closed=True)]


def test_a_node_that_is_to_be_cordoned_and_takes_pods_is_cordoned() -> None:
    assert plan_cordons(SEEN, {"a", "b"}, {"c"}) == CordonPlan(("a",), ())


def test_a_node_that_is_closed_and_not_cordoned_here_is_looked_at_unless_it_is_known() -> None:
    assert plan_cordons(SEEN, set(), set()) == CordonPlan((), ("b", "c"))
    assert plan_cordons(SEEN, set(), {"b", "c"}) == CordonPlan((), ())


def test_a_node_that_is_gone_is_left_alone() -> None:
    assert plan_cordons([], {"a"}, set()) == CordonPlan((), ())
