"""What a Kubernetes node says is read the same by everybody who needs it."""

import json
from typing import Any

import pytest

from gpuplane.backends.kubernetes.inventory import observe_node
from gpuplane.core.quantities import BadQuantity, mib_of, milli_of, parse_quantity
from gpuplane.kube.nodefacts import NodeFacts, NodeKind, read_node

NFD = "feature.node.kubernetes.io/"
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "posting"}


def a_node(
    labels: dict[str, str] | None = None,
    offers: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **status: object,
) -> dict[str, Any]:
    """Return a Node as the API has it."""
    amounts = {"cpu": "96", "memory": "1056Gi", "ephemeral-storage": "900Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n1",
            "uid": "0b1c",
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {},
        "status": {
            "capacity": {**amounts, **(offers or {})},
            "allocatable": {**amounts, **(offers or {})},
            "conditions": [READY],
            **status,
        },
    }


def h100() -> NodeFacts:
    """Return the facts of a node as GPU feature discovery describes one of eight H100s."""
    labels = {
        f"{NFD}pci-10de.present": "true",
        f"{NFD}cpu-hardware_multithreading": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.clique": "7b968a6d.1",
        "nvidia.com/cuda.driver-version.full": "570.124.06",
        "nvidia.com/cuda.runtime-version.full": "12.8",
    }
    return read_node(a_node(labels, {"nvidia.com/gpu": "8"}))


def test_gpu_feature_discovery_is_believed_first() -> None:
    facts = h100()
    assert (facts.kind, facts.detection_method, facts.ready) == (
        NodeKind.GPU, "gpu-feature-discovery", True,
    )  # fmt: skip
    assert [gpu.index for gpu in facts.gpus] == list(range(8))
    assert {(gpu.model, gpu.memory_mib) for gpu in facts.gpus} == {("nvidia-h100-80gb", 81559)}
    assert len({gpu.gpu_id for gpu in facts.gpus}) == 8
    assert (facts.threads_per_core, facts.core_count) == (2, 48)
    assert facts.driver == {"version": "570.124.06", "cuda": "12.8"}
    assert (facts.cpu_milli, facts.memory_mib) == (96_000, 1056 * 1024)
    assert facts.hardware["clique"] == "7b968a6d.1"


def test_equal_nodes_give_equal_facts_whatever_the_order_of_their_labels() -> None:
    node = a_node({"b": "1", "a": "2", "nvidia.com/gpu.product": "NVIDIA-L4"}, {"x": "1"})
    turned = json.loads(json.dumps(node, sort_keys=True))
    turned["metadata"]["labels"] = dict(reversed(list(node["metadata"]["labels"].items())))
    assert read_node(node) == read_node(turned)


@pytest.mark.parametrize(
    ("labels", "offers", "vendor", "model", "method", "count"),
    [
        ({f"{NFD}pci-0302_10de_2330.present": "true"}, {"nvidia.com/gpu": "8"}, "nvidia",
         "nvidia-h100-80gb", "nfd-pci", 8),
        ({f"{NFD}pci-10de-20b5.present": "true"}, {"nvidia.com/gpu": "2"}, "nvidia",
         "nvidia-a100-80gb-pcie", "nfd-pci", 2),
        ({f"{NFD}pci-1200_1da3_1020.present": "true"}, {"habana.ai/gaudi": "8"}, "habana",
         "intel-gaudi2", "nfd-pci", 8),
        ({f"{NFD}pci-1200_8086.present": "true"}, {}, "habana", "habana-gaudi", "nfd-pci", 0),
        ({f"{NFD}pci-1200_1002_74a1.present": "true"}, {"amd.com/gpu": "8"}, "amd",
         "amd-mi300x", "nfd-pci", 8),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, {"nvidia.com/gpu": "4"}, "nvidia",
         "nvidia-t4", "cloud-label", 4),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, {"nvidia.com/gpu": "8"}, "nvidia",
         "nvidia-h100-80gb", "instance-type", 8),
        ({"node.kubernetes.io/instance-type": "g5.12xlarge"}, {}, "nvidia",
         "nvidia-a10g", "instance-type", 4),
        ({"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}, {"nvidia.com/gpu": "8"},
         "nvidia", "nvidia-h100-80gb", "instance-type", 8),
        ({}, {"nvidia.com/gpu": "3"}, "nvidia", "nvidia-gpu", "capacity", 3),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X", "amd.com/gpu.vram": "192G"},
         {"amd.com/gpu": "8"}, "amd", "amd-mi300x", "vendor-labels", 8),
    ],
)  # fmt: skip
def test_each_trace_is_used_where_no_better_one_is(
    labels: dict[str, str],
    offers: dict[str, str],
    vendor: str,
    model: str,
    method: str,
    count: int,
) -> None:
    found = read_node(a_node(labels, offers)).accelerators
    seen = (found.vendor, found.method, len(found.gpus), {gpu.model for gpu in found.gpus})
    assert seen == (vendor, method, count, {model} if count else set())


def test_an_intel_or_amd_display_is_no_accelerator() -> None:
    labels = {f"{NFD}pci-0300_8086.present": "true", f"{NFD}pci-0300_1002.present": "true"}
    facts = read_node(a_node(labels))
    assert (facts.kind, facts.detection_method, facts.gpus) == (NodeKind.WORKER, "nfd", ())


def test_a_node_without_any_trace_is_counted_by_its_capacity() -> None:
    facts = read_node(a_node())
    assert (facts.kind, facts.detection_method, facts.nfd_detected) == (
        NodeKind.WORKER, "capacity", False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "register",
    [
        (
            "GPU-a1,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
            "GPU-b2,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,1,false:"
        ),
        (
            '[{"id": "GPU-a1", "count": 10, "devmem": 32768, "devcore": 100, "numa": 0,'
            ' "type": "NVIDIA-Tesla V100-PCIE-32GB", "health": true},'
            '{"id": "GPU-b2", "count": 10, "devmem": 32768, "devcore": 100, "numa": 1,'
            ' "type": "NVIDIA-Tesla V100-PCIE-32GB", "health": false}]'
        ),
    ],
)
def test_hami_tells_uuid_memory_numa_and_health_in_both_its_forms(register: str) -> None:
    node = a_node({}, {"nvidia.com/gpu": "20"}, {"hami.io/node-nvidia-register": register})
    found = read_node(node).accelerators
    assert (found.method, found.shares) == ("hami", 10)
    assert [(g.gpu_id, g.model, g.memory_mib, g.numa, g.healthy) for g in found.gpus] == [
        ("GPU-a1", "nvidia-v100-32gb-pcie", 32768, 0, True),
        ("GPU-b2", "nvidia-v100-32gb-pcie", 32768, 1, False),
    ]


@pytest.mark.parametrize("register", ["[", "a,b,c,d,e,f,g:", '[{"id": 1}]', "[1]", ":::"])
def test_a_broken_register_is_as_if_there_were_none(register: str) -> None:
    node = a_node({}, {"nvidia.com/gpu": "2"}, {"hami.io/node-nvidia-register": register})
    assert read_node(node).detection_method == "capacity"


def test_time_slices_are_shares_of_fewer_devices() -> None:
    labels = {
        "nvidia.com/gpu.product": "Tesla-T4-SHARED",
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.count": "2",
    }
    found = read_node(a_node(labels, {"nvidia.com/gpu": "8"})).accelerators
    assert (len(found.gpus), found.shares, found.gpus[0].model) == (2, 4, "nvidia-t4")


def test_mig_instances_are_told_by_profile() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
    found = read_node(a_node(labels, {"nvidia.com/mig-1g.10gb": "7"})).accelerators
    assert (found.mig, len(found.gpus)) == ({"1g.10gb": 7}, 1)


def test_a_node_with_whole_and_cut_gpus_has_both() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8"}
    offered = {"nvidia.com/gpu": "6", "nvidia.com/mig-3g.40gb": "4"}
    found = read_node(a_node(labels, offered)).accelerators
    assert (len(found.gpus), found.cut, all(gpu.healthy for gpu in found.gpus)) == (8, 2, True)
    del labels["nvidia.com/gpu.count"]
    assert len(read_node(a_node(labels, offered)).gpus) == 8


def test_which_gpu_has_which_instance_is_laid_out_by_the_counts_of_a_node() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "3"}
    offered = {"nvidia.com/gpu": "1", "nvidia.com/mig-3g.40gb": "4"}
    gpus = observe_node(read_node(a_node(labels, offered))).gpus
    assert [gpu.mig_enabled for gpu in gpus] == [False, True, True]
    halves = (("3g.40gb", 0), ("3g.40gb", 4))
    assert [gpu.mig_instances for gpu in gpus] == [(), halves, halves]


def test_a_device_that_the_plugin_does_not_offer_is_not_healthy() -> None:
    node = a_node({"nvidia.com/gpu.product": "NVIDIA-L4"}, {"nvidia.com/gpu": "4"})
    node["status"]["allocatable"]["nvidia.com/gpu"] = "3"
    gpus = read_node(node).gpus
    assert [gpu.healthy for gpu in gpus] == [True, True, True, False]
    assert "3 of 4" in gpus[3].message


def test_devices_that_no_plugin_offers_are_said_and_not_counted_as_free() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.count": "2"}
    facts = read_node(a_node(labels))
    assert [gpu.healthy for gpu in facts.gpus] == [False, False]
    assert "no device plugin offers nvidia.com/gpu" in facts.message


def test_a_node_of_the_control_plane_is_a_master_with_its_taint() -> None:
    node = a_node({"node-role.kubernetes.io/control-plane": ""}, {"nvidia.com/gpu": "1"})
    node["spec"] = {
        "unschedulable": True,
        "taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}],
    }
    facts = read_node(node)
    assert (facts.kind, facts.is_control_plane, facts.unschedulable) == (
        NodeKind.MASTER, True, True,
    )  # fmt: skip
    assert facts.taints == (("node-role.kubernetes.io/control-plane", "", "NoSchedule"),)


def test_why_a_node_is_not_ready_comes_from_its_condition() -> None:
    condition = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
    }
    facts = read_node(a_node(conditions=[condition]))
    assert not facts.ready
    assert facts.message == "NodeStatusUnknown: Kubelet stopped posting node status."
    assert not read_node(a_node(conditions=[])).ready


def test_racks_blocks_and_topology_come_from_their_labels() -> None:
    labels = {
        "cloud.provider.com/topology-rack": "r7",
        "cloud.provider.com/topology-block": "b2",
        "gpuplane.io/topology": "dgx-a100",
    }
    facts = read_node(a_node(labels, annotations={"gpuplane.io/topology": "GPU0 X"}))
    assert (facts.rack, facts.block, facts.topology) == ("r7", "b2", "GPU0 X")


@pytest.mark.parametrize("odd", [{}, {"metadata": None}, {"status": {"capacity": {"cpu": "?"}}}])
def test_an_odd_node_is_read_as_far_as_it_goes(odd: dict[str, object]) -> None:
    facts = read_node(odd)
    assert (facts.ready, facts.cpu_milli, facts.gpus) == (False, 0, ())


@pytest.mark.parametrize(
    ("text", "milli"),
    [("96", 96_000), ("500m", 500), ("0.1", 100), ("1e3", 1_000_000), ("1k", 1_000_000), (4, 4000)],
)
def test_quantities_are_exact(text: object, milli: int) -> None:
    assert milli_of(text) == milli


def test_bytes_are_rounded_down_to_whole_mib() -> None:
    assert (mib_of("1Gi"), mib_of("1048577"), mib_of("1G")) == (1024, 1, 953)


@pytest.mark.parametrize("bad", ["", "x", "1Q", "--1", None, True, "1 Gi", "NaN", "1e999"])
def test_what_is_no_quantity_is_refused(bad: object) -> None:
    with pytest.raises(BadQuantity, match="not a Kubernetes quantity"):
        parse_quantity(bad)
