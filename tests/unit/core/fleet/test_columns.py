"""The fleet's columns: what is free, exactly, and back again."""

from __future__ import annotations

import pytest

from gpuplane.core.fleet.columns import Fleet, Take
from gpuplane.core.fleet.facts import Allocation, MigPlacement
from gpuplane.core.ids import GpuId, JobId, NodeId
from gpuplane.core.topology.named import named_topology
from tests.builders import CLUSTER, a_fleet, a_node, an_id

JOB = JobId(an_id("job/one"))


def take(node: int = 0, mask: int = 0, milli: int = 1000, cpu: int = 0) -> Take:
    return Take(node, mask, milli, cpu, 0, 0)


def test_an_empty_fleet_has_every_usable_gpu_free() -> None:
    fleet = a_fleet(a_node("a", 8), a_node("b", 4, unhealthy=(0,)))
    assert fleet.gpu_free_mask.tolist() == [0b1111_1111, 0b1110]
    assert fleet.gpu_free_milli[:, 1].tolist() == [0, 1000, 1000, 1000, 0, 0, 0, 0]


def test_nodes_stand_in_the_order_of_their_names() -> None:
    fleet = a_fleet(a_node("b"), a_node("a"))
    assert [node.name for node in fleet.nodes] == ["a", "b"]


def test_a_share_leaves_the_rest_of_the_gpu_free_but_not_wholly() -> None:
    fleet = a_fleet(a_node("a", 2))
    fleet.allocate(take(mask=0b01, milli=300, cpu=500))
    assert fleet.gpu_free_milli[:, 0].tolist() == [700, 1000]
    assert fleet.gpu_free_mask[0] == 0b10
    assert fleet.cpu_free[0] == fleet.cpu_total[0] - 500


def test_rollback_restores_exactly_what_was() -> None:
    fleet = a_fleet(a_node("a", 4, mig={3: (("1g.10gb", 0), ("1g.10gb", 1))}))
    fleet.allocate(take(mask=0b001, milli=400))
    before = [fleet.gpu_free_milli.copy(), fleet.gpu_free_mask.copy(), fleet.cpu_free.copy()]
    mark = fleet.checkpoint()
    fleet.allocate(take(mask=0b110, cpu=1000))
    fleet.release(take(mask=0b001, milli=400))
    fleet.allocate(Take(0, 0, 1000, 0, 0, 0, (3, "1g.10gb", 1)))
    fleet.rollback(mark)
    after = [fleet.gpu_free_milli, fleet.gpu_free_mask, fleet.cpu_free]
    assert all((one == other).all() for one, other in zip(before, after, strict=True))
    assert fleet.mig_free["1g.10gb"][3, 0] == 0b11


def test_a_gpu_is_never_sold_twice() -> None:
    fleet = a_fleet(a_node("a", 2))
    fleet.allocate(take(mask=0b01, milli=600))
    with pytest.raises(ValueError, match="GPU 0 has 400 milli free, 600 asked"):
        fleet.allocate(take(mask=0b01, milli=600))


def test_a_gpu_is_never_given_back_twice() -> None:
    fleet = a_fleet(a_node("a", 2))
    with pytest.raises(ValueError, match="GPU 1 is free already"):
        fleet.release(take(mask=0b10))


def test_a_mig_instance_is_held_by_one_at_a_time() -> None:
    node = a_node("a", 1, mig={0: (("3g.40gb", 4),)})
    placement = MigPlacement(node.gpus[0].gpu_id, "3g.40gb", 4)
    held = Allocation(JOB, node.node_id, gpu_ids=(node.gpus[0].gpu_id,), mig=placement)
    fleet = a_fleet(node, allocations=[held])
    assert fleet.mig_free["3g.40gb"][0, 0] == 0
    with pytest.raises(ValueError, match="is not free"):
        fleet.allocate(fleet.take_of(held))


def test_a_gpu_in_mig_mode_is_not_given_out_whole() -> None:
    fleet = a_fleet(a_node("a", 2, mig={0: (("1g.10gb", 0),)}))
    assert fleet.gpu_free_mask[0] == 0b10


def test_an_allocation_on_a_failed_gpu_keeps_nothing_else_from_being_counted() -> None:
    node = a_node("a", 2, unhealthy=(0,))
    held = Allocation(JOB, node.node_id, gpu_ids=(node.gpus[0].gpu_id,), cpu_milli=700)
    fleet = a_fleet(node, allocations=[held])
    assert fleet.gpu_free_mask[0] == 0b10
    fleet.release(fleet.take_of(held))
    assert fleet.gpu_free_mask[0] == 0b10
    assert fleet.cpu_free[0] == fleet.cpu_total[0]


def test_an_allocation_must_name_a_node_of_the_fleet_and_its_own_gpus() -> None:
    fleet = a_fleet(a_node("a", 1), a_node("b", 1))
    with pytest.raises(ValueError, match="there is no node"):
        fleet.take_of(Allocation(JOB, NodeId(an_id("elsewhere"))))
    other = fleet.nodes[1].gpus[0].gpu_id
    with pytest.raises(ValueError, match="is not on a"):
        fleet.take_of(Allocation(JOB, fleet.nodes[0].node_id, gpu_ids=(other,)))


def test_devices_that_are_gone_hold_nothing() -> None:
    node = a_node("a", 2, mig={1: (("1g.10gb", 0),)})
    gone = MigPlacement(node.gpus[1].gpu_id, "2g.20gb", 0)
    held = [
        Allocation(JOB, node.node_id, gpu_ids=(GpuId("GPU-gone"),), cpu_milli=500),
        Allocation(JOB, node.node_id, gpu_ids=(node.gpus[1].gpu_id,), mig=gone),
    ]
    fleet = a_fleet(node, allocations=held)
    assert fleet.gpu_free_mask[0] == 0b01
    assert fleet.cpu_free[0] == fleet.cpu_total[0] - 500


def test_a_node_is_given_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Fleet.from_nodes(CLUSTER, [a_node("a"), a_node("a")])


def test_links_of_a_matrix_that_is_too_small_count_as_unknown() -> None:
    small = a_node("a", 8, topology=named_topology("pcie", 4))
    fleet = a_fleet(small, a_node("b", 8, topology=named_topology("nvswitch-8", 8)))
    assert fleet.topology_index.tolist() == [-1, 0]
