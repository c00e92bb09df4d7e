"""How many GPUs a node has and why it is left out."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.operator.names import Vendor
from gpuplane.operator.rules.nodes import LeftOut, detect_gpus, find_reason, list_candidates
from gpuplane.operator.rules.seen import read_node
from tests.unit.operator.builders import a_node, a_workload, node_object


def test_allocatable_wins_over_capacity_and_labels_even_at_zero() -> None:
    item = node_object(gpus=8, labels={"nvidia.com/gpu.count": "4"})
    item["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    assert detect_gpus(read_node(item), Vendor.NVIDIA).total == 0


def test_capacity_counts_where_nothing_is_allocatable() -> None:
    item = node_object(gpus=8, labels={"nvidia.com/gpu.count": "4"})
    del item["status"]["allocatable"]["nvidia.com/gpu"]
    found = detect_gpus(read_node(item), Vendor.NVIDIA)
    assert (found.total, found.source) == (8, "capacity")


@pytest.mark.parametrize("label", ["nvidia.com/gpu", "nvidia.com/gpu.count"])
def test_labels_count_where_no_resource_is_reported(label: str) -> None:
    found = detect_gpus(a_node(gpus=None, labels={label: "4"}), Vendor.NVIDIA)
    assert (found.total, found.source) == (4, "labels")


def test_a_label_that_is_no_number_is_no_gpu() -> None:
    found = detect_gpus(a_node(gpus=None, labels={"nvidia.com/gpu": "present"}), Vendor.NVIDIA)
    assert (found.total, found.source) == (0, "none")


@pytest.mark.parametrize(
    ("vendor", "resource"),
    [
        (Vendor.AMD, "amd.com/gpu"),
        (Vendor.INTEL, "gpu.intel.com/i915"),
        (Vendor.INTEL, "gpu.intel.com/xe"),
        (Vendor.GAUDI, "habana.ai/gaudi"),
    ],
)
def test_the_gpus_of_other_makers_are_found_under_their_resource(
    vendor: Vendor, resource: str
) -> None:
    node = a_node(gpus=8, resource=resource)
    found = detect_gpus(node, vendor)
    assert (found.resource, found.total) == (resource, 8)
    assert detect_gpus(node, Vendor.NVIDIA).total == 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"ready": False}, LeftOut.NOT_READY),
        ({"cordoned": True}, LeftOut.UNSCHEDULABLE),
        ({"taints": [{"key": "team", "effect": "NoSchedule"}]}, LeftOut.TAINTED),
        ({"gpus": 0}, LeftOut.NO_GPUS),
        ({"gpus": 1}, LeftOut.TOO_SMALL),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, None),
        ({"taints": [{"key": "team", "effect": "PreferNoSchedule"}]}, None),
    ],
)
def test_a_node_is_left_out_for_its_first_reason(
    more: dict[str, Any], reason: LeftOut | None
) -> None:
    node = a_node(**{"gpus": 8, **more})
    assert find_reason(node, a_workload(), free=8) is reason


def test_gpu_memory_is_that_of_the_nodes_label() -> None:
    node = a_node(labels={"nvidia.com/gpu.memory": "40960"})
    assert find_reason(node, a_workload(gpuMemoryMiB=40960), free=8) is None
    assert find_reason(node, a_workload(gpuMemoryMiB=40961), free=8) is LeftOut.GPU_MEMORY
    assert find_reason(a_node(), a_workload(gpuMemoryMiB=1), free=8) is LeftOut.GPU_MEMORY


def test_what_is_given_away_is_not_free_and_the_sentence_counts_the_reasons() -> None:
    nodes = [a_node("a"), a_node("b"), a_node("c", ready=False), a_node("d", gpus=None)]
    choice = list_candidates(nodes, a_workload(gpuCount=4), {"a": 5, "b": 8})
    assert choice.candidates == ()
    assert choice.sentence(a_workload(gpuCount=4)) == (
        "no node has 4 free nvidia GPUs: 1 without such GPUs, 1 not ready, "
        "2 with too few GPUs free; at most 3 are free on one node"
    )


def test_which_gpus_are_free_is_known_only_where_all_busy_ones_are_named() -> None:
    workload = a_workload(gpuCount=2)
    named = list_candidates([a_node("a")], workload, {"a": 2}, {"a": ("0", "3")})
    assert named.candidates[0].free_mask == 0b11110110
    unnamed = list_candidates([a_node("a")], workload, {"a": 2}, {"a": ("0",)})
    assert unnamed.candidates[0].free_mask is None
