"""The hierarchy of a cluster: every level in its place, none that nobody named."""

from __future__ import annotations

import csv
import random

import pytest

from gpuplane.core.fleet.hierarchy import (
    Branch,
    GpuPlace,
    HierarchyLevel,
    NodePlace,
    compute_hierarchy,
)
from gpuplane.core.topology.matrix import matrix_from_rows
from gpuplane.core.topology.named import named_topology
from tests.unit.core.topology.matrices import data_folder, nested_switches

L = HierarchyLevel


def gpus(count: int, model: str = "h100") -> tuple[GpuPlace, ...]:
    return tuple(GpuPlace(index, model) for index in range(count))


def lines(branch: Branch, depth: int = 0) -> list[str]:
    return [
        f"{'  ' * depth}{branch.level.value} {branch.name}",
        *(line for child in branch.children for line in lines(child, depth + 1)),
    ]


def test_every_level_stands_in_its_place() -> None:
    cut = (GpuPlace(0, "a100", (("3g.40gb", 4), ("1g.10gb", 0))), *gpus(8)[1:])
    node = NodePlace("n1", cut, "b1", "r1", "", nested_switches())
    assert lines(compute_hierarchy("east", [node])) == [
        "cluster east",
        "  block b1",
        "    rack r1",
        "      node n1",
        "        numa 0",
        "          gpu 0",
        "            mig 1g.10gb@0",
        "            mig 3g.40gb@4",
        "          gpu 1",
        "          gpu 2",
        "          gpu 3",
        "        numa 1",
        "          gpu 4",
        "          gpu 5",
        "          gpu 6",
        "          gpu 7",
    ]


def test_an_nvl72_rack_is_one_clique_of_eighteen_nodes_and_72_gpus() -> None:
    matrix = named_topology("nvl72-node-4", 4)
    nodes = [
        NodePlace(f"tray-{n:02}", gpus(4), rack="nvl72", clique="c.1", matrix=matrix)
        for n in range(18)
    ]
    tree = compute_hierarchy("east", nodes)
    counts = [tree.count(level) for level in (L.RACK, L.CLIQUE, L.NODE, L.GPU)]
    assert counts == [1, 1, 18, 72]
    tray = tree.children[0].children[0].children[0]
    assert tray.note == "NVSwitch, 2 NUMA nodes with GPUs"


def test_levels_that_nobody_named_are_left_out() -> None:
    plain = NodePlace("plain", gpus(2))
    racked = NodePlace("racked", gpus(1), rack="r1")
    tree = compute_hierarchy("east", [plain, racked])
    assert lines(tree) == [
        "cluster east",
        "  rack r1",
        "    node racked",
        "      gpu 0",
        "  node plain",
        "    gpu 0",
        "    gpu 1",
    ]
    assert lines(compute_hierarchy("empty", [])) == ["cluster empty"]


def test_switches_below_one_socket_are_told_apart() -> None:
    # Pairs on switches of their own, all on one NUMA node: there is no NUMA level to show.
    rows = ["X PIX PHB PHB", "PIX X PHB PHB", "PHB PHB X PIX", "PHB PHB PIX X"]
    node = NodePlace("n", gpus(4), matrix=matrix_from_rows(rows, [0] * 4))
    assert lines(compute_hierarchy("c", [node])) == [
        "cluster c",
        "  node n",
        "    pcie_switch 0",
        "      gpu 0",
        "      gpu 1",
        "    pcie_switch 1",
        "      gpu 2",
        "      gpu 3",
    ]


def test_a_matrix_that_says_nothing_of_a_gpu_is_not_used() -> None:
    node = NodePlace("n", gpus(5), matrix=named_topology("nvlink-4", 4))
    tree = compute_hierarchy("c", [node])
    assert tree.children[0].note == ""
    assert tree.count(L.GPU) == 5


def test_the_order_of_nodes_does_not_matter() -> None:
    nodes = [NodePlace(f"n{i}", gpus(i % 3), f"b{i % 2}", f"r{i % 4}") for i in range(12)]
    turned = nodes.copy()
    random.Random(1).shuffle(turned)
    assert compute_hierarchy("c", turned) == compute_hierarchy("c", nodes)


def test_a_real_cluster_of_847_hosts_is_one_tree() -> None:
    folder = data_folder()
    if folder is None:
        pytest.skip("no real topology listings here (set GPUPLANE_DATA)")
    with (folder / "topology" / "lingjun2023_clos_hosts.csv").open(newline="") as rows:
        hosts = list(csv.DictReader(line for line in rows if not line.startswith("#")))
    # An access switch is wired to several of the layer above: it is inside none of them.
    nodes = [NodePlace(host["ip"], gpus(8), host["DSW"], host["ASW"]) for host in hosts]
    tree = compute_hierarchy("lingjun", nodes)
    counts = [tree.count(level) for level in (L.BLOCK, L.RACK, L.NODE, L.GPU)]
    assert counts == [1, 48, 847, 8 * 847]
