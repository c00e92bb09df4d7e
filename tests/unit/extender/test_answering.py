"""What kube-scheduler is answered."""

import json

import pytest

from gpuplane.extender.protocol import BadBody, Reader
from tests.unit.extender.objects import Asked, a_node, a_pod, dump


def test_only_nodes_with_enough_free_gpus_pass_the_filter() -> None:
    asked = Asked(a_node("a"), a_node("b"))
    asked.put(a_pod("old", 6, node="a", ids="0,1,2,3,4,5"))
    answer = asked.filter(a_pod("new", 4))
    assert answer["NodeNames"] == ["b"]
    assert answer["FailedNodes"] == {"a": "InsufficientGpu: needs 4 GPUs"}
    assert answer["Error"] == ""
    assert asked.refused == {"InsufficientGpu": 1}


def test_what_no_ending_pod_changes_is_unresolvable() -> None:
    asked = Asked(a_node("small", 2, topology="pcie"), a_node("large"))
    answer = asked.filter(a_pod("new", 4))
    assert answer["FailedAndUnresolvableNodes"] == {"small": "NodeTooSmall: needs 4 GPUs"}
    assert answer["FailedNodes"] == {}


def test_when_all_fit_the_list_is_answered_as_it_came() -> None:
    asked = Asked(a_node("b"), a_node("a"))
    answer = asked.filter(a_pod("new", 8), ["b", "a"])
    assert answer["NodeNames"] == ["b", "a"]
    assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {}


def test_only_the_best_node_gets_ten_points() -> None:
    asked = Asked(a_node("a"), a_node("b"), a_node("c"))
    asked.put(a_pod("old", 4, node="b", ids="0,1,2,3"))
    points = asked.prioritize(a_pod("new", 4))
    assert points["b"] == 10, "it fills what is begun and breaks no empty node"
    assert max(points["a"], points["c"]) < 10


def test_the_best_of_the_candidates_gets_ten_where_the_best_of_all_is_none() -> None:
    asked = Asked(a_node("a"), a_node("b"), a_node("c"))
    asked.put(a_pod("old", 4, node="b", ids="0,1,2,3"))
    assert asked.prioritize(a_pod("new", 4), ["c", "a"]) | {"c": 0} == {"a": 10, "c": 0}


def test_a_pod_without_gpus_goes_where_it_likes() -> None:
    asked = Asked(a_node("a"), a_node("b", 0))
    pod = a_pod("web", 0)
    assert asked.filter(pod)["NodeNames"] == ["a", "b"]
    assert asked.prioritize(pod) == {"a": 0, "b": 0}


def test_a_node_that_is_not_known_yet_is_refused_for_now() -> None:
    asked = Asked(a_node("a"))
    answer = asked.filter(a_pod("new"), ["a", "new-node"])
    assert answer["NodeNames"] == ["a"]
    assert answer["FailedNodes"] == {
        "new-node": "NodeNotReady: the extender has not seen this node yet"
    }
    assert asked.prioritize(a_pod("new"), ["a", "new-node"]) == {"a": 10, "new-node": 0}


def test_links_that_are_required_keep_a_pod_off_nodes_without_them() -> None:
    asked = Asked(a_node("mesh", topology="nvlink-cube-mesh-8"), a_node("slow", topology="pcie"))
    pod = a_pod(
        "new",
        4,
        annotations={"gpuplane.io/links": "nvlink", "gpuplane.io/links-required": "true"},
    )
    assert asked.filter(pod)["NodeNames"] == ["mesh"]
    assert asked.why(pod, "slow").startswith("TopologyUnsatisfied")


@pytest.mark.parametrize(
    ("annotations", "told"),
    [
        ({"gpuplane.io/links": "wifi"}, "gpuplane.io/links: 'wifi' is none of none, nvlink"),
        ({"gpuplane.io/links-required": "yes"}, "links-required: 'yes' is none of true, false"),
        ({"gpuplane.io/gpu-memory-mib": "80Gi"}, "gpu-memory-mib: '80Gi' is no number of MiB"),
        ({"gpuplane.io/gang-size": "all"}, "gang-size: 'all' is no number from 1 to"),
        ({"gpuplane.io/gang-size": "4"}, "the label gpuplane.io/gang with the gang's name"),
    ],
)
def test_wishes_that_cannot_be_read_keep_a_pod_waiting_and_say_why(
    annotations: dict[str, str], told: str
) -> None:
    asked = Asked(a_node("a"), a_node("b"))
    pod = a_pod("x", annotations=annotations)
    answer = asked.filter(pod)
    assert (answer["NodeNames"], answer["FailedNodes"]) == ([], {})
    said = answer["FailedAndUnresolvableNodes"]
    assert list(said) == ["a", "b"]
    assert said["a"].startswith("SpecificationUnreadable: annotation ")
    assert told in said["a"]
    assert asked.refused == {"SpecificationUnreadable": 2}
    body = dump({"Pod": pod, "Nodes": {"items": [a_node("a")]}, "NodeNames": None})
    whole = json.loads(asked.answerer.filter(body))
    assert (whole["Nodes"]["items"], list(whole["FailedAndUnresolvableNodes"])) == ([], ["a"])
    question = {"Pod": pod, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}]}}}
    answer = json.loads(asked.answerer.preempt(dump(question)))
    assert answer["NodeNameToMetaVictims"] == {}
    plain = a_pod("y", 0, annotations=annotations)
    assert asked.filter(plain)["NodeNames"] == ["a", "b"], "it asks for no GPU"


def test_a_model_is_asked_for_in_any_spelling() -> None:
    asked = Asked(a_node("h"))
    assert asked.filter(a_pod("x", annotations={"gpuplane.io/gpu-model": "H100"}))["NodeNames"]
    pod = a_pod("y", annotations={"gpuplane.io/gpu-model": "A100"})
    assert asked.why(pod, "h").startswith("GpuModelMismatch")


def test_a_cordoned_node_takes_only_who_tolerates_it() -> None:
    asked = Asked(a_node("a", unschedulable=True))
    assert asked.why(a_pod("x"), "a").startswith("UntoleratedTaint")
    tolerations = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    assert asked.filter(a_pod("y", tolerations=tolerations))["NodeNames"] == ["a"]


def test_a_node_whose_maintenance_is_near_takes_nothing_new() -> None:
    near = a_node("a", annotations={"gpuplane.io/maintenance-at": "2027-01-15T08:00:00Z"})
    asked = Asked(near, a_node("b"))
    assert asked.why(a_pod("x"), "a").startswith("MaintenanceWindow")


def test_nodes_that_offer_each_gpu_several_times_are_left_to_kube_scheduler() -> None:
    shared = a_node("shared", 8, labels={"nvidia.com/gpu.replicas": "4"})
    asked = Asked(shared, a_node("whole"))
    answer = asked.filter(a_pod("x", 8))
    assert answer["NodeNames"] == ["shared", "whole"]
    assert asked.prioritize(a_pod("x", 8)) == {"shared": 0, "whole": 10}


def test_mig_instances_are_counted_by_their_profile() -> None:
    layout = {"gpuplane.io/mig-layout": "0:1g.10gb@0,1g.10gb@1"}
    node = a_node("a", annotations=layout)
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        amounts["nvidia.com/mig-1g.10gb"] = "2"
    asked = Asked(node)
    pod = a_pod("x", 1, resource="nvidia.com/mig-1g.10gb")
    assert asked.filter(pod)["NodeNames"] == ["a"]
    asked.put(
        a_pod("one", 1, resource="nvidia.com/mig-1g.10gb", node="a", ids="0/1g.10gb/0"),
        a_pod("two", 1, resource="nvidia.com/mig-1g.10gb", node="a"),
    )
    assert asked.why(pod, "a").startswith("MigProfileUnavailable")


def test_whole_nodes_are_answered_as_names_are() -> None:
    nodes = [a_node("a"), a_node("b"), a_node("c", 2, topology="pcie")]
    asked = Asked(*nodes)
    asked.put(a_pod("old", 4, node="b", ids="0,1,2,3"))
    pod = a_pod("new", 4)
    body = dump({"Pod": pod, "Nodes": {"items": nodes}, "NodeNames": None})
    answer, by_name = json.loads(asked.answerer.filter(body)), asked.filter(pod)
    assert [each["metadata"]["name"] for each in answer["Nodes"]["items"]] == by_name["NodeNames"]
    assert answer["NodeNames"] is None
    for field in ("FailedNodes", "FailedAndUnresolvableNodes", "Error"):
        assert answer[field] == by_name[field]
    rows = json.loads(asked.answerer.prioritize(body))
    assert {row["Host"]: row["Score"] for row in rows} == asked.prioritize(pod)


def test_nodes_stay_candidates_for_preemption_where_the_pod_fits_without_its_victims() -> None:
    asked = Asked(a_node("a"), a_node("b"))
    asked.put(
        a_pod("a-1", 4, node="a", ids="0,1,2,3"),
        a_pod("a-2", 4, node="a", ids="4,5,6,7"),
        a_pod("b-1", 8, node="b", ids="0,1,2,3,4,5,6,7"),
    )
    question = {
        "Pod": a_pod("new", 8),
        "NodeNameToMetaVictims": {
            "a": {"Pods": [{"UID": "uid-a-1"}], "NumPDBViolations": 1},
            "b": {"Pods": [{"UID": "uid-b-1"}], "NumPDBViolations": 0},
        },
    }
    answer = json.loads(asked.answerer.preempt(dump(question)))
    victims = {"Pods": [{"UID": "uid-b-1"}], "NumPDBViolations": 0}
    assert answer == {"NodeNameToMetaVictims": {"b": victims}}
    assert asked.filter(a_pod("new", 8))["NodeNames"] == [], "asking stops nobody"


def test_victims_may_come_as_whole_pods() -> None:
    asked = Asked(a_node("b"))
    asked.put(a_pod("b-1", 8, node="b"))
    question = {
        "Pod": a_pod("new", 8),
        "NodeNameToVictims": {"b": {"Pods": [a_pod("b-1", 8, node="b")]}},
    }
    answer = json.loads(asked.answerer.preempt(dump(question)))
    assert list(answer["NodeNameToMetaVictims"]) == ["b"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"Pod":null,"NodeNames":[]}',
        b'{"Pod":{"metadata":{},"spec":{}}}',
        b'{"Pod":{"metadata":{},"spec":{}},"Nodes":null,"NodeNames":[1]}',
        b'{"Pod":{"metadata":{},"spec":{}},"Nodes":null,"NodeNames":["a"],"x":[}',
        b'{"Pod":{"metadata":{},"spec":{"containers":"x"}},"Nodes":null,"NodeNames":[]}',
        b'{"Pod":{"metadata":{},"spec":{"overhead":{"cpu":"many"}}},"Nodes":null,"NodeNames":["a"]}',
        b'{"Pod":{"metadata":{},"spec":{}},"Nodes":{"items":[{}]},"NodeNames":null}',
        b'{"Pod":{"metadata":{},"spec":{}},"Nodes":' + b"[" * 5000,
        b'\xff{"Pod":{}}',
    ],
)
def test_a_bad_question_is_refused_by_name(body: bytes) -> None:
    asked = Asked(a_node("a"))
    for ask in (asked.answerer.filter, asked.answerer.prioritize):
        with pytest.raises(BadBody) as refusal:
            ask(body)
        assert str(refusal.value)
    assert asked.filter(a_pod("x"))["NodeNames"] == ["a"], "the next question is answered"


@pytest.mark.parametrize("wrong", [{"PodName": "../x"}, {"PodNamespace": ".."}, {"Node": ""}])
def test_a_binding_of_what_is_no_name_is_refused(wrong: dict[str, str]) -> None:
    asked = {"PodName": "p", "PodNamespace": "team", "PodUID": "u", "Node": "a-1.example"}
    assert Reader().binding(dump(asked)).Node == "a-1.example"
    with pytest.raises(BadBody, match=next(iter(wrong))):
        Reader().binding(dump(asked | wrong))


def test_a_bad_question_about_preemption_is_refused() -> None:
    asked = Asked(a_node("a"))
    for body in (b"{}", b'{"Pod":{"metadata":{},"spec":{}},"NodeNameToMetaVictims":[]}'):
        with pytest.raises(BadBody):
            asked.answerer.preempt(body)
