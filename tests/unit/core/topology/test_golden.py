"""The golden table of the topology score: one formula, worked by hand for each kind of pair.

    score = clamp(50 + bandwidth + latency + affinity, 50, top)

with the weights and tops of decision 0007. Whoever changes a number here changes what the
product prefers, and owes a new decision.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplane.core.topology.matrix import LinkMatrix, LinkPreference, PcieLink, matrix_from_rows
from gpuplane.core.topology.named import named_topology
from gpuplane.core.topology.scores import BASE_SCORE, compute_scores, compute_sums
from gpuplane.core.topology.tables import topology_class
from tests.unit.core.topology.matrices import bridged_pairs, nested_switches, nested_switches_16

NONE, NVLINK, NUMA, PCIE = LinkPreference

PAIRS: dict[str, tuple[str, tuple[int, int], dict[LinkPreference, int]]] = {
    "NVLink on one NUMA node": ("NV12/NODE", (0, 0), {NONE: 50, NVLINK: 100, NUMA: 90, PCIE: 72}),
    "NVLink across sockets": ("NV12/SYS", (0, 1), {NONE: 50, NVLINK: 100, NUMA: 70, PCIE: 50}),
    "NVLink below one switch": ("NV12/PIX", (0, 0), {NONE: 50, NVLINK: 100, NUMA: 90, PCIE: 80}),
    "one PCIe switch": ("PIX", (0, 0), {NONE: 50, NVLINK: 60, NUMA: 74, PCIE: 80}),
    "several PCIe switches": ("PXB", (0, 0), {NONE: 50, NVLINK: 58, NUMA: 73, PCIE: 78}),
    "one host bridge": ("PHB", (0, 0), {NONE: 50, NVLINK: 55, NUMA: 72, PCIE: 74}),
    "host bridges of one node": ("NODE", (0, 0), {NONE: 50, NVLINK: 53, NUMA: 71, PCIE: 72}),
    "across sockets": ("SYS", (0, 1), {NONE: 50, NVLINK: 50, NUMA: 50, PCIE: 50}),
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("preference", LinkPreference)
def test_a_pair_has_its_golden_score(kind: str, preference: LinkPreference) -> None:
    link, numa, expected = PAIRS[kind]
    matrix = matrix_from_rows([f"X {link}", f"{link} X"], numa)
    scores = topology_class(matrix).score_table(preference, required=False)
    assert scores[2, 0b11] == expected[preference]


BESIDE_NVLINK: dict[str, tuple[int, dict[LinkPreference, int]]] = {
    "NV18/SYS": (0, {NONE: 50, NVLINK: 100, NUMA: 90, PCIE: 70}),
    "NV9/SYS": (1, {NONE: 50, NVLINK: 75, NUMA: 60, PCIE: 50}),
    "NV5/SYS": (1, {NONE: 50, NVLINK: 64, NUMA: 56, PCIE: 50}),
    "NV1/NODE": (0, {NONE: 50, NVLINK: 53, NUMA: 71, PCIE: 72}),
    "PIX": (0, {NONE: 50, NVLINK: 50, NUMA: 70, PCIE: 80}),
    "SYS": (1, {NONE: 50, NVLINK: 50, NUMA: 50, PCIE: 50}),
}
"""A pair on a node where another has eighteen NVLinks: its link, its second GPU's NUMA node."""


@pytest.mark.parametrize("link", BESIDE_NVLINK)
def test_a_pair_on_a_node_with_nvlink_has_its_golden_score(link: str) -> None:
    numa, expected = BESIDE_NVLINK[link]
    rows = [f"X {link} SYS SYS", f"{link} X SYS SYS", "SYS SYS X NV18", "SYS SYS NV18 X"]
    entry = topology_class(matrix_from_rows(rows, [0, numa, 2, 3]))
    assert {p: entry.preference_score(0b11, p) for p in LinkPreference} == expected


TOPS = {NONE: 50, NVLINK: 100, NUMA: 90, PCIE: 80}


@pytest.mark.parametrize("preference", LinkPreference)
def test_a_single_gpu_has_the_top_of_its_range(preference: LinkPreference) -> None:
    for matrix in (named_topology("pcie-4", 4), named_topology("nvswitch-8", 8)):
        scores = topology_class(matrix).score_table(preference, required=False)
        assert scores[1, 1] == TOPS[preference]


WHOLE_NODE: dict[str, tuple[LinkMatrix, dict[LinkPreference, int]]] = {
    "nvswitch-8": (named_topology("nvswitch-8", 8), {NONE: 50, NVLINK: 100, NUMA: 79, PCIE: 59}),
    "nvswitch-16": (named_topology("nvswitch-16", 16), {NONE: 50, NVLINK: 100, NUMA: 79, PCIE: 60}),
    "nvlink-4": (named_topology("nvlink-4", 4), {NONE: 50, NVLINK: 100, NUMA: 70, PCIE: 50}),
    "nvl72-node-4": (
        named_topology("nvl72-node-4", 4),
        {NONE: 50, NVLINK: 100, NUMA: 77, PCIE: 57},
    ),
    "nvlink-cube-mesh-8": (
        named_topology("nvlink-cube-mesh-8", 8),
        {NONE: 50, NVLINK: 71, NUMA: 67, PCIE: 61},
    ),
    "nested switches": (nested_switches(), {NONE: 50, NVLINK: 54, NUMA: 60, PCIE: 62}),
    "nested switches, 16": (nested_switches_16(), {NONE: 50, NVLINK: 52, NUMA: 60, PCIE: 62}),
    "bridged pairs": (bridged_pairs(), {NONE: 50, NVLINK: 67, NUMA: 67, PCIE: 61}),
}


@pytest.mark.parametrize("name", WHOLE_NODE)
def test_a_whole_node_has_its_golden_scores(name: str) -> None:
    matrix, expected = WHOLE_NODE[name]
    entry = topology_class(matrix)
    every = (1 << matrix.gpu_count) - 1
    assert {p: entry.preference_score(every, p) for p in LinkPreference} == expected


def test_the_clamp_holds_whatever_the_sums_are() -> None:
    matrix = matrix_from_rows(["X PIX", "PIX X"], [0, 0])
    sums = compute_sums(matrix)
    for wild in (-10_000, 10_000):
        changed = replace(
            sums,
            bandwidth=sums.bandwidth + wild,
            latency=sums.latency + wild,
            affinity=sums.affinity + wild,
        )
        for preference in LinkPreference:
            score = int(compute_scores(changed, preference)[0b11])
            assert score == (BASE_SCORE if wild < 0 else TOPS[preference])


def test_a_closer_path_never_scores_less() -> None:
    for preference in LinkPreference:
        scores = []
        for path in PcieLink:
            rows = [f"X {path.name}", f"{path.name} X"]
            matrix = matrix_from_rows(rows, [0, 0])
            table = topology_class(matrix).score_table(preference, required=False)
            scores.append(int(table[2, 0b11]))
        assert scores == sorted(scores)
