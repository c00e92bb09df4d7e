"""The rig's nodes say what real clusters say, in words that the product's readers know."""

from __future__ import annotations

import re

import pytest

from gpuplane.core.topology.matrix import parse_topo_matrix
from gpuplane.kube.nodefacts import NodeKind, read_node
from rig.nodes import MACHINES, build_node, build_nodes, build_topology, gpu_ids, parse_nodes

LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")


@pytest.mark.parametrize("kind", MACHINES)
def test_every_label_is_one_that_an_api_server_takes(kind: str) -> None:
    labels = build_node(kind, "node-1")["metadata"]["labels"]
    refused = {name for name, value in labels.items() if not LABEL_VALUE.fullmatch(value)}
    assert refused == set()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("h100", (NodeKind.GPU, 8)),
        ("l4", (NodeKind.GPU, 4)),
        ("gaudi", (NodeKind.HPU, 8)),
        ("cpu", (NodeKind.WORKER, 0)),
    ],
)
def test_the_product_reads_kind_and_accelerators(kind: str, expected: tuple[NodeKind, int]) -> None:
    facts = read_node(build_node(kind, "node-1"))
    assert (facts.kind, len(facts.gpus)) == expected


def test_the_gpus_of_hamis_annotation_are_those_the_node_has() -> None:
    facts = read_node(build_node("a100", "node-1"))
    assert [gpu.gpu_id for gpu in facts.gpus] == gpu_ids("node-1", 8)
    assert gpu_ids("node-1", 8) != gpu_ids("node-2", 8)


def test_nodes_of_one_name_in_two_clusters_have_gpus_and_machines_of_their_own() -> None:
    one, other = (
        build_nodes([("a100", 1)], processes=False, cluster=cluster)[0]
        for cluster in ("manager", "worker-1")
    )
    gpus = [{gpu.gpu_id for gpu in read_node(node).gpus} for node in (one, other)]
    assert [len(ids) for ids in gpus] == [8, 8]
    assert gpus[0].isdisjoint(gpus[1])
    assert gpus[1] == set(gpu_ids("a100-1", 8, "worker-1"))
    infos = [node["status"]["nodeInfo"] for node in (one, other)]
    assert infos[0]["systemUUID"] != infos[1]["systemUUID"]


def test_a_gpu_that_is_cut_is_not_offered_whole() -> None:
    allocatable = build_node("a100-mig", "node-1")["status"]["allocatable"]
    assert allocatable["nvidia.com/gpu"] == "0"
    assert allocatable["nvidia.com/mig-1g.5gb"] == "16"


def test_a_process_node_is_none_that_kwok_takes() -> None:
    assert "kwok.x-k8s.io/node" in build_node("cpu", "one")["metadata"]["annotations"]
    process = build_node("cpu", "two", processes=True)["metadata"]
    assert "kwok.x-k8s.io/node" not in process["annotations"]
    assert process["labels"]["rig.gpuplane.io/kind"] == "process"


@pytest.mark.parametrize(("kind", "nvlinks"), [("h100", 18), ("a100", 12), ("v100", 1), ("l4", 0)])
def test_the_topology_text_has_the_links_of_the_machine(kind: str, nvlinks: int) -> None:
    matrix = parse_topo_matrix(build_topology(MACHINES[kind]))
    assert matrix.nvlinks[0][1] == nvlinks


def test_nodes_are_written_as_kinds_and_counts() -> None:
    assert parse_nodes("h100=2,cpu=1") == [("h100", 2), ("cpu", 1)]
    assert parse_nodes("") == []
    names = [node["metadata"]["name"] for node in build_nodes([("l4", 2)], processes=True)]
    assert names == ["process-l4-1", "process-l4-2"]


@pytest.mark.parametrize("text", ["b200=1", "h100", "h100=many"])
def test_other_writings_of_nodes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition("=")[0]):
        parse_nodes(text)
