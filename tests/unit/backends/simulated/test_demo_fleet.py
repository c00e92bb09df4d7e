"""The fleet that every installation brings along, and the places it is found in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from gpuplane.backends.simulated import load_demo_fleet, load_fleet
from gpuplane.core.mig.layouts import layout_of
from gpuplane.core.mig.profiles import find_table

ROOT = Path(__file__).parents[4]


def test_it_has_the_nodes_that_the_product_promises() -> None:
    fleet = load_demo_fleet()
    shape = Counter((len(node.gpus), node.gpus[0].model, node.topology) for node in fleet.nodes)
    assert shape == {
        (8, "nvidia-h100-80gb", "nvswitch-8"): 8,
        (8, "nvidia-a100-80gb", "nvswitch-8"): 4,
        (8, "nvidia-v100-32gb", "nvlink-cube-mesh-8"): 2,
        (4, "nvidia-l4", "pcie-4"): 4,
        (4, "nvidia-t4", "pcie-4"): 2,
    }
    assert fleet.gpu_count == 136


def test_its_h100_lie_in_two_racks_of_four() -> None:
    nodes = [node for node in load_demo_fleet().nodes if node.name.startswith("h100-")]
    assert Counter(node.rack for node in nodes) == {"rack-a1": 4, "rack-a2": 4}
    assert {node.rdma_fabric for node in nodes} == {"ib-a"}


def test_two_of_its_a100_nodes_are_cut_into_mig_instances_that_can_exist() -> None:
    fleet = load_demo_fleet()
    cut = [node for node in fleet.nodes if any(gpu.mig for gpu in node.gpus)]
    assert [node.name for node in cut] == ["a100-03", "a100-04"]
    table = find_table("nvidia-a100-80gb")
    assert table is not None
    for gpu in cut[0].gpus:
        assert len(layout_of(table, gpu.mig).instances) == len(gpu.mig)


def test_each_of_its_models_has_a_price() -> None:
    fleet = load_demo_fleet()
    models = {gpu.model for node in fleet.nodes for gpu in node.gpus}
    assert set(fleet.prices.gpu_hour_micro) == models
    assert fleet.prices.gpu_hour_micro["nvidia-h100-80gb"] == 2_990_000
    assert min(fleet.prices.gpu_hour_micro.values()) > 0
    assert fleet.prices.currency == "USD"


def test_its_gpus_have_the_same_ids_in_every_run() -> None:
    fleet = load_demo_fleet()
    ids = [gpu.gpu_id for node in fleet.nodes for gpu in node.gpus]
    assert len(set(ids)) == len(ids)
    assert ids[0] == "GPU-2a9007aa-0883-5f6d-bf07-358fc0112dce"
    assert ids == [gpu.gpu_id for node in load_demo_fleet().nodes for gpu in node.gpus]


def test_the_installed_file_is_the_example() -> None:
    assert load_fleet(ROOT / "examples" / "fleets" / "demo.yaml") == load_demo_fleet()
