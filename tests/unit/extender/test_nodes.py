"""What a node says, and who holds what of it."""

import json

from gpuplane.core.topology.named import named_topology
from gpuplane.extender.holdings import assign
from gpuplane.extender.nodes import Claim, Topologies, read_claims, write_claims
from tests.unit.extender.objects import NOW, Asked, a_node, a_pod, a_record, facts

TOPO = """\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\t0-31\t0
GPU1\tNV12\t X \t0-31\t0
"""


def test_a_topology_is_a_name_or_what_nvidia_smi_prints() -> None:
    by_name = a_record(a_node("a")).facts.topology
    assert by_name == named_topology("nvswitch-8", 8)
    printed = a_record(a_node("b", 2, topology=TOPO)).facts.topology
    assert printed is not None
    assert printed.nvlinks == ((0, 12), (12, 0))


def test_a_topology_that_cannot_be_read_is_unknown_and_told() -> None:
    known = Topologies()
    assert known.find("a", "gibberish", 8, NOW) is None
    assert "gibberish" in known.unreadable["a"]
    assert known.find("b", "nvswitch-8", 4, NOW) is None, "it has another number of GPUs"


def test_a_topology_that_changed_is_read_again_after_thirty_seconds() -> None:
    known = Topologies()
    first = known.find("a", "nvswitch-8", 8, NOW)
    assert known.find("a", "pcie", 8, NOW + 29_999) is first
    assert known.next_look("a", "pcie", 8) == NOW + 30_000
    assert known.find("a", "pcie", 8, NOW + 30_000) == named_topology("pcie", 8)


def test_gpus_are_called_by_their_uuids_where_the_node_tells_them() -> None:
    record = a_record(a_node("a", 2, topology="", annotations={"gpuplane.io/gpu-uuids": "GPU-a,"}))
    assert dict(record.names) == {0: "GPU-a", 1: "1"}
    assert record.places["GPU-a"] == record.places["0"] == 0


def test_claims_are_read_as_they_are_written() -> None:
    claims = (Claim("a", ("GPU-1", "GPU-2"), 7), Claim("b", ("0/1g.10gb/3",), 9))
    assert read_claims(write_claims(claims[::-1])) == claims
    assert read_claims("nonsense;=1@2;x=@3;y=1@z;z=5@6") == (Claim("z", ("5",), 6),)


def test_of_two_pods_with_one_gpu_the_older_has_it() -> None:
    record = a_record(a_node("a"))
    old = facts(a_pod("old", 2, node="a", ids="0,1", created=1))
    new = facts(a_pod("new", 2, node="a", ids="1,2", created=2))
    held = assign(0, record, [new, old], ())
    assert held.takes[old.uid][0].gpu_mask == 0b11
    assert held.takes[new.uid][0].gpu_mask & 0b11 == 0
    assert held.disputed == (new.uid,)


def test_a_pod_without_annotation_is_taken_to_have_the_best_joined_gpus() -> None:
    record = a_record(a_node("a", topology="nvlink-cube-mesh-8"))
    held = assign(0, record, [facts(a_pod("x", 2, node="a"))], ())
    mask = held.takes["uid-x"][0].gpu_mask
    matrix = record.facts.topology
    assert matrix is not None
    low, high = (bit for bit in range(8) if mask >> bit & 1)
    assert matrix.nvlinks[low][high] == 2, "two links join it"


def test_what_is_claimed_is_taken_before_its_pod_is_seen() -> None:
    node = a_node("a", annotations={"gpuplane.io/gpu-claims": f"uid-x=0,1,2,3@{NOW + 60_000}"})
    asked = Asked(node)
    assert asked.filter(a_pod("y", 5))["NodeNames"] == []
    asked.now += 60_000
    assert asked.filter(a_pod("y", 5))["NodeNames"] == ["a"], "the claim ran out"


def test_what_was_claimed_for_a_pod_that_is_gone_is_free_at_once() -> None:
    node = a_node("a", annotations={"gpuplane.io/gpu-claims": f"uid-x=0,1,2,3@{NOW + 60_000}"})
    asked = Asked(node)
    asked.put(a_pod("x", 4, node="a"))
    assert asked.filter(a_pod("y", 5))["NodeNames"] == []
    asked.answerer.drop_pod("uid-x")
    assert asked.filter(a_pod("y", 5))["NodeNames"] == ["a"]


def test_what_is_no_fact_of_a_node_keeps_the_columns() -> None:
    asked = Asked(a_node("a"))
    asked.filter(a_pod("x"))
    before = asked.state.generation
    heartbeat = a_node("a")
    heartbeat["metadata"]["resourceVersion"] = "77"
    heartbeat["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    asked.state.put_node(a_record(heartbeat))
    asked.filter(a_pod("x"))
    assert asked.state.generation == before
    asked.state.put_node(a_record(a_node("a", labels={"new": "label"})))
    asked.filter(a_pod("x"))
    assert asked.state.generation == before + 1


def test_a_node_that_is_gone_is_no_candidate() -> None:
    asked = Asked(a_node("a"), a_node("b"))
    asked.put(a_pod("old", 8, node="b"))
    asked.state.drop_node("b")
    answer = asked.filter(a_pod("x", 8))
    assert answer["NodeNames"] == ["a"]
    assert json.dumps(answer["FailedNodes"]).startswith('{"b": "NodeNotReady')
