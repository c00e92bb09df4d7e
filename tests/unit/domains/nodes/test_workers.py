"""The places for work on a node: all, those in use, and those that new work may have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from gpuplane.core.ids import ClusterId, GpuId, NodeId
from gpuplane.core.nodedetails import NodeDetails
from gpuplane.domains.nodes.rules import (
    USED_LATE_MS,
    Gpu,
    Held,
    Node,
    Workers,
    compute_used_percent,
    compute_workers,
)

NODE, CLUSTER = NodeId(UUID(int=1)), ClusterId(UUID(int=2))
NOW = 1_000_000_000


def a_gpu(index: int, **more: Any) -> Gpu:
    values: dict[str, Any] = {
        "gpu_id": GpuId(f"GPU-{index}"), "node_id": NODE, "cluster_id": CLUSTER,
        "gpu_index": index, "model": "nvidia-a100-80gb", "product": "A100", "memory_mib": 81_920,
        "healthy": True, "present": True, "message": "", "numa": None, "mig_enabled": False,
        "mig_instances": (), **more,
    }  # fmt: skip
    return Gpu(**values)


def a_node(gpus: int = 4, **more: Any) -> Node:
    """Return a node that is ready, with GPUs that nobody uses."""
    values: dict[str, Any] = {
        "id": NODE, "cluster_id": CLUSTER, "name": "n1", "ready": True, "message": "",
        "present": True, "cordoned": False, "drain_started_at": None, "drain_wait_s": None,
        "cpu_milli": 8_000, "memory_mib": 8_192, "ephemeral_mib": 0, "labels": {}, "taints": (),
        "topology": None, "rack": "", "block": "", "rdma_fabric": "", "created_at": 0,
        "updated_at": 0, "version": 1, "gpus": tuple(a_gpu(index) for index in range(gpus)), **more,
    }  # fmt: skip
    return Node(**values)


def workers(node: Node, held: Held | None = None, threshold: int = 80) -> Workers:
    return compute_workers(node, held or Held(), threshold_percent=threshold, now=NOW)


def test_devices_are_places_and_a_node_without_is_one() -> None:
    assert workers(a_node()) == Workers(4, 0, 4)
    assert workers(a_node(0)) == Workers(1, 0, 1)


def test_a_device_that_work_holds_whole_is_used_and_not_available() -> None:
    assert workers(a_node(), Held(gpus={"GPU-0": 1000, "GPU-3": 1000})) == Workers(4, 2, 2)


@pytest.mark.parametrize(("milli", "available"), [(0, 1), (1, 1), (790, 1), (791, 0), (800, 0)])
def test_a_shared_device_is_available_below_the_threshold(milli: int, available: int) -> None:
    found = workers(a_node(1), Held(gpus={"GPU-0": milli}))
    assert found == Workers(1, int(milli > 0), available)


def test_the_threshold_is_the_one_that_is_set() -> None:
    held = Held(gpus={"GPU-0": 500})
    assert workers(a_node(1), held, 50).available == 0
    assert workers(a_node(1), held, 51).available == 1


def test_what_the_cluster_tells_of_others_counts_as_long_as_it_is_fresh() -> None:
    gpu = a_gpu(0, used_percent=90, used_at=NOW - USED_LATE_MS)
    assert workers(replace(a_node(1), gpus=(gpu,))) == Workers(1, 1, 0)
    old = replace(gpu, used_at=NOW - USED_LATE_MS - 1)
    assert workers(replace(a_node(1), gpus=(old,))) == Workers(1, 0, 1)


def test_the_greater_of_what_is_held_here_and_what_is_told_counts() -> None:
    gpu = a_gpu(0, used_percent=30, used_at=NOW)
    assert compute_used_percent(gpu, Held(gpus={"GPU-0": 500}), NOW) == 50
    assert compute_used_percent(gpu, Held(gpus={"GPU-0": 100}), NOW) == 30


def test_a_device_that_is_cut_is_as_full_as_its_instances() -> None:
    cut = a_gpu(0, mig_enabled=True, mig_instances=(("3g.40gb", 0), ("3g.40gb", 4)))
    node = replace(a_node(1), gpus=(cut,))
    assert workers(node, Held(mig={"GPU-0": 1})) == Workers(1, 1, 1)
    assert workers(node, Held(mig={"GPU-0": 2})) == Workers(1, 1, 0)


def test_a_device_that_is_ill_gone_or_kept_for_a_reservation_is_not_available() -> None:
    gpus = (a_gpu(0, healthy=False), a_gpu(1, present=False), a_gpu(2), a_gpu(3))
    node = replace(a_node(), gpus=gpus)
    assert workers(node, Held(kept=frozenset({"GPU-2"}))) == Workers(3, 0, 1)


@pytest.mark.parametrize(
    "node",
    [
        a_node(ready=False),
        a_node(cordoned=True),
        a_node(present=False),
        a_node(details=NodeDetails(unschedulable=True)),
    ],
    ids=["not ready", "cordoned here", "gone", "cordoned there"],
)
def test_nothing_of_a_node_that_takes_no_work_is_available(node: Node) -> None:
    assert workers(node, Held(gpus={"GPU-0": 1000})) == Workers(4, 1, 0)


def test_a_node_of_the_control_plane_that_does_not_count_has_no_places() -> None:
    assert workers(a_node(details=NodeDetails(is_counted=False))) == Workers(0, 0, 0)


def test_a_node_without_devices_is_used_by_any_work_and_full_at_the_threshold() -> None:
    assert workers(a_node(0), Held(nodes={NODE: 1})) == Workers(1, 1, 1)
    assert workers(a_node(0), Held(nodes={NODE: 80})) == Workers(1, 1, 0)
